//! Decides whether to trust a list that lacks most of the known objects. Does no I/O.
//!
//! A wrong API group, a restored backup or a broken proxy yields lists with few or no objects. Deletions reported as
//! single events are trusted; deletions that only follow from a list are trusted once several lists agree over some
//! time.

use crate::backend::kubernetes::{NAMESPACE_PROFILE_PREFIX, SERVICE_ACCOUNT_PROFILE_PREFIX};
use std::time::Duration;
use tokio::time::Instant;
use tortie_model::kubernetes::{ClusterPolicyKind, NETWORK_POLICY_PREFIX};
use tortie_model::{KeyRange, Kind, StoreKey};

/// Number of lists that must agree.
const MIN_AGREEING_LISTS: u32 = 3;
/// Maximum time between two consecutive lists. A longer outage in between proves nothing about the objects.
const MAX_LIST_GAP: Duration = Duration::from_secs(15);

/// Numbers of known objects of a collection and of those that a list lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListAbsence {
    pub known: usize,
    pub missing: usize,
}

impl ListAbsence {
    /// From this many missing objects on, more than half of the known ones is a large share; of fewer, only all of them are.
    pub const MIN_LARGE_ABSENCE: usize = 10;

    pub fn is_large(self) -> bool {
        let ListAbsence { known, missing } = self;
        missing > 0
            && (missing == known || (missing >= ListAbsence::MIN_LARGE_ABSENCE && missing > known / 2))
    }
}

/// State of the decision for a range.
#[derive(Debug)]
pub struct AbsenceDoubt {
    is_guarded: bool,
    grace: Duration,
    row: Option<DoubtedLists>,
}

/// Consecutive lists that lack a large share.
#[derive(Debug)]
struct DoubtedLists {
    first: Instant,
    last: Instant,
    lists: u32,
}

/// Decision about a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsenceVerdict {
    Believed,
    /// Whether it is the first of consecutive doubted lists.
    Doubted {
        is_first: bool,
    },
}

impl AbsenceDoubt {
    pub fn new(range: &KeyRange, grace: Duration) -> AbsenceDoubt {
        AbsenceDoubt { is_guarded: is_guarded(range), grace, row: None }
    }

    /// Decides about a list, given the times of the request and of the response.
    pub fn judge(&mut self, absence: ListAbsence, requested: Instant, arrived: Instant) -> AbsenceVerdict {
        let row = self.row.take();
        if !self.is_guarded || self.grace.is_zero() || !absence.is_large() {
            return AbsenceVerdict::Believed;
        }
        let row = row.filter(|row| requested.duration_since(row.last) <= MAX_LIST_GAP);
        let is_first = row.is_none();
        let (first, lists) = row.map_or((arrived, 1), |row| (row.first, row.lists + 1));
        if lists >= MIN_AGREEING_LISTS && arrived.duration_since(first) >= self.grace {
            return AbsenceVerdict::Believed;
        }
        self.row = Some(DoubtedLists { first, last: arrived, lists });
        AbsenceVerdict::Doubted { is_first }
    }

    pub fn is_open(&self) -> bool {
        self.row.is_some()
    }

    pub fn grace(&self) -> Duration {
        self.grace
    }
}

/// Returns the name prefix that identifies the Kubernetes collection of an object; empty for Calico's own objects. A
/// range of one kind can be the union of several collections, each of which can be lost separately.
pub fn collection_prefix(key: &StoreKey) -> &'static str {
    let StoreKey::Resource { kind, name, .. } = key else { return "" };
    let prefixes: &[&'static str] = match kind {
        Kind::NetworkPolicy => &[NETWORK_POLICY_PREFIX],
        Kind::GlobalNetworkPolicy => &ClusterPolicyKind::NAME_PREFIXES,
        Kind::Profile => &[NAMESPACE_PROFILE_PREFIX, SERVICE_ACCOUNT_PROFILE_PREFIX],
        _ => &[],
    };
    prefixes.iter().copied().find(|prefix| name.starts_with(prefix)).unwrap_or_default()
}

/// Returns the collection of an object whose loss opens or cuts off workloads: its kind and [`collection_prefix`].
pub fn guarded_collection(key: &StoreKey) -> Option<(&'static str, &'static str)> {
    let kind = match key {
        StoreKey::Resource { kind, .. } if is_guarded(&KeyRange::all(*kind)) => kind.name(),
        StoreKey::Block { .. } => "IPAMBlock",
        StoreKey::BlockAffinity { .. } => "BlockAffinity",
        StoreKey::Service { .. } => "Service",
        StoreKey::EndpointSlice { .. } => "EndpointSlice",
        _ => return None,
    };
    Some((kind, collection_prefix(key)))
}

/// Returns whether the loss of a range would open or disconnect workloads: policies, endpoints, nodes,
/// addresses, services, routing and the settings of nodes. Staged policies do not count, since they are not
/// enforced.
pub fn is_guarded(range: &KeyRange) -> bool {
    match range {
        KeyRange::Resources { kind, .. } | KeyRange::Written { kind, .. } => matches!(
            kind,
            Kind::NetworkPolicy
                | Kind::GlobalNetworkPolicy
                | Kind::NetworkSet
                | Kind::GlobalNetworkSet
                | Kind::Tier
                | Kind::Profile
                | Kind::HostEndpoint
                | Kind::WorkloadEndpoint
                | Kind::Node
                | Kind::IPPool
                | Kind::IPReservation
                | Kind::BGPPeer
                | Kind::BGPConfiguration
                | Kind::BGPFilter
                | Kind::FelixConfiguration
        ),
        KeyRange::Blocks { .. }
        | KeyRange::BlockAffinities { .. }
        | KeyRange::Services
        | KeyRange::EndpointSlices => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_or_most_of_many_is_large() {
        for (known, missing, expected) in
            [(0, 0, false), (1, 1, true), (4, 3, false), (20, 10, false), (20, 11, true), (12, 9, false)]
        {
            assert_eq!(ListAbsence { known, missing }.is_large(), expected, "{missing} of {known}");
        }
    }

    #[test]
    fn ranges_that_affect_traffic_are_guarded() {
        for kind in [Kind::GlobalNetworkPolicy, Kind::BGPPeer, Kind::FelixConfiguration, Kind::IPReservation]
        {
            assert!(is_guarded(&KeyRange::all(kind)), "{kind}");
        }
        assert!(is_guarded(&KeyRange::Services) && is_guarded(&KeyRange::EndpointSlices));
        assert!(!is_guarded(&KeyRange::all(Kind::StagedNetworkPolicy)) && !is_guarded(&KeyRange::Handles));
    }

    #[test]
    fn a_large_absence_is_believed_after_its_grace() {
        let grace = Duration::from_secs(30);
        let mut doubt = AbsenceDoubt::new(&KeyRange::all(Kind::GlobalNetworkPolicy), grace);
        let (all, none) = (ListAbsence { known: 3, missing: 3 }, ListAbsence { known: 3, missing: 0 });
        let begin = Instant::now();
        let mut judge = |absence, seconds| {
            let arrived = begin + Duration::from_secs(seconds);
            doubt.judge(absence, arrived, arrived)
        };
        let (first, later) =
            (AbsenceVerdict::Doubted { is_first: true }, AbsenceVerdict::Doubted { is_first: false });
        assert_eq!(judge(all, 0), first);
        assert_eq!(judge(all, 14), later);
        assert_eq!(judge(none, 28), AbsenceVerdict::Believed, "they were never gone");
        assert_eq!(judge(all, 40), first);
        assert_eq!(judge(all, 55), later);
        assert_eq!(judge(all, 69), later, "the time is too short");
        assert_eq!(judge(all, 70), AbsenceVerdict::Believed);
        assert_eq!(judge(all, 80), first);
        assert_eq!(judge(all, 96), first, "an outage between them");
        assert_eq!(judge(all, 111), later, "two lists are too few");
        let mut handles = AbsenceDoubt::new(&KeyRange::Handles, grace);
        assert_eq!(handles.judge(all, begin, begin), AbsenceVerdict::Believed);
    }
}
