//! From the plan to chains: pure functions. What they return depends on the plan alone, never on what was there before.

mod allowed;
pub(crate) mod arp;
mod criteria;
pub(crate) mod dscp;
pub(crate) mod entry;
pub(crate) mod floating;
pub(crate) mod hosts;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod nat;
mod policy;
mod tiers;
pub(crate) mod tunnels;
pub(crate) mod workloads;

pub(crate) use allowed::{Allowed, POLICY};
pub(crate) use policy::{Holder, holder_chain, passes};
pub(crate) use tiers::{END_OF_TIER, NO_PROFILE, Tiers};

use super::rule::{Action, Family, Field, Match, Rule};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{SetId, SetKind};

/// How interfaces that lead to workloads are distinguished from others: by prefix, which also closes those we were not sent
/// of yet, and by name where a workload has an interface that no prefix covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workloads<'s> {
    pub prefixes: &'s [String],
    /// There are interfaces in the set of those.
    pub others: bool,
}

impl<'s> Workloads<'s> {
    pub fn is_covered(self, interface: &str) -> bool {
        self.prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
    }

    /// The ways in which an interface can be one of theirs.
    pub fn conditions(self, field: Field) -> impl Iterator<Item = Match> + 's {
        let prefixes = self.prefixes.iter().map(move |prefix| Match::interface_begins(field, prefix));
        prefixes.chain(self.others.then(|| Match::lookup([field], names::WORKLOADS)))
    }

    /// Rules for what comes from or goes to workloads.
    pub fn rules(self, field: Field, comment: &str, actions: &[Action]) -> Vec<Rule> {
        let rule = |condition| Rule::new(vec![condition], actions.to_vec()).says(comment);
        self.conditions(field).map(rule).collect()
    }
}

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
