//! A pod that sends from the moment its interface exists gets no packet through that its policy denies.

use crate::flood::{PacketFlood, counted, flows};
use crate::namespace::{OpenNetns, TestNamespace, id, pod, request, start};
use crate::plans::{POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, open_plan, policy_id, tier, workload_policy};
use std::sync::Arc;
use tortie_dataplane::pod::attach;
use tortie_plan::{PlanUpdate, PlannedPolicy, PlannedRule, RuleAction, TierDefaultAction};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_born_under_denial_gets_nothing_through() {
    let (node, one) = (TestNamespace::new("node"), TestNamespace::new("node"));
    let _two = pod(&node, "cali2", &POD_TWO_ADDRESSES).await;
    let (dataplane, _reports) = start(&node).await;
    let mut before = open_plan();
    let workload = before.workloads.remove(&id("one")).unwrap();
    before.workload_policies.remove(&id("one"));
    let deny = PlannedPolicy {
        tier: "default".into(),
        egress: vec![PlannedRule::new(RuleAction::Deny)],
        ..PlannedPolicy::default()
    };
    before.policies.insert(policy_id("deny"), Arc::new(deny));
    dataplane.replace(before).await.unwrap();

    // The pod sends before it has an interface, before the dataplane knows it, and from then on.
    let flood = PacketFlood::start(&node, &one);
    attach(&node.open(), &request(&one, "cali1", &POD_ONE_ADDRESSES)).await.unwrap();
    flows(&node, 200).await;
    let mut denied = workload_policy("cali1", &POD_ONE_ADDRESSES);
    denied.tiers = vec![tier("default", TierDefaultAction::Deny, &[], &["deny"])];
    let born = vec![
        PlanUpdate::Workload(id("one"), Some(workload)),
        PlanUpdate::WorkloadPolicy(id("one"), Some(denied)),
    ];
    assert_eq!(dataplane.apply(born).await.unwrap().failures, []);
    flows(&node, 200).await;
    let now = counted(&node);
    assert_eq!((now.open_out, now.closed_out), (0, 0), "{now:?}");

    // Prove that the test can see packets: once allowed, they get through.
    let open = workload_policy("cali1", &POD_ONE_ADDRESSES);
    dataplane.apply(vec![PlanUpdate::WorkloadPolicy(id("one"), Some(open))]).await.unwrap();
    flows(&node, 200).await;
    assert!(counted(&node).closed_out > 0);
    flood.ends(&node).await;
}
