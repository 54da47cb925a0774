//! The same datastore gives the same plan, regardless of the order of events and flushes.

use crate::cluster::{PolicyEntry, PolicyNode};
use crate::history::{DatastoreStep, detours, generate};
use crate::oracle;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tortie_plan::NodePlan;

const CLUSTER_COUNT: u64 = 10;
const ORDERS_PER_CLUSTER: u64 = 10;

fn seed() -> u64 {
    std::env::var("TORTIE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(4)
}

#[test]
fn any_order_gives_the_same_plan() {
    let seed = seed();
    println!("TORTIE_SEED={seed}");
    for cluster in 0..CLUSTER_COUNT {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003) + cluster);
        let final_state: Vec<PolicyEntry> = generate(&mut rng, 80).into_iter().collect();
        let expected = PolicyNode::with(&final_state);
        oracle::check(&final_state, &expected.plan, &format!("TORTIE_SEED={seed} cluster {cluster}"));
        assert!(
            expected.plan.sets.len() > 3 && !expected.plan.policies.is_empty(),
            "a cluster that shows something"
        );
        for order in 0..ORDERS_PER_CLUSTER {
            let plan = through(detours(&mut rng, &final_state));
            same(&expected.plan, &plan, &format!("TORTIE_SEED={seed} cluster {cluster} order {order}"));
        }
    }
}

fn through(history: Vec<DatastoreStep>) -> NodePlan {
    let mut node = PolicyNode::new();
    for step in history {
        match step {
            DatastoreStep::Put(key, value) => node.compute.put(&key, &value),
            DatastoreStep::Delete(key) => node.compute.delete(&key),
            DatastoreStep::Flush => drop(node.flush()),
        }
    }
    node.plan
}

fn same(expected: &NodePlan, found: &NodePlan, what: &str) {
    assert_eq!(expected.sets, found.sets, "{what}");
    assert_eq!(expected.policies, found.policies, "{what}");
    assert_eq!(expected.profiles, found.profiles, "{what}");
    assert_eq!(expected.workload_policies, found.workload_policies, "{what}");
    assert_eq!(expected.host_endpoints, found.host_endpoints, "{what}");
    assert_eq!(expected, found, "{what}");
}
