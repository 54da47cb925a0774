#![doc = include_str!("../README.md")]

mod api;
mod bgp;
mod cni;
mod compare;
mod compute;
mod control;
mod dhcp;
mod environment;
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
mod record;
mod routes;
mod store;
mod tunnels;

use clap::Parser;
use compare::{FigureTrend, RunComparison};
use environment::ConditionsProbe;
use record::{RecordError, RunRecord, SuiteRecord};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

type SuiteResult = Result<(), Box<dyn Error>>;

/// Converts an error that is `Send + Sync` to one that is not.
fn plain(error: Box<dyn Error + Send + Sync>) -> Box<dyn Error> {
    error
}

struct BenchSuite {
    name: &'static str,
    run: fn() -> SuiteResult,
}

const SUITES: [BenchSuite; 28] = [
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
    BenchSuite { name: "dhcp", run: dhcp::run },
    BenchSuite { name: "flows", run: flows::run },
];

impl BenchSuite {
    fn is_selected(&self, wanted: &str) -> bool {
        wanted == "all"
            || self.name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Runs the suite and prints the conditions under which it ran.
    fn measure(&self) -> Result<SuiteRecord, Box<dyn Error>> {
        let probe = ConditionsProbe::begin();
        let start = Instant::now();
        (self.run)()?;
        let seconds = start.elapsed().as_secs_f64();
        let conditions = probe.finish();
        println!("\n{}: {seconds:.0} s; {conditions}", self.name);
        Ok(SuiteRecord { name: self.name.to_owned(), seconds, conditions, tables: record::take_tables() })
    }
}

/// Measures Tortie beside its peers, in one run on one machine.
#[derive(Parser)]
#[command(name = "tortie-bench", args_conflicts_with_subcommands = true)]
struct BenchOptions {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// Suites to run; a prefix selects several: `bgp` selects `bgp-receive` and the others. Default: all
    suites: Vec<String>,
    /// Also write the tables and the conditions of the machine to this file, after each suite
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum BenchCommand {
    /// Compare two results of --json: lists the figures that changed; exit status 1 if any became worse
    Compare {
        before: PathBuf,
        after: PathBuf,
        /// Smallest change to list, in percent
        #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
        limit: f64,
    },
    /// List the suites
    List,
    /// Run the part of a suite that needs a separate process; the suite selects it by an environment variable
    #[command(hide = true)]
    Worker { suite: String },
}

fn main() -> ExitCode {
    let options = BenchOptions::parse();
    match options.command {
        Some(BenchCommand::List) => {
            SUITES.iter().for_each(|suite| println!("{}", suite.name));
            ExitCode::SUCCESS
        }
        Some(BenchCommand::Compare { before, after, limit }) => match compare_runs(&before, &after, limit) {
            Ok(status) => status,
            Err(error) => {
                eprintln!("tortie-bench compare: {error}");
                ExitCode::from(2)
            }
        },
        Some(BenchCommand::Worker { suite }) => run_worker(&suite),
        None => run_suites(&options.suites, options.json.as_deref()),
    }
}

fn run_worker(name: &str) -> ExitCode {
    let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
        eprintln!("tortie-bench worker: no suite {name}");
        return ExitCode::FAILURE;
    };
    match (suite.run)() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tortie-bench worker {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare_runs(before: &Path, after: &Path, limit: f64) -> Result<ExitCode, RecordError> {
    let comparison = RunComparison::new(&RunRecord::read(before)?, &RunRecord::read(after)?, limit);
    comparison.print(limit);
    let became_worse = comparison.changes.iter().any(|change| change.trend == FigureTrend::Worse);
    Ok(if became_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run_suites(wanted: &[String], json: Option<&Path>) -> ExitCode {
    if let Some(unknown) = wanted.iter().find(|name| !SUITES.iter().any(|suite| suite.is_selected(name))) {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        eprintln!("tortie-bench: no suite {unknown}; there are: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let mut run = RunRecord::default();
    for suite in
        SUITES.iter().filter(|suite| wanted.is_empty() || wanted.iter().any(|name| suite.is_selected(name)))
    {
        match suite.measure() {
            Ok(record) => run.suites.push(record),
            Err(error) => {
                eprintln!("tortie-bench {}: {error}", suite.name);
                return ExitCode::FAILURE;
            }
        }
        if let Some(Err(error)) = json.map(|path| run.write(path)) {
            eprintln!("tortie-bench: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
