//! The endpoints of this node and the policies that apply to each, in order.

use super::id_set::IdSet;
use super::ids::{ClassId, LabelledId, PolicySlot, SelectorId};
use crate::changes::PlanChanges;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{
    EndpointId, EndpointTier, HostEndpointPolicy, PlanUpdate, PolicyId, TierDefaultAction, WorkloadId,
    WorkloadPolicy,
};

/// The policies of one tier, by slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TierPolicies {
    pub tier: String,
    pub end: TierDefaultAction,
    pub ingress: Vec<PolicySlot>,
    pub egress: Vec<PolicySlot>,
}

/// The policies that apply to an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedTiers {
    pub normal: Vec<TierPolicies>,
    pub forward: Vec<TierPolicies>,
    pub untracked: Vec<TierPolicies>,
    pub pre_dnat: Vec<TierPolicies>,
}

/// The same with the IDs of the policies.
#[derive(Debug)]
struct NamedTiers {
    normal: Vec<EndpointTier>,
    forward: Vec<EndpointTier>,
    untracked: Vec<EndpointTier>,
    pre_dnat: Vec<EndpointTier>,
}

/// The policies that apply to all endpoints that the same selectors match.
struct CachedTiers<'a> {
    matched: &'a IdSet<SelectorId>,
    applied: AppliedTiers,
    /// Computed when the first endpoint needs it.
    tiers: Option<NamedTiers>,
}

/// An endpoint without its tiers, which are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndpointBase {
    Workload(WorkloadId, WorkloadPolicy),
    Host(String, HostEndpointPolicy),
}

#[derive(Debug)]
pub(super) struct LocalEndpoint {
    pub base: EndpointBase,
    /// Whether it is in the plan; an endpoint whose interface belongs to another endpoint is not.
    pub wired: bool,
    /// The class in which it is counted.
    pub class: Option<ClassId>,
    /// The profiles that it references.
    pub profiles: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct LocalEndpoints {
    pub all: HashMap<LabelledId, LocalEndpoint>,
    pub of_class: HashMap<ClassId, IdSet<LabelledId>>,
    pub by_id: BTreeMap<EndpointId, LabelledId>,
    /// Endpoints to re-evaluate at the next flush.
    pub stale: BTreeSet<EndpointId>,
    pub in_plan: BTreeMap<EndpointId, (EndpointBase, AppliedTiers)>,
}

impl EndpointBase {
    pub fn profiles(&self) -> &[String] {
        match self {
            EndpointBase::Workload(_, policy) => &policy.profiles,
            EndpointBase::Host(_, endpoint) => &endpoint.profiles,
        }
    }

    /// Returns the lists that the endpoint has: host endpoints have all of them, workloads only the first.
    fn fit(&self, applied: &AppliedTiers) -> AppliedTiers {
        match self {
            EndpointBase::Workload(..) => {
                AppliedTiers { normal: applied.normal.clone(), ..AppliedTiers::default() }
            }
            EndpointBase::Host(..) => applied.clone(),
        }
    }

    fn update(&self, tiers: &NamedTiers) -> PlanUpdate {
        match self {
            EndpointBase::Workload(id, policy) => PlanUpdate::WorkloadPolicy(
                id.clone(),
                Some(WorkloadPolicy { tiers: tiers.normal.clone(), ..policy.clone() }),
            ),
            EndpointBase::Host(id, endpoint) => {
                let endpoint = HostEndpointPolicy {
                    tiers: tiers.normal.clone(),
                    forward: tiers.forward.clone(),
                    untracked: tiers.untracked.clone(),
                    pre_dnat: tiers.pre_dnat.clone(),
                    ..endpoint.clone()
                };
                PlanUpdate::HostEndpoint(id.clone(), Some(endpoint))
            }
        }
    }

    pub fn id(&self) -> EndpointId {
        match self {
            EndpointBase::Workload(id, _) => EndpointId::Workload(id.clone()),
            EndpointBase::Host(name, _) => EndpointId::Host(name.clone()),
        }
    }
}

impl NamedTiers {
    fn new(applied: &AppliedTiers, name: &impl Fn(PolicySlot) -> Option<PolicyId>) -> NamedTiers {
        NamedTiers {
            normal: applied.normal.iter().map(|tier| tier.named(name)).collect(),
            forward: applied.forward.iter().map(|tier| tier.named(name)).collect(),
            untracked: applied.untracked.iter().map(|tier| tier.named(name)).collect(),
            pre_dnat: applied.pre_dnat.iter().map(|tier| tier.named(name)).collect(),
        }
    }
}

impl TierPolicies {
    pub fn slots(&self) -> impl Iterator<Item = &PolicySlot> {
        self.ingress.iter().chain(&self.egress)
    }

    fn named(&self, name: &impl Fn(PolicySlot) -> Option<PolicyId>) -> EndpointTier {
        EndpointTier {
            name: self.tier.clone(),
            end: self.end,
            ingress: self.ingress.iter().filter_map(|policy| name(*policy)).collect(),
            egress: self.egress.iter().filter_map(|policy| name(*policy)).collect(),
        }
    }
}

impl LocalEndpoints {
    pub fn mark(&mut self, item: LabelledId) {
        if let Some(local) = self.all.get(&item) {
            self.stale.insert(local.base.id());
        }
    }

    pub fn mark_class(&mut self, class: ClassId) {
        let items = self.of_class.get(&class).into_iter().flat_map(IdSet::iter);
        self.stale.extend(items.filter_map(|item| self.all.get(&item)).map(|local| local.base.id()));
    }

    /// Returns the changes. The callbacks return the selectors that match a class, the policies that apply to its
    /// endpoints, and the ID of a policy.
    pub fn flush<'a>(
        &mut self,
        matched: impl Fn(ClassId) -> &'a IdSet<SelectorId>,
        applied: impl Fn(ClassId) -> AppliedTiers,
        name: impl Fn(PolicySlot) -> Option<PolicyId>,
    ) -> PlanChanges {
        let mut changes = PlanChanges::default();
        // A change of one policy mostly affects endpoints with the same policies.
        let mut last: Option<CachedTiers<'a>> = None;
        for id in std::mem::take(&mut self.stale) {
            let local = self.by_id.get(&id).and_then(|item| self.all.get(item));
            let Some((local, class)) = local.and_then(|local| Some((local, local.class?))) else {
                if self.in_plan.remove(&id).is_some() {
                    changes.removed.push(match id {
                        EndpointId::Workload(id) => PlanUpdate::WorkloadPolicy(id, None),
                        EndpointId::Host(name) => PlanUpdate::HostEndpoint(name, None),
                    });
                }
                continue;
            };
            let matched = matched(class);
            let known = last.take().filter(|answer| answer.matched == matched);
            let answer = last.insert(known.unwrap_or_else(|| CachedTiers {
                matched,
                applied: applied(class),
                tiers: None,
            }));
            let fitting = local.base.fit(&answer.applied);
            let in_plan = self.in_plan.get(&id);
            if in_plan.is_none_or(|(base, applied)| *base != local.base || *applied != fitting) {
                let tiers = answer.tiers.get_or_insert_with(|| NamedTiers::new(&answer.applied, &name));
                changes.added.push(local.base.update(tiers));
                self.in_plan.insert(id, (local.base.clone(), fitting));
            }
        }
        changes
    }
}
