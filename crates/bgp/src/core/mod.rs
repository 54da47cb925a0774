//! The speaker without I/O: connections, bytes, commands and the time go in; bytes, requests to connect and to close
//! and route changes come out. Any sequence of inputs is valid.

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

use crate::config::{Config, ConfigError};
use crate::family::{Family, PerFamily, Prefix};
use crate::id::PeerId;
use crate::rib::attrs::{Attrs, Interner};
use crate::rib::decide::Origin;
use crate::rib::table::{Effect, Path, Table};
use crate::timers::{Time, Timers};
use bytes::Bytes;
use ipnet::IpNet;
use peer::Peer;
use rustbgpd_wire::{Ipv4Prefix, Ipv6Prefix};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use crate::timers::Direction;
pub use install::{BestRoute, NextHop, RouteChange};
pub use status::{PeerState, PeerStatus, RouteStatus, RoutesPart, Status};

/// A TCP connection, numbered by the core and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What the owner of the sockets must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketRequest {
    /// Make a connection, then call [`Core::connected`] or [`Core::closed`].
    Connect { conn: ConnectionId, dial: Dial },
    /// Stop trying to make a connection if the peer's host has not answered, and then call [`Core::given_up`].
    GiveUp { conn: ConnectionId },
    /// Write the last bytes, then close. The connection is not spoken of again.
    Close { conn: ConnectionId, last: Bytes },
}

/// How a connection to a peer is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    pub to: SocketAddr,
    pub from: Option<IpAddr>,
    pub password: Option<String>,
    pub ttl_security: Option<u8>,
}

/// How a speaker ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Connections are closed without a NOTIFICATION: peers with graceful restart keep our routes for a while.
    Graceful,
    /// Peers get a NOTIFICATION (Cease, Administrative Shutdown) with the reason.
    Administrative { reason: String },
}

#[derive(Debug, Default)]
struct Rib {
    v4: Table<Ipv4Prefix>,
    v6: Table<Ipv6Prefix>,
}

#[derive(Debug)]
pub struct Core {
    config: Config,
    /// By number; the first stands for ourselves.
    peers: Vec<Option<Peer>>,
    /// What the decision needs to know of each peer; same numbers.
    origins: Vec<Origin>,
    rib: Rib,
    interner: Interner,
    timers: Timers,
    conns: HashMap<ConnectionId, (PeerId, Direction)>,
    next_conn: u64,
    requests: VecDeque<SocketRequest>,
    restart: restart::Restart,
    /// Where the kernel's reader is.
    installed: PerFamily<u64>,
    /// The kernel has got the end-of-RIB marker.
    completed: bool,
    encodings: encode::Cache,
    /// The prefixes of the message at hand, kept for their room.
    entries: receive::Entries<Ipv4Prefix>,
    /// Messages received so far.
    messages: u64,
    /// Some connection could have been given more to send, but a turn's work was done.
    output_pending: bool,
    down: bool,
}

impl Core {
    /// A speaker whose forwarding survived a restart says so with `restarting`, and its peers wait for it.
    pub fn new(config: Config, restarting: bool, now: Time) -> Result<Core, ConfigError> {
        config.check()?;
        let peers = config.peers.clone();
        let mut core = Core {
            restart: restart::Restart::new(restarting, now, config.restart_wait),
            config: Config { peers: Default::default(), ..config },
            peers: vec![None],
            origins: vec![Origin::LOCAL],
            rib: Rib::default(),
            interner: Interner::default(),
            timers: Timers::default(),
            conns: HashMap::new(),
            next_conn: 1,
            requests: VecDeque::new(),
            installed: Core::install_start(),
            completed: false,
            encodings: encode::Cache::default(),
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

    /// What the owner of the sockets must do next.
    pub fn next_request(&mut self) -> Option<SocketRequest> {
        self.requests.pop_front()
    }

    /// Advertises a route that originates here, or changes its attributes.
    pub fn originate(&mut self, net: IpNet, attrs: Attrs) {
        let attrs = self.interner.intern(attrs);
        let path = Path { attrs, path_id: 0, peer: PeerId::LOCAL, epoch: 0 };
        let origins = &self.origins;
        let origin = |peer| origin_of(origins, peer);
        match net {
            IpNet::V4(_) => insert(&mut self.rib.v4, net, path, origin),
            IpNet::V6(_) => insert(&mut self.rib.v6, net, path, origin),
        };
    }

    /// Withdraws a route that originates here. One that was not advertised is no error.
    pub fn withdraw(&mut self, net: IpNet) {
        let origins = &self.origins;
        let origin = |peer| origin_of(origins, peer);
        match net {
            IpNet::V4(_) => remove(&mut self.rib.v4, net, PeerId::LOCAL, origin),
            IpNet::V6(_) => remove(&mut self.rib.v6, net, PeerId::LOCAL, origin),
        };
    }

    /// Every route that originates here has been given once. Until then End-of-RIB is not sent.
    pub fn local_complete(&mut self, now: Time) {
        self.restart.local_complete = true;
        self.check_restart(now);
    }

    /// Does what is due. Call it when [`Core::next_timer`] says, and whenever convenient.
    pub fn tick(&mut self, now: Time) {
        while let Some((peer, timer)) = self.timers.due(now) {
            self.timer(now, peer, timer);
        }
        self.check_restart(now);
    }

    /// Nothing is due before this.
    pub fn next_timer(&self) -> Option<Time> {
        match (self.timers.next(), self.restart.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends all sessions. Nothing but [`Core::next_request`] and [`Core::status`] makes sense afterwards.
    pub fn shutdown(&mut self, now: Time, how: &Shutdown) {
        self.down = true;
        for peer_id in self.peer_ids() {
            self.stop_peer(now, peer_id, how);
        }
    }

    fn peer_ids(&self) -> Vec<PeerId> {
        self.peers.iter().flatten().map(|peer| peer.id).collect()
    }

    fn peer(&self, peer_id: PeerId) -> Option<&Peer> {
        self.peers.get(peer_id.index()).and_then(Option::as_ref)
    }

    fn peer_mut(&mut self, peer_id: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(peer_id.index()).and_then(Option::as_mut)
    }

    fn new_conn(&mut self, peer: PeerId, direction: Direction) -> ConnectionId {
        let conn = ConnectionId(self.next_conn);
        self.next_conn += 1;
        self.conns.insert(conn, (peer, direction));
        conn
    }

    /// Removes a peer's paths of a family: all, or those it has not repeated since its epoch began.
    fn drop_paths(&mut self, peer_id: PeerId, family: Family, stale_only: bool) {
        let Some(peer) = self.peers.get_mut(peer_id.index()).and_then(Option::as_mut) else { return };
        let received = peer.received.get_mut(family);
        let keep = stale_only.then_some(*peer.epoch.get(family));
        if *received == 0 {
            return;
        }
        let origins = &self.origins;
        let origin = |peer| origin_of(origins, peer);
        let removed = match family {
            Family::V4 => self.rib.v4.remove_peer(peer_id, keep, origin),
            Family::V6 => self.rib.v6.remove_peer(peer_id, keep, origin),
        };
        *received = received.saturating_sub(removed as u32);
    }
}

fn origin_of(origins: &[Origin], peer: PeerId) -> Origin {
    origins.get(peer.index()).copied().unwrap_or(Origin::LOCAL)
}

fn insert<P: Prefix>(
    table: &mut Table<P>,
    net: IpNet,
    path: Path,
    origin: impl Fn(PeerId) -> Origin,
) -> Option<Effect> {
    P::from_net(net).map(|prefix| table.insert(prefix, path, u16::MAX, origin))
}

fn remove<P: Prefix>(
    table: &mut Table<P>,
    net: IpNet,
    peer: PeerId,
    origin: impl Fn(PeerId) -> Origin,
) -> Option<Effect> {
    P::from_net(net).map(|prefix| table.remove(prefix, peer, 0, origin))
}

/// The table of a family, for code that is the same for both.
trait FamilyTable<P> {
    fn table(&self) -> &Table<P>;
    fn table_mut(&mut self) -> &mut Table<P>;
}

impl FamilyTable<Ipv4Prefix> for Rib {
    fn table(&self) -> &Table<Ipv4Prefix> {
        &self.v4
    }
    fn table_mut(&mut self) -> &mut Table<Ipv4Prefix> {
        &mut self.v4
    }
}

impl FamilyTable<Ipv6Prefix> for Rib {
    fn table(&self) -> &Table<Ipv6Prefix> {
        &self.v6
    }
    fn table_mut(&mut self) -> &mut Table<Ipv6Prefix> {
        &mut self.v6
    }
}

/// Attributes shared by all who use them.
type SharedAttrs = Arc<Attrs>;
