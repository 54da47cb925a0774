//! The part of the plan that subscribers receive. Sets are shared, so that a message in progress keeps its state without
//! a copy; a set is copied only if it changes while a client is receiving it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_plan::{
    AddressSet, NodePlan, PeerLabels, PlanUpdate, PlannedPolicy, PolicyId, ProfileRules, ServiceAccountId,
    SetId, WorkloadId, WorkloadPolicy,
};

#[derive(Debug, Default)]
pub struct SyncPlan {
    pub sets: BTreeMap<SetId, Arc<AddressSet>>,
    pub policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    pub profiles: BTreeMap<String, Arc<ProfileRules>>,
    pub endpoints: BTreeMap<WorkloadId, WorkloadPolicy>,
    pub namespaces: BTreeMap<String, PeerLabels>,
    pub service_accounts: BTreeMap<ServiceAccountId, PeerLabels>,
}

impl From<NodePlan> for SyncPlan {
    fn from(plan: NodePlan) -> SyncPlan {
        SyncPlan {
            sets: plan.sets.into_iter().map(|(id, set)| (id, Arc::new(set))).collect(),
            policies: plan.policies,
            profiles: plan.profiles,
            endpoints: plan.workload_policies,
            namespaces: plan.namespaces,
            service_accounts: plan.service_accounts,
        }
    }
}

impl SyncPlan {
    pub fn apply(&mut self, update: PlanUpdate) {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match update {
            PlanUpdate::Set(id, kind) => {
                let set = kind.map(|kind| Arc::new(AddressSet { kind, members: BTreeSet::new() }));
                put(&mut self.sets, id, set);
            }
            PlanUpdate::Members { set, added, removed } => {
                if let Some(set) = self.sets.get_mut(&set) {
                    let set = Arc::make_mut(set);
                    for member in &removed {
                        set.members.remove(member);
                    }
                    set.members.extend(added);
                }
            }
            PlanUpdate::Policy(id, policy) => put(&mut self.policies, id, policy),
            PlanUpdate::Profile(name, profile) => put(&mut self.profiles, name, profile),
            PlanUpdate::WorkloadPolicy(id, endpoint) => put(&mut self.endpoints, id, endpoint),
            PlanUpdate::Namespace(name, labels) => put(&mut self.namespaces, name, labels),
            PlanUpdate::ServiceAccount(id, labels) => put(&mut self.service_accounts, id, labels),
            _ => {}
        }
    }
}
