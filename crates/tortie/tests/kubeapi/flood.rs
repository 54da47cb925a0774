//! A namespace with 500 pods is deleted while its sandboxes are being torn down: no address stays assigned.

use crate::world::{AttachedPod, KubernetesNodeFixture, NODE_NAME};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tortie_testkit::CalicoGroup;

const POD_COUNT: usize = 500;
/// Parallel requests of a busy kubelet.
const MAX_PARALLEL_REQUESTS: usize = 8;

#[test]
fn deletion_of_500_pods_at_once() {
    let world = KubernetesNodeFixture::with_pool(CalicoGroup::V3, "10.77.0.0/20", "26");
    let names: Vec<String> = (0..POD_COUNT).map(|number| format!("pod-{number}")).collect();
    let objects: Vec<(String, Value)> = names
        .iter()
        .map(|name| {
            let spec = json!({"nodeName": NODE_NAME, "serviceAccountName": "default",
                "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "none"}]});
            let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
            ("/api/v1/namespaces/other/pods".to_owned(), object)
        })
        .collect();
    world.server.create_all(&objects);
    let pods: Vec<AttachedPod> = side_by_side(&names, |name| world.attach("other", name, "1"));
    let addresses: BTreeSet<&String> = pods.iter().flat_map(|pod| &pod.addresses).collect();
    assert_eq!(addresses.len(), 2 * POD_COUNT);
    world.wait("the node has a route for each", || routes(&world) == 2 * POD_COUNT);

    // For some pods the object is deleted first, for others the sandbox.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let all = "/api/v1/namespaces/other/pods?gracePeriodSeconds=0";
            world.server.must("DELETE", all, None);
            world.server.remove_namespace("other");
        });
        side_by_side(&pods, |pod| world.detach(pod, "1"));
    });
    assert_eq!(routes(&world), 0);
    world.assert_clean();
}

fn routes(world: &KubernetesNodeFixture) -> usize {
    let of = |family: &str| {
        let routes = world.host.ip(&[family, "route"]);
        routes.lines().filter(|route| route.contains(" dev cali") && !route.starts_with("fe80::")).count()
    };
    of("-4") + of("-6")
}

/// Processes some items in parallel; returns the results in the order of completion.
fn side_by_side<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..MAX_PARALLEL_REQUESTS {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(one);
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}
