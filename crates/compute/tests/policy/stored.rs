//! Stored objects that other clients wrote: usable parts are used, the rest fails closed.

use crate::cluster::{PolicyNode, gnp, id, namespace, np, object, pod};
use serde_json::{Value as Json, json};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_plan::{PlannedPolicy, PlannedRule, PolicyKind, RuleAction};

fn shop() -> Vec<crate::cluster::PolicyEntry> {
    vec![namespace("shop", json!({})), pod("n1", "shop", "web-0", json!({"role": "web"}), "10.0.0.1/32")]
}

/// Returns the stored text of an object, without the defaults and checks of the API.
fn text(kind: Kind, namespace: &str, name: &str, spec: Json) -> (StoreKey, String) {
    let object = json!({"kind": kind.name(), "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    (StoreKey::resource(kind, namespace, name), object.to_string())
}

fn problem(node: &PolicyNode, kind: Kind, namespace: &str, name: &str) -> String {
    node.compute.problems().remove(&StoreKey::resource(kind, namespace, name).to_string()).unwrap_or_default()
}

fn policy<'n>(node: &'n PolicyNode, name: &str) -> &'n PlannedPolicy {
    &node.plan.policies[&id(PolicyKind::GlobalNetworkPolicy, "", name)]
}

/// Returns the number of policies in the first tier of web-0 that apply to ingress and to egress.
fn governs(node: &PolicyNode) -> (usize, usize) {
    let tiers = &node.workload_policy("shop", "web-0").tiers;
    tiers.first().map_or((0, 0), |tier| (tier.ingress.len(), tier.egress.len()))
}

fn from(action: RuleAction, nets: &[&str], not_nets: &[&str]) -> PlannedRule {
    let parsed = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let mut rule = PlannedRule::new(action);
    rule.source.nets = parsed(nets);
    rule.source.not_nets = parsed(not_nets);
    rule
}

#[test]
fn only_the_inexpressible_rule_fails_closed() {
    let mut node = PolicyNode::with(&shop());
    node.put(&[gnp(
        "p",
        json!({"selector": "role == 'web'", "types": ["Ingress"], "ingress": [
            {"action": "Allow", "source": {"nets": ["10.0.0.5/24"]}},
            {"action": "Allow", "protocol": "Quux", "source": {"selector": "has(unused)"}},
            {"action": "Deny", "protocol": "Quux", "source": {"nets": ["10.1.0.0/16"]}},
            {"action": "Allow", "source": {"nets": ["10.2.0.0/16", "nonsense"]}},
            {"action": "Deny", "source": {"nets": ["10.3.0.0/16", "x"], "notNets": ["10.3.1.0/24", "y"]}},
            {"action": "Pass", "source": {"selector": "role = 'web'"}},
            {"action": "Teleport", "source": {"nets": ["10.4.0.0/16"]}},
            {"action": "Allow"}]}),
    )]);
    let expected = [
        from(RuleAction::Allow, &["10.0.0.0/24"], &[]),
        PlannedRule::never(RuleAction::Allow),
        from(RuleAction::Deny, &["10.1.0.0/16"], &[]),
        from(RuleAction::Allow, &["10.2.0.0/16"], &[]),
        from(RuleAction::Deny, &[], &["10.3.1.0/24"]),
        PlannedRule::never(RuleAction::Pass),
        from(RuleAction::Deny, &["10.4.0.0/16"], &[]),
        PlannedRule::new(RuleAction::Allow),
    ];
    assert_eq!(policy(&node, "p").ingress, expected);
    let problem = problem(&node, Kind::GlobalNetworkPolicy, "", "p");
    for part in
        ["ingress rule 2: protocol Quux is not known; it matches nothing", "rule 3:", "rule 7:", "\"y\""]
    {
        assert!(problem.contains(part), "{part} in {problem}");
    }
    node.put(&[gnp("p", json!({"selector": "role == 'web'"}))]);
    assert_eq!(node.compute.problems(), Default::default(), "mended");
}

#[test]
fn api_limits_do_not_close_stored_policies() {
    let mut node = PolicyNode::with(&shop());
    let many: Vec<Json> = (0..3000).map(|n| json!({"action": "Allow", "protocol": n % 200 + 1})).collect();
    node.put(&[gnp("long", json!({"types": ["Ingress"], "ingress": many}))]);
    let rules = &policy(&node, "long").ingress;
    assert_eq!((rules.len(), rules.iter().filter(|rule| rule.action == RuleAction::Deny).count()), (3000, 0));
    assert_eq!(node.compute.problems(), Default::default());
}

#[test]
fn a_stored_policy_without_types_governs_both_directions() {
    for rules in
        [json!({}), json!({"ingress": [{"action": "Allow"}]}), json!({"egress": [{"action": "Allow"}]})]
    {
        let mut node = PolicyNode::with(&shop());
        let (key, text) = text(Kind::GlobalNetworkPolicy, "", "p", rules.clone());
        node.put(&[(key.clone(), StoreValue::decode(&key, text.as_bytes()).unwrap())]);
        assert_eq!(governs(&node), (1, 1), "{rules}");
    }
}

#[test]
fn network_sets_are_used_without_invalid_nets() {
    let mut node = PolicyNode::with(&shop());
    let set = |nets: Json| object(Kind::GlobalNetworkSet, "", "s", json!({"x": ""}), json!({"nets": nets}));
    node.put(&[
        gnp("p", json!({"ingress": [{"action": "Allow", "source": {"selector": "has(x)"}}]})),
        set(json!(["10.0.0.7/8", "10.0.0.0/8", "10.0.0.0/8", "1.2.3.4"])),
    ]);
    let id = node.rule("gnp/p").source.sets[0].0.to_string();
    assert_eq!(node.set(&id), ["1.2.3.4/32", "10.0.0.0/8"]);
    assert_eq!(node.compute.problems(), Default::default());
    node.put(&[set(json!(["10.0.0.0/8", "nonsense"]))]);
    assert_eq!(node.set(&id), ["10.0.0.0/8"]);
    let problem = problem(&node, Kind::GlobalNetworkSet, "", "s");
    assert!(
        problem.contains("nonsense") && problem.contains("others") || problem.contains("other nets"),
        "{problem}"
    );
}

#[test]
fn host_endpoints_beyond_limits_still_protect() {
    let mut node = PolicyNode::new();
    let spec = json!({"node": "n1", "interfaceName": "eth0", "profiles": ["a", "b", "a"],
        "expectedIPs": ["192.0.2.1", "192.0.2.1", "nonsense"]});
    node.put(&[object(Kind::HostEndpoint, "", "h", json!({}), spec)]);
    let host = &node.plan.host_endpoints["h"];
    assert_eq!(
        (host.interface.as_str(), &host.profiles[..]),
        ("eth0", &["a".to_owned(), "b".to_owned()][..])
    );
    assert!(host.expected.contains(&"192.0.2.1".parse().unwrap()));
    assert_eq!(
        node.plan.profiles["a"].ingress,
        [PlannedRule::new(RuleAction::Deny)],
        "closed but for the failsafe ports"
    );
    assert!(problem(&node, Kind::HostEndpoint, "", "h").contains("nonsense"));
}

#[test]
fn profiles_keep_labels_and_good_rules() {
    let mut node = PolicyNode::with(&shop());
    let spec = json!({"ingress": [{"action": "Allow", "protocol": "Quux"}, {"action": "Allow"}],
        "labelsToApply": {"x": "y"}});
    node.put(&[
        object(Kind::Profile, "", "kns.shop", json!({}), spec),
        np("shop", "p", json!({"selector": "x == 'y'"})),
    ]);
    let expected = [PlannedRule::never(RuleAction::Allow), PlannedRule::new(RuleAction::Allow)];
    assert_eq!(node.plan.profiles["kns.shop"].ingress, expected);
    assert_eq!(governs(&node).0, 1, "labels are inherited");
    assert!(problem(&node, Kind::Profile, "", "kns.shop").contains("ingress rule 1"));
}

/// Returns a node that received a bad entry after a good one, and a node that received only the bad one, as after a
/// restart.
fn before_and_after_a_restart(good: Json, bad: Json) -> (PolicyNode, PolicyNode) {
    let (key, bad) = text(Kind::GlobalNetworkPolicy, "", "p", bad);
    let reason = StoreValue::decode(&key, bad.as_bytes()).expect_err("it can be read").to_string();
    let mut nodes = (PolicyNode::with(&shop()), PolicyNode::with(&shop()));
    nodes.0.put(&[gnp("p", good)]);
    for node in [&mut nodes.0, &mut nodes.1] {
        node.compute.put_unreadable(&key, &bad, &reason);
        node.flush();
    }
    nodes
}

#[test]
fn an_unreadable_policy_closes_what_it_selects() {
    let good = json!({"selector": "role == 'web'", "ingress": [{"action": "Allow"}]});
    let bads = [
        json!({"selector": "role == 'web'", "types": ["Ingress"], "ingress": 7}),
        json!({"selector": "role == 'web'", "types": ["Ingress"], "ingress": [{"action": []}, {"action": "Allow"}]}),
    ];
    for bad in bads {
        let (node, restarted) = before_and_after_a_restart(good.clone(), bad.clone());
        assert_eq!(node.plan, restarted.plan, "{bad}");
        assert_eq!(policy(&node, "p").ingress[0], PlannedRule::new(RuleAction::Deny), "{bad}");
        assert_eq!(governs(&node), (1, 0), "{bad}");
        let problem = problem(&node, Kind::GlobalNetworkPolicy, "", "p");
        assert!(problem.contains("spec.ingress"), "{problem}");
    }
    let directions =
        json!({"selector": "role == 'web'", "types": 9, "order": [], "ingress": [{"action": "Allow"}]});
    let (node, restarted) = before_and_after_a_restart(good.clone(), directions);
    assert_eq!((governs(&node), &node.plan), ((1, 1), &restarted.plan));
    let rule = json!({"selector": "role == 'web'", "ingress": [
        {"action": "Allow", "source": {"nets": 5}}, {"action": "Allow", "protocol": "TCP"}]});
    let (node, restarted) = before_and_after_a_restart(good, rule);
    let tcp = PlannedRule { protocol: Some(6), ..PlannedRule::new(RuleAction::Allow) };
    assert_eq!(policy(&node, "p").ingress, [PlannedRule::never(RuleAction::Allow), tcp]);
    assert_eq!(node.plan, restarted.plan);
}

#[test]
fn policies_with_unreadable_selectors_are_not_in_force() {
    let good = json!({"selector": "role == 'web'", "ingress": [{"action": "Allow"}]});
    let bad = json!({"selector": {"role": "web"}, "ingress": [{"action": "Allow"}]});
    let (node, restarted) = before_and_after_a_restart(good, bad);
    assert_eq!((node.plan.policies.len(), &node.plan), (0, &restarted.plan));
    assert!(problem(&node, Kind::GlobalNetworkPolicy, "", "p").contains("not in force"));
    let mut node = PolicyNode::with(&shop());
    let key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", "p");
    node.compute.put_unreadable(&key, "{", "EOF while parsing");
    assert!(problem(&node, Kind::GlobalNetworkPolicy, "", "p").contains("EOF while parsing"));
    node.put(&[gnp("p", json!({}))]);
    assert_eq!(node.compute.problems(), Default::default(), "written anew");
}
