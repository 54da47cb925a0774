//! Renders the plan into chains with pure functions: their result depends on the plan alone, never on earlier state.

mod allowed;
pub mod arp;
mod criteria;
mod dispatch;
pub mod dscp;
pub mod entry;
pub mod floating;
pub mod flow;
pub mod hosts;
pub mod metadata;
pub mod names;
pub mod nat;
mod policy;
mod tiers;
pub mod tunnels;
pub mod workloads;

pub use allowed::{MarkedHook, POLICY_PRIORITY};
pub use dispatch::{DispatchedRules, PortKey, port_keys};
pub use policy::{PolicyOrProfile, RuleRenderer, has_pass_rule, has_proxy_rule, needs_forward_chain};
pub use tiers::{NO_PROFILE_COMMENT, TIER_END_COMMENT, TierRenderer};

use super::rule::{NftAction, NftFamily, NftField, NftMatch, NftRule};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{SetId, SetKind};

/// Distinguishes interfaces of workloads from others: by prefix, which also covers workloads that the node does not
/// know yet, and by name for workloads whose interface no prefix covers.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadInterfaces<'s> {
    pub prefixes: &'s [String],
    /// Whether the set of uncovered interfaces is not empty.
    pub others: bool,
}

impl<'s> WorkloadInterfaces<'s> {
    pub fn is_covered(self, interface: &str) -> bool {
        self.prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
    }

    /// Returns the alternative conditions for an interface of a workload.
    pub fn conditions(self, field: NftField) -> impl Iterator<Item = NftMatch> + 's {
        let prefixes = self.prefixes.iter().map(move |prefix| NftMatch::interface_begins(field, prefix));
        prefixes.chain(self.others.then(|| NftMatch::lookup([field], names::UNCOVERED_WORKLOADS_SET)))
    }

    /// Returns rules for packets from or to workloads.
    pub fn rules(self, field: NftField, comment: &str, actions: &[NftAction]) -> Vec<NftRule> {
        let conditions = self.conditions(field);
        conditions.map(|condition| NftRule::new(vec![condition], actions.to_vec()).says(comment)).collect()
    }
}

/// The list of an endpoint's policies that a chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyStage {
    /// Packets that originate or terminate at the endpoint.
    Normal,
    /// Packets that the host forwards. Policies share the chains of the normal stage, except in a direction in which a
    /// rule depends on the proxy of a workload: the packet may be on its way to a workload or come from one.
    Forward,
    /// Before destinations are rewritten.
    PreDnat,
    /// Before connection tracking.
    Untracked,
}

/// Properties of sets that rules depend on.
#[derive(Debug, Default)]
pub struct KnownSets(pub BTreeMap<SetId, KnownSet>);

#[derive(Debug)]
pub struct KnownSet {
    pub kind: SetKind,
    /// Members that consist of more than one address.
    pub nets: BTreeSet<IpNet>,
}

impl KnownSets {
    pub fn kind(&self, id: &SetId) -> Option<SetKind> {
        self.0.get(id).map(|collection| collection.kind)
    }

    pub fn has_nets(&self, id: &SetId, family: NftFamily) -> bool {
        self.0.get(id).is_some_and(|set| set.nets.iter().any(|net| NftFamily::from(net.addr()) == family))
    }

    /// Returns the names of the kernel's sets that together contain the members of one family.
    pub fn kernel_sets(&self, id: &SetId, family: NftFamily) -> Vec<String> {
        let mut sets = Vec::new();
        if self.kind(id).is_some() {
            sets.push(names::set(id, family));
        }
        if self.has_nets(id, family) {
            sets.push(names::nets(id, family));
        }
        sets
    }
}
