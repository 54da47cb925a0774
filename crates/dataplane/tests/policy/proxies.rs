//! Rules with HTTP conditions match only at workloads with a proxy.

use crate::namespace::{id, start};
use crate::plans::{change, guarded, ingress, open_plan, policy_id, reaches, tier, two_pods};
use crate::table;
use std::sync::Arc;
use tortie_dataplane::DataplaneHandle;
use tortie_plan::{
    HttpMatch, NodePlan, PlanUpdate, PlannedPolicy, PlannedRule, RuleAction, TierDefaultAction,
};

const SET: &str = "set proxied-workloads";

fn http_rule() -> PlannedRule {
    let http = HttpMatch { methods: vec!["GET".to_owned()], ..HttpMatch::default() };
    PlannedRule { http: Some(Box::new(http)), ..PlannedRule::new(RuleAction::Allow) }
}

/// Returns a plan in which HTTP rules govern the ingress of pod two and the egress of pod one.
fn http_plan() -> NodePlan {
    let mut plan = guarded(open_plan(), &[("in", ingress(vec![http_rule()]))]);
    let out = PlannedPolicy { tier: "default".into(), egress: vec![http_rule()], ..PlannedPolicy::default() };
    plan.policies.insert(policy_id("out"), Arc::new(out));
    plan.workload_policies.get_mut(&id("one")).unwrap().tiers =
        vec![tier("default", TierDefaultAction::Deny, &[], &["out"])];
    plan
}

async fn set_proxy(dataplane: &DataplaneHandle, plan: &mut NodePlan, workload: &str, http_proxy: bool) {
    let policy = plan.workload_policies.get_mut(&id(workload)).unwrap();
    policy.http_proxy = http_proxy;
    let update = PlanUpdate::WorkloadPolicy(id(workload), Some(policy.clone()));
    assert_eq!(dataplane.apply(vec![update]).await.unwrap().failures, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_rules_follow_the_proxies_of_workloads() {
    let (node, one, two) = two_pods().await;
    let mut plan = http_plan();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan.clone()).await.unwrap();
    let chains = || node.exec(&["nft", "-a", "-s", "list", "chain", "inet", "tortie", "in-gnp/in"]);
    let before = chains();
    let both = ["10.65.0.3", "fd80:65::3"];
    // Each step: the workload whose proxy comes or goes, and whether pod one then reaches pod two.
    for (workload, http_proxy, open) in [
        ("two", true, false),
        ("one", true, true),
        ("two", false, false),
        ("two", true, true),
        ("one", false, false),
    ] {
        set_proxy(&dataplane, &mut plan, workload, http_proxy).await;
        for address in both {
            assert_eq!(reaches(&one, address), open, "{workload} {http_proxy}\n{}", chains());
        }
        assert!(reaches(&two, "10.65.0.2"), "no rule with HTTP conditions governs this direction");
    }
    assert_eq!(chains(), before, "the chain was not written again");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxied_workloads_are_listed_on_demand() {
    let (node, one, _two) = two_pods().await;
    let open = vec![PlannedRule::new(RuleAction::Allow)];
    let mut plan = guarded(open_plan(), &[("web", ingress(open.clone()))]);
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan.clone()).await.unwrap();
    set_proxy(&dataplane, &mut plan, "two", true).await;
    assert!(!table::contents(&node).contains_key(SET), "no rule needs it");
    assert!(reaches(&one, "10.65.0.3"));

    dataplane.apply(vec![change("web", ingress(vec![http_rule()]))]).await.unwrap();
    assert!(table::contents(&node).contains_key(SET));
    assert!(reaches(&one, "10.65.0.3"));
    plan.workload_policies.remove(&id("two"));
    dataplane.apply(vec![PlanUpdate::WorkloadPolicy(id("two"), None)]).await.unwrap();
    assert!(!reaches(&one, "10.65.0.3"));

    dataplane.apply(vec![change("web", ingress(open))]).await.unwrap();
    assert!(!table::contents(&node).contains_key(SET));
}
