//! The endpoints of this node: which policies apply to each, in which order.

use super::ids::Ids;
use super::items::ItemId;
use super::words::ClassId;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{EndpointId, Guard, HostEndpoint, PolicyId, Tier, TierEnd, Update, WorkloadId};

/// The policies of one tier, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub tier: String,
    pub end: TierEnd,
    pub ingress: Vec<u32>,
    pub egress: Vec<u32>,
}

/// What applies to an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layers {
    pub normal: Vec<Layer>,
    pub forward: Vec<Layer>,
    pub untracked: Vec<Layer>,
    pub pre_dnat: Vec<Layer>,
}

/// The same with the names of the policies.
#[derive(Debug)]
struct Tiers {
    normal: Vec<Tier>,
    forward: Vec<Tier>,
    untracked: Vec<Tier>,
    pre_dnat: Vec<Tier>,
}

/// What applies to all endpoints that the same selectors match.
struct Answer<'a> {
    matched: &'a Ids,
    layers: Layers,
    tiers: Option<Tiers>,
}

/// An endpoint without the tiers, which are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Workload(WorkloadId, Guard),
    Host(String, HostEndpoint),
}

#[derive(Debug)]
pub(super) struct Local {
    pub frame: Frame,
    /// Whether it is in the plan; an endpoint whose interface belongs to another one is not.
    pub wired: bool,
    /// The class it counts for.
    pub class: Option<ClassId>,
    /// The profiles it counts for.
    pub profiles: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Locals {
    pub all: HashMap<ItemId, Local>,
    pub of_class: HashMap<ClassId, Ids>,
    pub by_id: BTreeMap<EndpointId, ItemId>,
    /// To be looked at again.
    pub stale: BTreeSet<EndpointId>,
    pub told: BTreeMap<EndpointId, (Frame, Layers)>,
}

impl Frame {
    pub fn profiles(&self) -> &[String] {
        match self {
            Frame::Workload(_, guard) => &guard.profiles,
            Frame::Host(_, endpoint) => &endpoint.profiles,
        }
    }

    /// Host endpoints have more than one list of policies, workloads only the first.
    fn fit(&self, layers: &Layers) -> Layers {
        match self {
            Frame::Workload(..) => Layers { normal: layers.normal.clone(), ..Layers::default() },
            Frame::Host(..) => layers.clone(),
        }
    }

    fn update(&self, tiers: &Tiers) -> Update {
        match self {
            Frame::Workload(id, guard) => {
                Update::Guard(id.clone(), Some(Guard { tiers: tiers.normal.clone(), ..guard.clone() }))
            }
            Frame::Host(id, endpoint) => {
                let endpoint = HostEndpoint {
                    tiers: tiers.normal.clone(),
                    forward: tiers.forward.clone(),
                    untracked: tiers.untracked.clone(),
                    pre_dnat: tiers.pre_dnat.clone(),
                    ..endpoint.clone()
                };
                Update::HostEndpoint(id.clone(), Some(endpoint))
            }
        }
    }

    pub fn id(&self) -> EndpointId {
        match self {
            Frame::Workload(id, _) => EndpointId::Workload(id.clone()),
            Frame::Host(name, _) => EndpointId::Host(name.clone()),
        }
    }
}

impl Tiers {
    fn of(layers: &Layers, name: &impl Fn(u32) -> Option<PolicyId>) -> Tiers {
        let tiers = |layers: &[Layer]| layers.iter().map(|layer| layer.tier(name)).collect();
        Tiers {
            normal: tiers(&layers.normal),
            forward: tiers(&layers.forward),
            untracked: tiers(&layers.untracked),
            pre_dnat: tiers(&layers.pre_dnat),
        }
    }
}

impl Layer {
    fn tier(&self, name: &impl Fn(u32) -> Option<PolicyId>) -> Tier {
        let names = |policies: &[u32]| policies.iter().filter_map(|policy| name(*policy)).collect();
        Tier {
            name: self.tier.clone(),
            end: self.end,
            ingress: names(&self.ingress),
            egress: names(&self.egress),
        }
    }
}

impl Locals {
    pub fn mark(&mut self, item: ItemId) {
        if let Some(local) = self.all.get(&item) {
            self.stale.insert(local.frame.id());
        }
    }

    pub fn mark_class(&mut self, class: ClassId) {
        let items = self.of_class.get(&class).into_iter().flat_map(Ids::iter);
        self.stale.extend(items.filter_map(|item| self.all.get(&item)).map(|local| local.frame.id()));
    }

    /// What changed, given the selectors that match a class, what applies to its endpoints, and how policies are called.
    pub fn flush<'a>(
        &mut self,
        matched: impl Fn(ClassId) -> &'a Ids,
        layers: impl Fn(ClassId) -> Layers,
        name: impl Fn(u32) -> Option<PolicyId>,
        added: &mut Vec<Update>,
        removed: &mut Vec<Update>,
    ) {
        // A change of one policy concerns endpoints that mostly have the same policies.
        let mut last: Option<Answer<'a>> = None;
        for id in std::mem::take(&mut self.stale) {
            let local = self.by_id.get(&id).and_then(|item| self.all.get(item));
            let Some((local, class)) = local.and_then(|local| Some((local, local.class?))) else {
                if self.told.remove(&id).is_some() {
                    removed.push(match id {
                        EndpointId::Workload(id) => Update::Guard(id, None),
                        EndpointId::Host(name) => Update::HostEndpoint(name, None),
                    });
                }
                continue;
            };
            let matched = matched(class);
            let known = last.take().filter(|answer| answer.matched == matched);
            let answer =
                last.insert(known.unwrap_or_else(|| Answer { matched, layers: layers(class), tiers: None }));
            let fitting = local.frame.fit(&answer.layers);
            let told = self.told.get(&id);
            if told.is_none_or(|(frame, layers)| *frame != local.frame || *layers != fitting) {
                let tiers = answer.tiers.get_or_insert_with(|| Tiers::of(&answer.layers, &name));
                added.push(local.frame.update(tiers));
                self.told.insert(id, (local.frame.clone(), fitting));
            }
        }
    }
}
