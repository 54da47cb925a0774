//! From the plan to chains: pure functions. What they return depends on the plan alone, never on what was there before.

mod criteria;
pub(crate) mod entry;
pub(crate) mod hosts;
pub(crate) mod names;
mod policy;
mod tiers;
pub(crate) mod workloads;

pub(crate) use policy::{Holder, holder_chain, passes};
pub(crate) use tiers::Tiers;

use super::rule::Family;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{SetId, SetKind};

/// Which list of an endpoint's policies a chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// What begins or ends at the endpoint.
    Normal,
    /// What the host forwards.
    Forward,
    /// Before destinations are rewritten.
    PreDnat,
    /// Before connection tracking.
    Untracked,
}

/// What rules need to know of the sets they name.
#[derive(Debug, Default)]
pub(crate) struct Sets(pub BTreeMap<SetId, Collection>);

#[derive(Debug)]
pub(crate) struct Collection {
    pub kind: SetKind,
    /// Those members that are more than one address.
    pub nets: BTreeSet<IpNet>,
}

impl Sets {
    pub fn kind(&self, id: &SetId) -> Option<SetKind> {
        self.0.get(id).map(|collection| collection.kind)
    }

    pub fn has_nets(&self, id: &SetId, family: Family) -> bool {
        let of_family = |net: &IpNet| Family::of(net.addr()) == family;
        self.0.get(id).is_some_and(|collection| collection.nets.iter().any(of_family))
    }
}
