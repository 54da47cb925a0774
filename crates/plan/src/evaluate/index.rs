//! Index over a plan for fast lookups.

use super::ranges::NetRanges;
use crate::change::{AddressSet, NodePlan};
use crate::set::{SetId, SetKind, SetMember};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::OnceLock;

/// Index over one state of a plan. Build it once and use it for many lookups.
#[derive(Clone, Debug)]
pub struct EvaluationIndex<'p> {
    pub(super) plan: &'p NodePlan,
    sets: HashMap<&'p SetId, IndexedMembers<'p>>,
}

#[derive(Clone, Debug)]
enum IndexedMembers<'p> {
    /// The ranges are sorted at the first lookup: few evaluations touch all sets.
    Nets(&'p AddressSet, OnceLock<NetRanges>),
    Ports(&'p AddressSet),
}

impl<'p> EvaluationIndex<'p> {
    pub fn new(plan: &'p NodePlan) -> EvaluationIndex<'p> {
        let sets = plan.sets.iter().map(|(id, set)| match set.kind {
            SetKind::Nets => (id, IndexedMembers::Nets(set, OnceLock::new())),
            SetKind::Ports => (id, IndexedMembers::Ports(set)),
        });
        EvaluationIndex { plan, sets: sets.collect() }
    }

    pub fn plan(&self) -> &'p NodePlan {
        self.plan
    }

    /// Returns whether a set of nets contains an address. A set that is not in the plan is empty.
    pub fn has_address(&self, set: &SetId, address: IpAddr) -> bool {
        match self.sets.get(set) {
            Some(IndexedMembers::Nets(set, ranges)) => {
                ranges.get_or_init(|| ranges_of(set)).contains(address)
            }
            Some(IndexedMembers::Ports(_)) | None => false,
        }
    }

    /// Returns whether a set of ports contains this address, protocol and port.
    pub fn has_port(&self, set: &SetId, address: IpAddr, protocol: u8, port: u16) -> bool {
        match self.sets.get(set) {
            Some(IndexedMembers::Ports(set)) => {
                set.members.contains(&SetMember::Port { address, protocol, port })
            }
            Some(IndexedMembers::Nets(..)) | None => false,
        }
    }
}

fn ranges_of(set: &AddressSet) -> NetRanges {
    NetRanges::new(set.members.iter().filter_map(|member| match member {
        SetMember::Net(net) => Some(net),
        SetMember::Port { .. } => None,
    }))
}
