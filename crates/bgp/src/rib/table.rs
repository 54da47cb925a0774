//! The routes of one family: every path to every prefix, the best first.
//!
//! A destination has a number for as long as somebody may have heard of it, so that a session needs one bit to
//! remember what it told its peer.

use super::attrs::Attrs;
use super::decide::{Origin, arrange};
use super::journal::{Journal, Position};
use crate::family::Prefix;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

/// The part of a hash that says where the index begins to look.
const PLACE: u32 = (1 << 25) - 1;

/// The number of the peer that stands for this speaker's own routes.
pub const LOCAL: u16 = 0;

#[derive(Clone, Debug)]
pub struct Path {
    pub attrs: Arc<Attrs>,
    /// Distinguishes the paths of one peer (RFC 7911); 0 if it sends only one.
    pub path_id: u32,
    pub peer: u16,
    /// The peer's epoch when it last said so. Paths of an older epoch are stale.
    pub epoch: u8,
}

impl Path {
    fn is_from(&self, peer: u16, path_id: u32) -> bool {
        self.peer == peer && self.path_id == path_id
    }

    /// Tells a path from every other there is at the same time. Attributes are shared, so their address stands for
    /// them.
    fn identity(&self) -> (usize, u16, u32) {
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
    best_stands: bool,
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
    free: Vec<u32>,
    occupied: usize,
    /// Changes of best paths: what peers must hear.
    pub advertise: Journal,
    /// Changes of the paths traffic takes: what the kernel must hear.
    pub install: Journal,
    /// Somebody is told of all paths, not of the best alone.
    every_path: bool,
    /// Next hops that cannot be reached: no path with one of them is used.
    unreachable: HashSet<IpAddr>,
}

/// Where a destination is, with its hash: to grow, the index need not look at the destinations.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: u32,
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
            every_path: false,
            unreachable: HashSet::new(),
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
}

impl<P: Prefix> Table<P> {
    pub fn get(&self, id: u32) -> Option<&Destination<P>> {
        self.destinations.get(id as usize)
    }

    pub fn find(&self, prefix: P) -> Option<&Destination<P>> {
        self.lookup(prefix).and_then(|id| self.get(id))
    }

    /// One more than the largest number in use.
    pub fn numbers(&self) -> u32 {
        self.destinations.len() as u32
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

    fn lookup(&self, prefix: P) -> Option<u32> {
        let hash = hash(&self.hasher, prefix);
        let is = |slot: &Slot| slot.hash == hash && self.get(slot.id).is_some_and(|d| d.prefix == prefix);
        self.index.find(spread(hash), is).map(|slot| slot.id)
    }

    /// The number of a prefix, given now if it has none.
    fn number(&mut self, prefix: P) -> u32 {
        let hash = hash(&self.hasher, prefix);
        let destinations = &mut self.destinations;
        let is = |slot: &Slot| {
            slot.hash == hash && destinations.get(slot.id as usize).is_some_and(|d| d.prefix == prefix)
        };
        let known = self.index.entry(spread(hash), is, Slot::hash);
        let vacant = match known {
            Entry::Occupied(known) => return known.get().id,
            Entry::Vacant(vacant) => vacant,
        };
        let id = self.free.pop().unwrap_or(destinations.len() as u32);
        vacant.insert(Slot { hash, id });
        match destinations.get_mut(id as usize) {
            Some(slot) => slot.prefix = prefix,
            None => destinations.push(Destination {
                prefix,
                paths: SmallVec::new(),
                equal: 0,
                best_stands: false,
                advertised: 0,
                installed: 0,
            }),
        }
        id
    }

    pub fn insert(&mut self, prefix: P, path: Path, origin: impl Fn(u16) -> Origin) -> Effect {
        let id = self.number(prefix);
        let usable = self.is_reachable(&path);
        let Some(destination) = self.destinations.get_mut(id as usize) else { return Effect::Unchanged };
        // The usual case when there is most to do.
        if destination.paths.is_empty() && usable {
            destination.paths.push(path);
            destination.equal = 1;
            destination.best_stands = false;
            destination.advertised = self.advertise.record(id);
            destination.installed = self.install.record(id);
            self.occupied += 1;
            return Effect::Added;
        }
        let known = destination.paths.iter_mut().find(|known| known.is_from(path.peer, path.path_id));
        if let Some(known) = known
            && Arc::ptr_eq(&known.attrs, &path.attrs)
        {
            known.epoch = path.epoch;
            return Effect::Unchanged;
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

    pub fn remove(&mut self, prefix: P, peer: u16, path_id: u32, origin: impl Fn(u16) -> Origin) -> Effect {
        let Some(id) = self.lookup(prefix) else { return Effect::Unchanged };
        let present = self.get(id).is_some_and(|d| d.paths.iter().any(|path| path.is_from(peer, path_id)));
        if !present {
            return Effect::Unchanged;
        }
        self.change(id, origin, |paths| paths.retain(|path| !path.is_from(peer, path_id)));
        Effect::Removed
    }

    /// Removes the paths of a peer, or only those of other epochs than `keep`. Returns their number.
    pub fn remove_peer(&mut self, peer: u16, keep: Option<u8>, origin: impl Fn(u16) -> Origin) -> usize {
        let goes = |path: &Path| path.peer == peer && keep != Some(path.epoch);
        let mut removed = 0;
        for id in 0..self.numbers() {
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
        id: u32,
        origin: impl Fn(u16) -> Origin,
        work: impl FnOnce(&mut SmallVec<[Path; 1]>),
    ) {
        let Some(destination) = self.destinations.get_mut(id as usize) else { return };
        // What comes in is there before what goes is given up, so no address stands for two.
        let filled = !destination.paths.is_empty();
        let before: SmallVec<[_; 2]> = destination.multipath().iter().map(Path::identity).collect();
        work(&mut destination.paths);
        let usable = usable_first(&mut destination.paths, &self.unreachable);
        let equal = destination.paths.get_mut(..usable).map_or(0, |usable| arrange(usable, origin));
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
        if !same_best || emptied || self.every_path {
            let unread = !destination.best_stands && self.advertise.holds(destination.advertised);
            destination.best_stands = same_best && !unread;
            destination.advertised = self.advertise.record(id);
        }
        if !same_all || emptied {
            destination.installed = self.install.record(id);
        }
    }

    /// Where a peer's reader begins, and how many numbers it has to walk through before. `several`: it tells all
    /// paths, so every change concerns it.
    pub fn begin_telling(&mut self, several: bool) -> (Position, u32) {
        self.every_path |= several;
        (self.advertise.end(), self.numbers())
    }

    /// Nobody tells more than the best any more.
    pub fn only_best(&mut self) {
        self.every_path = false;
    }

    pub fn is_reachable(&self, path: &Path) -> bool {
        path.attrs.next_hop.is_none_or(|hop| !self.unreachable.contains(&hop))
    }

    /// From now on these next hops, and no others, cannot be reached. Decides again where that makes a difference.
    pub fn set_unreachable(&mut self, next_hops: HashSet<IpAddr>, origin: impl Fn(u16) -> Origin) {
        let before = std::mem::replace(&mut self.unreachable, next_hops);
        let changed: HashSet<IpAddr> = before.symmetric_difference(&self.unreachable).copied().collect();
        if changed.is_empty() {
            return;
        }
        for id in 0..self.numbers() {
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
                destination.installed = self.install.record(id as u32);
            }
        }
    }

    /// Numbers of changed destinations for a peer's reader of all paths, or of the best ones.
    pub fn read_advertise(&self, from: &mut Position, limit: usize, several: bool, out: &mut Vec<u32>) {
        self.advertise.read(from, limit, |id| self.get(id).map_or(0, |d| d.advertised), out);
        if self.every_path && !several {
            out.retain(|id| !self.get(*id).is_some_and(|destination| destination.best_stands));
        }
    }

    /// Numbers of changed destinations for the kernel's reader.
    pub fn read_install(&self, from: &mut Position, limit: usize, out: &mut Vec<u32>) {
        self.install.read(from, limit, |id| self.get(id).map_or(0, |d| d.installed), out);
    }

    /// Whether a reader at `from` will meet this destination in the journal anyway.
    pub fn will_be_read(&self, id: u32, from: Position, several: bool) -> bool {
        self.get(id).is_some_and(|d| d.advertised >= from && (several || !d.best_stands))
    }

    /// Forgets what all readers have read, and frees the numbers of destinations that are gone for all of them.
    pub fn forget(&mut self, slowest_peer: Position, kernel: Position) {
        let destinations = &self.destinations;
        let mut gone = Vec::new();
        let empty = |id: u32| destinations.get(id as usize).is_some_and(|d| d.paths.is_empty());
        self.advertise.trim(
            slowest_peer,
            |id| destinations.get(id as usize).map_or(0, |d| d.advertised),
            |id| gone.extend(empty(id).then_some(id)),
        );
        self.install.trim(
            kernel,
            |id| destinations.get(id as usize).map_or(0, |d| d.installed),
            |id| gone.extend(empty(id).then_some(id)),
        );
        self.advertise
            .compact(destinations.len(), |id| destinations.get(id as usize).map_or(0, |d| d.advertised));
        self.install
            .compact(destinations.len(), |id| destinations.get(id as usize).map_or(0, |d| d.installed));
        for id in gone {
            self.release(id);
        }
    }

    fn release(&mut self, id: u32) {
        let Some(destination) = self.destinations.get_mut(id as usize) else { return };
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
