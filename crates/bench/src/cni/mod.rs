//! Compares CNI ADD and DEL with the reference plugins ptp and host-local: the same pods, each candidate on its own
//! host.

mod candidate;

use crate::measure::{growth, table, time, times};
use crate::namespace::{BenchResult, NamespaceGroup};
use crate::node::BenchNode;
use crate::process::before;
use crate::{SuiteResult, plain};
use candidate::{CallPhase, PluginCandidate};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Reference plugin, from Debian's package containernetworking-plugins.
const REFERENCE_PLUGIN: &str = "/usr/lib/cni/ptp";
/// Number of repetitions, alternating between the candidates.
const REPETITIONS: usize = 2;
const POD_COUNT: usize = 64;
const CONCURRENT_CALLS: [usize; 2] = [1, 16];
/// Numbers of pods that exist on the host before the measurement.
const EXISTING_PODS: [usize; 3] = [0, 100, 1_000];
/// Number of plugin calls that do no work.
const IDLE_CALLS: usize = 100;

/// Results of the two candidates for one command and concurrency.
struct CniComparison {
    what: String,
    took: [CallPhase; 2],
}

pub fn run() -> SuiteResult {
    contest().map_err(plain)
}

fn contest() -> BenchResult<()> {
    if let Some(program) = before() {
        let (before, node) = (BenchNode::start_other(program)?, BenchNode::start()?);
        return race("before", [ours(&before), ours(&node)], None);
    }
    if !Path::new(REFERENCE_PLUGIN).exists() {
        return Err(format!("{REFERENCE_PLUGIN} is missing: make setup").into());
    }
    let (node, host, leases) = (BenchNode::start()?, NamespaceGroup::host()?, tempfile::tempdir()?);
    let theirs = |ifname, routes| reference(&host, leases.path(), ifname, routes);
    let candidates = [theirs("eth0", json!([{"dst": "0.0.0.0/0"}])), ours(&node)];
    // Existing pods are attached on both hosts, and only one of their two interfaces can have the default route.
    let staying = [theirs("eth1", json!([])), ours(&node)];
    race("ptp", candidates, Some(staying))
}

/// Runs the measurements. `staying` attaches the existing pods, if the candidates support that.
fn race(
    peer: &str,
    candidates: [PluginCandidate; 2],
    staying: Option<[PluginCandidate; 2]>,
) -> BenchResult<()> {
    idle(peer, &candidates)?;
    let pods = NamespaceGroup::new(POD_COUNT)?;
    let mut residents = Vec::new();
    let mut first: Option<Vec<CniComparison>> = None;
    let mut rows = Vec::new();
    for (count, before) in EXISTING_PODS.into_iter().zip([0].into_iter().chain(EXISTING_PODS)) {
        let new = NamespaceGroup::new(count - before)?;
        for candidate in staying.iter().flatten() {
            candidate.call_all("ADD", &new.paths(), 16)?;
        }
        residents.push(new);
        let mut now = compare(&candidates, &pods.paths())?;
        for (place, comparison) in now.iter_mut().enumerate() {
            rows.push(growth_row(count, comparison, first.as_ref().and_then(|first| first.get(place))));
        }
        if first.is_none() {
            rates(peer, &mut now);
            first = Some(now);
        }
        if staying.is_none() {
            return Ok(());
        }
    }
    let [ratio, growth] = [format!("ours/{peer}"), format!("growth {peer}")];
    let header = ["pods already there", "", peer, "ours", &ratio, &growth, "growth ours"];
    table("CNI: calls a second, by the pods that the host has already", &header, &rows);
    Ok(())
}

pub fn ours(node: &BenchNode) -> PluginCandidate<'_> {
    PluginCandidate {
        program: node.plugin(),
        host: node.host.path(0),
        config: node.config().to_string(),
        ifname: "eth0",
        node: Some(node),
    }
}

fn reference(
    host: &NamespaceGroup,
    leases: &Path,
    ifname: &'static str,
    routes: Value,
) -> PluginCandidate<'static> {
    let ipam = json!({"type": "host-local", "subnet": "10.128.0.0/16", "dataDir": leases, "routes": routes});
    let config = json!({"cniVersion": "1.0.0", "name": "bench", "type": "ptp", "mtu": 1500, "ipam": ipam});
    PluginCandidate {
        program: REFERENCE_PLUGIN.into(),
        host: host.path(0),
        config: config.to_string(),
        ifname,
        node: None,
    }
}

/// Measures the overhead of a call: starting the plugin, and for Tortie contacting the daemon.
fn idle(peer: &str, candidates: &[PluginCandidate; 2]) -> BenchResult<()> {
    let [theirs, ours] = candidates;
    let mut rows = Vec::new();
    for (what, candidate, command) in [
        (format!("{peer}: VERSION"), theirs, "VERSION"),
        ("ours: VERSION".to_owned(), ours, "VERSION"),
        ("ours: STATUS, which asks the daemon".to_owned(), ours, "STATUS"),
    ] {
        let mut took = candidate.call_often(command, IDLE_CALLS)?;
        let [p50, p99] = [0.50, 0.99].map(|quantile| time(took.quantile(quantile).as_secs_f64() * 1e9));
        rows.push(vec![what, p50, p99]);
    }
    table("CNI: the plugin's process alone, from start to end", &["", "p50", "p99"], &rows);
    Ok(())
}

/// Adds and deletes the same pods with each candidate.
fn compare(candidates: &[PluginCandidate; 2], pods: &[PathBuf]) -> BenchResult<Vec<CniComparison>> {
    let mut comparisons = Vec::new();
    for at_once in CONCURRENT_CALLS {
        let mut took: [[CallPhase; 2]; 2] = Default::default();
        for _ in 0..REPETITIONS {
            for (candidate, place) in candidates.iter().zip(0..) {
                for (command, took) in ["ADD", "DEL"].into_iter().zip(&mut took) {
                    took[place].add(candidate.call_all(command, pods, at_once)?);
                }
            }
        }
        for (command, took) in ["ADD", "DEL"].into_iter().zip(took) {
            comparisons.push(CniComparison { what: format!("{command}, {at_once} at once"), took });
        }
    }
    Ok(comparisons)
}

fn rates(peer: &str, comparisons: &mut [CniComparison]) {
    let mut rows = Vec::new();
    for CniComparison { what, took: [theirs, ours] } in comparisons {
        let mut row = |name: &str, theirs: String, ours: String, ratio: f64| {
            rows.push(vec![format!("{what}: {name}"), theirs, ours, times(ratio)]);
        };
        for (name, quantile) in [("p50", 0.50), ("p99", 0.99)] {
            let [theirs, ours] = [&mut *theirs, &mut *ours].map(|p| p.each.quantile(quantile).as_secs_f64());
            row(name, time(theirs * 1e9), time(ours * 1e9), ours / theirs);
        }
        let [theirs, ours] = [theirs, ours].map(|phase| (phase.per_second(), phase.processor()));
        row("calls a second", format!("{:.0}", theirs.0), format!("{:.0}", ours.0), ours.0 / theirs.0);
        row("processor time a call", time(theirs.1 * 1e9), time(ours.1 * 1e9), ours.1 / theirs.1);
    }
    let header = ["", peer, "ours", &format!("ours/{peer}")];
    table("CNI: a host without other pods", &header, &rows);
}

fn growth_row(residents: usize, now: &CniComparison, first: Option<&CniComparison>) -> Vec<String> {
    let [theirs, ours] = now.took.each_ref().map(CallPhase::per_second);
    let [first_theirs, first_ours] =
        first.map_or([0.0; 2], |first| first.took.each_ref().map(CallPhase::per_second));
    vec![
        residents.to_string(),
        now.what.clone(),
        format!("{theirs:.0}/s"),
        format!("{ours:.0}/s"),
        times(ours / theirs),
        growth(theirs, first_theirs),
        growth(ours, first_ours),
    ]
}
