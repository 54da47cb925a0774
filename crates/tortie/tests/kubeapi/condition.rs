//! The NetworkUnavailable condition that a node sets in Kubernetes.

use crate::world::{KubernetesNodeFixture, NODE_NAME};
use serde_json::Value;
use tortie_testkit::{CalicoGroup, TableOwner};

/// Returns status and reason of the NetworkUnavailable condition, which the scheduler considers.
fn condition(world: &KubernetesNodeFixture) -> (String, String) {
    let node = world.server.must("GET", &format!("/api/v1/nodes/{NODE_NAME}"), None);
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == "NetworkUnavailable");
    let text = |key: &str| found.and_then(|found| found[key].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

#[test]
fn a_node_without_policy_reports_network_unavailable() {
    let mut world = KubernetesNodeFixture::without_node(CalicoGroup::V3);
    let owner = TableOwner::new(&world.host);
    let kubeconfig = world.server.node_kubeconfig();
    world.start(&kubeconfig);
    let is = |status: &str, reason: &str| condition(&world) == (status.to_owned(), reason.to_owned());
    world.wait("the scheduler keeps pods away", || is("True", "PolicyNotInForce"));
    let node: Value = world.server.must("GET", &format!("/api/v1/nodes/{NODE_NAME}"), None);
    assert!(node.to_string().contains("policy is not in force: table inet tortie"), "{node}");
    drop(owner);
    world.wait("pods may come", || is("False", "CalicoIsUp"));
}
