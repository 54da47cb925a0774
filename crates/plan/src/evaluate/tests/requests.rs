//! Requests that a proxy evaluates, and the connections that carry them.

use super::*;

const CLIENT: &str = "10.0.0.1";
const SERVER: &str = "10.0.0.2";

struct Account(&'static str);

impl PeerIdentity for Account {
    fn matches(&self, peer: &PeerMatch, policy_namespace: &str) -> bool {
        policy_namespace == "shop" && peer.service_accounts.iter().any(|name| name == self.0)
    }
}

/// A plan with one workload, to which one policy of namespace `shop` applies.
fn plan_with(rules: Vec<PlannedRule>) -> (NodePlan, WorkloadPolicy) {
    let id =
        PolicyId { kind: PolicyKind::NetworkPolicy, namespace: "shop".to_owned(), name: "web".to_owned() };
    let policy = PlannedPolicy { ingress: rules.clone(), egress: rules, ..PlannedPolicy::default() };
    let mut plan = NodePlan::default();
    plan.policies.insert(id.clone(), Arc::new(policy));
    let policies: Arc<[PolicyId]> = vec![id].into();
    let tier = EndpointTier {
        name: "default".to_owned(),
        end: TierDefaultAction::Deny,
        ingress: policies.clone(),
        egress: policies,
    };
    (plan, WorkloadPolicy { tiers: vec![tier], ..WorkloadPolicy::default() })
}

fn get_api(action: RuleAction) -> PlannedRule {
    let http = HttpMatch {
        methods: vec!["GET".to_owned()],
        paths: vec![HttpPathMatch::Prefix("/api".to_owned())],
        matches_without_proxy: action == RuleAction::Deny,
    };
    PlannedRule { http: Some(Box::new(http)), ..PlannedRule::new(action) }
}

fn context<'r>(traffic: ProxiedTraffic<'r>) -> RequestContext<'r> {
    RequestContext { traffic, http_rules_match_connections: false, source: None, destination: None }
}

fn is_allowed(rules: Vec<PlannedRule>, request: &RequestContext<'_>) -> bool {
    let (plan, workload_policy) = plan_with(rules);
    let index = EvaluationIndex::new(&plan);
    let packet = tcp(CLIENT, SERVER, 80);
    let decisions = [PolicyDirection::Ingress, PolicyDirection::Egress].map(|direction| {
        index.request(&workload_policy, direction, &packet, request, None).outcome == PolicyOutcome::Allow
    });
    assert_eq!(decisions[0], decisions[1]);
    decisions[0]
}

#[test]
fn connections_pass_only_to_a_proxy() {
    let (plan, mut workload_policy) = plan_with(vec![get_api(RuleAction::Allow)]);
    let index = EvaluationIndex::new(&plan);
    for (http_proxy, outcome) in [(false, PolicyOutcome::Deny), (true, PolicyOutcome::Allow)] {
        workload_policy.http_proxy = http_proxy;
        for direction in [PolicyDirection::Ingress, PolicyDirection::Egress] {
            let decision = index.workload(&workload_policy, direction, &tcp(CLIENT, SERVER, 80), None);
            assert_eq!(decision.outcome, outcome, "{http_proxy} {direction:?}");
        }
    }
}

#[test]
fn requests_need_a_method_and_a_path() {
    let allowed = |method, path| {
        let request = HttpRequest::new(method, path);
        is_allowed(vec![get_api(RuleAction::Allow)], &context(ProxiedTraffic::Request(&request)))
    };
    assert!(allowed("GET", "/api/x?y"));
    for (method, path) in [("POST", "/api"), ("get", "/api"), ("GET", "/apix"), ("GET", "/api/../x")] {
        assert!(!allowed(method, path), "{method} {path}");
    }
    assert!(!allowed("GET", "/api/%252e%252e/x"), "an ambiguous path");
    assert!(!allowed("GET", "api"));
}

#[test]
fn denying_rules_match_ambiguous_paths() {
    let allowed = |path| {
        let request = HttpRequest::new("GET", path);
        let rules = vec![get_api(RuleAction::Deny), allow()];
        is_allowed(rules, &context(ProxiedTraffic::Request(&request)))
    };
    assert!(allowed("/other"));
    assert!(!allowed("/api/x"));
    assert!(!allowed("/%252e%252e/x"));
}

#[test]
fn http_rules_ignore_plain_connections() {
    let mut connection = context(ProxiedTraffic::Connection);
    assert!(!is_allowed(vec![get_api(RuleAction::Allow)], &connection));
    assert!(!is_allowed(vec![get_api(RuleAction::Deny), allow()], &connection));
    connection.http_rules_match_connections = true;
    assert!(is_allowed(vec![get_api(RuleAction::Allow)], &connection));
}

#[test]
fn only_authenticated_peers_are_compared() {
    let peer = PeerMatch { service_accounts: vec!["client".to_owned()], ..PeerMatch::default() };
    for end in [PacketEnd::Source, PacketEnd::Destination] {
        let mut rule = allow();
        let side = match end {
            PacketEnd::Source => &mut rule.source,
            PacketEnd::Destination => &mut rule.destination,
        };
        side.peer = Some(Box::new(peer.clone()));
        let allowed = |account: Option<&dyn PeerIdentity>| {
            let (source, destination) = match end {
                PacketEnd::Source => (account, None),
                PacketEnd::Destination => (None, account),
            };
            let request = RequestContext { source, destination, ..context(ProxiedTraffic::Connection) };
            is_allowed(vec![rule.clone()], &request)
        };
        assert!(allowed(None));
        assert!(allowed(Some(&Account("client"))));
        assert!(!allowed(Some(&Account("other"))));
    }
}
