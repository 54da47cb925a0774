//! Measures the memory of a node's daemon: idle, with local pods, and in a large cluster.

use crate::measure::{growth, table};
use crate::namespace::{self, BenchResult, NamespaceGroup, check};
use crate::node::{BenchNode, POOL_CIDR};
use crate::process::ProcessMemory;
use crate::{SuiteResult, cni, plain};
use serde_json::json;
use std::time::{Duration, Instant};
use tortie_ipam::{BlockOwner, block, space};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::{EntryChange, StoreClient};

const POD_COUNT: usize = 100;
const BLOCK_COUNTS: [usize; 3] = [100, 1_000, 10_000];
const BLOCK_SIZE: u8 = 26;
/// Blocks of each of the other nodes.
const BLOCKS_PER_NODE: usize = 10;
/// Time for the daemon to free temporary memory.
const SETTLE_TIME: Duration = Duration::from_secs(2);
const ROUTES_TIMEOUT: Duration = Duration::from_secs(120);

pub fn run() -> SuiteResult {
    measure().map_err(plain)
}

fn measure() -> BenchResult<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rows = Vec::new();
    let mut first = None;
    let mut note = |what: String, memory: ProcessMemory| {
        let first = *first.get_or_insert(memory.resident);
        let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
        let grown = growth(memory.resident as f64, first as f64);
        rows.push(vec![what, mib(memory.resident), mib(memory.own), grown]);
    };
    let node = BenchNode::start()?;
    note("nothing to do".to_owned(), rested(&node)?);
    let pods = NamespaceGroup::new(POD_COUNT)?;
    cni::ours(&node).call_all("ADD", &pods.paths(), 16)?;
    note(format!("{POD_COUNT} local pods"), rested(&node)?);
    drop(node);

    let node = BenchNode::start()?;
    for (blocks, before) in BLOCK_COUNTS.into_iter().zip([0].into_iter().chain(BLOCK_COUNTS)) {
        runtime.block_on(fill(&node, before..blocks))?;
        let deadline = Instant::now() + ROUTES_TIMEOUT;
        while namespace::routes(node.host.name(0))? < blocks {
            check()?;
            if Instant::now() > deadline {
                return Err(format!("the node does not get {blocks} routes").into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        note(format!("{blocks} blocks of other nodes"), rested(&node)?);
    }
    table("Memory of the node's daemon", &["", "resident", "own", "growth"], &rows);
    Ok(())
}

fn rested(node: &BenchNode) -> std::io::Result<ProcessMemory> {
    std::thread::sleep(SETTLE_TIME);
    node.daemon.memory()
}

/// Creates nodes on the same link, each with blocks in use.
async fn fill(node: &BenchNode, places: std::ops::Range<usize>) -> BenchResult<()> {
    let client = StoreClient::connect(&node.store_config()).await?;
    let (pool, now) = (POOL_CIDR.parse()?, jiff::Timestamp::now());
    let mut changes = Vec::new();
    for place in places {
        let (number, name) = (2 + place / BLOCKS_PER_NODE, format!("far-{}", place / BLOCKS_PER_NODE));
        if place % BLOCKS_PER_NODE == 0 {
            let address = format!("172.30.{}.{}/16", number / 256, number % 256);
            let object = json!({"metadata": {"name": name}, "spec": {"bgp": {"ipv4Address": address}}});
            let resource = Resource::from_store(Kind::Node, object)?;
            client
                .apply(&StoreKey::resource(Kind::Node, "", &name), &StoreValue::Resource(resource), None)
                .await?;
        }
        let cidr = space::nth_block(&pool, BLOCK_SIZE, place as u128).ok_or("the pool is too small")?;
        let block = block::fresh(cidr, &BlockOwner::host(&name), None, now);
        changes.push(EntryChange::Create { key: StoreKey::Block { cidr }, value: StoreValue::Block(block) });
    }
    for batch in changes.chunks(100) {
        client.transact(batch).await?;
    }
    Ok(())
}
