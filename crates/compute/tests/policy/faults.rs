//! Objects that break the rules of their kind.

use crate::cluster::{Node, gnp, id, namespace, np, object, pod};
use serde_json::json;
use tortie_model::{Key, Kind, Value};
use tortie_plan::{Action, PolicyKind, Rule};

fn shop() -> Vec<crate::cluster::Entry> {
    vec![namespace("shop", json!({})), pod("n1", "shop", "web-0", json!({"role": "web"}), "10.0.0.1/32")]
}

#[test]
fn a_policy_that_cannot_be_used_denies_for_whom_it_selects() {
    let mut node = Node::with(&shop());
    let bad = json!({"selector": "role == 'web'", "types": ["Egress"], "egress": [
        {"action": "Allow", "destination": {"nets": ["10.0.0.5/24"]}}, {"action": "Allow"}]});
    node.put(&[np("shop", "bad", bad), gnp("newer", json!({"ingress": [{"action": "Teleport"}]}))]);
    let deny = [Rule::new(Action::Deny)];
    let policy = &node.plan.policies[&id(PolicyKind::NetworkPolicy, "shop", "bad")];
    assert_eq!(policy.egress, deny);
    let tier = &node.workload_policy("shop", "web-0").tiers[0];
    assert_eq!((tier.ingress.len(), tier.egress.len()), (1, 1), "each in the direction it governs");
    let problems = node.compute.problems();
    assert_eq!(problems.len(), 2);
    let reason = &problems[&Key::resource(Kind::NetworkPolicy, "shop", "bad").to_string()];
    assert!(reason.contains("10.0.0.5/24") && reason.contains("denies"), "{reason}");
    node.put(&[np("shop", "bad", json!({"selector": "role == 'web'"})), gnp("newer", json!({}))]);
    assert_eq!(node.compute.problems(), Default::default(), "mended");
}

#[test]
fn a_policy_whose_selector_cannot_be_read_is_reported_and_left_out() {
    let mut node = Node::with(&shop());
    node.put(&[gnp("lost", json!({"selector": "role = 'web'"}))]);
    assert!(node.plan.policies.is_empty());
    assert_eq!(node.compute.problems().len(), 1);
}

#[test]
fn a_staged_policy_that_cannot_be_used_is_left_out() {
    let mut node = Node::with(&shop());
    let bad = json!({"ingress": [{"action": "Teleport"}]});
    node.put(&[object(Kind::StagedGlobalNetworkPolicy, "", "s", json!({}), bad)]);
    assert!(node.plan.policies.is_empty());
    assert_eq!(node.compute.problems().len(), 1);
}

#[test]
fn staged_deletions_are_not_policies() {
    let mut node = Node::with(&shop());
    let delete =
        object(Kind::StagedGlobalNetworkPolicy, "", "s", json!({}), json!({"stagedAction": "Delete"}));
    let staged = object(Kind::StagedGlobalNetworkPolicy, "", "t", json!({}), json!({}));
    node.put(&[delete, staged]);
    assert_eq!(node.plan.policies.len(), 1);
    assert_eq!(node.workload_policy("shop", "web-0").tiers[0].ingress.len(), 1);
}

#[test]
fn a_bad_profile_counts_as_missing() {
    let mut node = Node::with(&shop());
    let bad = json!({"ingress": [{"action": "Teleport"}], "labelsToApply": {"x": "y"}});
    node.put(&[object(Kind::Profile, "", "kns.shop", json!({}), bad)]);
    assert_eq!(node.plan.profiles["kns.shop"].ingress, [Rule::new(Action::Deny)]);
    assert_eq!(node.compute.problems().len(), 1);
}

#[test]
fn a_bad_network_set_is_empty() {
    let mut node = Node::with(&shop());
    let set = |nets: serde_json::Value| {
        object(Kind::GlobalNetworkSet, "", "s", json!({"x": ""}), json!({"nets": nets}))
    };
    node.put(&[
        gnp("p", json!({"ingress": [{"action": "Allow", "source": {"selector": "has(x)"}}]})),
        set(json!(["10.0.0.0/8"])),
    ]);
    let id = node.rule("gnp/p").source.sets[0].0.to_string();
    assert_eq!(node.set(&id), ["10.0.0.0/8"]);
    node.put(&[set(json!(["10.0.0.0/8", "nonsense"]))]);
    assert!(node.set(&id).is_empty());
}

#[test]
fn of_two_keys_for_one_policy_the_one_with_its_name_counts() {
    let mut node = Node::with(&shop());
    let text = |order: u32| {
        json!({"kind": "GlobalNetworkPolicy", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "default.web"}, "spec": {"tier": "default", "order": order,
            "types": if order == 1 { json!(["Ingress"]) } else { json!(["Egress"]) }}})
        .to_string()
    };
    let old_key = Key::resource(Kind::GlobalNetworkPolicy, "", "default.web");
    let old = Value::decode(&old_key, text(1).as_bytes()).unwrap();
    let new = gnp("web", json!({"types": ["Egress"]}));
    let governs = |node: &Node| {
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
