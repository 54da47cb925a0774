//! The status of a speaker, its peers and its routes.

use super::SpeakerCore;
use super::install::BestRoute;
use crate::family::{BgpFamily, PerFamily, Prefix};
use crate::id::{DestinationId, PeerId};
use crate::rib::attrs::RouteAttrs;
use crate::rib::table::RouteTable;
use crate::timers::{SessionTimer, SpeakerTime};
use ipnet::IpNet;
use rustbgpd_fsm::SessionState;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;

/// A snapshot of the speaker.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakerStatus {
    /// The time of the request, counted from the start of the speaker.
    pub now: SpeakerTime,
    pub asn: u32,
    pub router_id: Ipv4Addr,
    /// Whether the speaker is waiting for peers after a restart.
    pub restarting: bool,
    /// Number of destinations with a route.
    pub routes: PerFamily<usize>,
    /// Number of distinct attribute sets in memory.
    pub attributes: usize,
    pub peers: Vec<PeerStatus>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PeerStatus {
    pub name: Arc<str>,
    pub address: IpAddr,
    pub remote_as: u32,
    pub external: bool,
    pub state: BgpPeerState,
    /// Since when the session has been up or down, counted from the start of the speaker.
    pub since: SpeakerTime,
    pub router_id: Option<Ipv4Addr>,
    /// Negotiated with the peer; set while the session is up.
    pub hold_time: Option<u16>,
    pub families: Vec<BgpFamily>,
    pub prefixes_in: PerFamily<u32>,
    pub prefixes_out: PerFamily<u32>,
    /// Whether routes are kept for a peer that is expected to come back.
    pub waiting: bool,
    /// Why the session is down; `None` while it is up.
    pub last_error: Option<String>,
    /// Whether the number of routes of the peer is close to its limit.
    pub near_limit: bool,
    pub messages_in: u64,
    pub messages_out: u64,
    pub updates_in: u64,
    pub updates_out: u64,
    /// How many times the session came up.
    pub established: u64,
    /// UPDATEs whose routes were treated as withdrawn because of malformed attributes.
    pub malformed: u64,
    /// Messages that could not be parsed and ended the session.
    pub refused: u64,
}

impl PeerStatus {
    /// Returns the status of a session that has never been up, with no information about the peer.
    pub fn down(name: &str, since: SpeakerTime) -> PeerStatus {
        PeerStatus {
            name: name.into(),
            address: Ipv4Addr::UNSPECIFIED.into(),
            remote_as: 0,
            external: false,
            state: BgpPeerState::Idle,
            since,
            router_id: None,
            hold_time: None,
            families: Vec::new(),
            prefixes_in: PerFamily::default(),
            prefixes_out: PerFamily::default(),
            waiting: false,
            last_error: None,
            near_limit: false,
            messages_in: 0,
            messages_out: 0,
            updates_in: 0,
            updates_out: 0,
            established: 0,
            malformed: 0,
            refused: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BgpPeerState {
    Idle,
    Connect,
    Active,
    OpenSent,
    OpenConfirm,
    Established,
}

/// One path to a prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteStatus {
    pub prefix: IpNet,
    /// `None` if the route originates here.
    pub peer: Option<Arc<str>>,
    pub best: bool,
    /// Whether traffic may take this path.
    pub used: bool,
    pub stale: bool,
    /// Whether the next hop is reachable, as far as is known.
    pub reachable: bool,
    pub attrs: Arc<RouteAttrs>,
}

impl SpeakerCore {
    pub fn status(&self, now: SpeakerTime) -> SpeakerStatus {
        SpeakerStatus {
            now,
            asn: self.config.asn,
            router_id: self.config.router_id,
            restarting: self.restart.defers_installing(),
            routes: PerFamily { v4: self.rib.v4.len(), v6: self.rib.v6.len() },
            attributes: self.interner.size(),
            peers: self.peers.iter().flatten().map(|peer| self.peer_status(peer)).collect(),
        }
    }

    fn peer_status(&self, peer: &super::peer::PeerSession) -> PeerStatus {
        let advertised = |family| peer.adj_ribs_out.get(family).as_ref().map_or(0, |rib_out| rib_out.count);
        let incoming = peer.incoming.as_ref().map(|connection| connection.state());
        let state = match incoming
            .map_or(peer.outgoing.state(), |state| choose_furthest(state, peer.outgoing.state()))
        {
            SessionState::Idle if peer.config.passive && peer.config.shutdown.is_none() && !self.down => {
                BgpPeerState::Active
            }
            SessionState::Idle => BgpPeerState::Idle,
            SessionState::Connect => BgpPeerState::Connect,
            SessionState::Active => BgpPeerState::Active,
            SessionState::OpenSent => BgpPeerState::OpenSent,
            SessionState::OpenConfirm => BgpPeerState::OpenConfirm,
            SessionState::Established => BgpPeerState::Established,
        };
        let negotiated = peer.negotiated();
        PeerStatus {
            name: peer.name.clone(),
            address: peer.config.address,
            remote_as: peer.config.remote_as,
            external: peer.external(),
            state,
            since: peer.history.since,
            router_id: negotiated.map(|negotiated| negotiated.peer_router_id),
            hold_time: negotiated.map(|negotiated| negotiated.hold_time),
            families: peer.families(),
            prefixes_in: peer.received.clone(),
            prefixes_out: PerFamily { v4: advertised(BgpFamily::V4), v6: advertised(BgpFamily::V6) },
            waiting: self.timers.is_set(peer.id, SessionTimer::Restart),
            last_error: peer.history.last_error.clone(),
            near_limit: peer.near_limit,
            messages_in: peer.history.messages_in,
            messages_out: peer.history.messages_out,
            updates_in: peer.history.updates_in,
            updates_out: peer.history.updates_out,
            established: peer.history.established,
            malformed: peer.history.malformed,
            refused: peer.history.refused,
        }
    }

    /// Returns all paths to all prefixes of a family.
    pub fn routes(&self, family: BgpFamily) -> Vec<RouteStatus> {
        self.some_routes(family, 0..u32::MAX).routes
    }

    /// Returns all paths to the destinations with these numbers.
    pub fn some_routes(&self, family: BgpFamily, range: Range<u32>) -> RoutePage {
        match family {
            BgpFamily::V4 => self.paths(&self.rib.v4, range),
            BgpFamily::V6 => self.paths(&self.rib.v6, range),
        }
    }

    /// Returns all best routes of a family.
    pub fn best_routes(&self, family: BgpFamily) -> Vec<BestRoute> {
        match family {
            BgpFamily::V4 => self.rib.v4.iter().filter_map(|d| self.best_route(d)).collect(),
            BgpFamily::V6 => self.rib.v6.iter().filter_map(|d| self.best_route(d)).collect(),
        }
    }

    fn paths<P: Prefix>(&self, table: &RouteTable<P>, range: Range<u32>) -> RoutePage {
        let next = Some(range.end).filter(|end| *end < table.id_end());
        let ids = (range.start..range.end.min(table.id_end())).map(DestinationId);
        let mut routes = Vec::new();
        for destination in ids.filter_map(|id| table.get(id)) {
            let shared = destination.multipath().len();
            let prefix = destination.prefix.net();
            routes.extend(destination.paths().iter().enumerate().map(|(at, path)| {
                let peer = self.peer(path.peer);
                RouteStatus {
                    prefix,
                    peer: peer.map(|peer| peer.name.clone()),
                    best: at == 0 && shared > 0,
                    reachable: table.is_reachable(path),
                    used: at < shared.min(self.config.multipath),
                    stale: path.peer != PeerId::LOCAL
                        && peer.is_some_and(|peer| *peer.epoch.get(P::FAMILY) != path.epoch),
                    attrs: path.attrs.clone(),
                }
            }));
        }
        RoutePage { routes, next }
    }
}

/// A part of the routes, and the number at which the rest begins.
#[derive(Debug)]
pub struct RoutePage {
    pub routes: Vec<RouteStatus>,
    pub next: Option<u32>,
}

fn choose_furthest(a: SessionState, b: SessionState) -> SessionState {
    if rank_state(a) >= rank_state(b) { a } else { b }
}

fn rank_state(state: SessionState) -> u8 {
    match state {
        SessionState::Idle => 0,
        SessionState::Connect => 1,
        SessionState::Active => 2,
        SessionState::OpenSent => 3,
        SessionState::OpenConfirm => 4,
        SessionState::Established => 5,
    }
}
