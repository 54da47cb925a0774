//! The routes of one family: every path to every prefix (the Adj-RIBs-In), the best first (the Loc-RIB).
//!
//! A destination has a number for as long as a peer may still have the prefix, so that an Adj-RIB-Out needs one bit for
//! each.

use super::attrs::Attrs;
use super::decide::{Origin, Rank, rank, sort_paths};
use super::journal::{Journal, Position};
use crate::family::Prefix;
use crate::id::{DestinationId, PeerId};
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

/// How many paths can be passed over, looking for one, at the cost of comparing one.
const SCANNED_PER_UNIT: u64 = 16;

/// The part of a hash that says where the index begins to look.
const PLACE: u32 = (1 << 25) - 1;

#[derive(Clone, Debug)]
pub struct Path {
    pub attrs: Arc<Attrs>,
    /// Distinguishes the paths of one peer (RFC 7911); 0 if it sends only one.
    pub path_id: u32,
    pub peer: PeerId,
    /// The peer's epoch when it last said so. Paths of an older epoch are stale.
    pub epoch: u8,
}

impl Path {
    fn is_from(&self, peer: PeerId, path_id: u32) -> bool {
        self.peer == peer && self.path_id == path_id
    }

    /// Tells a path from every other there is at the same time. Attributes are shared, so their address stands for
    /// them.
    fn identity(&self) -> (usize, PeerId, u32) {
        (Arc::as_ptr(&self.attrs) as usize, self.peer, self.path_id)
    }
}

#[derive(Debug)]
pub struct Destination<P> {
    pub prefix: P,
    paths: SmallVec<[Path; 1]>,
    /// How many of the first paths traffic may be shared among.
    equal: u16,
    /// The change noted at `advertised` left the best path as it was, and those before it have been read.
    best_unchanged: bool,
    advertised: Position,
    installed: Position,
}

impl<P> Destination<P> {
    /// None also if no path can be used.
    pub fn best(&self) -> Option<&Path> {
        self.multipath().first()
    }

    pub fn multipath(&self) -> &[Path] {
        self.paths.get(..usize::from(self.equal)).unwrap_or_default()
    }

    pub fn paths(&self) -> &[Path] {
        &self.paths
    }
}

#[derive(Debug)]
pub struct Table<P> {
    destinations: Vec<Destination<P>>,
    index: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    free: Vec<DestinationId>,
    occupied: usize,
    /// Changes of best paths, read by the Adj-RIBs-Out.
    pub advertise: Journal,
    /// Changes of the paths traffic takes, read by whoever installs them.
    pub install: Journal,
    /// Some session advertises all paths, not the best alone.
    track_all_paths: bool,
    /// Next hops that cannot be reached: no path with one of them is used.
    unreachable: HashSet<IpAddr>,
    /// Work done so far, in paths looked at.
    work: u64,
}

/// Where a destination is, with its hash: to grow, the index need not look at the destinations.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: DestinationId,
}

impl Slot {
    fn hash(&self) -> u64 {
        spread(self.hash)
    }
}

/// The index looks at both ends of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Eight prefixes that differ only in their last three bits share the lower end, which says where the index begins to
/// look: prefixes come in order as a rule, and memory that was just used is near. The upper end tells them apart.
fn hash<P: Prefix>(hasher: &DefaultHashBuilder, prefix: P) -> u32 {
    let bits = prefix.bits();
    let hash = hasher.hash_one((bits >> 3, prefix.length()));
    let place = (bits & 7) as u32;
    (hash as u32 & PLACE) | ((hash >> 32) as u32).wrapping_add(place) << PLACE.count_ones()
}

impl<P> Default for Table<P> {
    fn default() -> Self {
        Table {
            destinations: Vec::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            free: Vec::new(),
            occupied: 0,
            advertise: Journal::default(),
            install: Journal::default(),
            track_all_paths: false,
            unreachable: HashSet::new(),
            work: 0,
        }
    }
}

/// What an insertion or removal did to the number of a peer's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Added,
    Replaced,
    Unchanged,
    Removed,
    /// The peer has as many paths to the prefix as it may have; nothing was done.
    TooManyPaths,
}

impl<P: Prefix> Table<P> {
    pub fn get(&self, id: DestinationId) -> Option<&Destination<P>> {
        self.destinations.get(id.index())
    }

    pub fn find(&self, prefix: P) -> Option<&Destination<P>> {
        self.lookup(prefix).and_then(|id| self.get(id))
    }

    /// One more than the largest number in use.
    pub fn id_end(&self) -> u32 {
        self.destinations.len() as u32
    }

    fn ids(&self) -> impl Iterator<Item = DestinationId> + use<P> {
        (0..self.id_end()).map(DestinationId)
    }

    /// Destinations with at least one path.
    pub fn len(&self) -> usize {
        self.occupied
    }

    /// Numbers that somebody may still ask for.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.index.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Destination<P>> {
        self.destinations.iter().filter(|destination| !destination.paths.is_empty())
    }

    fn lookup(&self, prefix: P) -> Option<DestinationId> {
        let hash = hash(&self.hasher, prefix);
        let is = |slot: &Slot| slot.hash == hash && self.get(slot.id).is_some_and(|d| d.prefix == prefix);
        self.index.find(spread(hash), is).map(|slot| slot.id)
    }

    /// The number of a prefix, given now if it has none.
    fn id_of(&mut self, prefix: P) -> DestinationId {
        let hash = hash(&self.hasher, prefix);
        let destinations = &mut self.destinations;
        let is = |slot: &Slot| {
            slot.hash == hash && destinations.get(slot.id.index()).is_some_and(|d| d.prefix == prefix)
        };
        let known = self.index.entry(spread(hash), is, Slot::hash);
        let vacant = match known {
            Entry::Occupied(known) => return known.get().id,
            Entry::Vacant(vacant) => vacant,
        };
        let id = self.free.pop().unwrap_or(DestinationId(destinations.len() as u32));
        vacant.insert(Slot { hash, id });
        match destinations.get_mut(id.index()) {
            Some(slot) => slot.prefix = prefix,
            None => destinations.push(Destination {
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

    /// How much work insertions and removals have been so far.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// A peer may have `limit` paths to one prefix.
    pub fn insert(&mut self, prefix: P, path: Path, limit: u16, origin: impl Fn(PeerId) -> Origin) -> Effect {
        let id = self.id_of(prefix);
        let usable = self.is_reachable(&path);
        let Some(destination) = self.destinations.get_mut(id.index()) else { return Effect::Unchanged };
        // The most frequent case while a table is received.
        if destination.paths.is_empty() && usable {
            destination.paths.push(path);
            destination.equal = 1;
            destination.best_unchanged = false;
            destination.advertised = self.advertise.record(id);
            destination.installed = self.install.record(id);
            self.occupied += 1;
            self.work += 1;
            return Effect::Added;
        }
        self.work += 1 + destination.paths.len() as u64 / SCANNED_PER_UNIT;
        let known = destination.paths.iter_mut().find(|known| known.is_from(path.peer, path.path_id));
        match known {
            Some(known) if Arc::ptr_eq(&known.attrs, &path.attrs) => {
                known.epoch = path.epoch;
                return Effect::Unchanged;
            }
            Some(_) => {}
            None => {
                let limit = usize::from(limit);
                let own = || destination.paths.iter().filter(|known| known.peer == path.peer).count();
                if destination.paths.len() >= limit && own() >= limit {
                    return Effect::TooManyPaths;
                }
                let simple = usable && self.unreachable.is_empty() && destination.equal < u16::MAX;
                let found = simple.then(|| rank(destination.multipath(), &path, &origin)).flatten();
                if let Some(rank) = found {
                    self.place(id, path, rank);
                    return Effect::Added;
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
        if added { Effect::Added } else { Effect::Replaced }
    }

    /// Adds a path of which it is known where it belongs.
    fn place(&mut self, id: DestinationId, path: Path, rank: Rank) {
        let Some(destination) = self.destinations.get_mut(id.index()) else { return };
        let same_best = rank != Rank::Equal(0);
        match rank {
            Rank::Equal(at) => {
                destination.paths.insert(at, path);
                destination.equal += 1;
                destination.installed = self.install.record(id);
            }
            Rank::Worse => destination.paths.push(path),
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
        origin: impl Fn(PeerId) -> Origin,
    ) -> Effect {
        let Some(id) = self.lookup(prefix) else { return Effect::Unchanged };
        let present = self.get(id).is_some_and(|d| d.paths.iter().any(|path| path.is_from(peer, path_id)));
        if !present {
            return Effect::Unchanged;
        }
        self.change(id, origin, |paths| paths.retain(|path| !path.is_from(peer, path_id)));
        Effect::Removed
    }

    /// Removes the paths of a peer, or only those of other epochs than `keep`. Returns their number.
    pub fn remove_peer(
        &mut self,
        peer: PeerId,
        keep: Option<u8>,
        origin: impl Fn(PeerId) -> Origin,
    ) -> usize {
        let goes = |path: &Path| path.peer == peer && keep != Some(path.epoch);
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

    /// Changes the paths to a destination, decides again and notes what is different for others.
    fn change(
        &mut self,
        id: DestinationId,
        origin: impl Fn(PeerId) -> Origin,
        work: impl FnOnce(&mut SmallVec<[Path; 1]>),
    ) {
        let Some(destination) = self.destinations.get_mut(id.index()) else { return };
        // What comes in is there before what goes is given up, so no address stands for two.
        let filled = !destination.paths.is_empty();
        self.work += 1 + destination.paths.len() as u64;
        let before: SmallVec<[_; 2]> = destination.multipath().iter().map(Path::identity).collect();
        work(&mut destination.paths);
        let usable = usable_first(&mut destination.paths, &self.unreachable);
        let equal = destination.paths.get_mut(..usable).map_or(0, |usable| sort_paths(usable, origin));
        destination.equal = equal.min(usize::from(u16::MAX)) as u16;
        let after = destination.multipath();
        let same_best = before.first().copied() == after.first().map(Path::identity);
        let same_all = before.iter().copied().eq(after.iter().map(Path::identity));
        match (before.is_empty(), after.is_empty()) {
            (true, false) => self.occupied += 1,
            (false, true) => self.occupied -= 1,
            _ => {}
        }
        // The last path of a destination goes: also if it was never used, its number is freed through the journals.
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

    /// Where the reader of a new session begins in the journal, and how many destinations it has to walk through
    /// first. `add_path`: it advertises all paths, so every change concerns it.
    pub fn start_reader(&mut self, add_path: bool) -> (Position, u32) {
        self.track_all_paths |= add_path;
        (self.advertise.end(), self.id_end())
    }

    /// No session advertises more than the best path any more.
    pub fn track_best_only(&mut self) {
        self.track_all_paths = false;
    }

    pub fn is_reachable(&self, path: &Path) -> bool {
        path.attrs.next_hop.is_none_or(|hop| !self.unreachable.contains(&hop))
    }

    /// From now on these next hops, and no others, cannot be reached. Decides again where that makes a difference.
    pub fn set_unreachable(&mut self, next_hops: HashSet<IpAddr>, origin: impl Fn(PeerId) -> Origin) {
        let before = std::mem::replace(&mut self.unreachable, next_hops);
        let changed: HashSet<IpAddr> = before.symmetric_difference(&self.unreachable).copied().collect();
        if changed.is_empty() {
            return;
        }
        for id in self.ids() {
            let by_them = |path: &Path| path.attrs.next_hop.is_some_and(|hop| changed.contains(&hop));
            if self.get(id).is_some_and(|destination| destination.paths.iter().any(by_them)) {
                self.change(id, &origin, |_| {});
            }
        }
    }

    /// Notes every destination that traffic may be shared for as changed for the kernel.
    pub fn install_shared(&mut self) {
        for (id, destination) in self.destinations.iter_mut().enumerate() {
            if destination.equal > 1 {
                destination.installed = self.install.record(DestinationId(id as u32));
            }
        }
    }

    /// Numbers of changed destinations for a peer's reader of all paths, or of the best ones.
    pub fn read_advertise(
        &self,
        from: &mut Position,
        limit: usize,
        add_path: bool,
        out: &mut Vec<DestinationId>,
    ) {
        self.advertise.read(from, limit, |id| self.get(id).map_or(0, |d| d.advertised), out);
        if self.track_all_paths && !add_path {
            out.retain(|id| !self.get(*id).is_some_and(|destination| destination.best_unchanged));
        }
    }

    /// Numbers of changed destinations for the kernel's reader.
    pub fn read_install(&self, from: &mut Position, limit: usize, out: &mut Vec<DestinationId>) {
        self.install.read(from, limit, |id| self.get(id).map_or(0, |d| d.installed), out);
    }

    /// Whether a reader at `from` will meet this destination in the journal anyway.
    pub fn will_be_read(&self, id: DestinationId, from: Position, add_path: bool) -> bool {
        self.get(id).is_some_and(|d| d.advertised >= from && (add_path || !d.best_unchanged))
    }

    /// Forgets what all readers have read, and frees the numbers of destinations that are gone for all of them.
    pub fn trim_journals(&mut self, slowest_peer: Position, kernel: Position) {
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
        // A number is released once: the second time the index no longer has it.
        if let Ok(entry) = self.index.find_entry(spread(hash), |known| known.id == id) {
            entry.remove();
            destination.paths = SmallVec::new();
            self.free.push(id);
        }
    }
}

/// Puts the paths whose next hop can be reached first and returns their number.
fn usable_first(paths: &mut [Path], unreachable: &HashSet<IpAddr>) -> usize {
    if unreachable.is_empty() {
        return paths.len();
    }
    let lost = |path: &Path| path.attrs.next_hop.is_some_and(|hop| unreachable.contains(&hop));
    // In an order that does not depend on that of arrival.
    paths.sort_by_key(|path| (lost(path), path.peer, path.path_id));
    paths.iter().filter(|path| !lost(path)).count()
}
