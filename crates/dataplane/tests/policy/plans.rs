//! A node with two pods, and plans for them.

use crate::namespace::{self, TestNamespace, id, plan, pod, workload};
use std::sync::Arc;
use tortie_plan::{
    EndpointTier, NodePlan, PlanUpdate, PlannedPolicy, PlannedRule, PolicyId, PolicyKind, PortInterval,
    RuleAction, TierDefaultAction, WorkloadPolicy,
};

pub const POD_ONE_ADDRESSES: [&str; 2] = ["10.65.0.2", "fd80:65::2"];
pub const POD_TWO_ADDRESSES: [&str; 2] = ["10.65.0.3", "fd80:65::3"];

pub fn policy_id(name: &str) -> PolicyId {
    PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name: name.into() }
}

pub fn workload_policy(interface: &str, with: &[&str]) -> WorkloadPolicy {
    namespace::workload_policy(&workload(interface, with))
}

/// Returns a plan with two pods that allow everything.
pub fn open_plan() -> NodePlan {
    plan(
        &[("one", workload("cali1", &POD_ONE_ADDRESSES)), ("two", workload("cali2", &POD_TWO_ADDRESSES))],
        &[],
    )
}

/// Returns a node with both pods attached.
pub async fn two_pods() -> (TestNamespace, TestNamespace, TestNamespace) {
    let node = TestNamespace::new("node");
    let one = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    let two = pod(&node, "cali2", &POD_TWO_ADDRESSES).await;
    (node, one, two)
}

pub fn ingress(rules: Vec<PlannedRule>) -> PlannedPolicy {
    PlannedPolicy { tier: "default".into(), ingress: rules, ..PlannedPolicy::default() }
}

pub fn tier(name: &str, end: TierDefaultAction, ingress: &[&str], egress: &[&str]) -> EndpointTier {
    let ids = |names: &[&str]| names.iter().map(|name| policy_id(name)).collect();
    EndpointTier { name: name.into(), end, ingress: ids(ingress), egress: ids(egress) }
}

/// Puts pod two behind these policies, in one tier whose default action is Deny.
pub fn guarded(mut plan: NodePlan, policies: &[(&str, PlannedPolicy)]) -> NodePlan {
    let names: Vec<&str> = policies.iter().map(|(name, _)| *name).collect();
    for (name, policy) in policies {
        plan.policies.insert(policy_id(name), Arc::new(policy.clone()));
    }
    let tier = tier("default", TierDefaultAction::Deny, &names, &[]);
    plan.workload_policies.get_mut(&id("two")).unwrap().tiers = vec![tier];
    plan
}

pub fn udp(action: RuleAction, port: u16) -> PlannedRule {
    let mut rule = PlannedRule::new(action);
    rule.protocol = Some(17);
    rule.destination.ports = vec![PortInterval { first: port, last: port }];
    rule
}

/// Returns an update that replaces a policy.
pub fn change(name: &str, policy: PlannedPolicy) -> PlanUpdate {
    PlanUpdate::Policy(policy_id(name), Some(Arc::new(policy)))
}

pub fn reaches(from: &TestNamespace, address: &str) -> bool {
    from.reaches(address)
}
