//! Packet and byte counters per policy rule.

use crate::namespace::{OpenNetns, TestNamespace, start};
use crate::plans::{guarded, ingress, open_plan, policy_id, reaches, two_pods, udp};
use std::sync::Arc;
use tortie_dataplane::{CountedStage, CountedVerdict, RuleCounter, read_counters};
use tortie_plan::{PlannedRule, PolicyId, PolicyKind, RuleAction};

/// Finds a counter by its display form, such as `gnp/web ingress rule 1`.
fn counter<'c>(counters: &'c [RuleCounter], of: &str) -> &'c RuleCounter {
    let found = counters.iter().find(|counter| counter.of.to_string() == of);
    found.unwrap_or_else(|| panic!("{of} is not among {counters:#?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_counted_and_staged_ones_decide_nothing() {
    let (node, one, _two) = two_pods().await;
    let mut plan = guarded(
        open_plan(),
        &[("web", ingress(vec![udp(RuleAction::Deny, 53), PlannedRule::new(RuleAction::Allow)]))],
    );
    let kind = PolicyKind::StagedGlobalNetworkPolicy;
    let staged = PolicyId { kind, namespace: String::new(), name: "soon".into() };
    plan.policies.insert(staged.clone(), Arc::new(ingress(vec![PlannedRule::new(RuleAction::Deny)])));
    let tiers = plan.workload_policies.values_mut().flat_map(|policy| &mut policy.tiers);
    tiers.for_each(|tier| tier.ingress = [std::slice::from_ref(&staged), &tier.ingress[..]].concat().into());
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan).await.unwrap();
    assert!(reaches(&one, "10.65.0.3") && reaches(&one, "fd80:65::3"), "a staged policy denies nothing");

    let counters = read_counters(&node.open()).await.unwrap();
    let counts = |of| counter(&counters, of).packets;
    assert_eq!(counts("sgnp/soon ingress rule 1"), 2);
    assert_eq!((counts("gnp/web ingress rule 1"), counts("gnp/web ingress rule 2")), (0, 2));
    assert!(counter(&counters, "gnp/web ingress rule 2").bytes >= 2 * 84);
    assert_eq!(counts("profiles ingress end"), 0);
    let verdict = |of| counter(&counters, of).verdict;
    assert_eq!(verdict("sgnp/soon ingress rule 1"), CountedVerdict::Staged);
    assert_eq!(verdict("gnp/web ingress rule 1"), CountedVerdict::Deny);
    assert_eq!(verdict("gnp/web ingress rule 2"), CountedVerdict::Allow);
    assert_eq!(verdict("profiles ingress end"), CountedVerdict::Deny);
    assert!(counters.iter().all(|counter| counter.when == CountedStage::Normal));
    assert_eq!(policy_id("web").to_string(), "gnp/web");
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_at_tier_ends_are_counted_separately() {
    let (node, one, two) = two_pods().await;
    let plan = guarded(open_plan(), &[("web", ingress(vec![udp(RuleAction::Allow, 53)]))]);
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan).await.unwrap();
    assert!(!reaches(&one, "10.65.0.3") && !reaches(&one, "fd80:65::3") && reaches(&two, "10.65.0.2"));
    let counters = read_counters(&node.open()).await.unwrap();
    // At least one packet of each family; ping may retry.
    assert!(counter(&counters, "tier/default ingress end").packets >= 2, "{counters:?}");
    assert_eq!(counter(&counters, "gnp/web ingress rule 1").packets, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_without_a_table_are_an_error() {
    let node = TestNamespace::new("node");
    let error = read_counters(&node.open()).await.unwrap_err().to_string();
    assert!(error.contains("no policy is enforced here"), "{error}");
}
