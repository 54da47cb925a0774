//! Tests of the parts of the plan that proxies of workloads receive.

use crate::cluster::{PolicyEntry, PolicyNode, gnp, namespace, np, object, pod};
use serde_json::json;
use tortie_model::Kind;
use tortie_plan::{PeerMatch, PlanUpdate, ServiceAccountId, WorkloadId};

fn web() -> [PolicyEntry; 3] {
    let spec = json!({"selector": "role == 'web'", "ingress": [
        {"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}, "source": {"selector": "role == 'ui'"}},
    ]});
    [
        namespace("shop", json!({"team": "red"})),
        pod("n1", "shop", "web-0", json!({"role": "web"}), "10.0.0.1/32"),
        gnp("web", spec),
    ]
}

fn policy_sync(prefix: &str) -> PolicyEntry {
    let spec = json!({"policySyncPathPrefix": prefix});
    object(Kind::FelixConfiguration, "", "default", json!({}), spec)
}

fn workload(name: &str) -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: format!("shop/{name}"), endpoint: "eth0".into() }
}

fn is_proxied(node: &PolicyNode) -> bool {
    node.workload_policy("shop", "web-0").http_proxy
}

#[test]
fn workloads_have_the_proxies_that_are_reported() {
    let mut node = PolicyNode::with(&web());
    let unproxied = |node: &PolicyNode| node.compute.totals().unproxied_workloads;
    assert_eq!((is_proxied(&node), unproxied(&node)), (false, 1));
    node.compute.set_http_proxy(workload("web-0"), true);
    let updates = node.flush();
    assert!(matches!(&updates[..], [PlanUpdate::WorkloadPolicy(..)]), "{updates:?}");
    assert_eq!((is_proxied(&node), unproxied(&node)), (true, 0));
    node.compute.set_http_proxy(workload("web-0"), true);
    assert_eq!(node.flush(), []);

    // The report outlives the endpoint, which may be written again while the same proxy runs.
    node.delete(&web()[1]);
    assert_eq!(node.plan.workload_policies.len(), 0);
    node.put(&web());
    assert!(is_proxied(&node));
    node.compute.set_http_proxy(workload("web-0"), false);
    node.flush();
    assert_eq!((is_proxied(&node), unproxied(&node)), (false, 1));
}

#[test]
fn proxies_may_be_reported_before_their_workloads() {
    let mut node = PolicyNode::new();
    node.compute.set_http_proxy(workload("web-0"), true);
    node.compute.set_http_proxy(workload("web-1"), true);
    assert_eq!(node.flush(), []);
    node.put(&web());
    assert!(is_proxied(&node));
    assert_eq!(node.plan.workload_policies.len(), 1);
}

#[test]
fn rules_carry_peers_only_for_proxies() {
    let mut node = PolicyNode::with(&web());
    assert_eq!(node.rule("gnp/web").source.peer, None);
    assert_eq!(node.compute.problems().len(), 1, "no proxy can receive the policy");
    node.put(&[policy_sync("/var/run/nodeagent")]);
    let rule = node.rule("gnp/web");
    let peer = PeerMatch { selector: "role == 'ui'".to_owned(), ..PeerMatch::default() };
    assert_eq!((rule.source.peer.as_deref(), rule.destination.peer.as_deref()), (Some(&peer), None));
    assert!(node.compute.problems().is_empty());

    let source = json!({"notSelector": "x == 'y'", "namespaceSelector": "team == 'red'",
        "serviceAccounts": {"names": ["api"], "selector": "kind == 'robot'"}});
    let ingress = json!([{"action": "Allow", "source": source}]);
    node.put(&[np("shop", "robots", json!({"selector": "all()", "ingress": ingress}))]);
    let all = PeerMatch {
        selector: String::new(),
        not_selector: "x == 'y'".to_owned(),
        namespace_selector: "team == 'red'".to_owned(),
        service_accounts: vec!["api".to_owned()],
        service_account_selector: "kind == 'robot'".to_owned(),
    };
    assert_eq!(node.rule("np/shop/robots").source.peer.as_deref(), Some(&all));

    // A rule that denies ignores a selector that cannot be parsed, also at proxies.
    let ingress = json!([{"action": "Deny", "source": {"selector": "bad ="}}]);
    node.put(&[np("shop", "robots", json!({"selector": "all()", "ingress": ingress}))]);
    assert_eq!(node.rule("np/shop/robots").source.peer, None);
    node.put(&[policy_sync("")]);
    assert_eq!(node.rule("gnp/web").source.peer, None);
}

#[test]
fn labels_of_peers_come_from_profiles() {
    let account = |labels: serde_json::Value| {
        object(Kind::Profile, "", "ksa.shop.api.v2", json!({}), json!({"labelsToApply": labels}))
    };
    let mut node = PolicyNode::with(&[account(json!({"pcsa.kind": "robot"}))]);
    node.put(&web());
    assert!(node.plan.namespaces.is_empty() && node.plan.service_accounts.is_empty());

    node.put(&[policy_sync("/var/run/nodeagent")]);
    let id = ServiceAccountId { namespace: "shop".to_owned(), name: "api.v2".to_owned() };
    let namespace_labels = [("projectcalico.org/name", "shop"), ("team", "red")];
    let expected = namespace_labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(*node.plan.namespaces["shop"], expected.into());
    assert_eq!(*node.plan.service_accounts[&id], [("kind".to_owned(), "robot".to_owned())].into());
    assert_eq!(node.put(&[account(json!({"pcsa.kind": "robot"}))]), []);
    node.put(&[account(json!({}))]);
    assert!(node.plan.service_accounts[&id].is_empty());
    node.delete(&account(json!({})));
    assert_eq!(node.plan.service_accounts.len(), 0);

    node.put(&[policy_sync("")]);
    assert!(node.plan.namespaces.is_empty());
}

#[test]
fn http_rules_without_protocol_open_only_tcp() {
    let rules = json!([
        {"action": "Allow", "http": {"methods": ["GET"]}},
        {"action": "Allow", "notProtocol": "SCTP", "http": {"methods": ["GET"]}},
        {"action": "Allow"},
    ]);
    let mut node = PolicyNode::with(&web());
    node.put(&[gnp("web", json!({"selector": "role == 'web'", "ingress": rules}))]);
    let protocols = |node: &PolicyNode| {
        let id = "gnp/web".parse().unwrap();
        node.plan.policies[&id].ingress.iter().map(|rule| rule.protocol).collect::<Vec<_>>()
    };
    assert_eq!(protocols(&node), [Some(6), Some(6), None]);
    // The permissive setting disregards the conditions, as Calico does.
    let spec = json!({"httpRulesWithoutProxy": "Allow"});
    node.put(&[object(Kind::FelixConfiguration, "", "default", json!({}), spec)]);
    assert_eq!(protocols(&node), [None; 3]);
}
