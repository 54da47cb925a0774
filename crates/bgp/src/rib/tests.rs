//! Checks the table against a simple model, for any history of changes and any readers at any speed.

use super::attrs::{AttrsInterner, RouteAttrs};
use super::decide::PathOrigin;
use super::journal::JournalPosition;
use super::table::{PathUpdateEffect, RouteDestination, RoutePath, RouteTable};
use crate::bitmap::Bitmap;
use crate::id::{DestinationId, PeerId};
use proptest::prelude::*;
use rustbgpd_wire::{Ipv4Prefix, Ipv6Prefix, Origin as WireOrigin};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const PEER_COUNT: usize = 5;

/// A full table has a million of these.
#[test]
fn routes_stay_small() {
    assert_eq!(size_of::<RoutePath>(), 16, "a path");
    assert_eq!(size_of::<RouteDestination<Ipv4Prefix>>(), 48, "a prefix with one path");
    assert_eq!(size_of::<RouteDestination<Ipv6Prefix>>(), 64, "the same of IPv6");
}

#[derive(Clone, Debug)]
enum RibStep {
    Insert {
        prefix: u8,
        peer: PeerId,
        path_id: u32,
        attrs: RouteAttrs,
    },
    Remove {
        prefix: u8,
        peer: PeerId,
        path_id: u32,
    },
    /// Removes all paths of a peer, or those from before its current epoch.
    RemovePeer {
        peer: PeerId,
        stale: bool,
    },
    NewEpoch {
        peer: PeerId,
    },
    Read {
        reader: usize,
        limit: usize,
    },
    Install {
        limit: usize,
    },
    TrimJournals,
    /// Makes exactly these next hops unreachable.
    Unreachable {
        next_hops: BTreeSet<u8>,
    },
    /// Ends a session and establishes it again.
    Restart {
        reader: usize,
    },
    /// A peer requests a route refresh.
    Refresh {
        reader: usize,
    },
}

fn attrs() -> impl Strategy<Value = RouteAttrs> {
    // Few values each, so that ties are common and every rule decides sometimes.
    (
        (prop_oneof![Just(100u16), Just(200u16)], 0u32..2, proptest::collection::vec(1u32..3, 0..3)),
        (0u8..2, proptest::option::of(0u32..3), proptest::option::of(1u8..3)),
        proptest::collection::vec(1u8..3, 0..2),
        1u8..4,
    )
        .prop_map(|((preference, pref, as_path), (origin, med, originator), clusters, next_hop)| {
            RouteAttrs {
                preference,
                local_pref: Some(pref),
                as_path: as_path.into(),
                origin: WireOrigin::from_u8(origin).unwrap(),
                med,
                originator: originator.map(|id| Ipv4Addr::new(1, 1, 1, id)),
                cluster_list: clusters.into_iter().map(|id| Ipv4Addr::new(2, 2, 2, id)).collect(),
                next_hop: Some(hop(next_hop)),
                ..RouteAttrs::default()
            }
        })
}

fn hop(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

fn peer() -> impl Strategy<Value = PeerId> {
    (0..PEER_COUNT).prop_map(|index| PeerId::from_index(index).unwrap())
}

fn step() -> impl Strategy<Value = RibStep> {
    let place = || (0u8..12, peer(), 0u32..2);
    prop_oneof![
        8 => (place(), attrs())
            .prop_map(|((prefix, peer, path_id), attrs)| RibStep::Insert { prefix, peer, path_id, attrs }),
        4 => place().prop_map(|(prefix, peer, path_id)| RibStep::Remove { prefix, peer, path_id }),
        1 => (peer(), any::<bool>()).prop_map(|(peer, stale)| RibStep::RemovePeer { peer, stale }),
        1 => peer().prop_map(|peer| RibStep::NewEpoch { peer }),
        4 => (0usize..3, 1usize..6).prop_map(|(reader, limit)| RibStep::Read { reader, limit }),
        2 => (1usize..6).prop_map(|limit| RibStep::Install { limit }),
        3 => Just(RibStep::TrimJournals),
        2 => proptest::collection::btree_set(1u8..4, 0..3)
            .prop_map(|next_hops| RibStep::Unreachable { next_hops }),
        1 => (0usize..3).prop_map(|reader| RibStep::Restart { reader }),
        1 => (0usize..3).prop_map(|reader| RibStep::Refresh { reader }),
    ]
}

fn prefix(number: u8) -> Ipv4Prefix {
    Ipv4Prefix::new(Ipv4Addr::new(192, 0, number, 0), 24)
}

fn origin(peer: PeerId) -> PathOrigin {
    PathOrigin {
        external: peer.index() % 2 == 1,
        // Two peers share an identifier.
        router_id: Ipv4Addr::new(1, 1, 1, (peer.index() / 2) as u8),
        address: Ipv4Addr::new(10, 1, 1, 9 - peer.index() as u8).into(),
    }
}

type ModelRoutes = BTreeMap<Ipv4Prefix, BTreeMap<PathKey, (RouteAttrs, u8)>>;

/// A peer and its path identifier.
type PathKey = (PeerId, u32);

/// Implements RFC 4271 section 9.1.2.2 literally: each step removes paths.
fn decide(
    paths: &BTreeMap<PathKey, (RouteAttrs, u8)>,
    unreachable: &HashSet<IpAddr>,
) -> (Option<PathKey>, BTreeSet<PathKey>) {
    let mut left: Vec<(PathKey, &RouteAttrs)> = paths.iter().map(|(key, (attrs, _))| (*key, attrs)).collect();
    left.retain(|(_, attrs)| attrs.next_hop.is_none_or(|hop| !unreachable.contains(&hop)));
    fn keep<K: Ord>(left: &mut Vec<(PathKey, &RouteAttrs)>, worth: impl Fn(PathKey, &RouteAttrs) -> K) {
        let best = left.iter().map(|(key, attrs)| worth(*key, attrs)).max();
        left.retain(|(key, attrs)| Some(worth(*key, attrs)) == best);
    }
    use std::cmp::Reverse;
    keep(&mut left, |_, attrs| attrs.preference);
    keep(&mut left, |_, attrs| attrs.local_pref());
    keep(&mut left, |_, attrs| Reverse(attrs.as_path.len()));
    keep(&mut left, |_, attrs| Reverse(attrs.origin));
    let all = left.clone();
    left.retain(|(_, attrs)| {
        !all.iter().any(|(_, other)| {
            other.as_path.first() == attrs.as_path.first() && other.med.unwrap_or(0) < attrs.med.unwrap_or(0)
        })
    });
    keep(&mut left, |(peer, _), _| origin(peer).external);
    let shared = left.iter().map(|(key, _)| *key).collect();
    keep(&mut left, |(peer, _), attrs| Reverse(attrs.originator.unwrap_or(origin(peer).router_id)));
    keep(&mut left, |_, attrs| Reverse(attrs.cluster_list.len()));
    keep(&mut left, |(peer, _), _| Reverse(origin(peer).address));
    keep(&mut left, |(_, path_id), _| Reverse(path_id));
    (left.first().map(|(key, _)| *key), shared)
}

/// A peer that receives best routes as a session advertises them: a position, a walk, and one bit per destination.
struct AdvertiseReader {
    position: JournalPosition,
    walk: Option<(u32, u32)>,
    sent: Bitmap,
    add_path: bool,
    /// The best path, or all usable ones.
    heard: BTreeMap<Ipv4Prefix, Vec<RouteAttrs>>,
}

impl AdvertiseReader {
    fn new(table: &mut RouteTable<Ipv4Prefix>, add_path: bool) -> AdvertiseReader {
        let (position, numbers) = table.start_reader(add_path);
        AdvertiseReader {
            position,
            walk: Some((0, numbers)),
            add_path,
            sent: Bitmap::default(),
            heard: BTreeMap::new(),
        }
    }

    fn read(&mut self, table: &RouteTable<Ipv4Prefix>, limit: usize) {
        let mut ids = Vec::new();
        match self.walk {
            None => table.read_advertise(&mut self.position, limit, self.add_path, &mut ids),
            Some((from, end)) => {
                let to = end.min(from + limit as u32);
                ids.extend(
                    (from..to)
                        .map(DestinationId)
                        .filter(|id| !table.will_be_read(*id, self.position, self.add_path)),
                );
                self.walk = (to < end).then_some((to, end));
            }
        }
        for id in ids {
            let destination = table.get(id).unwrap();
            let usable = destination.paths().iter().filter(|path| table.is_reachable(path));
            let usable = usable.take(if self.add_path { usize::MAX } else { 1 });
            let advertised: Vec<RouteAttrs> = usable.map(|path| (*path.attrs).clone()).collect();
            match destination.best() {
                Some(_) => {
                    self.sent.insert(id.0);
                    self.heard.insert(destination.prefix, advertised);
                }
                None if self.sent.remove(id.0) => {
                    assert!(
                        self.heard.remove(&destination.prefix).is_some(),
                        "withdrew what was never advertised"
                    );
                }
                None => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn behaves_as_the_model_says(steps in proptest::collection::vec(step(), 0..150)) {
        let mut table: RouteTable<Ipv4Prefix> = RouteTable::default();
        let mut interner = AttrsInterner::default();
        let mut said = ModelRoutes::new();
        let mut unreachable = HashSet::new();
        let mut epochs = [0u8; PEER_COUNT];
        // The last reader receives all paths.
        let mut readers: Vec<AdvertiseReader> = (0..3).map(|number| AdvertiseReader::new(&mut table, number == 2)).collect();
        let mut kernel: BTreeMap<Ipv4Prefix, BTreeSet<PathKey>> = BTreeMap::new();
        let mut installed: JournalPosition = 1;
        let install = |table: &RouteTable<Ipv4Prefix>, installed: &mut JournalPosition, limit, kernel: &mut BTreeMap<_, _>| {
            let mut ids = Vec::new();
            table.read_install(installed, limit, &mut ids);
            for id in ids {
                let destination = table.get(id).unwrap();
                let used: BTreeSet<_> = destination.multipath().iter().map(|p| (p.peer, p.path_id)).collect();
                match used.is_empty() {
                    true => kernel.remove(&destination.prefix),
                    false => kernel.insert(destination.prefix, used),
                };
            }
        };
        for step in steps {
            match step {
                RibStep::Insert { prefix: number, peer, path_id, attrs } => {
                    let epoch = epochs[peer.index()];
                    let paths = said.entry(prefix(number)).or_default();
                    let before = paths.insert((peer, path_id), (attrs.clone(), epoch));
                    let path = RoutePath { attrs: interner.intern(attrs.clone()), path_id, peer, epoch };
                    let effect = table.insert(prefix(number), path, u16::MAX, origin);
                    let expected = match before {
                        None => PathUpdateEffect::Added,
                        Some((old, _)) if old == attrs => PathUpdateEffect::Unchanged,
                        Some(_) => PathUpdateEffect::Replaced,
                    };
                    prop_assert_eq!(effect, expected);
                }
                RibStep::Remove { prefix: number, peer, path_id } => {
                    let gone = said.get_mut(&prefix(number)).and_then(|paths| paths.remove(&(peer, path_id)));
                    let effect = table.remove(prefix(number), peer, path_id, origin);
                    prop_assert_eq!(effect == PathUpdateEffect::Removed, gone.is_some());
                }
                RibStep::RemovePeer { peer, stale } => {
                    let keep = stale.then_some(epochs[peer.index()]);
                    let mut removed = 0;
                    for paths in said.values_mut() {
                        let before = paths.len();
                        paths.retain(|(from, _), (_, epoch)| *from != peer || keep == Some(*epoch));
                        removed += before - paths.len();
                    }
                    prop_assert_eq!(table.remove_peer(peer, keep, origin), removed);
                }
                RibStep::NewEpoch { peer } => epochs[peer.index()] += 1,
                RibStep::Read { reader, limit } => readers[reader].read(&table, limit),
                RibStep::Install { limit } => install(&table, &mut installed, limit, &mut kernel),
                RibStep::Unreachable { next_hops } => {
                    unreachable = next_hops.into_iter().map(hop).collect();
                    table.set_unreachable(unreachable.clone(), origin);
                }
                RibStep::Restart { reader } => readers[reader] = AdvertiseReader::new(&mut table, reader == 2),
                RibStep::Refresh { reader } => readers[reader].walk = Some((0, table.id_end())),
                RibStep::TrimJournals => {
                    let slowest = readers.iter().map(|reader| reader.position).min().unwrap();
                    table.trim_journals(slowest, installed);
                }
            }
            said.retain(|_, paths| !paths.is_empty());
            let usable = |paths: &&BTreeMap<_, _>| decide(paths, &unreachable).0.is_some();
            prop_assert_eq!(table.len(), said.values().filter(usable).count());
            for (prefix, paths) in &said {
                let destination = table.find(*prefix).unwrap();
                let (best, shared) = decide(paths, &unreachable);
                let got = destination.best().map(|path| (path.peer, path.path_id));
                prop_assert_eq!(got, best);
                let used: BTreeSet<_> = destination.multipath().iter().map(|p| (p.peer, p.path_id)).collect();
                prop_assert_eq!(&used, &shared);
                let attrs = destination.best().map(|path| Arc::clone(&path.attrs));
                prop_assert_eq!(attrs.as_deref(), best.map(|best| &paths[&best].0));
            }
        }
        // Every reader that has caught up has the correct routes, whatever it saw on the way.
        let best: BTreeMap<Ipv4Prefix, Vec<RouteAttrs>> = said
            .iter()
            .filter_map(|(prefix, paths)| Some((*prefix, vec![paths[&decide(paths, &unreachable).0?].0.clone()])))
            .collect();
        let all: BTreeMap<Ipv4Prefix, Vec<RouteAttrs>> = said
            .iter()
            .map(|(prefix, paths)| {
                let lost = |attrs: &RouteAttrs| attrs.next_hop.is_some_and(|hop| unreachable.contains(&hop));
                let usable = paths.values().map(|(attrs, _)| attrs).filter(|attrs| !lost(attrs));
                (*prefix, usable.cloned().collect::<Vec<_>>())
            })
            .filter(|(_, usable)| !usable.is_empty())
            .collect();
        for reader in &mut readers {
            while reader.walk.is_some() || reader.position < table.advertise.end() {
                reader.read(&table, 7);
            }
            let truth = if reader.add_path { &all } else { &best };
            let sorted = |known: &BTreeMap<Ipv4Prefix, Vec<RouteAttrs>>| -> BTreeMap<Ipv4Prefix, Vec<String>> {
                let texts = |paths: &Vec<RouteAttrs>| {
                    let mut texts: Vec<String> = paths.iter().map(|attrs| format!("{attrs:?}")).collect();
                    texts.sort();
                    texts
                };
                known.iter().map(|(prefix, paths)| (*prefix, texts(paths))).collect()
            };
            prop_assert_eq!(sorted(&reader.heard), sorted(truth));
        }
        install(&table, &mut installed, usize::MAX, &mut kernel);
        let used: BTreeMap<_, _> = said
            .iter()
            .map(|(prefix, paths)| (*prefix, decide(paths, &unreachable).1))
            .filter(|(_, used)| !used.is_empty())
            .collect();
        prop_assert_eq!(kernel, used);
        // Removed routes leave nothing behind.
        table.trim_journals(table.advertise.end(), installed);
        for paths in said.into_iter().flat_map(|(prefix, paths)| paths.into_keys().map(move |key| (prefix, key))) {
            table.remove(paths.0, paths.1.0, paths.1.1, origin);
        }
        table.trim_journals(table.advertise.end(), table.install.end());
        prop_assert_eq!(table.in_use(), 0);
    }
}
