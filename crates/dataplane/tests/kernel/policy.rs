//! Policy against real packets.

use crate::namespace::{Namespace, addresses, id, plan, pod, start, workload};
use std::sync::Arc;
use tortie_plan::{Action, Guard, Plan, Policy, PolicyId, PolicyKind, Profile, Rule, Tier, TierEnd};

pub fn policy_id(name: &str) -> PolicyId {
    PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name: name.into() }
}

pub fn guard(interface: &str, with: &[&str]) -> Guard {
    Guard {
        interface: interface.into(),
        up: true,
        addresses: addresses(with),
        profiles: vec!["open".into()],
        ..Guard::default()
    }
}

/// Two pods that may do everything.
pub fn open_plan() -> Plan {
    let (one, two) = (["10.65.0.2", "fd80:65::2"], ["10.65.0.3", "fd80:65::3"]);
    let mut plan = plan(&[("one", workload("cali1", &one)), ("two", workload("cali2", &two))], &[]);
    plan.guards.insert(id("one"), guard("cali1", &one));
    plan.guards.insert(id("two"), guard("cali2", &two));
    let everything = vec![Rule::new(Action::Allow)];
    let open = Profile { ingress: everything.clone(), egress: everything };
    plan.profiles.insert("open".into(), Arc::new(open));
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let node = Namespace::new();
    let one = pod(&node, "cali1", &["10.65.0.2", "fd80:65::2"]).await;
    let _two = pod(&node, "cali2", &["10.65.0.3", "fd80:65::3"]).await;
    let (dataplane, _reports) = start(&node).await;
    let mut plan = open_plan();
    dataplane.replace(plan.clone()).await.unwrap();
    println!("{}", node.exec(&["nft", "list", "table", "inet", "tortie"]));
    assert!(one.pings("10.65.0.3"));
    assert!(one.pings("fd80:65::3"));
    let deny = Policy { tier: "default".into(), ingress: vec![Rule::new(Action::Deny)], ..Policy::default() };
    plan.policies.insert(policy_id("deny"), Arc::new(deny));
    let tier =
        Tier { name: "default".into(), end: TierEnd::Deny, ingress: vec![policy_id("deny")], egress: vec![] };
    plan.guards.get_mut(&id("two")).unwrap().tiers.push(tier);
    dataplane.replace(plan).await.unwrap();
    println!("{}", node.exec(&["nft", "list", "table", "inet", "tortie"]));
    assert!(!one.try_exec(&["ping", "-c", "1", "-W", "1", "10.65.0.3"]).status.success());
    assert!(!one.try_exec(&["ping", "-c", "1", "-W", "1", "fd80:65::3"]).status.success());
}
