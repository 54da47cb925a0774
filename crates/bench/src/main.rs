#![doc = include_str!("../README.md")]

mod api;
mod bgp;
mod cni;
mod compute;
mod control;
mod flows;
mod heap;
mod hub;
mod ipam;
mod kubernetes;
mod l7;
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

type SuiteResult = Result<(), Box<dyn Error>>;

/// Converts an error that is `Send + Sync` to one that is not.
fn plain(error: Box<dyn Error + Send + Sync>) -> Box<dyn Error> {
    error
}

struct BenchSuite {
    name: &'static str,
    run: fn() -> SuiteResult,
}

const SUITES: [BenchSuite; 27] = [
    BenchSuite { name: "model", run: model::run },
    BenchSuite { name: "store", run: store::run },
    BenchSuite { name: "ipam", run: ipam::run },
    BenchSuite { name: "routes", run: routes::run },
    BenchSuite { name: "tunnels-programming", run: tunnels::programming },
    BenchSuite { name: "tunnels-traffic", run: tunnels::traffic },
    BenchSuite { name: "cni", run: cni::run },
    BenchSuite { name: "memory", run: memory::run },
    BenchSuite { name: "compute", run: compute::run },
    BenchSuite { name: "bgp-receive", run: || bgp::run(bgp::receive) },
    BenchSuite { name: "bgp-kernel", run: || bgp::run(bgp::kernel) },
    BenchSuite { name: "bgp-reflect", run: || bgp::run(bgp::reflect) },
    BenchSuite { name: "bgp-flap", run: || bgp::run(bgp::flap) },
    BenchSuite { name: "bgp-mesh", run: || bgp::run(bgp::mesh) },
    BenchSuite { name: "policy-updates", run: policy::updates },
    BenchSuite { name: "policy-start", run: policy::start },
    BenchSuite { name: "policy-packets", run: policy::packets },
    BenchSuite { name: "hub", run: hub::run },
    BenchSuite { name: "kube-start", run: kubernetes::run },
    BenchSuite { name: "kube-add", run: kubernetes::add },
    BenchSuite { name: "control", run: control::run },
    BenchSuite { name: "control-start", run: control::start },
    BenchSuite { name: "control-stores", run: control::stores },
    BenchSuite { name: "l7-requests", run: l7::requests },
    BenchSuite { name: "l7-checks", run: l7::checks },
    BenchSuite { name: "api", run: api::run },
    BenchSuite { name: "flows", run: flows::run },
];

impl BenchSuite {
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
