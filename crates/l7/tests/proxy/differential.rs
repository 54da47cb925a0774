//! Generated policies and requests: the verdict of the evaluator over the plan must equal that of the running server,
//! which has the policy from messages of the policy-sync protocol. `TORTIE_CHECKS` is the number of requests,
//! `TORTIE_SEED` repeats a run.

use crate::fixture::{ServerFixture, encode_plan, in_sync, workload};
use crate::generate::PlanGenerator;
use std::collections::BTreeMap;
use tortie_l7::{ServiceAccountPrincipal, TestRequest};
use tortie_model::selector::Selector;
use tortie_plan::evaluate::{
    EvaluationIndex, HttpRequest, Packet, PeerIdentity, PolicyOutcome, ProxiedTraffic, RequestContext,
};
use tortie_plan::{NodePlan, PeerMatch, PolicyDirection, ServiceAccountId};

const DEFAULT_CHECK_COUNT: usize = 3_600;
const REQUESTS_PER_PLAN: usize = 60;

/// A peer as the plan describes it, without the server's index of labels and selectors.
struct PlanPeer<'p> {
    plan: &'p NodePlan,
    namespace: String,
    account: String,
}

impl PeerIdentity for PlanPeer<'_> {
    fn matches(&self, peer: &PeerMatch, policy_namespace: &str) -> bool {
        let none = BTreeMap::new();
        let id = ServiceAccountId { namespace: self.namespace.clone(), name: self.account.clone() };
        let account_labels = self.plan.service_accounts.get(&id).map_or(&none, |labels| labels);
        let namespace_labels = self.plan.namespaces.get(&self.namespace).map_or(&none, |labels| labels);
        let selects = |text: &str, labels: &BTreeMap<String, String>| {
            text.is_empty() || (text != "global()" && Selector::parse(text).unwrap().matches(labels))
        };
        let names = &peer.service_accounts;
        let has_account = names.is_empty() || names.contains(&self.account);
        let is_local = peer.namespace_selector.is_empty()
            && !policy_namespace.is_empty()
            && *peer != PeerMatch::default();
        has_account
            && selects(&peer.service_account_selector, account_labels)
            && selects(&peer.namespace_selector, namespace_labels)
            && (!is_local || self.namespace == policy_namespace)
    }
}

/// Returns the code that the evaluator gives over the plan.
fn evaluate(plan: &NodePlan, index: &EvaluationIndex<'_>, request: &TestRequest) -> i32 {
    let packet = Packet {
        source: request.source.ip(),
        destination: request.destination.ip(),
        protocol: Packet::TCP,
        source_port: request.source.port(),
        destination_port: request.destination.port(),
        icmp: None,
    };
    let http = request.http.as_ref().map(|(method, path)| HttpRequest::new(method, path));
    let principal = ServiceAccountPrincipal::parse(&request.principal);
    let peer = principal.map(|ServiceAccountPrincipal { namespace, account }| PlanPeer {
        plan,
        namespace: namespace.to_owned(),
        account: account.to_owned(),
    });
    let context = RequestContext {
        traffic: http.as_ref().map_or(ProxiedTraffic::Connection, ProxiedTraffic::Request),
        http_rules_match_connections: false,
        source: peer.as_ref().map(|peer| peer as &dyn PeerIdentity),
        destination: None,
    };
    let endpoint = &plan.workload_policies[&workload()];
    let decision = index.request(endpoint, PolicyDirection::Ingress, &packet, &context, None);
    let is_relative = request.http.as_ref().is_some_and(|(_, path)| !path.starts_with('/'));
    match decision.outcome {
        PolicyOutcome::Allow => 0,
        PolicyOutcome::Deny | PolicyOutcome::NoMatch if is_relative => 3,
        PolicyOutcome::Deny | PolicyOutcome::NoMatch => 7,
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_agrees_with_the_evaluator() {
    let seed: u64 = variable("TORTIE_SEED").unwrap_or_else(rand::random);
    let checks = variable("TORTIE_CHECKS").unwrap_or(DEFAULT_CHECK_COUNT);
    println!("TORTIE_SEED={seed} TORTIE_CHECKS={checks}");
    let mut generator = PlanGenerator::new(seed);
    let first = generator.plan();
    let fixture = ServerFixture::with_plan(&first).await;
    let mut client = fixture.client().await;
    let mut counts = BTreeMap::<i32, usize>::new();
    let mut plan = first;
    for number in 0..checks.div_ceil(REQUESTS_PER_PLAN) {
        let index = EvaluationIndex::new(&plan);
        for _ in 0..REQUESTS_PER_PLAN {
            let request = generator.request();
            let response = client.check(request.encode()).await.unwrap().into_inner();
            let code = response.status.unwrap().code;
            let expected = evaluate(&plan, &index, &request);
            assert_eq!(code, expected, "seed {seed}, plan {number}: {request:?}\n{plan:#?}");
            *counts.entry(code).or_default() += 1;
        }
        plan = generator.plan();
        replace_plan(&fixture, &plan, number).await;
    }
    let allowed = counts.get(&0).copied().unwrap_or_default();
    let denied = counts.get(&7).copied().unwrap_or_default();
    println!("checks by code: {counts:?}");
    assert!(allowed > 100 && denied > 100, "verdicts are too uniform: {counts:?}");
}

/// Replaces the plan of the server, alternately by changes and by a new connection.
async fn replace_plan(fixture: &ServerFixture, plan: &NodePlan, number: usize) {
    let applied = fixture.metrics.sync_messages.get();
    let payloads = encode_plan(plan);
    let mut expected = payloads.len() as u64;
    if number.is_multiple_of(2) {
        payloads.iter().for_each(|payload| fixture.node.send(payload));
    } else {
        let syncs = fixture.metrics.syncs.get();
        fixture.node.set_burst(payloads.into_iter().chain([in_sync()]).collect());
        expected += 1;
        fixture.node.disconnect();
        let synced = async || fixture.metrics.syncs.get() > syncs;
        tortie_testkit::eventually_async("the new plan is in sync", synced).await;
    }
    let received = async || fixture.metrics.sync_messages.get() >= applied + expected;
    tortie_testkit::eventually_async("all messages are received", received).await;
}
