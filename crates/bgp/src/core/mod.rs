//! The speaker without I/O. Its inputs are connections, bytes, commands and the time; its outputs are bytes, requests
//! to connect and to close, and route changes. Any sequence of inputs is valid.

mod advertise;
mod connect;
mod encode;
mod fast_decode;
mod install;
mod message;
mod open;
mod peer;
mod receive;
mod reconfigure;
mod refresh;
mod restart;
mod session;
mod status;

use crate::config::{ConfigError, SpeakerConfig};
use crate::family::{BgpFamily, PerFamily, Prefix};
use crate::id::PeerId;
use crate::rib::attrs::{AttrsInterner, RouteAttrs};
use crate::rib::decide::PathOrigin;
use crate::rib::table::{PathUpdateEffect, RoutePath, RouteTable};
use crate::timers::{SpeakerTime, TimerQueue};
use bytes::Bytes;
use ipnet::IpNet;
use peer::PeerSession;
use rustbgpd_wire::{Ipv4Prefix, Ipv6Prefix};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use crate::timers::ConnectionDirection;
pub use install::{BestRoute, RouteChange, RouteNextHop};
pub use status::{BgpPeerState, PeerStatus, RoutePage, RouteStatus, SpeakerStatus};

/// Identifies a TCP connection. The core assigns the numbers and never reuses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request to the owner of the sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketRequest {
    /// Make a connection, then call [`SpeakerCore::connected`] or [`SpeakerCore::closed`].
    Connect { conn: ConnectionId, dial: DialRequest },
    /// Abandon a connection attempt if the host of the peer has not answered, then call [`SpeakerCore::given_up`].
    GiveUp { conn: ConnectionId },
    /// Write the last bytes, then close. The core does not refer to the connection again.
    Close { conn: ConnectionId, last: Bytes },
}

/// The parameters of an outgoing connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialRequest {
    pub to: SocketAddr,
    pub from: Option<IpAddr>,
    pub password: Option<String>,
    pub ttl_security: Option<u8>,
}

/// How a speaker shuts down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Closes connections without a NOTIFICATION, so that peers with graceful restart keep our routes for a while.
    Graceful,
    /// Sends peers a NOTIFICATION (Cease, Administrative Shutdown) with the reason.
    Administrative { reason: String },
}

#[derive(Debug, Default)]
struct RoutingTables {
    v4: RouteTable<Ipv4Prefix>,
    v6: RouteTable<Ipv6Prefix>,
}

#[derive(Debug)]
pub struct SpeakerCore {
    config: SpeakerConfig,
    /// Indexed by [`PeerId`]; the first entry represents this speaker.
    peers: Vec<Option<PeerSession>>,
    /// The properties of each peer that the decision process compares, with the same indexes.
    origins: Vec<PathOrigin>,
    rib: RoutingTables,
    interner: AttrsInterner,
    timers: TimerQueue,
    conns: HashMap<ConnectionId, (PeerId, ConnectionDirection)>,
    next_conn: u64,
    requests: VecDeque<SocketRequest>,
    restart: restart::RestartState,
    /// The position of the reader that feeds the kernel.
    installed: PerFamily<u64>,
    /// Whether [`RouteChange::Complete`] has been emitted.
    completed: bool,
    encodings: encode::EncodedAttrsCache,
    /// The prefixes of the current message; kept to reuse the allocation.
    entries: receive::NlriEntries<Ipv4Prefix>,
    /// Number of messages received so far.
    messages: u64,
    /// Whether some connection had more to send than the work of one turn allowed.
    output_pending: bool,
    down: bool,
}

impl SpeakerCore {
    /// Creates a speaker. `restarting` means that forwarding survived a restart; peers are informed in the OPEN and
    /// wait for us.
    pub fn new(
        config: SpeakerConfig,
        restarting: bool,
        now: SpeakerTime,
    ) -> Result<SpeakerCore, ConfigError> {
        config.check()?;
        let peers = config.peers.clone();
        let mut core = SpeakerCore {
            restart: restart::RestartState::new(restarting, now, config.restart_wait),
            config: SpeakerConfig { peers: Default::default(), ..config },
            peers: vec![None],
            origins: vec![PathOrigin::LOCAL],
            rib: RoutingTables::default(),
            interner: AttrsInterner::default(),
            timers: TimerQueue::default(),
            conns: HashMap::new(),
            next_conn: 1,
            requests: VecDeque::new(),
            installed: SpeakerCore::install_start(),
            completed: false,
            encodings: encode::EncodedAttrsCache::default(),
            entries: Vec::new(),
            messages: 0,
            output_pending: false,
            down: false,
        };
        for (name, peer) in peers {
            core.add_peer(now, name, peer);
        }
        Ok(core)
    }

    /// Returns the next request to the owner of the sockets.
    pub fn next_request(&mut self) -> Option<SocketRequest> {
        self.requests.pop_front()
    }

    /// Advertises a route that originates here, or changes its attributes.
    pub fn originate(&mut self, net: IpNet, attrs: RouteAttrs) {
        let attrs = self.interner.intern(attrs);
        let path = RoutePath { attrs, path_id: 0, peer: PeerId::LOCAL, epoch: 0 };
        let origins = &self.origins;
        match net {
            IpNet::V4(_) => insert(&mut self.rib.v4, net, path, |peer| find_origin(origins, peer)),
            IpNet::V6(_) => insert(&mut self.rib.v6, net, path, |peer| find_origin(origins, peer)),
        };
    }

    /// Withdraws a route that originates here. Withdrawing an unknown route is not an error.
    pub fn withdraw(&mut self, net: IpNet) {
        let origins = &self.origins;
        match net {
            IpNet::V4(_) => remove(&mut self.rib.v4, net, PeerId::LOCAL, |peer| find_origin(origins, peer)),
            IpNet::V6(_) => remove(&mut self.rib.v6, net, PeerId::LOCAL, |peer| find_origin(origins, peer)),
        };
    }

    /// Declares that every route that originates here has been passed in once. End-of-RIB is not sent before that.
    pub fn local_complete(&mut self, now: SpeakerTime) {
        self.restart.local_complete = true;
        self.check_restart(now);
    }

    /// Runs the timers that are due. Must be called at [`SpeakerCore::next_timer`]; may be called at any time.
    pub fn tick(&mut self, now: SpeakerTime) {
        while let Some((peer, timer)) = self.timers.due(now) {
            self.timer(now, peer, timer);
        }
        self.check_restart(now);
    }

    /// Returns the time before which nothing is due.
    pub fn next_timer(&self) -> Option<SpeakerTime> {
        match (self.timers.next(), self.restart.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends all sessions. Afterwards only [`SpeakerCore::next_request`] and [`SpeakerCore::status`] are meaningful.
    pub fn shutdown(&mut self, now: SpeakerTime, how: &ShutdownMode) {
        self.down = true;
        for peer_id in self.peer_ids() {
            self.stop_peer(now, peer_id, how);
        }
    }

    fn peer_ids(&self) -> Vec<PeerId> {
        self.peers.iter().flatten().map(|peer| peer.id).collect()
    }

    fn peer(&self, peer_id: PeerId) -> Option<&PeerSession> {
        self.peers.get(peer_id.index()).and_then(Option::as_ref)
    }

    fn peer_mut(&mut self, peer_id: PeerId) -> Option<&mut PeerSession> {
        self.peers.get_mut(peer_id.index()).and_then(Option::as_mut)
    }

    fn new_conn(&mut self, peer: PeerId, direction: ConnectionDirection) -> ConnectionId {
        let conn = ConnectionId(self.next_conn);
        self.next_conn += 1;
        self.conns.insert(conn, (peer, direction));
        conn
    }

    /// Removes a peer's paths of a family: all, or those that it has not readvertised since its epoch began.
    fn drop_paths(&mut self, peer_id: PeerId, family: BgpFamily, stale_only: bool) {
        let Some(peer) = self.peers.get_mut(peer_id.index()).and_then(Option::as_mut) else { return };
        let received = peer.received.get_mut(family);
        let keep = stale_only.then_some(*peer.epoch.get(family));
        if *received == 0 {
            return;
        }
        let origins = &self.origins;
        let removed = match family {
            BgpFamily::V4 => self.rib.v4.remove_peer(peer_id, keep, |peer| find_origin(origins, peer)),
            BgpFamily::V6 => self.rib.v6.remove_peer(peer_id, keep, |peer| find_origin(origins, peer)),
        };
        *received = received.saturating_sub(removed as u32);
    }
}

fn find_origin(origins: &[PathOrigin], peer: PeerId) -> PathOrigin {
    origins.get(peer.index()).copied().unwrap_or(PathOrigin::LOCAL)
}

fn insert<P: Prefix>(
    table: &mut RouteTable<P>,
    net: IpNet,
    path: RoutePath,
    origin: impl Fn(PeerId) -> PathOrigin,
) -> Option<PathUpdateEffect> {
    P::from_net(net).map(|prefix| table.insert(prefix, path, u16::MAX, origin))
}

fn remove<P: Prefix>(
    table: &mut RouteTable<P>,
    net: IpNet,
    peer: PeerId,
    origin: impl Fn(PeerId) -> PathOrigin,
) -> Option<PathUpdateEffect> {
    P::from_net(net).map(|prefix| table.remove(prefix, peer, 0, origin))
}

/// Access to the table of a family, for code that is generic over both.
trait FamilyTable<P> {
    fn table(&self) -> &RouteTable<P>;
    fn table_mut(&mut self) -> &mut RouteTable<P>;
}

impl FamilyTable<Ipv4Prefix> for RoutingTables {
    fn table(&self) -> &RouteTable<Ipv4Prefix> {
        &self.v4
    }
    fn table_mut(&mut self) -> &mut RouteTable<Ipv4Prefix> {
        &mut self.v4
    }
}

impl FamilyTable<Ipv6Prefix> for RoutingTables {
    fn table(&self) -> &RouteTable<Ipv6Prefix> {
        &self.v6
    }
    fn table_mut(&mut self) -> &mut RouteTable<Ipv6Prefix> {
        &mut self.v6
    }
}

/// Attributes shared by all paths that have them.
type SharedAttrs = Arc<RouteAttrs>;
