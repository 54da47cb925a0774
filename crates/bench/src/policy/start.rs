//! Measures the time from the start of the daemon until the kernel enforces all policies, compared with loading the
//! same table with the kernel's own tools.

use super::cluster::{self, LOCAL_PODS};
use super::inside;
use super::peers::{
    IPTABLES_LEGACY_COMMAND, IPTABLES_NFT_COMMAND, IptablesReference, NftReference, RulesetSize, dump, run,
};
use crate::measure::{growth, table, time, times};
use crate::namespace::{BenchResult, NamespaceGroup, check};
use crate::node::BenchNode;
use std::time::{Duration, Instant};
use tortie_store::StoreClient;

const ENDPOINT_COUNTS: [usize; 3] = [1_000, 10_000, 100_000];
const POLICY_COUNT: usize = 1_000;
/// Number of repetitions. The best result counts, since disturbances only add time.
const REPETITIONS: usize = 2;

pub fn measure() -> BenchResult<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut node = BenchNode::start()?;
    let client = runtime.block_on(StoreClient::connect(&node.store_config()))?;
    let pods = NamespaceGroup::new(LOCAL_PODS)?;
    let locals = runtime.block_on(cluster::attach(&node, &client, &pods))?;
    runtime.block_on(cluster::add_policies(&client, 0..POLICY_COUNT))?;
    let (mut rows, mut first) = (Vec::new(), None);
    for (endpoints, before) in ENDPOINT_COUNTS.into_iter().zip([0].into_iter().chain(ENDPOINT_COUNTS)) {
        runtime.block_on(cluster::add_endpoints(&client, before..endpoints))?;
        let load = RulesetSize { locals: &locals, endpoints, policies: POLICY_COUNT };
        let (mut best, mut processor, mut peak) = ([Duration::MAX; 4], Duration::MAX, 0);
        for _ in 0..REPETITIONS {
            check()?;
            let ours = start(&mut node)?;
            peak = peak.max(node.daemon.memory()?.peak);
            processor = processor.min(node.daemon.processor_time()?);
            let nft = NftReference::load(dump(&node.host.path(0))?)?;
            match nft.members(0)? {
                found if found == endpoints => {}
                found => return Err(format!("{found} addresses in the kernel instead of {endpoints}").into()),
            }
            let iptables = IptablesReference::load(IPTABLES_NFT_COMMAND, load)?.took;
            let legacy = IptablesReference::load(IPTABLES_LEGACY_COMMAND, load)?.took;
            for (best, took) in best.iter_mut().zip([ours, nft.took, iptables, legacy]) {
                *best = took.min(*best);
            }
        }
        let [ours, theirs @ ..] = best.map(|took| took.as_secs_f64());
        let first = *first.get_or_insert(ours);
        let mut row = vec![
            format!("{endpoints} endpoints, {POLICY_COUNT} policies, {LOCAL_PODS} pods"),
            time(ours * 1e9),
            growth(ours, first),
            time(processor.as_secs_f64() * 1e9),
            format!("{:.1} MiB", peak as f64 / 1024.0),
        ];
        row.extend(theirs.into_iter().flat_map(|took| [time(took * 1e9), times(took / ours)]));
        rows.push(row);
    }
    let header = [
        "",
        "ours",
        "growth",
        "ours, processor",
        "peak memory",
        "nft -f",
        "nft/ours",
        "iptables-nft + ipset",
        "theirs/ours",
        "iptables-legacy + ipset",
        "theirs/ours",
    ];
    table(
        "Policy: from the start of the daemon to everything in force; of the tools, loading it",
        &header,
        &rows,
    );
    Ok(())
}

/// Restarts the daemon without its table, but with the pods' links and routes in place, and returns the time until it
/// is ready.
fn start(node: &mut BenchNode) -> BenchResult<Duration> {
    node.stop_daemon()?;
    inside(&node.host.path(0), || run(&["nft", "-f", "-"], "delete table inet tortie\n"))?;
    let start = Instant::now();
    node.start_daemon()?;
    Ok(start.elapsed())
}
