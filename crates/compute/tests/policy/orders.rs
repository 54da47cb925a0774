//! The same datastore gives the same plan, regardless of the order of events and flushes.

use crate::cluster::{PolicyEntry, PolicyNode};
use crate::history::{DatastoreStep, detours, generate};
use crate::oracle;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tortie_model::{Resource, StoreValue};
use tortie_plan::{NodePlan, WorkloadId};

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
        let proxies: Vec<(WorkloadId, bool)> =
            workloads(&final_state).into_iter().map(|id| (id, rng.random_bool(0.5))).collect();
        let mut expected = PolicyNode::new();
        proxies.iter().for_each(|(id, live)| expected.compute.set_http_proxy(id.clone(), *live));
        expected.put(&final_state);
        for (id, policy) in &expected.plan.workload_policies {
            assert!(proxies.contains(&(id.clone(), policy.http_proxy)), "{id:?}");
        }
        oracle::check(&final_state, &expected.plan, &format!("TORTIE_SEED={seed} cluster {cluster}"));
        assert!(
            expected.plan.sets.len() > 3 && !expected.plan.policies.is_empty(),
            "a cluster that shows something"
        );
        for order in 0..ORDERS_PER_CLUSTER {
            let history = detours(&mut rng, &final_state);
            let plan = through(history, &proxies, &mut rng);
            same(&expected.plan, &plan, &format!("TORTIE_SEED={seed} cluster {cluster} order {order}"));
        }
    }
}

/// Returns the workloads of a datastore.
fn workloads(state: &[PolicyEntry]) -> Vec<WorkloadId> {
    let endpoints = state.iter().filter_map(|(_, value)| match value {
        StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) => Some(WorkloadId {
            orchestrator: "k8s".into(),
            workload: format!("{}/{}", endpoint.metadata.namespace, endpoint.spec.pod),
            endpoint: "eth0".into(),
        }),
        _ => None,
    });
    let mut ids: Vec<WorkloadId> = endpoints.collect();
    // Endpoints of one pod on two nodes have the same ID.
    ids.sort();
    ids.dedup();
    ids
}

/// Applies a history, in which proxies come and go at any time.
fn through(history: Vec<DatastoreStep>, proxies: &[(WorkloadId, bool)], rng: &mut StdRng) -> NodePlan {
    let mut node = PolicyNode::new();
    for step in history {
        if rng.random_bool(0.3)
            && let Some((id, _)) = proxies.choose(rng)
        {
            node.compute.set_http_proxy(id.clone(), rng.random_bool(0.5));
        }
        match step {
            DatastoreStep::Put(key, value) => node.compute.put(&key, &value),
            DatastoreStep::Delete(key) => node.compute.delete(&key),
            DatastoreStep::Flush => drop(node.flush()),
        }
    }
    proxies.iter().for_each(|(id, live)| node.compute.set_http_proxy(id.clone(), *live));
    node.flush();
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
