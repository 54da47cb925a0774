//! A pod that sends from the moment its interface exists gets no packet through that its policy denies.

use crate::flood::{Flood, counted, flows};
use crate::namespace::{Namespace, Open, id, pod, request, start};
use crate::plans::{ONE, TWO, open_plan, policy_id, tier, workload_policy};
use std::sync::Arc;
use tortie_dataplane::pod::attach;
use tortie_plan::{Action, Policy, Rule, TierEnd, Update};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_born_under_denial_gets_nothing_through() {
    let (node, one) = (Namespace::new("node"), Namespace::new("node"));
    let _two = pod(&node, "cali2", &TWO).await;
    let (dataplane, _reports) = start(&node).await;
    let mut before = open_plan();
    let workload = before.workloads.remove(&id("one")).unwrap();
    before.workload_policies.remove(&id("one"));
    let deny = Policy { tier: "default".into(), egress: vec![Rule::new(Action::Deny)], ..Policy::default() };
    before.policies.insert(policy_id("deny"), Arc::new(deny));
    dataplane.replace(before).await.unwrap();

    // The pod sends before it has an interface, before the dataplane knows it, and from then on.
    let flood = Flood::start(&node, &one);
    attach(&node.open(), &request(&one, "cali1", &ONE)).await.unwrap();
    flows(&node, 200).await;
    let mut denied = workload_policy("cali1", &ONE);
    denied.tiers = vec![tier("default", TierEnd::Deny, &[], &["deny"])];
    let born =
        vec![Update::Workload(id("one"), Some(workload)), Update::WorkloadPolicy(id("one"), Some(denied))];
    assert_eq!(dataplane.apply(born).await.unwrap().failures, []);
    flows(&node, 200).await;
    let now = counted(&node);
    assert_eq!((now.open_out, now.closed_out), (0, 0), "{now:?}");

    // Prove that the test can see packets: once allowed, they get through.
    let open = workload_policy("cali1", &ONE);
    dataplane.apply(vec![Update::WorkloadPolicy(id("one"), Some(open))]).await.unwrap();
    flows(&node, 200).await;
    assert!(counted(&node).closed_out > 0);
    flood.ends(&node).await;
}
