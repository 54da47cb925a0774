//! Entries of a datastore, and the plan that is computed from them.

use serde_json::{Value as Json, json};
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_plan::{
    AddressSet, NodePlan, PlanUpdate, PlannedRule, PolicyId, PolicyKind, SetMember, WorkloadId,
    WorkloadPolicy,
};
use tortie_testkit::samples::stored;

pub type PolicyEntry = (StoreKey, StoreValue);

pub const NODE: &str = "n1";

pub fn object(kind: Kind, namespace: &str, name: &str, labels: Json, spec: Json) -> PolicyEntry {
    stored(kind, json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}))
}

/// Returns a pod with the profile of its namespace.
pub fn pod(node: &str, namespace: &str, name: &str, labels: Json, address: &str) -> PolicyEntry {
    pod_with(node, namespace, name, labels, address, json!([]))
}

pub fn pod_with(
    node: &str,
    namespace: &str,
    name: &str,
    labels: Json,
    address: &str,
    ports: Json,
) -> PolicyEntry {
    let spec = json!({
        "orchestrator": "k8s", "node": node, "pod": name, "endpoint": "eth0",
        "interfaceName": format!("cali{name}"), "ipNetworks": [address],
        "profiles": [format!("kns.{namespace}")], "ports": ports,
    });
    let name = format!("{node}-k8s-{}-eth0", name.replace('-', "--"));
    object(Kind::WorkloadEndpoint, namespace, &name, labels, spec)
}

pub fn namespace(name: &str, labels: Json) -> PolicyEntry {
    let mut given = json!({"pcns.projectcalico.org/name": name});
    for (key, value) in labels.as_object().unwrap() {
        given[format!("pcns.{key}")] = value.clone();
    }
    let spec =
        json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}], "labelsToApply": given});
    object(Kind::Profile, "", &format!("kns.{name}"), json!({}), spec)
}

pub fn gnp(name: &str, spec: Json) -> PolicyEntry {
    object(Kind::GlobalNetworkPolicy, "", name, json!({}), spec)
}

pub fn np(namespace: &str, name: &str, spec: Json) -> PolicyEntry {
    object(Kind::NetworkPolicy, namespace, name, json!({}), spec)
}

/// A node, and the plan that results from its updates.
pub struct PolicyNode {
    pub compute: PlanCompute,
    pub plan: NodePlan,
}

impl PolicyNode {
    pub fn new() -> PolicyNode {
        PolicyNode {
            compute: PlanCompute::new(NODE, ParameterEnvironment::default()),
            plan: NodePlan::default(),
        }
    }

    pub fn with(entries: &[PolicyEntry]) -> PolicyNode {
        let mut node = PolicyNode::new();
        node.put(entries);
        node
    }

    /// Puts all entries, then flushes. Returns the updates.
    pub fn put(&mut self, entries: &[PolicyEntry]) -> Vec<PlanUpdate> {
        entries.iter().for_each(|(key, value)| self.compute.put(key, value));
        self.flush()
    }

    pub fn delete(&mut self, entry: &PolicyEntry) -> Vec<PlanUpdate> {
        self.compute.delete(&entry.0);
        self.flush()
    }

    pub fn flush(&mut self) -> Vec<PlanUpdate> {
        let updates = self.compute.flush();
        updates.iter().for_each(|update| self.plan.apply(update.clone()));
        whole(&self.plan);
        updates
    }

    pub fn workload_policy(&self, namespace: &str, pod: &str) -> &WorkloadPolicy {
        let id = WorkloadId {
            orchestrator: "k8s".into(),
            workload: format!("{namespace}/{pod}"),
            endpoint: "eth0".into(),
        };
        &self.plan.workload_policies[&id]
    }

    pub fn set(&self, id: &str) -> Vec<String> {
        let AddressSet { members, .. } = &self.plan.sets[&tortie_plan::SetId::new(id)];
        members.iter().map(text).collect()
    }

    pub fn rule(&self, policy: &str) -> &PlannedRule {
        let found = self.plan.policies.iter().find(|(id, _)| id.to_string() == policy);
        &found.unwrap_or_else(|| panic!("{policy} is not in the plan")).1.ingress[0]
    }
}

fn text(member: &SetMember) -> String {
    match member {
        SetMember::Net(net) => net.to_string(),
        SetMember::Port { address, protocol, port } => format!("{address},{protocol}:{port}"),
    }
}

/// Asserts that the plan contains everything it references, and no unreferenced sets or profiles.
fn whole(plan: &NodePlan) {
    let mut sets = std::collections::BTreeSet::new();
    let rules = plan.policies.values().flat_map(|p| p.ingress.iter().chain(&p.egress));
    let rules = rules.chain(plan.profiles.values().flat_map(|p| p.ingress.iter().chain(&p.egress)));
    for side in rules.flat_map(|rule| [&rule.source, &rule.destination]) {
        let named = [&side.sets, &side.not_sets, &side.named_ports, &side.not_named_ports];
        sets.extend(named.into_iter().flatten().chain(&side.service).cloned());
    }
    let there = plan.sets.keys().filter(|id| &*id.0 != tortie_plan::AMBIENT_WORKLOADS_SET);
    assert!(sets.iter().eq(there), "{sets:?} are needed, {:?} are there", plan.sets.keys());
    let tiers = plan.workload_policies.values().flat_map(|workload_policy| &workload_policy.tiers);
    let tiers = tiers.chain(
        plan.host_endpoints
            .values()
            .flat_map(|h| h.tiers.iter().chain(&h.forward).chain(&h.untracked).chain(&h.pre_dnat)),
    );
    for policy in tiers.flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter())) {
        assert!(plan.policies.contains_key(policy), "{policy} is listed but not there");
    }
    let named = plan.workload_policies.values().flat_map(|workload_policy| &workload_policy.profiles);
    let named = named.chain(plan.host_endpoints.values().flat_map(|endpoint| &endpoint.profiles));
    let named: std::collections::BTreeSet<_> = named.collect();
    assert!(named.into_iter().eq(plan.profiles.keys()));
    assert!(plan.workload_policies.keys().eq(plan.workloads.keys()), "every workload has its policy");
}

pub fn id(kind: PolicyKind, namespace: &str, name: &str) -> PolicyId {
    PolicyId { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}
