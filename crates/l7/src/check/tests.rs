//! Result codes and causes of checks, and the identity of peers.

use super::*;
use crate::access_log::AccessLogLevel;
use crate::probe::TestRequest;
use crate::replica::prepare_changes;
use std::collections::BTreeMap;
use tortie_plan::{
    EndpointTier, HttpMatch, HttpPathMatch, PeerMatch, PlanUpdate, PlannedPolicy, PlannedRule, ProfileRules,
    RuleAction, ServiceAccountId, TierDefaultAction, WorkloadId, WorkloadPolicy,
};

fn workload() -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

/// Returns the updates for a workload with one policy.
fn policy_updates(id: &str, ingress: Vec<PlannedRule>) -> Vec<PlanUpdate> {
    let id: PolicyId = id.parse().unwrap();
    let end = TierDefaultAction::Deny;
    let tier = EndpointTier { name: "default".into(), end, ingress: [id.clone()].into(), egress: [].into() };
    let policy = PlannedPolicy { tier: "default".into(), ingress, ..PlannedPolicy::default() };
    let endpoint = WorkloadPolicy { tiers: vec![tier], profiles: vec![], ..WorkloadPolicy::default() };
    let labels = |role: &str| Some(Arc::new(BTreeMap::from([("role".to_owned(), role.to_owned())])));
    let account =
        |namespace: &str, name: &str| ServiceAccountId { namespace: namespace.into(), name: name.into() };
    vec![
        PlanUpdate::Policy(id, Some(Arc::new(policy))),
        PlanUpdate::WorkloadPolicy(workload(), Some(endpoint)),
        PlanUpdate::ServiceAccount(account("shop", "web"), labels("front")),
        PlanUpdate::ServiceAccount(account("shop", "db"), labels("back")),
        PlanUpdate::Namespace("shop".into(), labels("sales")),
        PlanUpdate::Namespace("ops".into(), labels("admin")),
    ]
}

fn replica_of(updates: Vec<PlanUpdate>) -> Replica {
    let mut replica = Replica::new(1 << 24);
    for change in prepare_changes(updates) {
        replica.apply(change).unwrap();
    }
    replica
}

fn settings() -> CheckSettings {
    CheckSettings {
        direction: PolicyDirection::Ingress,
        not_synced: UnsyncedVerdict::Deny,
        http_rules_on_connections: false,
        denial_header: String::new(),
    }
}

fn checker(settings: CheckSettings) -> PolicyChecker {
    let log = AccessLog::new(AccessLogLevel::Off);
    PolicyChecker::new(Arc::new(PolicyState::new(None)), settings, Arc::new(L7Metrics::new()), log)
}

fn checker_with(settings: CheckSettings, updates: Vec<PlanUpdate>) -> PolicyChecker {
    let checker = checker(settings);
    checker.state().activate(replica_of(updates));
    checker
}

fn request(principal: &str, http: Option<(&str, &str)>) -> TestRequest {
    TestRequest {
        principal: principal.to_owned(),
        source: "10.65.0.2:40000".parse().unwrap(),
        destination: "10.65.0.3:80".parse().unwrap(),
        http: http.map(|(method, path)| (method.to_owned(), path.to_owned())),
    }
}

fn code(checker: &PolicyChecker, request: &CheckRequest) -> i32 {
    checker.check(request).status.unwrap().code
}

fn http_rule(methods: &[&str], paths: &[HttpPathMatch]) -> PlannedRule {
    let methods = methods.iter().map(|method| (*method).to_owned()).collect();
    let http = HttpMatch { methods, paths: paths.to_vec(), matches_without_proxy: false };
    PlannedRule { http: Some(Box::new(http)), ..PlannedRule::new(RuleAction::Allow) }
}

#[test]
fn nothing_is_allowed_before_the_first_sync() {
    let get = request("", Some(("GET", "/"))).encode();
    assert_eq!(code(&checker(settings()), &get), 13);
    let open = CheckSettings { not_synced: UnsyncedVerdict::Allow, ..settings() };
    assert_eq!(code(&checker(open.clone()), &get), 0);
    // A workload without an endpoint is in sync and has no policy.
    assert_eq!(code(&checker_with(open, vec![]), &get), 13);
}

#[test]
fn a_missing_policy_is_an_internal_error() {
    let mut updates = policy_updates("np/shop/web", vec![PlannedRule::new(RuleAction::Allow)]);
    let policy = updates.remove(0);
    let checker = checker_with(settings(), updates);
    let get = request("", Some(("GET", "/"))).encode();
    assert_eq!(code(&checker, &get), 13);
    for change in prepare_changes(vec![policy]) {
        checker.state().apply(change).unwrap();
    }
    assert_eq!(code(&checker, &get), 0);
    for change in prepare_changes(vec![PlanUpdate::Policy("np/shop/web".parse().unwrap(), None)]) {
        checker.state().apply(change).unwrap();
    }
    assert_eq!(code(&checker, &get), 13);
}

#[test]
fn methods_and_paths_decide() {
    let api = HttpPathMatch::Prefix("/api".to_owned());
    let health = HttpPathMatch::Exact("/healthz".to_owned());
    let rules = vec![http_rule(&["GET", "HEAD"], &[api, health]), http_rule(&["POST"], &[])];
    let checker = checker_with(settings(), policy_updates("np/shop/web", rules));
    let cases = [
        ("GET", "/api", 0),
        ("GET", "/api/orders?x=1", 0),
        ("HEAD", "/healthz", 0),
        ("GET", "/healthz/x", 7),
        ("GET", "/apix", 7),
        ("GET", "/", 7),
        ("get", "/api", 7),
        ("DELETE", "/api", 7),
        ("POST", "/anything", 0),
        // Servers may interpret these as a path outside of /api.
        ("GET", "/api/../admin", 7),
        ("GET", "/api/%2e%2e/admin", 7),
        ("GET", "/api/..%2fadmin", 7),
        ("GET", "/api/..\\admin", 7),
        ("GET", "/api/..;x=1/admin", 7),
        ("GET", "/api/%252e%252e/admin", 7),
        ("GET", "/api%00/x", 7),
        ("GET", "/api/%c0%ae%c0%ae/admin", 7),
        ("GET", "//api/..//admin", 7),
        ("GET", "/admin/../api", 7),
        ("GET", "/admin/..%2fapi", 7),
        ("GET", "/api%2fx", 7),
        // And these as a path inside.
        ("GET", "//api/x", 0),
        ("GET", "/./api/x", 0),
        ("GET", "/api/x/../y", 0),
        ("GET", "/%61pi", 0),
        ("GET", "/api;v=1/x", 0),
        // A path that is no path.
        ("GET", "api", 3),
        ("GET", "", 3),
        ("OPTIONS", "*", 3),
        ("GET", "http://host/api", 3),
        ("POST", "*", 0),
    ];
    for (method, path, expected) in cases {
        let request = request("", Some((method, path))).encode();
        assert_eq!(code(&checker, &request), expected, "{method} {path}");
    }
}

#[test]
fn connections_need_a_rule_without_http() {
    let rules = vec![http_rule(&["GET"], &[])];
    let connection = request("", None).encode();
    let closed = checker_with(settings(), policy_updates("np/shop/web", rules.clone()));
    assert_eq!(code(&closed, &connection), 7);
    let as_calico = CheckSettings { http_rules_on_connections: true, ..settings() };
    let open = checker_with(as_calico, policy_updates("np/shop/web", rules));
    assert_eq!(code(&open, &connection), 0);
    let plain = vec![PlannedRule::new(RuleAction::Allow)];
    let plain = checker_with(settings(), policy_updates("np/shop/web", plain));
    assert_eq!(code(&plain, &connection), 0);
}

#[test]
fn peers_are_compared_with_selectors() {
    type PeerCase<'c> = (&'c str, PeerMatch, [i32; 5]);
    let peer = |change: fn(&mut PeerMatch)| {
        let mut peer = PeerMatch::default();
        change(&mut peer);
        peer
    };
    // Results for these principals.
    let principals = [
        "spiffe://td/ns/shop/sa/web",
        "spiffe://td/ns/shop/sa/db",
        "spiffe://td/ns/ops/sa/web",
        "",
        "spiffe://td/vm/web",
    ];
    let cases: [PeerCase<'_>; 9] = [
        ("gnp/x", peer(|_| {}), [0, 0, 0, 0, 0]),
        ("gnp/x", peer(|peer| peer.service_accounts = vec!["web".into()]), [0, 7, 0, 0, 0]),
        ("np/shop/x", peer(|peer| peer.service_accounts = vec!["web".into()]), [0, 7, 7, 0, 0]),
        ("np/shop/x", peer(|peer| peer.selector = "app == 'any'".into()), [0, 0, 7, 0, 0]),
        ("gnp/x", peer(|peer| peer.service_account_selector = "role == 'front'".into()), [0, 7, 7, 0, 0]),
        ("gnp/x", peer(|peer| peer.namespace_selector = "role == 'admin'".into()), [7, 7, 0, 0, 0]),
        ("np/shop/x", peer(|peer| peer.namespace_selector = "all()".into()), [0, 0, 0, 0, 0]),
        ("np/shop/x", peer(|peer| peer.namespace_selector = "global()".into()), [7, 7, 7, 0, 0]),
        (
            "np/shop/x",
            peer(|peer| {
                peer.namespace_selector = "has(role)".into();
                peer.service_accounts = vec!["web".into()];
            }),
            [0, 7, 0, 0, 0],
        ),
    ];
    for (policy, peer, expected) in cases {
        let mut rule = PlannedRule::new(RuleAction::Allow);
        rule.source.peer = Some(Box::new(peer));
        let checker = checker_with(settings(), policy_updates(policy, vec![rule.clone()]));
        let codes = principals.map(|principal| code(&checker, &request(principal, None).encode()));
        assert_eq!(codes, expected, "{policy} {:?}", rule.source.peer);
    }
}

#[test]
fn labels_of_the_request_complete_those_of_the_account() {
    let service_account_selector = "role == 'front' && zone == 'a'".to_owned();
    let mut rule = PlannedRule::new(RuleAction::Allow);
    let peer = PeerMatch { service_account_selector, ..PeerMatch::default() };
    rule.source.peer = Some(Box::new(peer));
    let checker = checker_with(settings(), policy_updates("gnp/x", vec![rule]));
    let labelled = |account: &str, labels: &[(&str, &str)]| {
        let mut request = request(&format!("spiffe://td/ns/shop/sa/{account}"), None).encode();
        let source = request.attributes.as_mut().unwrap().source.as_mut().unwrap();
        source.labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        code(&checker, &request)
    };
    assert_eq!(labelled("web", &[]), 7);
    assert_eq!(labelled("web", &[("zone", "a")]), 0);
    // Labels that the node sent take precedence.
    assert_eq!(labelled("db", &[("zone", "a"), ("role", "front")]), 7);
}

#[test]
fn requests_without_addresses_are_invalid() {
    let updates = policy_updates("np/shop/web", vec![PlannedRule::new(RuleAction::Allow)]);
    let checker = checker_with(settings(), updates);
    assert_eq!(code(&checker, &CheckRequest::default()), 3);
    let mut mixed = request("", None);
    mixed.source = "[fd00::1]:1".parse().unwrap();
    assert_eq!(code(&checker, &mixed.encode()), 3);
    mixed.source = "[::ffff:10.65.0.2]:1".parse().unwrap();
    assert_eq!(code(&checker, &mixed.encode()), 0);
    let mut broken = request("", None).encode();
    let destination = broken.attributes.as_mut().unwrap().destination.as_mut().unwrap();
    destination.address.as_mut().unwrap().socket_address.as_mut().unwrap().port_value = 65_536;
    assert_eq!(code(&checker, &broken), 3);
}

#[test]
fn denied_responses_name_the_rule_on_request() {
    let updates = || policy_updates("np/shop/web", vec![PlannedRule::new(RuleAction::Deny)]);
    let get = request("", Some(("GET", "/"))).encode();
    let plain = checker_with(settings(), updates()).check(&get);
    assert_eq!(plain.status.unwrap().code, 7);
    assert_eq!(plain.denied_response, None);
    let named = CheckSettings { denial_header: "x-denied-by".into(), ..settings() };
    let denied = checker_with(named, updates()).check(&get).denied_response.unwrap();
    assert_eq!(denied.status.unwrap().code, 403);
    let header = denied.headers.first().unwrap().header.clone().unwrap();
    assert_eq!((&*header.key, &*header.value), ("x-denied-by", "np/shop/web ingress rule 1"));
}

#[test]
fn profiles_decide_without_policies() {
    let endpoint = WorkloadPolicy { profiles: vec!["kns.shop".into()], ..WorkloadPolicy::default() };
    let allow = ProfileRules { ingress: vec![PlannedRule::new(RuleAction::Allow)], egress: vec![] };
    let endpoint = PlanUpdate::WorkloadPolicy(workload(), Some(endpoint));
    let get = request("", Some(("GET", "/"))).encode();
    let missing = checker_with(settings(), vec![endpoint.clone()]);
    assert_eq!(code(&missing, &get), 7);
    let profile = PlanUpdate::Profile("kns.shop".into(), Some(Arc::new(allow)));
    let checker = checker_with(settings(), vec![profile, endpoint]);
    assert_eq!(code(&checker, &get), 0);
    let page = L7Metrics::new().render(checker.state());
    let line = "tortie_l7_rule_checks_total{owner=\"profile/kns.shop\",direction=\"ingress\",rule=\"1\"} 1";
    assert!(page.lines().any(|found| found == line), "no {line} in\n{page}");
}
