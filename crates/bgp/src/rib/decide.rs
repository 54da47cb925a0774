//! The decision process among the paths to one prefix (RFC 4271 section 9.1.2.2, RFC 4456 section 9). The result does
//! not depend on the order in which the paths arrived.

use super::attrs::RouteAttrs;
use super::table::RoutePath;
use crate::id::PeerId;
use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr};

/// The properties of the source of a path that the decision process compares.
#[derive(Clone, Copy, Debug)]
pub struct PathOrigin {
    pub external: bool,
    pub router_id: Ipv4Addr,
    pub address: IpAddr,
}

impl PathOrigin {
    pub const LOCAL: PathOrigin = PathOrigin {
        external: false,
        router_id: Ipv4Addr::UNSPECIFIED,
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
}

/// Puts the best path first, followed by the paths that are equal to it up to the tie-break and may share its traffic
/// (multipath). Returns the number of these paths, including the best.
pub fn sort_paths(paths: &mut [RoutePath], origin: impl Fn(PeerId) -> PathOrigin) -> usize {
    if paths.len() < 2 {
        return paths.len();
    }
    // MED is comparable only between paths of the same neighbouring AS, so a plain sort of all paths would depend on
    // their order. Remove the paths with a worse MED first, then sort the rest.
    paths
        .sort_by(|a, b| compare_before_med(a, b).then_with(|| neighbour(&a.attrs).cmp(&neighbour(&b.attrs))));
    let equal = equals(paths, |a, b| compare_before_med(a, b) == Ordering::Equal);
    let Some(contest) = paths.get_mut(..equal) else { return 0 };
    let survivors = keep_lowest_med(contest);
    let Some(contest) = paths.get_mut(..survivors) else { return 0 };
    contest.sort_by(|a, b| {
        let from_a = origin(a.peer);
        let from_b = origin(b.peer);
        from_b.external.cmp(&from_a.external).then_with(|| tie_break(a, &from_a, b, &from_b))
    });
    equals(contest, |a, b| origin(a.peer).external == origin(b.peer).external)
}

/// The position of a new path among the paths of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathRank {
    /// At this position among the multipath candidates.
    Equal(usize),
    /// Behind the multipath candidates: it changes nothing.
    Worse,
}

/// Returns the rank of a new path, found with few comparisons. `equal` are the multipath candidates as ordered by
/// [`sort_paths`]. Returns `None` if the path may displace others, so that all must be sorted again.
pub fn rank(equal: &[RoutePath], new: &RoutePath, origin: impl Fn(PeerId) -> PathOrigin) -> Option<PathRank> {
    let best = equal.first()?;
    match compare_before_med(new, best) {
        Ordering::Greater => return Some(PathRank::Worse),
        Ordering::Less => return None,
        Ordering::Equal => {}
    }
    if neighbour(&new.attrs) != neighbour(&best.attrs) {
        return None;
    }
    let from_new = origin(new.peer);
    let from_best = origin(best.peer);
    match med(new).cmp(&med(best)).then(from_best.external.cmp(&from_new.external)) {
        Ordering::Greater => Some(PathRank::Worse),
        Ordering::Less => None,
        Ordering::Equal => {
            let rank = equal.partition_point(|known| {
                tie_break(known, &origin(known.peer), new, &from_new) == Ordering::Less
            });
            Some(PathRank::Equal(rank))
        }
    }
}

fn med(path: &RoutePath) -> u32 {
    path.attrs.med.unwrap_or(0)
}

/// Compares the criteria before MED: larger preference and LOCAL_PREF, then shorter AS_PATH and lower origin, are
/// better.
fn compare_before_med(a: &RoutePath, b: &RoutePath) -> Ordering {
    let a = &a.attrs;
    let b = &b.attrs;
    (b.preference.cmp(&a.preference))
        .then_with(|| b.local_pref().cmp(&a.local_pref()))
        .then_with(|| a.as_path.len().cmp(&b.as_path.len()))
        .then_with(|| a.origin.cmp(&b.origin))
}

fn tie_break(a: &RoutePath, from_a: &PathOrigin, b: &RoutePath, from_b: &PathOrigin) -> Ordering {
    let router_a = a.attrs.originator.unwrap_or(from_a.router_id);
    let router_b = b.attrs.originator.unwrap_or(from_b.router_id);
    (router_a.cmp(&router_b))
        .then_with(|| a.attrs.cluster_list.len().cmp(&b.attrs.cluster_list.len()))
        .then_with(|| from_a.address.cmp(&from_b.address))
        .then_with(|| a.peer.cmp(&b.peer))
        .then_with(|| a.path_id.cmp(&b.path_id))
}

/// Returns the AS from which a path was learnt; `None` for a path inside our own AS.
fn neighbour(attrs: &RouteAttrs) -> Option<u32> {
    attrs.as_path.first().copied()
}

/// Moves the paths with the lowest MED of each neighbouring AS to the front and returns their number. The paths must
/// be grouped by neighbouring AS.
fn keep_lowest_med(paths: &mut [RoutePath]) -> usize {
    let mut kept = 0;
    let mut start = 0;
    while start < paths.len() {
        let Some(first) = paths.get(start) else { break };
        let group = neighbour(&first.attrs);
        let members = paths.iter().skip(start).take_while(|path| neighbour(&path.attrs) == group);
        let (count, lowest) = members.fold((0, u32::MAX), |(n, low), path| (n + 1, low.min(med(path))));
        for at in start..start + count {
            if paths.get(at).is_some_and(|path| med(path) == lowest) {
                paths.swap(kept, at);
                kept += 1;
            }
        }
        start += count;
    }
    kept
}

fn equals(paths: &[RoutePath], same: impl Fn(&RoutePath, &RoutePath) -> bool) -> usize {
    let Some(best) = paths.first() else { return 0 };
    paths.iter().take_while(|path| same(best, path)).count()
}
