//! Index over a plan for fast lookups.

use super::ranges::Ranges;
use crate::change::{Plan, Set};
use crate::set::{Member, SetId, SetKind};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::OnceLock;

/// Index over one state of a plan. Build it once and use it for many lookups.
#[derive(Clone, Debug)]
pub struct Index<'p> {
    pub(super) plan: &'p Plan,
    sets: HashMap<&'p SetId, Members<'p>>,
}

#[derive(Clone, Debug)]
enum Members<'p> {
    /// The ranges are sorted at the first lookup: few evaluations touch all sets.
    Nets(&'p Set, OnceLock<Ranges>),
    Ports(&'p Set),
}

impl<'p> Index<'p> {
    pub fn new(plan: &'p Plan) -> Index<'p> {
        let sets = plan.sets.iter().map(|(id, set)| match set.kind {
            SetKind::Nets => (id, Members::Nets(set, OnceLock::new())),
            SetKind::Ports => (id, Members::Ports(set)),
        });
        Index { plan, sets: sets.collect() }
    }

    pub fn plan(&self) -> &'p Plan {
        self.plan
    }

    /// Returns whether a set of nets contains an address. A set that is not in the plan is empty.
    pub fn has_address(&self, set: &SetId, address: IpAddr) -> bool {
        match self.sets.get(set) {
            Some(Members::Nets(set, ranges)) => ranges.get_or_init(|| ranges_of(set)).contains(address),
            Some(Members::Ports(_)) | None => false,
        }
    }

    /// Returns whether a set of ports contains this address, protocol and port.
    pub fn has_port(&self, set: &SetId, address: IpAddr, protocol: u8, port: u16) -> bool {
        match self.sets.get(set) {
            Some(Members::Ports(set)) => set.members.contains(&Member::Port { address, protocol, port }),
            Some(Members::Nets(..)) | None => false,
        }
    }
}

fn ranges_of(set: &Set) -> Ranges {
    Ranges::new(set.members.iter().filter_map(|member| match member {
        Member::Net(net) => Some(net),
        Member::Port { .. } => None,
    }))
}
