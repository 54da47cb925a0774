//! Objects that violate the validation rules of their kind.

use crate::cluster::{PolicyNode, gnp, namespace, object, pod};
use serde_json::json;
use tortie_model::{Kind, StoreKey, StoreValue};

fn shop() -> Vec<crate::cluster::PolicyEntry> {
    vec![namespace("shop", json!({})), pod("n1", "shop", "web-0", json!({"role": "web"}), "10.0.0.1/32")]
}

#[test]
fn unparsable_selectors_are_reported_and_left_out() {
    let mut node = PolicyNode::with(&shop());
    node.put(&[gnp("lost", json!({"selector": "role = 'web'"}))]);
    assert!(node.plan.policies.is_empty());
    assert_eq!(node.compute.problems().len(), 1);
}

#[test]
fn staged_deletions_are_not_policies() {
    let mut node = PolicyNode::with(&shop());
    let delete =
        object(Kind::StagedGlobalNetworkPolicy, "", "s", json!({}), json!({"stagedAction": "Delete"}));
    let staged = object(Kind::StagedGlobalNetworkPolicy, "", "t", json!({}), json!({}));
    node.put(&[delete, staged]);
    assert_eq!(node.plan.policies.len(), 1);
    assert_eq!(node.workload_policy("shop", "web-0").tiers[0].ingress.len(), 1);
}

#[test]
fn policy_key_with_its_own_name_wins() {
    let mut node = PolicyNode::with(&shop());
    let text = |order: u32| {
        json!({"kind": "GlobalNetworkPolicy", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "default.web"}, "spec": {"tier": "default", "order": order,
            "types": if order == 1 { json!(["Ingress"]) } else { json!(["Egress"]) }}})
        .to_string()
    };
    let old_key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", "default.web");
    let old = StoreValue::decode(&old_key, text(1).as_bytes()).unwrap();
    let new = gnp("web", json!({"types": ["Egress"]}));
    let governs = |node: &PolicyNode| {
        let tier = &node.workload_policy("shop", "web-0").tiers[0];
        (tier.ingress.len(), tier.egress.len())
    };
    node.put(&[(old_key.clone(), old.clone())]);
    assert_eq!(governs(&node), (1, 0));
    node.put(std::slice::from_ref(&new));
    assert_eq!(governs(&node), (0, 1));
    node.put(&[(old_key, old)]);
    assert_eq!(governs(&node), (0, 1));
    node.delete(&new);
    assert_eq!(governs(&node), (1, 0));
}
