//! A plan made quick to ask.

use super::ranges::Ranges;
use crate::change::{Plan, Set};
use crate::set::{Member, SetId, SetKind};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::OnceLock;

/// Answers for one state of a plan. To be made once and asked often.
#[derive(Clone, Debug)]
pub struct Index<'p> {
    pub(super) plan: &'p Plan,
    sets: HashMap<&'p SetId, Members<'p>>,
}

#[derive(Clone, Debug)]
enum Members<'p> {
    /// Put in order when it is first asked: few questions concern all sets.
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

    /// Whether a set of nets has an address. A set that is not in the plan is empty.
    pub fn has_address(&self, set: &SetId, address: IpAddr) -> bool {
        match self.sets.get(set) {
            Some(Members::Nets(set, ranges)) => ranges.get_or_init(|| ranges_of(set)).contains(address),
            Some(Members::Ports(_)) | None => false,
        }
    }

    /// Whether a set of ports has this one.
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
