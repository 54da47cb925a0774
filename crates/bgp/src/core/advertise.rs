//! What each peer is told. A session keeps a position in the journal of changes and one bit for each destination,
//! and messages are made only when its connection can take them: a slow peer costs nothing and delays nobody.

use super::encode::{self, Cache, Nlri, Profile, Provenance};
use super::peer::Peer;
use super::{Conn, Core, Direction, Holds, Rib, Shared};
use crate::bitmap::Bitmap;
use crate::family::{Family, Prefix};
use crate::filter::{Asked, Outcome, PeerKind, Source};
use crate::rib::attrs::Interner;
use crate::rib::decide::Origin;
use crate::rib::journal::Position;
use crate::rib::table::{LOCAL, Path, Table};
use bytes::Bytes;
use rustbgpd_wire::{
    COMMUNITY_NO_ADVERTISE, COMMUNITY_NO_EXPORT, COMMUNITY_NO_EXPORT_SUBCONFED, Ipv4Prefix, Ipv6Prefix,
    Message, RouteRefreshMessage, RouteRefreshSubtype, encode_message,
};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// About how many bytes are made ready at once.
const CHUNK: usize = 128 * 1024;
/// How many destinations are looked at to find those that can share messages.
const BATCH: usize = 4096;
/// How many paths to one destination a peer is told that takes several.
const MOST_PATHS: usize = 256;

/// What has been told to a peer of one family.
#[derive(Debug)]
pub(super) struct Outlet {
    position: Position,
    /// The part of the table still to be walked through: after the session came up, or on request.
    walk: Option<(u32, u32)>,
    sent: Bitmap,
    pub count: u32,
    /// The peer takes several paths: how many of a destination it has been told beyond the first.
    more: Option<HashMap<u32, u16>>,
    /// The peer is to be told when it knows all for the first time.
    end_of_rib: bool,
    /// The walk is a refresh whose beginning and end are marked (RFC 7313).
    begin_refresh: bool,
    end_refresh: bool,
}

impl Outlet {
    pub fn new(position: Position, numbers: u32, end_of_rib: bool, several: bool) -> Outlet {
        Outlet {
            position,
            walk: Some((0, numbers)),
            sent: Bitmap::default(),
            count: 0,
            more: several.then(HashMap::new),
            end_of_rib,
            begin_refresh: false,
            end_refresh: false,
        }
    }

    /// Tells everything again. What changed but is not told yet is told after that: moving on in the journal would
    /// set free the numbers of destinations whose end the peer has not heard of.
    pub fn walk_again(&mut self, numbers: u32, marked: bool) {
        self.walk = Some((0, numbers));
        // The first telling has its own marker.
        let marked = marked && !self.end_of_rib;
        self.begin_refresh |= marked;
        self.end_refresh |= marked;
    }

    pub fn position(&self) -> Position {
        self.position
    }

    /// Whether the peer is told of several paths.
    pub fn is_several(&self) -> bool {
        self.more.is_some()
    }

    /// Notes that the peer now knows so many paths to a destination; returns how many it knew.
    fn note(&mut self, id: u32, paths: u16) -> u16 {
        let knew = match paths > 0 {
            true => !self.sent.insert(id),
            false => self.sent.remove(id),
        };
        match (knew, paths > 0) {
            (false, true) => self.count += 1,
            (true, false) => self.count -= 1,
            _ => {}
        }
        let further = match (&mut self.more, paths.saturating_sub(1)) {
            (None, _) => None,
            (Some(more), 0) => more.remove(&id),
            (Some(more), further) => more.insert(id, further),
        };
        u16::from(knew) + further.unwrap_or(0)
    }

    fn next<P: Prefix>(&mut self, table: &Table<P>, out: &mut Vec<u32>) {
        let Some((from, end)) = self.walk else {
            return table.read_advertise(&mut self.position, BATCH, self.more.is_some(), out);
        };
        let mut at = from;
        while at < end && out.len() < BATCH {
            if !table.will_be_read(at, self.position, self.more.is_some()) {
                out.push(at);
            }
            at += 1;
        }
        self.walk = (at < end).then_some((at, end));
    }
}

/// Routes that look the same to the peer.
struct Group<P> {
    encoded: Option<Arc<encode::Encoded>>,
    prefixes: Vec<Nlri<P>>,
    ids: Vec<u32>,
}

/// What a batch of destinations needs of the rest of the core.
struct Bench<'a> {
    peers: &'a [Option<Peer>],
    origins: &'a [Origin],
    interner: &'a mut Interner,
    cache: &'a mut Cache,
    target: &'a Peer,
    profile: Profile,
    profile_number: u32,
    limit: u16,
}

impl Core {
    /// The next bytes for a connection that can take some.
    pub fn output(&mut self, conn: Conn) -> Option<Bytes> {
        let (number, direction) = self.conns.get(&conn).copied()?;
        let link = self.peer_mut(number)?.link_mut(direction)?;
        let mut out = link.control.split().to_vec();
        if link.is_established() && !self.restart.holds_back() {
            for family in Family::ALL {
                self.tell(number, direction, family, &mut out);
            }
        }
        (!out.is_empty()).then(|| out.into())
    }

    fn tell(&mut self, number: u16, direction: Direction, family: Family, out: &mut Vec<u8>) {
        if !self.has_news(number, family) {
            return;
        }
        while out.len() < CHUNK {
            let length = out.len();
            let more = match family {
                Family::V4 => self.tell_batch::<Ipv4Prefix>(number, direction, out),
                Family::V6 => self.tell_batch::<Ipv6Prefix>(number, direction, out),
            };
            if !more && out.len() == length {
                return;
            }
        }
    }

    fn has_news(&self, number: u16, family: Family) -> bool {
        let end = match family {
            Family::V4 => self.rib.v4.advertise.end(),
            Family::V6 => self.rib.v6.advertise.end(),
        };
        self.peer(number).and_then(|peer| peer.outlets.get(family).as_ref()).is_some_and(|outlet| {
            outlet.walk.is_some()
                || outlet.position < end
                || outlet.end_refresh
                || (outlet.end_of_rib && self.restart.local_complete)
        })
    }

    /// Appends messages for some destinations. Returns whether there may be more.
    fn tell_batch<P: Prefix>(&mut self, number: u16, direction: Direction, out: &mut Vec<u8>) -> bool
    where
        Rib: Holds<P>,
    {
        let family = P::FAMILY;
        let Some(profile) = self.profile(number, family) else { return false };
        let profile_number = self.encodings.profile(profile.clone());
        let Some(peer) = self.peers.get_mut(usize::from(number)).and_then(Option::as_mut) else {
            return false;
        };
        let Some(mut outlet) = peer.outlets.get_mut(family).take() else { return false };
        let limit = peer.link(direction).map_or(rustbgpd_wire::MAX_MESSAGE_LEN, |link| link.limit());
        if std::mem::take(&mut outlet.begin_refresh) {
            marker(out, family, RouteRefreshSubtype::BoRR);
        }
        let table: &Table<P> = self.rib.table();
        let mut ids = Vec::new();
        outlet.next(table, &mut ids);
        let mut updates = 0;
        if !ids.is_empty() {
            let Some(target) = self.peers.get(usize::from(number)).and_then(Option::as_ref) else {
                return false;
            };
            let mut bench = Bench {
                peers: &self.peers,
                origins: &self.origins,
                interner: &mut self.interner,
                cache: &mut self.encodings,
                target,
                profile,
                profile_number,
                limit,
            };
            updates = bench.encode(table, &mut outlet, &ids, out);
        }
        let done = outlet.walk.is_none() && outlet.position >= table.advertise.end();
        if done && self.restart.local_complete && std::mem::take(&mut outlet.end_of_rib) {
            encode::end_of_rib(out, family);
        }
        if outlet.walk.is_none() && std::mem::take(&mut outlet.end_refresh) {
            marker(out, family, RouteRefreshSubtype::EoRR);
        }
        if let Some(peer) = self.peer_mut(number) {
            peer.history.updates_out += updates as u64;
            peer.history.messages_out += updates as u64;
            *peer.outlets.get_mut(family) = Some(outlet);
        }
        !done
    }

    fn profile(&self, number: u16, family: Family) -> Option<Profile> {
        let peer = self.peer(number)?;
        let local = peer.local_address();
        let link_local = |address: Option<IpAddr>| match address {
            Some(IpAddr::V6(address)) if address.is_unicast_link_local() => Some(address),
            _ => None,
        };
        let configured = match family {
            Family::V4 => self.config.local_v4.map(IpAddr::V4),
            Family::V6 => self.config.local_v6.map(IpAddr::V6),
        };
        let usable = local.filter(|address| Family::of(*address) == family && link_local(local).is_none());
        let fallback: Option<Ipv6Addr> = link_local(local).filter(|_| family == Family::V6);
        Some(Profile {
            external: peer.external(),
            local_as: peer.local_as,
            next_hop: peer.config.next_hop,
            own: usable.or(configured).or(fallback.map(IpAddr::V6)),
            own_link_local: fallback,
            four_octet_as: peer.negotiated()?.four_octet_as,
        })
    }

    /// Forgets what every session and the kernel have heard. Call it now and then.
    pub fn tidy(&mut self) {
        let slowest = |family: Family, end: Position| {
            let outlets = self.peers.iter().flatten().filter_map(|peer| peer.outlets.get(family).as_ref());
            outlets.map(Outlet::position).min().unwrap_or(end)
        };
        let (v4, v6) = (
            slowest(Family::V4, self.rib.v4.advertise.end()),
            slowest(Family::V6, self.rib.v6.advertise.end()),
        );
        let several = |family: Family| {
            let mut outlets =
                self.peers.iter().flatten().filter_map(|peer| peer.outlets.get(family).as_ref());
            outlets.any(Outlet::is_several)
        };
        if !several(Family::V4) {
            self.rib.v4.only_best();
        }
        if !several(Family::V6) {
            self.rib.v6.only_best();
        }
        self.rib.v4.forget(v4, self.installed.v4);
        self.rib.v6.forget(v6, self.installed.v6);
        self.encodings.clear();
    }
}

impl Bench<'_> {
    fn encode<P: Prefix>(
        &mut self,
        table: &Table<P>,
        outlet: &mut Outlet,
        ids: &[u32],
        out: &mut Vec<u8>,
    ) -> usize {
        let mut groups: Vec<Group<P>> = Vec::new();
        let mut known: HashMap<(usize, Provenance), usize> = HashMap::new();
        let mut latest: Option<((usize, Provenance), usize)> = None;
        let mut gone: Vec<Nlri<P>> = Vec::new();
        let several = outlet.is_several();
        for id in ids {
            let Some(destination) = table.get(*id) else { continue };
            let prefix = destination.prefix;
            let usable = destination.paths().iter().filter(|path| table.is_reachable(path));
            let mut told = 0u16;
            // A path's number is its rank: which path has it changes, and the peer is told all of them anew.
            let number = |rank: u16| if several { u32::from(rank) } else { 0 };
            for path in usable.take(if several { MOST_PATHS } else { 1 }) {
                let Some((attrs, provenance)) = self.shown(prefix, path) else { continue };
                let key = (Arc::as_ptr(&attrs) as usize, provenance);
                let at = match latest {
                    Some((same, at)) if same == key => at,
                    _ => *known.entry(key).or_insert_with(|| {
                        let encoded = self.cache.get(self.profile_number, &self.profile, &attrs, provenance);
                        groups.push(Group { encoded, prefixes: Vec::new(), ids: Vec::new() });
                        groups.len() - 1
                    }),
                };
                latest = Some((key, at));
                if let Some(group) = groups.get_mut(at).filter(|group| group.encoded.is_some()) {
                    told += 1;
                    group.prefixes.push(Nlri { prefix, path: number(told) });
                    group.ids.push(*id);
                }
            }
            let knew = outlet.note(*id, told);
            gone.extend((told + 1..=knew).map(|rank| Nlri { prefix, path: number(rank) }));
        }
        let mut messages = 0;
        let mut announcements = Vec::new();
        for group in groups {
            let Some(encoded) = &group.encoded else { continue };
            let sent = encode::announce(&mut announcements, &group.prefixes, encoded, self.limit);
            messages += sent;
            if sent == 0 {
                // It cannot be told, so what was told before in its place must go.
                gone.extend(&group.prefixes);
                if !several {
                    group.ids.iter().for_each(|id| {
                        outlet.note(*id, 0);
                    });
                }
            }
        }
        messages += encode::withdraw(out, &gone, self.limit);
        out.append(&mut announcements);
        messages
    }

    /// A path to a destination as the peer may see it; none if it may not.
    fn shown<P: Prefix>(&mut self, prefix: P, path: &Path) -> Option<(Shared, Provenance)> {
        let provenance = self.provenance(path)?;
        let stopped = path.attrs.communities.iter().any(|community| match *community {
            COMMUNITY_NO_ADVERTISE => true,
            COMMUNITY_NO_EXPORT | COMMUNITY_NO_EXPORT_SUBCONFED => self.target.external(),
            _ => false,
        });
        if stopped {
            return None;
        }
        let filter = &self.target.config.export;
        let asked = Asked {
            prefix: prefix.net(),
            source: if path.peer == LOCAL { Source::Local } else { Source::Peers },
            peer: if self.target.external() { PeerKind::External } else { PeerKind::Internal },
        };
        let attrs = match filter.run(&asked, &path.attrs) {
            Outcome::Reject => return None,
            Outcome::Same => path.attrs.clone(),
            Outcome::Changed(changed) => self.interner.intern(changed),
        };
        Some((attrs, provenance))
    }

    /// Whether a route may go to the peer at all, and as what. Between internal peers only a reflector passes
    /// routes on: those of clients to everybody, those of others to clients (RFC 4456 section 6).
    fn provenance(&self, path: &Path) -> Option<Provenance> {
        if path.peer == LOCAL {
            return Some(Provenance::Own);
        }
        if path.peer == self.target.number {
            return None;
        }
        let source = self.peers.get(usize::from(path.peer)).and_then(Option::as_ref)?;
        if source.external() {
            return Some(Provenance::External);
        }
        let from = self.origins.get(usize::from(path.peer))?.router_id;
        if self.target.external() {
            return Some(Provenance::External);
        }
        let cluster = self.target.config.reflect.or(source.config.reflect)?;
        Some(Provenance::Reflected { from, cluster })
    }
}

fn marker(out: &mut Vec<u8>, family: Family, subtype: RouteRefreshSubtype) {
    let (afi, safi) = family.wire();
    let message = RouteRefreshMessage::new_with_subtype(afi, safi, subtype);
    // A message of fixed form always can be encoded.
    if let Ok(bytes) = encode_message(&Message::RouteRefresh(message)) {
        out.extend_from_slice(&bytes);
    }
}
