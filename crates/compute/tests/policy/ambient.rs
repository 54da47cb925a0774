//! Tests of the set of workloads in Istio's ambient mesh.

use crate::cluster::{PolicyEntry, PolicyNode, namespace, object, pod};
use serde_json::{Value as Json, json};
use tortie_model::Kind;
use tortie_plan::{AMBIENT_WORKLOADS_SET, SetId};

const MODE: &str = "istio.io/dataplane-mode";

fn ambient_mode(mode: &str) -> PolicyEntry {
    object(Kind::FelixConfiguration, "", "default", json!({}), json!({"istioAmbientMode": mode}))
}

fn labelled(name: &str, labels: Json, address: &str) -> PolicyEntry {
    pod("n2", "mesh", name, labels, address)
}

fn members(node: &PolicyNode) -> Option<Vec<String>> {
    let id = SetId::new(AMBIENT_WORKLOADS_SET);
    node.plan.sets.contains_key(&id).then(|| node.set(AMBIENT_WORKLOADS_SET))
}

#[test]
fn labels_of_pods_and_namespaces_select_members() {
    let mut node = PolicyNode::with(&[
        ambient_mode("Enabled"),
        namespace("mesh", json!({MODE: "ambient"})),
        namespace("plain", json!({})),
        labelled("inherits", json!({}), "10.0.0.1/32"),
        labelled("opts-out", json!({MODE: "none"}), "10.0.0.2/32"),
        pod("n1", "plain", "opts-in", json!({MODE: "ambient"}), "10.0.0.3/32"),
        pod("n1", "plain", "stays-out", json!({}), "10.0.0.4/32"),
        // Its labels select it, but it is not a workload, even with the address of one that is not in the mesh.
        object(
            Kind::GlobalNetworkSet,
            "",
            "range",
            json!({MODE: "ambient"}),
            json!({"nets": ["10.9.0.0/16", "10.0.0.4/32"]}),
        ),
    ]);
    assert_eq!(members(&node).unwrap(), ["10.0.0.1/32", "10.0.0.3/32"]);
    node.put(&[namespace("plain", json!({MODE: "ambient"}))]);
    assert_eq!(members(&node).unwrap(), ["10.0.0.1/32", "10.0.0.3/32", "10.0.0.4/32"]);
    node.put(&[namespace("mesh", json!({})), labelled("opts-out", json!({MODE: "ambient"}), "10.0.0.2/32")]);
    assert_eq!(members(&node).unwrap(), ["10.0.0.2/32", "10.0.0.3/32", "10.0.0.4/32"]);
    node.delete(&labelled("opts-out", json!({}), "10.0.0.2/32"));
    assert_eq!(members(&node).unwrap(), ["10.0.0.3/32", "10.0.0.4/32"]);
}

#[test]
fn members_exist_only_while_the_mode_is_enabled() {
    let member = labelled("one", json!({MODE: "ambient"}), "10.0.0.1/32");
    let mut node = PolicyNode::with(std::slice::from_ref(&member));
    assert_eq!(members(&node), None);
    assert_eq!(node.compute.settings().policy.ambient_dscp, None);
    for _ in 0..2 {
        node.put(&[ambient_mode("Enabled")]);
        assert_eq!(members(&node).unwrap(), ["10.0.0.1/32"]);
        assert_eq!(node.compute.settings().policy.ambient_dscp, Some(23));
        node.put(&[ambient_mode("Disabled")]);
        assert_eq!(members(&node), None);
    }
    // Both changes before one flush.
    node.put(&[ambient_mode("Enabled")]);
    assert_eq!(node.put(&[ambient_mode("Disabled"), ambient_mode("Enabled")]), []);
    assert_eq!(members(&node).unwrap(), ["10.0.0.1/32"]);
}
