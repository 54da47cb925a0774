//! The Adj-RIB-Out of each session. A session keeps a position in the journal of changes and one bit per destination,
//! and messages are built only when its connection can take them. A slow peer therefore needs no queue and delays no
//! other peer.

use super::encode::{self, EncodedAttrsCache, PathNlri, RouteProvenance, UpdateGroup, UpdateGroupId};
use super::peer::PeerSession;
use super::{ConnectionDirection, ConnectionId, FamilyTable, RoutingTables, SharedAttrs, SpeakerCore};
use crate::bitmap::Bitmap;
use crate::family::{BgpFamily, Prefix};
use crate::filter::{FilterOutcome, FilterRouteSource, PeerType, RouteContext};
use crate::id::{DestinationId, PeerId};
use crate::rib::attrs::AttrsInterner;
use crate::rib::decide::PathOrigin;
use crate::rib::journal::JournalPosition;
use crate::rib::table::{RoutePath, RouteTable};
use bytes::Bytes;
use rustbgpd_wire::{
    COMMUNITY_NO_ADVERTISE, COMMUNITY_NO_EXPORT, COMMUNITY_NO_EXPORT_SUBCONFED, Ipv4Prefix, Ipv6Prefix,
    Message, RouteRefreshMessage, RouteRefreshSubtype, encode_message,
};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Approximate number of bytes that are prepared at once.
const OUTPUT_CHUNK_BYTES: usize = 128 * 1024;
/// Number of destinations that are examined together to find routes that can share messages.
const DESTINATIONS_PER_BATCH: usize = 4096;
/// Number of such batches per turn if they produce few bytes, so that other connections get their turn.
const BATCHES_PER_TURN: usize = 8;
/// Maximum number of paths per destination that are advertised to a peer with ADD-PATH (RFC 7911).
const MAX_ADVERTISED_PATHS: usize = 256;

/// The routes that have been advertised to a peer in one family.
#[derive(Debug)]
pub(super) struct AdjRibOut {
    position: JournalPosition,
    /// The range of the table that is still to be walked, after the session came up or on a route refresh.
    walk: Option<(u32, u32)>,
    sent: Bitmap,
    pub count: u32,
    /// With ADD-PATH: the number of paths beyond the first that have been advertised for a destination.
    extra_paths: Option<HashMap<DestinationId, u16>>,
    /// Whether End-of-RIB is still to be sent after the first walk (RFC 4724).
    end_of_rib: bool,
    /// Whether the walk is a refresh that is delimited by BoRR and EoRR (RFC 7313).
    begin_refresh: bool,
    end_refresh: bool,
}

impl AdjRibOut {
    pub fn new(position: JournalPosition, numbers: u32, end_of_rib: bool, add_path: bool) -> AdjRibOut {
        AdjRibOut {
            position,
            walk: Some((0, numbers)),
            sent: Bitmap::default(),
            count: 0,
            extra_paths: add_path.then(HashMap::new),
            end_of_rib,
            begin_refresh: false,
            end_refresh: false,
        }
    }

    /// Advertises the whole table again. Changes that have not been advertised yet follow after the walk: skipping
    /// them in the journal would free the numbers of destinations that have not been withdrawn from the peer yet.
    pub fn restart_walk(&mut self, numbers: u32, marked: bool) {
        self.walk = Some((0, numbers));
        // The first walk ends with End-of-RIB instead.
        let marked = marked && !self.end_of_rib;
        self.begin_refresh |= marked;
        self.end_refresh |= marked;
    }

    pub fn position(&self) -> JournalPosition {
        self.position
    }

    /// Returns whether all paths to a destination are advertised.
    pub fn sends_all_paths(&self) -> bool {
        self.extra_paths.is_some()
    }

    /// Records how many paths to a destination are advertised now. Returns how many were advertised before.
    fn set_advertised(&mut self, id: DestinationId, paths: u16) -> u16 {
        let before = if paths > 0 { !self.sent.insert(id.0) } else { self.sent.remove(id.0) };
        match (before, paths > 0) {
            (false, true) => self.count += 1,
            (true, false) => self.count -= 1,
            _ => {}
        }
        let further = match (&mut self.extra_paths, paths.saturating_sub(1)) {
            (None, _) => None,
            (Some(extra), 0) => extra.remove(&id),
            (Some(extra), further) => extra.insert(id, further),
        };
        u16::from(before) + further.unwrap_or(0)
    }

    fn next<P: Prefix>(&mut self, table: &RouteTable<P>, out: &mut Vec<DestinationId>) {
        let Some((from, end)) = self.walk else {
            return table.read_advertise(
                &mut self.position,
                DESTINATIONS_PER_BATCH,
                self.extra_paths.is_some(),
                out,
            );
        };
        let mut at = from;
        while at < end && out.len() < DESTINATIONS_PER_BATCH {
            let id = DestinationId(at);
            if !table.will_be_read(id, self.position, self.extra_paths.is_some()) {
                out.push(id);
            }
            at += 1;
        }
        self.walk = (at < end).then_some((at, end));
    }
}

/// Routes with the same encoded attributes for the peer.
struct SharedAttrsGroup<P> {
    encoded: Option<Arc<encode::EncodedAttrs>>,
    prefixes: Vec<PathNlri<P>>,
    ids: Vec<DestinationId>,
}

/// Builds UPDATE messages for one peer. Borrows the parts of the core that it needs.
struct UpdateBuilder<'a> {
    peers: &'a [Option<PeerSession>],
    origins: &'a [PathOrigin],
    interner: &'a mut AttrsInterner,
    cache: &'a mut EncodedAttrsCache,
    target: &'a PeerSession,
    group: UpdateGroup,
    group_id: UpdateGroupId,
    limit: u16,
}

impl SpeakerCore {
    /// Returns the next bytes for a connection that is ready to write.
    pub fn output(&mut self, conn: ConnectionId) -> Option<Bytes> {
        let (peer_id, direction) = self.conns.get(&conn).copied()?;
        let connection = self.peer_mut(peer_id)?.connection_mut(direction)?;
        let mut out = connection.control.split().to_vec();
        if connection.is_established() && !self.restart.defers_advertising() {
            for family in BgpFamily::ALL {
                self.advertise(peer_id, direction, family, &mut out);
            }
        }
        (!out.is_empty()).then(|| out.into())
    }

    fn advertise(
        &mut self,
        peer_id: PeerId,
        direction: ConnectionDirection,
        family: BgpFamily,
        out: &mut Vec<u8>,
    ) {
        if !self.has_pending(peer_id, family) {
            return;
        }
        for _ in 0..BATCHES_PER_TURN {
            if out.len() >= OUTPUT_CHUNK_BYTES {
                return;
            }
            let length = out.len();
            let more = match family {
                BgpFamily::V4 => self.advertise_batch::<Ipv4Prefix>(peer_id, direction, out),
                BgpFamily::V6 => self.advertise_batch::<Ipv6Prefix>(peer_id, direction, out),
            };
            if !more && out.len() == length {
                return;
            }
        }
        self.output_pending = true;
    }

    /// Returns whether, since the last call, [`SpeakerCore::output`] left work undone because a turn was used up.
    pub fn take_output_pending(&mut self) -> bool {
        std::mem::take(&mut self.output_pending)
    }

    fn has_pending(&self, peer_id: PeerId, family: BgpFamily) -> bool {
        let end = match family {
            BgpFamily::V4 => self.rib.v4.advertise.end(),
            BgpFamily::V6 => self.rib.v6.advertise.end(),
        };
        self.peer(peer_id).and_then(|peer| peer.adj_ribs_out.get(family).as_ref()).is_some_and(|rib_out| {
            rib_out.walk.is_some()
                || rib_out.position < end
                || rib_out.end_refresh
                || (rib_out.end_of_rib && self.restart.local_complete)
        })
    }

    /// Appends messages for some destinations. Returns whether there may be more.
    fn advertise_batch<P: Prefix>(
        &mut self,
        peer_id: PeerId,
        direction: ConnectionDirection,
        out: &mut Vec<u8>,
    ) -> bool
    where
        RoutingTables: FamilyTable<P>,
    {
        let family = P::FAMILY;
        let Some(group) = self.group(peer_id, family) else { return false };
        let group_id = self.encodings.group(group.clone());
        let Some(peer) = self.peers.get_mut(peer_id.index()).and_then(Option::as_mut) else {
            return false;
        };
        let Some(mut rib_out) = peer.adj_ribs_out.get_mut(family).take() else { return false };
        let limit = peer
            .connection(direction)
            .map_or(rustbgpd_wire::MAX_MESSAGE_LEN, |connection| connection.limit());
        if std::mem::take(&mut rib_out.begin_refresh) {
            write_marker(out, family, RouteRefreshSubtype::BoRR);
        }
        let table: &RouteTable<P> = self.rib.table();
        let mut ids = Vec::new();
        rib_out.next(table, &mut ids);
        let mut updates = 0;
        if !ids.is_empty() {
            let Some(target) = self.peers.get(peer_id.index()).and_then(Option::as_ref) else {
                return false;
            };
            let mut builder = UpdateBuilder {
                peers: &self.peers,
                origins: &self.origins,
                interner: &mut self.interner,
                cache: &mut self.encodings,
                target,
                group,
                group_id,
                limit,
            };
            updates = builder.encode(table, &mut rib_out, &ids, out);
        }
        let done = rib_out.walk.is_none() && rib_out.position >= table.advertise.end();
        if done && self.restart.local_complete && std::mem::take(&mut rib_out.end_of_rib) {
            encode::end_of_rib(out, family);
        }
        if rib_out.walk.is_none() && std::mem::take(&mut rib_out.end_refresh) {
            write_marker(out, family, RouteRefreshSubtype::EoRR);
        }
        if let Some(peer) = self.peer_mut(peer_id) {
            peer.history.updates_out += updates as u64;
            peer.history.messages_out += updates as u64;
            *peer.adj_ribs_out.get_mut(family) = Some(rib_out);
        }
        !done
    }

    fn group(&self, peer_id: PeerId, family: BgpFamily) -> Option<UpdateGroup> {
        let peer = self.peer(peer_id)?;
        let local = peer.local_address();
        let link_local = |address: Option<IpAddr>| match address {
            Some(IpAddr::V6(address)) if address.is_unicast_link_local() => Some(address),
            _ => None,
        };
        let configured = match family {
            BgpFamily::V4 => self.config.local_v4.map(IpAddr::V4),
            BgpFamily::V6 => self.config.local_v6.map(IpAddr::V6),
        };
        let usable = local.filter(|address| BgpFamily::of(*address) == family && link_local(local).is_none());
        let fallback: Option<Ipv6Addr> = link_local(local).filter(|_| family == BgpFamily::V6);
        Some(UpdateGroup {
            external: peer.external(),
            local_as: peer.local_as,
            next_hop: peer.config.next_hop,
            own: usable.or(configured).or(fallback.map(IpAddr::V6)),
            own_link_local: fallback,
            four_octet_as: peer.negotiated()?.four_octet_as,
        })
    }

    fn adj_ribs_out(&self, family: BgpFamily) -> impl Iterator<Item = &AdjRibOut> {
        self.peers.iter().flatten().filter_map(move |peer| peer.adj_ribs_out.get(family).as_ref())
    }

    /// Trims the journals up to the slowest reader. To be called regularly.
    pub fn collect_garbage(&mut self) {
        let v4 = self.adj_ribs_out(BgpFamily::V4).map(AdjRibOut::position).min();
        let v4 = v4.unwrap_or(self.rib.v4.advertise.end());
        let v6 = self.adj_ribs_out(BgpFamily::V6).map(AdjRibOut::position).min();
        let v6 = v6.unwrap_or(self.rib.v6.advertise.end());
        if !self.adj_ribs_out(BgpFamily::V4).any(AdjRibOut::sends_all_paths) {
            self.rib.v4.track_best_only();
        }
        if !self.adj_ribs_out(BgpFamily::V6).any(AdjRibOut::sends_all_paths) {
            self.rib.v6.track_best_only();
        }
        self.rib.v4.trim_journals(v4, self.installed.v4);
        self.rib.v6.trim_journals(v6, self.installed.v6);
        self.encodings.clear();
    }
}

impl UpdateBuilder<'_> {
    fn encode<P: Prefix>(
        &mut self,
        table: &RouteTable<P>,
        rib_out: &mut AdjRibOut,
        ids: &[DestinationId],
        out: &mut Vec<u8>,
    ) -> usize {
        let mut groups: Vec<SharedAttrsGroup<P>> = Vec::new();
        let mut known: HashMap<(usize, RouteProvenance), usize> = HashMap::new();
        let mut latest: Option<((usize, RouteProvenance), usize)> = None;
        let mut gone: Vec<PathNlri<P>> = Vec::new();
        let add_path = rib_out.sends_all_paths();
        for id in ids {
            let Some(destination) = table.get(*id) else { continue };
            let prefix = destination.prefix;
            let usable = destination.paths().iter().filter(|path| table.is_reachable(path));
            let mut advertised = 0u16;
            // The path identifier is the rank. It may pass to another path, but then all paths are advertised again.
            let path_id = |rank: u16| if add_path { u32::from(rank) } else { 0 };
            for path in usable.take(if add_path { MAX_ADVERTISED_PATHS } else { 1 }) {
                let Some((attrs, provenance)) = self.exported(prefix, path) else { continue };
                let key = (Arc::as_ptr(&attrs) as usize, provenance);
                let at = match latest {
                    Some((same, at)) if same == key => at,
                    _ => *known.entry(key).or_insert_with(|| {
                        let encoded = self.cache.get(self.group_id, &self.group, &attrs, provenance);
                        groups.push(SharedAttrsGroup { encoded, prefixes: Vec::new(), ids: Vec::new() });
                        groups.len() - 1
                    }),
                };
                latest = Some((key, at));
                if let Some(group) = groups.get_mut(at).filter(|group| group.encoded.is_some()) {
                    advertised += 1;
                    group.prefixes.push(PathNlri { prefix, path: path_id(advertised) });
                    group.ids.push(*id);
                }
            }
            let before = rib_out.set_advertised(*id, advertised);
            gone.extend((advertised + 1..=before).map(|rank| PathNlri { prefix, path: path_id(rank) }));
        }
        let mut messages = 0;
        let mut announcements = Vec::new();
        for group in groups {
            let Some(encoded) = &group.encoded else { continue };
            let sent = encode::announce(&mut announcements, &group.prefixes, encoded, self.limit);
            messages += sent;
            if sent == 0 {
                // The route cannot be advertised, so the route that was advertised in its place is withdrawn.
                gone.extend(&group.prefixes);
                if !add_path {
                    group.ids.iter().for_each(|id| {
                        rib_out.set_advertised(*id, 0);
                    });
                }
            }
        }
        messages += encode::withdraw(out, &gone, self.limit);
        out.append(&mut announcements);
        messages
    }

    /// Returns a path to a destination as the peer may receive it, or `None` if it must not.
    fn exported<P: Prefix>(&mut self, prefix: P, path: &RoutePath) -> Option<(SharedAttrs, RouteProvenance)> {
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
        let route = RouteContext {
            prefix: prefix.net(),
            source: if path.peer == PeerId::LOCAL {
                FilterRouteSource::Local
            } else {
                FilterRouteSource::Peers
            },
            peer: if self.target.external() { PeerType::External } else { PeerType::Internal },
        };
        let attrs = match filter.run(&route, &path.attrs) {
            FilterOutcome::Reject => return None,
            FilterOutcome::Same => path.attrs.clone(),
            FilterOutcome::Changed(changed) => self.interner.intern(changed),
        };
        Some((attrs, provenance))
    }

    /// Returns in which role a route may be sent to the peer, or `None` if it must not be sent. Between internal
    /// peers only a reflector passes routes on: those of clients to all, those of non-clients to clients (RFC 4456
    /// section 6).
    fn provenance(&self, path: &RoutePath) -> Option<RouteProvenance> {
        if path.peer == PeerId::LOCAL {
            return Some(RouteProvenance::Own);
        }
        if path.peer == self.target.id {
            return None;
        }
        let source = self.peers.get(path.peer.index()).and_then(Option::as_ref)?;
        if source.external() {
            return Some(RouteProvenance::External);
        }
        let from = self.origins.get(path.peer.index())?.router_id;
        if self.target.external() {
            return Some(RouteProvenance::External);
        }
        let cluster = self.target.config.reflect.or(source.config.reflect)?;
        Some(RouteProvenance::Reflected { from, cluster })
    }
}

fn write_marker(out: &mut Vec<u8>, family: BgpFamily, subtype: RouteRefreshSubtype) {
    let (afi, safi) = family.wire();
    let message = RouteRefreshMessage::new_with_subtype(afi, safi, subtype);
    // A message of fixed form can always be encoded.
    if let Ok(bytes) = encode_message(&Message::RouteRefresh(message)) {
        out.extend_from_slice(&bytes);
    }
}
