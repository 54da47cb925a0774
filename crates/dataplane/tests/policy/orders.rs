//! The same datastore gives the same nf_tables table, regardless of the order of events and of the writes to the
//! kernel.

use crate::cluster::{PolicyEntry, PolicyNode};
use crate::history::{DatastoreStep, detours, generate};
use crate::namespace::{TestNamespace, eventually, start};
use crate::table;
use futures::stream::{self, StreamExt};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tortie_dataplane::DataplaneHandle;
use tortie_plan::NodePlan;

const DEFAULT_SEED: u64 = 4;
const ORDER_COUNT: u64 = 100;
const MAX_PARALLEL_RUNS: usize = 4;
const OBJECT_COUNT: usize = 80;

#[tokio::test(flavor = "multi_thread")]
async fn all_histories_of_one_datastore_give_one_table() {
    let seed = std::env::var("TORTIE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(DEFAULT_SEED);
    println!("TORTIE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let datastore: Vec<PolicyEntry> = generate(&mut rng, OBJECT_COUNT).into_iter().collect();
    let straight = TestNamespace::new("node");
    let (dataplane, _reports) = start(&straight).await;
    dataplane.replace(PolicyNode::with(&datastore).plan).await.unwrap();
    let expected = table::listing(&straight);
    for part in ["-nets {", "map host-in", "chain in-np/", "chain in-profile/", "chain to-cali"] {
        assert!(expected.contains(part), "a datastore that shows something has {part}:\n{expected}");
    }

    let runs = stream::iter(0..ORDER_COUNT).map(|order| {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003) + order);
        let history = detours(&mut rng, &datastore);
        is_the_same_after(history, &expected, format!("TORTIE_SEED={seed} order {order}"))
    });
    runs.buffer_unordered(MAX_PARALLEL_RUNS).collect::<()>().await;
}

async fn is_the_same_after(history: Vec<DatastoreStep>, expected: &str, what: String) {
    let node = TestNamespace::new("node");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(NodePlan::default()).await.unwrap();
    follow(&dataplane, history).await;
    assert_eq!(table::sorted(&table::listing(&node)), table::sorted(expected), "{what}");

    // Created in one transaction the table is identical byte for byte: the kernel lists objects in creation order,
    // and the dataplane creates them in sorted order.
    node.nft("delete table inet tortie");
    let same = || table::exists(&node) && table::listing(&node) == expected;
    eventually(&format!("{what}: the table is made anew"), same).await;
}

/// Applies a history of datastore events to the dataplane, as the daemon does.
async fn follow(dataplane: &DataplaneHandle, history: Vec<DatastoreStep>) {
    let mut node = PolicyNode::new();
    for step in history {
        match step {
            DatastoreStep::Put(key, value) => node.compute.put(&key, &value),
            DatastoreStep::Delete(key) => node.compute.delete(&key),
            DatastoreStep::Flush => {
                let outcome = dataplane.apply(node.flush()).await.unwrap();
                assert_eq!(outcome.failures, [], "the kernel refused something");
            }
        }
    }
}
