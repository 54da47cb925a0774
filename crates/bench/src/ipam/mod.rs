//! Measures address assignment on etcd and on the embedded datastore: rate, requests per address, and growth.

mod load;

use crate::measure::{table, times};
use crate::store::server::BenchStoreServer;
use crate::{SuiteResult, plain};
use load::{AllocationPhase, AllocatorCluster};

/// Number of new nodes whose first addresses are timed, one after the other.
const NEW_NODE_COUNT: usize = 10;
/// Addresses per node. They fit into one block, so that after the first address no block is claimed.
const ADDRESSES_PER_NODE: usize = 48;
const BLOCK_COUNTS: [usize; 3] = [100, 1_000, 10_000];

pub fn run() -> SuiteResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        rates().await?;
        growth().await
    })
}

/// Measures rates with many nodes that own their blocks, then with more nodes than blocks.
async fn rates() -> SuiteResult {
    let mut rows = Vec::new();
    // The stores alternate, with enough rounds for some thousand addresses on each.
    for (title, nodes, at_once, each, pool, rounds) in [
        ("1 node", 1, 1, ADDRESSES_PER_NODE, "10.0.0.0/12", 40),
        ("1 node, 16 requests at once", 1, 16, ADDRESSES_PER_NODE, "10.0.0.0/12", 200),
        ("64 nodes", 64, 1, ADDRESSES_PER_NODE, "10.0.0.0/12", 12),
        ("64 nodes, 16 blocks", 64, 1, ADDRESSES_PER_NODE / 4, "10.0.0.0/22", 6),
    ] {
        let mut take = [AllocationPhase::default(); 2];
        let mut give_back = [AllocationPhase::default(); 2];
        let servers = [BenchStoreServer::etcd().await?, BenchStoreServer::embedded().await?];
        let mut clusters = Vec::new();
        for server in &servers {
            clusters.push(AllocatorCluster::new(&server.url, nodes, pool, 26).await.map_err(plain)?);
        }
        for round in 0..rounds {
            for (place, cluster) in clusters.iter().enumerate() {
                take[place].add(cluster.take(round, each, at_once).await.map_err(plain)?);
                give_back[place].add(cluster.give_back(round, each, at_once).await.map_err(plain)?);
            }
        }
        for (what, [etcd, ours]) in [("taken", take), ("given back", give_back)] {
            rows.push(vec![
                format!("{title}: addresses {what}"),
                format!("{:.0}/s", etcd.rate()),
                format!("{:.0}/s", ours.rate()),
                times(ours.rate() / etcd.rate()),
                format!("{:.2}", etcd.operations()),
                format!("{:.2}", ours.operations()),
            ]);
        }
    }
    let header = ["", "etcd", "embedded", "ratio", "operations each, etcd", "operations each, embedded"];
    table(
        "Addresses: each node follows the store and owns what it hands out, while there are blocks",
        &header,
        &rows,
    );
    Ok(())
}

/// Measures a node's first address, its next one, and a rejection, with an increasing number of blocks in the
/// datastore.
async fn growth() -> SuiteResult {
    let mut rows = Vec::new();
    let servers = [BenchStoreServer::etcd().await?, BenchStoreServer::embedded().await?];
    let mut clusters = Vec::new();
    for server in &servers {
        clusters.push(AllocatorCluster::new(&server.url, 0, "10.0.0.0/12", 26).await.map_err(plain)?);
    }
    let mut before = [[0.0; 2]; 3];
    for (blocks, previous) in BLOCK_COUNTS.into_iter().zip([0].into_iter().chain(BLOCK_COUNTS)) {
        let mut seconds = [[0.0; 2]; 3];
        for (place, cluster) in clusters.iter().enumerate() {
            cluster.fill(previous..blocks).await.map_err(plain)?;
            for round in 0..NEW_NODE_COUNT {
                for (kind, took) in
                    cluster.newcomer(blocks, round).await.map_err(plain)?.into_iter().enumerate()
                {
                    seconds[kind][place] += took.as_secs_f64() / NEW_NODE_COUNT as f64;
                }
            }
        }
        for (kind, title) in
            ["first address of a node", "next address", "pool exhausted"].into_iter().enumerate()
        {
            let [etcd, ours] = seconds[kind];
            let grown =
                |now: f64, before: f64| if before > 0.0 { times(now / before) } else { String::new() };
            rows.push(vec![
                format!("{blocks} full blocks: {title}"),
                format!("{:.2} ms", etcd * 1e3),
                format!("{:.2} ms", ours * 1e3),
                times(ours / etcd),
                grown(etcd, before[kind][0]),
                grown(ours, before[kind][1]),
            ]);
        }
        before = seconds;
    }
    let header = ["", "etcd", "embedded", "ratio", "growth etcd", "growth embedded"];
    table("Addresses: time for one, by what is there already", &header, &rows);
    Ok(())
}
