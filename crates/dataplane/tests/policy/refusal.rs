//! A policy object that the kernel rejects closes the endpoints that use it, and nothing else.

use crate::namespace::{id, start};
use crate::plans::{change, guarded, ingress, open_plan, policy_id, reaches, two_pods};
use std::time::Duration;
use tortie_dataplane::{DataplaneReport, KernelObject, ReportReceiver};
use tortie_plan::{AddressSet, PlanUpdate, PlannedRule, RuleAction, SetId, SetKind};

/// Returns a rule with more conditions than the kernel accepts in one rule.
fn too_much() -> PlannedRule {
    let mut rule = PlannedRule::new(RuleAction::Deny);
    rule.source.not_sets = (0..200).map(|number| SetId::new(&format!("s:{number}"))).collect();
    rule
}

/// Waits for a report of `count` rejected objects and returns them.
async fn refused(reports: &mut ReportReceiver, count: usize) -> Vec<String> {
    let next = async {
        loop {
            match reports.next().await.unwrap() {
                DataplaneReport::Refused(refused) if refused.len() == count => {
                    return refused.iter().map(|failure| failure.object.to_string()).collect();
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), next).await.expect("it is reported")
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_policies_close_endpoints_and_are_reported() {
    let (node, one, two) = two_pods().await;
    let mut plan = guarded(open_plan(), &[("big", ingress(vec![PlannedRule::new(RuleAction::Allow)]))]);
    for number in 0..200 {
        let set = AddressSet { kind: SetKind::Nets, members: Default::default() };
        plan.sets.insert(SetId::new(&format!("s:{number}")), set);
    }
    let (dataplane, mut reports) = start(&node).await;
    dataplane.replace(plan.clone()).await.unwrap();
    assert!(reaches(&one, "10.65.0.3"));

    // Apply it together with a valid policy, which must not be affected.
    let good = ingress(vec![PlannedRule::new(RuleAction::Allow)]);
    let updates = vec![
        change("big", ingress(vec![too_much(), PlannedRule::new(RuleAction::Allow)])),
        change("good", good),
    ];
    let outcome = dataplane.apply(updates).await.unwrap();
    let rule = KernelObject::Rule { chain: "in-gnp/big".into(), index: 0 };
    let named: Vec<&KernelObject> = outcome.failures.iter().map(|failure| &failure.object).collect();
    assert_eq!(named, [&rule], "{:?}", outcome.failures);
    assert!(outcome.failures[0].concerns(&id("two")) && !outcome.failures[0].concerns(&id("one")));
    assert_eq!(refused(&mut reports, 1).await, ["rule 0 of chain in-gnp/big"], "and stays reported");
    assert!(!reaches(&one, "10.65.0.3") && !reaches(&one, "fd80:65::3"), "it fails closed");
    assert!(reaches(&two, "10.65.0.2"), "others are not concerned");
    assert!(node.exec(&["nft", "list", "table", "inet", "tortie"]).contains("chain in-gnp/good"));

    // A corrected policy works again.
    let outcome = dataplane
        .apply(vec![change("big", ingress(vec![PlannedRule::new(RuleAction::Allow)]))])
        .await
        .unwrap();
    assert_eq!(outcome.failures, []);
    assert_eq!(refused(&mut reports, 0).await, [""; 0]);
    assert!(reaches(&one, "10.65.0.3"));

    // Removing the policy leaves nothing behind.
    let mut policy = plan.workload_policies[&id("two")].clone();
    policy.tiers.clear();
    let updates =
        vec![PlanUpdate::WorkloadPolicy(id("two"), Some(policy)), PlanUpdate::Policy(policy_id("big"), None)];
    assert_eq!(dataplane.apply(updates).await.unwrap().failures, []);
    assert!(!node.exec(&["nft", "list", "table", "inet", "tortie"]).contains("gnp/big"));
}
