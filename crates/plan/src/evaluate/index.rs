//! Index over a plan for fast lookups.

use super::ranges::NetRanges;
use crate::change::{AddressSet, NodePlan};
use crate::policy::{PlannedPolicy, PolicyId, ProfileRules};
use crate::set::{SetId, SetKind, SetMember};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// Membership of addresses and ports in sets. A set that does not exist is empty. Evaluators may be shared by threads.
pub trait AddressSets: Sync {
    fn has_address(&self, set: &SetId, address: IpAddr) -> bool;

    /// Returns whether a set of ports contains this address, protocol and port.
    fn has_port(&self, set: &SetId, address: IpAddr, protocol: u8, port: u16) -> bool;
}

/// The policies, profiles and sets that packets are evaluated against.
#[derive(Clone)]
pub struct EvaluationIndex<'p> {
    pub(super) policies: &'p BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    pub(super) profiles: &'p BTreeMap<String, Arc<ProfileRules>>,
    sets: SetSource<'p>,
    /// Staged policies decide like enforced ones.
    pub(super) enforces_staged: bool,
}

#[derive(Clone)]
enum SetSource<'p> {
    Plan(HashMap<&'p SetId, IndexedMembers<'p>>),
    External(&'p dyn AddressSets),
}

impl fmt::Debug for EvaluationIndex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvaluationIndex").field("policies", &self.policies.len()).finish_non_exhaustive()
    }
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
        EvaluationIndex {
            policies: &plan.policies,
            profiles: &plan.profiles,
            sets: SetSource::Plan(sets.collect()),
            enforces_staged: false,
        }
    }

    /// Sets whether staged policies decide like enforced ones.
    pub(super) fn enforce_staged(&mut self, enforced: bool) {
        self.enforces_staged = enforced;
    }

    /// Creates an index that looks addresses up in `sets`. It allocates nothing, so a long-lived holder of policies can
    /// create one for each evaluation.
    pub fn with_sets(
        policies: &'p BTreeMap<PolicyId, Arc<PlannedPolicy>>,
        profiles: &'p BTreeMap<String, Arc<ProfileRules>>,
        sets: &'p dyn AddressSets,
    ) -> EvaluationIndex<'p> {
        EvaluationIndex { policies, profiles, sets: SetSource::External(sets), enforces_staged: false }
    }
}

impl AddressSets for EvaluationIndex<'_> {
    fn has_address(&self, set: &SetId, address: IpAddr) -> bool {
        match &self.sets {
            SetSource::External(sets) => sets.has_address(set, address),
            SetSource::Plan(sets) => match sets.get(set) {
                Some(IndexedMembers::Nets(set, ranges)) => {
                    ranges.get_or_init(|| ranges_of(set)).contains(address)
                }
                Some(IndexedMembers::Ports(_)) | None => false,
            },
        }
    }

    fn has_port(&self, set: &SetId, address: IpAddr, protocol: u8, port: u16) -> bool {
        match &self.sets {
            SetSource::External(sets) => sets.has_port(set, address, protocol, port),
            SetSource::Plan(sets) => match sets.get(set) {
                Some(IndexedMembers::Ports(set)) => {
                    set.members.contains(&SetMember::Port { address, protocol, port })
                }
                Some(IndexedMembers::Nets(..)) | None => false,
            },
        }
    }
}

fn ranges_of(set: &AddressSet) -> NetRanges {
    NetRanges::new(set.members.iter().filter_map(|member| match member {
        SetMember::Net(net) => Some(net),
        SetMember::Port { .. } => None,
    }))
}
