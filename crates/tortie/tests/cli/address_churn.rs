//! `ipam check` while workloads come and go: it reports leaks and nothing else.

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

/// Few enough that no write waits for others for nearly as long as a check repeats its reads.
const WORKLOADS: usize = 10;
const CHECKS: usize = 15;

fn assign_request(handle: &str) -> AssignRequest {
    AssignRequest::new(AddressHolder::new(Some(handle), BTreeMap::new()), 1, 0)
}

/// Attaches a workload and detaches it again, in the order of the CNI plugin.
async fn live_once(allocator: &Allocator, store: &ResourceClient, container: &str) {
    let assigned = allocator.auto_assign(&assign_request(container)).await.unwrap();
    let address = assigned.v4.addresses[0].addr();
    let name = format!("n1-cni-{container}-eth0");
    let endpoint = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"node": "n1", "orchestrator": "cni", "containerID": container, "endpoint": "eth0",
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
    let objects = b"{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: 10.65.0.0/16}}\n---\n\
        {apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1}}";
    assert_eq!(lab.calicoctl_with(&["apply", "-f", "-"], objects).code, Some(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let lives = Arc::new(AtomicUsize::new(0));
    let config = StoreConfig::at(lab.endpoint());
    let client = runtime.block_on(StoreClient::connect(&config)).unwrap();
    let allocator = Arc::new(Allocator::new(client.clone(), BlockOwner::host("n1")));
    let mut churn = JoinSet::new();
    for slot in 0..WORKLOADS {
        let (allocator, store) = (allocator.clone(), ResourceClient::new(client.clone()));
        let (stop, lives) = (stop.clone(), lives.clone());
        churn.spawn_on(
            async move {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    live_once(&allocator, &store, &format!("{slot}x{round}")).await;
                    lives.fetch_add(1, Ordering::Relaxed);
                    round += 1;
                }
            },
            runtime.handle(),
        );
    }
    let results: Vec<String> = (0..CHECKS).map(|_| lab.must(&["ipam", "check"])).collect();
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(churn.join_all());
    assert!(lives.load(Ordering::Relaxed) > WORKLOADS, "workloads came and went");
    for result in results {
        assert!(result.ends_with("found 0 problems.\n"), "{result}");
    }
    runtime.block_on(allocator.auto_assign(&assign_request("lost"))).unwrap();
    let result = lab.must(&["ipam", "check", "--show-problem-ips"]);
    assert!(
        result.contains("leaked; attrs Main:lost") && result.ends_with("found 1 problems.\n"),
        "{result}"
    );
}
