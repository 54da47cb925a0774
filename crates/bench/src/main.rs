//! `tortie-bench [SUITE]...`: compares Tortie with other implementations. Runs every suite if none is named. A name
//! selects all suites with that prefix: `bgp` selects `bgp-receive` and the others.

mod api;
mod bgp;
mod cni;
mod compute;
mod control;
mod heap;
mod hub;
mod ipam;
mod kubernetes;
mod measure;
mod memory;
mod model;
mod namespace;
mod node;
mod policy;
mod process;
mod routes;
mod store;
mod tunnels;

use std::error::Error;
use std::process::ExitCode;

type Outcome = Result<(), Box<dyn Error>>;

/// Converts an error that is `Send + Sync` to one that is not.
fn plain(error: Box<dyn Error + Send + Sync>) -> Box<dyn Error> {
    error
}

struct Suite {
    name: &'static str,
    run: fn() -> Outcome,
}

const SUITES: [Suite; 24] = [
    Suite { name: "model", run: model::run },
    Suite { name: "store", run: store::run },
    Suite { name: "ipam", run: ipam::run },
    Suite { name: "routes", run: routes::run },
    Suite { name: "tunnels-programming", run: tunnels::programming },
    Suite { name: "tunnels-traffic", run: tunnels::traffic },
    Suite { name: "cni", run: cni::run },
    Suite { name: "memory", run: memory::run },
    Suite { name: "compute", run: compute::run },
    Suite { name: "bgp-receive", run: || bgp::run(bgp::receive) },
    Suite { name: "bgp-kernel", run: || bgp::run(bgp::kernel) },
    Suite { name: "bgp-reflect", run: || bgp::run(bgp::reflect) },
    Suite { name: "bgp-flap", run: || bgp::run(bgp::flap) },
    Suite { name: "bgp-mesh", run: || bgp::run(bgp::mesh) },
    Suite { name: "policy-updates", run: policy::updates },
    Suite { name: "policy-start", run: policy::start },
    Suite { name: "policy-packets", run: policy::packets },
    Suite { name: "hub", run: hub::run },
    Suite { name: "kube-start", run: kubernetes::run },
    Suite { name: "kube-add", run: kubernetes::add },
    Suite { name: "control", run: control::run },
    Suite { name: "control-start", run: control::start },
    Suite { name: "control-stores", run: control::stores },
    Suite { name: "api", run: api::run },
];

impl Suite {
    fn is_meant(&self, wanted: &str) -> bool {
        self.name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|name| !SUITES.iter().any(|suite| suite.is_meant(name))) {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        eprintln!("tortie-bench: no suite {unknown}; there are: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    for suite in
        SUITES.iter().filter(|suite| wanted.is_empty() || wanted.iter().any(|name| suite.is_meant(name)))
    {
        if let Err(error) = (suite.run)() {
            eprintln!("tortie-bench {}: {error}", suite.name);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
