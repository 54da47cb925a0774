//! Decodes any bytes as an authorization request of Envoy and decides about it. The verdict must not depend on the order
//! of requests, and only rules of the policy may allow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::sync::{Arc, OnceLock};
use tortie_l7::proto::v3::CheckRequest;
use tortie_l7::{
    AccessLog, AccessLogLevel, CheckSettings, L7Metrics, PolicyChecker, PolicyState, Replica,
    UnsyncedVerdict, prepare_changes,
};
use tortie_plan::{
    EndpointTier, HttpMatch, HttpPathMatch, PeerMatch, PlanUpdate, PlannedPolicy, PlannedRule,
    PolicyDirection, PolicyId, RuleAction, TierDefaultAction, WorkloadId, WorkloadPolicy,
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = CheckRequest::decode(bytes) else { return };
    let code = |request: &CheckRequest| checker().check(request).status.unwrap_or_default().code;
    let verdict = code(&request);
    assert!(matches!(verdict, 0 | 3 | 7), "{verdict}");
    assert_eq!(code(&request), verdict);
    let http = request.attributes.and_then(|attributes| attributes.request?.http);
    // The policy allows only GET below /api.
    assert!(verdict != 0 || http.is_some_and(|http| http.method == "GET" && http.path.starts_with('/')));
});

fn checker() -> &'static PolicyChecker {
    static CHECKER: OnceLock<PolicyChecker> = OnceLock::new();
    CHECKER.get_or_init(|| {
        let state = Arc::new(PolicyState::new(None));
        let mut replica = Replica::new(1 << 20);
        for change in prepare_changes(policy()) {
            replica.apply(change).expect("a small policy");
        }
        state.activate(replica);
        let settings = CheckSettings {
            direction: PolicyDirection::Ingress,
            not_synced: UnsyncedVerdict::Deny,
            http_rules_on_connections: false,
            denial_header: "x-denied-by".to_owned(),
        };
        let log = AccessLog::new(AccessLogLevel::Off);
        PolicyChecker::new(state, settings, Arc::new(L7Metrics::new()), log)
    })
}

fn policy() -> Vec<PlanUpdate> {
    let methods = vec!["GET".to_owned()];
    let paths = vec![HttpPathMatch::Prefix("/api".to_owned())];
    let mut rule = PlannedRule::new(RuleAction::Allow);
    rule.http = Some(Box::new(HttpMatch { methods, paths, matches_without_proxy: false }));
    let peer = PeerMatch { service_accounts: vec!["web".to_owned()], ..PeerMatch::default() };
    rule.source.peer = Some(Box::new(peer));
    let id: PolicyId = "np/shop/web".parse().expect("a policy");
    let tier = EndpointTier {
        name: "default".to_owned(),
        end: TierDefaultAction::Deny,
        ingress: [id.clone()].into(),
        egress: [].into(),
    };
    let workload = WorkloadId {
        orchestrator: "k8s".to_owned(),
        workload: "shop/web".to_owned(),
        endpoint: "eth0".to_owned(),
    };
    let policy = PlannedPolicy { ingress: vec![rule], ..PlannedPolicy::default() };
    let endpoint = WorkloadPolicy { tiers: vec![tier], ..WorkloadPolicy::default() };
    vec![PlanUpdate::Policy(id, Some(Arc::new(policy))), PlanUpdate::WorkloadPolicy(workload, Some(endpoint))]
}
