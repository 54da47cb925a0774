//! What the kernel counts, rule by rule.

use crate::namespace::{Namespace, Open, start};
use crate::plans::{guarded, ingress, open_plan, policy_id, reaches, two_pods, udp};
use std::sync::Arc;
use tortie_dataplane::{RuleCounter, When, counters};
use tortie_plan::{Action, Direction, PolicyId, PolicyKind, Rule};

fn counter<'c>(counters: &'c [RuleCounter], holder: &str, rule: usize) -> &'c RuleCounter {
    let mut found = counters.iter().filter(|counter| counter.direction == Direction::Ingress);
    found.find(|counter| counter.holder == holder && counter.rule == rule).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_counted_and_staged_ones_decide_nothing() {
    let (node, one, _two) = two_pods().await;
    let mut plan =
        guarded(open_plan(), &[("web", ingress(vec![udp(Action::Deny, 53), Rule::new(Action::Allow)]))]);
    let kind = PolicyKind::StagedGlobalNetworkPolicy;
    let staged = PolicyId { kind, namespace: String::new(), name: "soon".into() };
    plan.policies.insert(staged.clone(), Arc::new(ingress(vec![Rule::new(Action::Deny)])));
    let tiers = plan.workload_policies.values_mut().flat_map(|guard| &mut guard.tiers);
    tiers.for_each(|tier| tier.ingress.insert(0, staged.clone()));
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan).await.unwrap();
    assert!(reaches(&one, "10.65.0.3") && reaches(&one, "fd80:65::3"), "a staged policy denies nothing");

    let counters = counters(&node.open()).await.unwrap();
    let counts = |holder, rule| counter(&counters, holder, rule).packets;
    assert_eq!(counts("sgnp/soon", 0), 2);
    assert_eq!((counts("gnp/web", 0), counts("gnp/web", 1)), (0, 2));
    assert!(counter(&counters, "gnp/web", 1).bytes >= 2 * 84);
    assert!(counters.iter().all(|counter| counter.when == When::Normal));
    assert_eq!(policy_id("web").to_string(), "gnp/web");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_enforced_there_is_nothing_to_count() {
    let node = Namespace::new("node");
    let error = counters(&node.open()).await.unwrap_err().to_string();
    assert!(error.contains("no policy is enforced here"), "{error}");
}
