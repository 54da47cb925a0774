//! The routes of one family: every path to every prefix (the Adj-RIBs-In), the best path first (the Loc-RIB).
//!
//! A destination keeps its number as long as a peer may still have the prefix, so that an Adj-RIB-Out needs one bit
//! per destination.

use super::attrs::RouteAttrs;
use super::decide::{PathOrigin, PathRank, rank, sort_paths};
use super::journal::{ChangeJournal, JournalPosition};
use crate::family::Prefix;
use crate::id::{DestinationId, PeerId};
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

/// Number of paths that can be skipped in a search at the cost of comparing one.
const PATHS_SCANNED_PER_WORK_UNIT: u64 = 16;

/// The bits of a hash that determine the position in the index at which a lookup starts.
const HASH_POSITION_MASK: u32 = (1 << 25) - 1;

#[derive(Clone, Debug)]
pub struct RoutePath {
    pub attrs: Arc<RouteAttrs>,
    /// Distinguishes the paths of one peer (RFC 7911); 0 if it sends only one.
    pub path_id: u32,
    pub peer: PeerId,
    /// The epoch of the peer when it last advertised the path. Paths of an older epoch are stale.
    pub epoch: u8,
}

impl RoutePath {
    fn is_from(&self, peer: PeerId, path_id: u32) -> bool {
        self.peer == peer && self.path_id == path_id
    }

    /// Returns a key that is unique among all paths that exist at the same time. Attributes are interned, so their
    /// address identifies them.
    fn identity(&self) -> (usize, PeerId, u32) {
        (Arc::as_ptr(&self.attrs) as usize, self.peer, self.path_id)
    }
}

#[derive(Debug)]
pub struct RouteDestination<P> {
    pub prefix: P,
    paths: SmallVec<[RoutePath; 1]>,
    /// Number of leading paths that may share traffic (multipath).
    equal: u16,
    /// Whether the change recorded at `advertised` left the best path unchanged, and all changes before it have been
    /// read.
    best_unchanged: bool,
    advertised: JournalPosition,
    installed: JournalPosition,
}

impl<P> RouteDestination<P> {
    /// Returns the best path, or `None` if no path is usable.
    pub fn best(&self) -> Option<&RoutePath> {
        self.multipath().first()
    }

    pub fn multipath(&self) -> &[RoutePath] {
        self.paths.get(..usize::from(self.equal)).unwrap_or_default()
    }

    pub fn paths(&self) -> &[RoutePath] {
        &self.paths
    }
}

#[derive(Debug)]
pub struct RouteTable<P> {
    destinations: Vec<RouteDestination<P>>,
    index: HashTable<PrefixIndexEntry>,
    hasher: DefaultHashBuilder,
    free: Vec<DestinationId>,
    occupied: usize,
    /// Changes of best paths, read by the Adj-RIBs-Out.
    pub advertise: ChangeJournal,
    /// Changes of the paths that traffic takes, read by the code that installs them.
    pub install: ChangeJournal,
    /// Whether some session advertises all paths instead of only the best.
    track_all_paths: bool,
    /// Unreachable next hops. Paths with one of them are not used.
    unreachable: HashSet<IpAddr>,
    /// Work done so far, counted in paths examined.
    work: u64,
}

/// An index entry with the hash of its prefix, so that the index can grow without reading the destinations.
#[derive(Clone, Copy, Debug)]
struct PrefixIndexEntry {
    hash: u32,
    id: DestinationId,
}

impl PrefixIndexEntry {
    fn hash(&self) -> u64 {
        spread(self.hash)
    }
}

/// Duplicates the hash into both halves, because the index uses the low and the high bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Hashes a prefix. Eight prefixes that differ only in their last three bits share the low bits, which determine
/// where a lookup starts: prefixes usually arrive in order, so neighbours are likely in the CPU cache. The high bits
/// distinguish them.
fn hash<P: Prefix>(hasher: &DefaultHashBuilder, prefix: P) -> u32 {
    let bits = prefix.bits();
    let hash = hasher.hash_one((bits >> 3, prefix.length()));
    let place = (bits & 7) as u32;
    (hash as u32 & HASH_POSITION_MASK)
        | ((hash >> 32) as u32).wrapping_add(place) << HASH_POSITION_MASK.count_ones()
}

impl<P> Default for RouteTable<P> {
    fn default() -> Self {
        RouteTable {
            destinations: Vec::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            free: Vec::new(),
            occupied: 0,
            advertise: ChangeJournal::default(),
            install: ChangeJournal::default(),
            track_all_paths: false,
            unreachable: HashSet::new(),
            work: 0,
        }
    }
}

/// The effect of an insertion or removal on the number of a peer's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUpdateEffect {
    Added,
    Replaced,
    Unchanged,
    Removed,
    /// The peer has reached its limit of paths to the prefix; nothing was changed.
    TooManyPaths,
}

impl<P: Prefix> RouteTable<P> {
    pub fn get(&self, id: DestinationId) -> Option<&RouteDestination<P>> {
        self.destinations.get(id.index())
    }

    pub fn find(&self, prefix: P) -> Option<&RouteDestination<P>> {
        self.lookup(prefix).and_then(|id| self.get(id))
    }

    /// Returns one more than the largest number ever in use.
    pub fn id_end(&self) -> u32 {
        self.destinations.len() as u32
    }

    fn ids(&self) -> impl Iterator<Item = DestinationId> + use<P> {
        (0..self.id_end()).map(DestinationId)
    }

    /// Returns the number of destinations with at least one usable path.
    pub fn len(&self) -> usize {
        self.occupied
    }

    /// Returns the number of destinations that a reader may still look up.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.index.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &RouteDestination<P>> {
        self.destinations.iter().filter(|destination| !destination.paths.is_empty())
    }

    fn lookup(&self, prefix: P) -> Option<DestinationId> {
        let hash = hash(&self.hasher, prefix);
        let is = |slot: &PrefixIndexEntry| {
            slot.hash == hash && self.get(slot.id).is_some_and(|d| d.prefix == prefix)
        };
        self.index.find(spread(hash), is).map(|slot| slot.id)
    }

    /// Returns the number of a prefix, and assigns one if it has none.
    fn id_of(&mut self, prefix: P) -> DestinationId {
        let hash = hash(&self.hasher, prefix);
        let destinations = &mut self.destinations;
        let is = |slot: &PrefixIndexEntry| {
            slot.hash == hash && destinations.get(slot.id.index()).is_some_and(|d| d.prefix == prefix)
        };
        let known = self.index.entry(spread(hash), is, PrefixIndexEntry::hash);
        let vacant = match known {
            Entry::Occupied(known) => return known.get().id,
            Entry::Vacant(vacant) => vacant,
        };
        let id = self.free.pop().unwrap_or(DestinationId(destinations.len() as u32));
        vacant.insert(PrefixIndexEntry { hash, id });
        match destinations.get_mut(id.index()) {
            Some(slot) => slot.prefix = prefix,
            None => destinations.push(RouteDestination {
                prefix,
                paths: SmallVec::new(),
                equal: 0,
                best_unchanged: false,
                advertised: 0,
                installed: 0,
            }),
        }
        id
    }

    /// Returns the work that insertions and removals have cost so far.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Inserts or replaces a path. A peer may have at most `limit` paths to one prefix.
    pub fn insert(
        &mut self,
        prefix: P,
        path: RoutePath,
        limit: u16,
        origin: impl Fn(PeerId) -> PathOrigin,
    ) -> PathUpdateEffect {
        let id = self.id_of(prefix);
        let usable = self.is_reachable(&path);
        let Some(destination) = self.destinations.get_mut(id.index()) else {
            return PathUpdateEffect::Unchanged;
        };
        // The most frequent case while a full table is received.
        if destination.paths.is_empty() && usable {
            destination.paths.push(path);
            destination.equal = 1;
            destination.best_unchanged = false;
            destination.advertised = self.advertise.record(id);
            destination.installed = self.install.record(id);
            self.occupied += 1;
            self.work += 1;
            return PathUpdateEffect::Added;
        }
        self.work += 1 + destination.paths.len() as u64 / PATHS_SCANNED_PER_WORK_UNIT;
        let known = destination.paths.iter_mut().find(|known| known.is_from(path.peer, path.path_id));
        match known {
            Some(known) if Arc::ptr_eq(&known.attrs, &path.attrs) => {
                known.epoch = path.epoch;
                return PathUpdateEffect::Unchanged;
            }
            Some(_) => {}
            None => {
                let limit = usize::from(limit);
                let own = || destination.paths.iter().filter(|known| known.peer == path.peer).count();
                if destination.paths.len() >= limit && own() >= limit {
                    return PathUpdateEffect::TooManyPaths;
                }
                let simple = usable && self.unreachable.is_empty() && destination.equal < u16::MAX;
                let found = simple.then(|| rank(destination.multipath(), &path, &origin)).flatten();
                if let Some(rank) = found {
                    self.place(id, path, rank);
                    return PathUpdateEffect::Added;
                }
            }
        }
        let mut added = false;
        self.change(id, origin, |paths| {
            match paths.iter_mut().find(|known| known.is_from(path.peer, path.path_id)) {
                Some(known) => *known = path,
                None => {
                    added = true;
                    paths.push(path);
                }
            }
        });
        if added { PathUpdateEffect::Added } else { PathUpdateEffect::Replaced }
    }

    /// Adds a path at a known rank.
    fn place(&mut self, id: DestinationId, path: RoutePath, rank: PathRank) {
        let Some(destination) = self.destinations.get_mut(id.index()) else { return };
        let same_best = rank != PathRank::Equal(0);
        match rank {
            PathRank::Equal(at) => {
                destination.paths.insert(at, path);
                destination.equal += 1;
                destination.installed = self.install.record(id);
            }
            PathRank::Worse => destination.paths.push(path),
        }
        if !same_best || self.track_all_paths {
            let unread = !destination.best_unchanged && self.advertise.holds(destination.advertised);
            destination.best_unchanged = same_best && !unread;
            destination.advertised = self.advertise.record(id);
        }
    }

    pub fn remove(
        &mut self,
        prefix: P,
        peer: PeerId,
        path_id: u32,
        origin: impl Fn(PeerId) -> PathOrigin,
    ) -> PathUpdateEffect {
        let Some(id) = self.lookup(prefix) else { return PathUpdateEffect::Unchanged };
        let present = self.get(id).is_some_and(|d| d.paths.iter().any(|path| path.is_from(peer, path_id)));
        if !present {
            return PathUpdateEffect::Unchanged;
        }
        self.change(id, origin, |paths| paths.retain(|path| !path.is_from(peer, path_id)));
        PathUpdateEffect::Removed
    }

    /// Removes the paths of a peer, or only those of epochs other than `keep`. Returns their number.
    pub fn remove_peer(
        &mut self,
        peer: PeerId,
        keep: Option<u8>,
        origin: impl Fn(PeerId) -> PathOrigin,
    ) -> usize {
        let goes = |path: &RoutePath| path.peer == peer && keep != Some(path.epoch);
        let mut removed = 0;
        for id in self.ids() {
            let count = self.get(id).map_or(0, |d| d.paths.iter().filter(|path| goes(path)).count());
            if count > 0 {
                removed += count;
                self.change(id, &origin, |paths| paths.retain(|path| !goes(path)));
            }
        }
        removed
    }

    /// Changes the paths to a destination, runs the decision process and records the changes for the readers.
    fn change(
        &mut self,
        id: DestinationId,
        origin: impl Fn(PeerId) -> PathOrigin,
        work: impl FnOnce(&mut SmallVec<[RoutePath; 1]>),
    ) {
        let Some(destination) = self.destinations.get_mut(id.index()) else { return };
        // `work` inserts the new path before it drops the old one, so that an `Arc` address is never reused within
        // one comparison.
        let filled = !destination.paths.is_empty();
        self.work += 1 + destination.paths.len() as u64;
        let before: SmallVec<[_; 2]> = destination.multipath().iter().map(RoutePath::identity).collect();
        work(&mut destination.paths);
        let usable = usable_first(&mut destination.paths, &self.unreachable);
        let equal = destination.paths.get_mut(..usable).map_or(0, |usable| sort_paths(usable, origin));
        destination.equal = equal.min(usize::from(u16::MAX)) as u16;
        let after = destination.multipath();
        let same_best = before.first().copied() == after.first().map(RoutePath::identity);
        let same_all = before.iter().copied().eq(after.iter().map(RoutePath::identity));
        match (before.is_empty(), after.is_empty()) {
            (true, false) => self.occupied += 1,
            (false, true) => self.occupied -= 1,
            _ => {}
        }
        // The last path of a destination was removed. Its number is freed through the journals, even if no path was
        // ever used.
        let emptied = filled && destination.paths.is_empty();
        if !same_best || emptied || self.track_all_paths {
            let unread = !destination.best_unchanged && self.advertise.holds(destination.advertised);
            destination.best_unchanged = same_best && !unread;
            destination.advertised = self.advertise.record(id);
        }
        if !same_all || emptied {
            destination.installed = self.install.record(id);
        }
    }

    /// Returns the journal position at which the reader of a new session starts, and how many destinations it must
    /// walk first. `add_path` means that it advertises all paths, so that every change matters to it.
    pub fn start_reader(&mut self, add_path: bool) -> (JournalPosition, u32) {
        self.track_all_paths |= add_path;
        (self.advertise.end(), self.id_end())
    }

    /// Stops tracking changes beyond the best path, because no session advertises more than that.
    pub fn track_best_only(&mut self) {
        self.track_all_paths = false;
    }

    pub fn is_reachable(&self, path: &RoutePath) -> bool {
        path.attrs.next_hop.is_none_or(|hop| !self.unreachable.contains(&hop))
    }

    /// Replaces the set of unreachable next hops and runs the decision process for the destinations it affects.
    pub fn set_unreachable(&mut self, next_hops: HashSet<IpAddr>, origin: impl Fn(PeerId) -> PathOrigin) {
        let before = std::mem::replace(&mut self.unreachable, next_hops);
        let changed: HashSet<IpAddr> = before.symmetric_difference(&self.unreachable).copied().collect();
        if changed.is_empty() {
            return;
        }
        for id in self.ids() {
            let by_them = |path: &RoutePath| path.attrs.next_hop.is_some_and(|hop| changed.contains(&hop));
            if self.get(id).is_some_and(|destination| destination.paths.iter().any(by_them)) {
                self.change(id, &origin, |_| {});
            }
        }
    }

    /// Records every multipath destination as changed for the kernel.
    pub fn install_shared(&mut self) {
        for (id, destination) in self.destinations.iter_mut().enumerate() {
            if destination.equal > 1 {
                destination.installed = self.install.record(DestinationId(id as u32));
            }
        }
    }

    /// Appends the changed destinations for the reader of a peer, which advertises either all paths or only the best.
    pub fn read_advertise(
        &self,
        from: &mut JournalPosition,
        limit: usize,
        add_path: bool,
        out: &mut Vec<DestinationId>,
    ) {
        self.advertise.read(from, limit, |id| self.get(id).map_or(0, |d| d.advertised), out);
        if self.track_all_paths && !add_path {
            out.retain(|id| !self.get(*id).is_some_and(|destination| destination.best_unchanged));
        }
    }

    /// Appends the changed destinations for the reader that installs routes into the kernel.
    pub fn read_install(&self, from: &mut JournalPosition, limit: usize, out: &mut Vec<DestinationId>) {
        self.install.read(from, limit, |id| self.get(id).map_or(0, |d| d.installed), out);
    }

    /// Returns whether a reader at `from` will encounter this destination in the journal anyway.
    pub fn will_be_read(&self, id: DestinationId, from: JournalPosition, add_path: bool) -> bool {
        self.get(id).is_some_and(|d| d.advertised >= from && (add_path || !d.best_unchanged))
    }

    /// Removes the journal entries that all readers have read, and frees the numbers of destinations that no longer
    /// exist for any of them.
    pub fn trim_journals(&mut self, slowest_peer: JournalPosition, kernel: JournalPosition) {
        let destinations = &self.destinations;
        let mut gone = Vec::new();
        let empty = |id: DestinationId| destinations.get(id.index()).is_some_and(|d| d.paths.is_empty());
        self.advertise.trim(
            slowest_peer,
            |id| destinations.get(id.index()).map_or(0, |d| d.advertised),
            |id| gone.extend(empty(id).then_some(id)),
        );
        self.install.trim(
            kernel,
            |id| destinations.get(id.index()).map_or(0, |d| d.installed),
            |id| gone.extend(empty(id).then_some(id)),
        );
        self.advertise
            .compact(destinations.len(), |id| destinations.get(id.index()).map_or(0, |d| d.advertised));
        self.install
            .compact(destinations.len(), |id| destinations.get(id.index()).map_or(0, |d| d.installed));
        for id in gone {
            self.release(id);
        }
    }

    fn release(&mut self, id: DestinationId) {
        let Some(destination) = self.destinations.get_mut(id.index()) else { return };
        let unread =
            self.advertise.holds(destination.advertised) || self.install.holds(destination.installed);
        if unread || !destination.paths.is_empty() {
            return;
        }
        let hash = hash(&self.hasher, destination.prefix);
        // A number is released once: the second time the index no longer contains it.
        if let Ok(entry) = self.index.find_entry(spread(hash), |known| known.id == id) {
            entry.remove();
            destination.paths = SmallVec::new();
            self.free.push(id);
        }
    }
}

/// Moves the paths with a reachable next hop to the front and returns their number.
fn usable_first(paths: &mut [RoutePath], unreachable: &HashSet<IpAddr>) -> usize {
    if unreachable.is_empty() {
        return paths.len();
    }
    let lost = |path: &RoutePath| path.attrs.next_hop.is_some_and(|hop| unreachable.contains(&hop));
    // The order must not depend on the order of arrival.
    paths.sort_by_key(|path| (lost(path), path.peer, path.path_id));
    paths.iter().filter(|path| !lost(path)).count()
}
