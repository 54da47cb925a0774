//! `ipam check` while workloads come and go: it reports leaks and nothing else. `TORTIE_WORKLOADS` and `TORTIE_CHECKS` set the
//! numbers.

use crate::lab::{CalicoctlLab, LabBackend};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tortie_ipam::owner::AddressHolder;
use tortie_ipam::{Allocator, AssignRequest, BlockOwner};
use tortie_model::{Kind, Resource};
use tortie_store::{ResourceClient, StoreClient, StoreConfig};

const DEFAULT_WORKLOADS: usize = 10;
const DEFAULT_CHECKS: usize = 15;
/// Few enough that no write to the blocks of a node waits for others for nearly as long as a check repeats its reads.
const WORKLOADS_PER_NODE: usize = 10;
/// Checks that run at a time.
const PARALLEL_CHECKS: usize = 4;

fn variable(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn assign_request(handle: &str) -> AssignRequest {
    AssignRequest::new(AddressHolder::new(Some(handle), BTreeMap::new()), 1, 0)
}

/// Attaches a workload and detaches it again, in the order of the CNI plugin.
async fn live_once(allocator: &Allocator, store: &ResourceClient, node: &str, container: &str) {
    let assigned = allocator.auto_assign(&assign_request(container)).await.unwrap();
    let address = assigned.v4.addresses[0].addr();
    let name = format!("{node}-cni-{container}-eth0");
    let endpoint = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"node": node, "orchestrator": "cni", "containerID": container, "endpoint": "eth0",
            "interfaceName": format!("cali{container}"), "ipNetworks": [format!("{address}/32")]},
    });
    store.create(Resource::from_user(endpoint).unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.delete(Kind::WorkloadEndpoint, "default", &name, None).await.unwrap();
    allocator.release_by_handle(container).await.unwrap();
}

#[test]
fn churn_looks_like_no_problem() {
    let lab = CalicoctlLab::on(LabBackend::Embedded);
    let (workloads, checks) =
        (variable("TORTIE_WORKLOADS", DEFAULT_WORKLOADS), variable("TORTIE_CHECKS", DEFAULT_CHECKS));
    let nodes: Vec<String> =
        (0..workloads.div_ceil(WORKLOADS_PER_NODE)).map(|number| format!("n{number}")).collect();
    let mut objects =
        "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: 10.65.0.0/16}}\n"
            .to_owned();
    for node in &nodes {
        objects +=
            &format!("---\n{{apiVersion: projectcalico.org/v3, kind: Node, metadata: {{name: {node}}}}}\n");
    }
    assert_eq!(lab.calicoctl_with(&["apply", "-f", "-"], objects.as_bytes()).code, Some(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let lives = Arc::new(AtomicUsize::new(0));
    let config = StoreConfig::at(lab.endpoint());
    let client = runtime.block_on(StoreClient::connect(&config)).unwrap();
    let allocators: Vec<Arc<Allocator>> = nodes
        .iter()
        .map(|node| Arc::new(Allocator::new(client.clone(), BlockOwner::host(node.as_str()))))
        .collect();
    let mut churn = JoinSet::new();
    for slot in 0..workloads {
        let number = slot / WORKLOADS_PER_NODE;
        let (allocator, node) = (allocators[number].clone(), nodes[number].clone());
        let store = ResourceClient::new(client.clone());
        let (stop, lives) = (stop.clone(), lives.clone());
        churn.spawn_on(
            async move {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    live_once(&allocator, &store, &node, &format!("{slot}x{round}")).await;
                    lives.fetch_add(1, Ordering::Relaxed);
                    round += 1;
                }
            },
            runtime.handle(),
        );
    }
    let started = AtomicUsize::new(0);
    let results: Vec<String> = std::thread::scope(|scope| {
        let check = || {
            let mut results = Vec::new();
            while started.fetch_add(1, Ordering::Relaxed) < checks {
                results.push(lab.must(&["ipam", "check"]));
            }
            results
        };
        let threads: Vec<_> = (0..PARALLEL_CHECKS).map(|_| scope.spawn(check)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(churn.join_all());
    assert!(lives.load(Ordering::Relaxed) > workloads, "workloads came and went");
    assert_eq!(results.len(), checks);
    for result in results {
        assert!(result.ends_with("found 0 problems.\n"), "{result}");
    }
    runtime.block_on(allocators[0].auto_assign(&assign_request("lost"))).unwrap();
    let result = lab.must(&["ipam", "check", "--show-problem-ips"]);
    assert!(
        result.contains("leaked; attrs Main:lost") && result.ends_with("found 1 problems.\n"),
        "{result}"
    );
}
