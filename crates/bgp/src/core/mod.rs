//! The speaker without I/O: connections, bytes, commands and the time go in; bytes, connection orders and route
//! changes come out. Any sequence of inputs is valid.

mod advertise;
mod connect;
mod encode;
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
mod usual;

use crate::config::{Config, ConfigError};
use crate::family::{Family, PerFamily, Prefix};
use crate::rib::attrs::{Attrs, Interner};
use crate::rib::decide::Origin;
use crate::rib::table::{Effect, LOCAL, Path, Table};
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
pub use status::{PeerState, PeerStatus, RouteStatus, Status};

/// A TCP connection, numbered by the core and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

/// What the owner of the sockets must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make a connection, then call [`Core::connected`] or [`Core::closed`].
    Connect { conn: Conn, dial: Dial },
    /// Write the last bytes, then close. The connection is not spoken of again.
    Close { conn: Conn, last: Bytes },
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
    /// Connections are cut without a word: peers that know graceful restart keep our routes for a while.
    Graceful,
    /// Peers are told to forget us, and why.
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
    conns: HashMap<Conn, (u16, Direction)>,
    next_conn: u64,
    orders: VecDeque<Order>,
    restart: restart::Restart,
    /// Where the kernel's reader is.
    installed: PerFamily<u64>,
    /// The kernel has been told that it knows all.
    completed: bool,
    encodings: encode::Cache,
    /// The prefixes of the message at hand, kept for their room.
    entries: receive::Entries<Ipv4Prefix>,
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
            orders: VecDeque::new(),
            installed: Core::install_start(),
            completed: false,
            encodings: encode::Cache::default(),
            entries: Vec::new(),
            down: false,
        };
        for (name, peer) in peers {
            core.add_peer(now, name, peer);
        }
        Ok(core)
    }

    /// What the owner of the sockets must do next.
    pub fn order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Announces a route of our own, or changes what is said of it.
    pub fn originate(&mut self, net: IpNet, attrs: Attrs) {
        let attrs = self.interner.intern(attrs);
        let path = Path { attrs, path_id: 0, peer: LOCAL, epoch: 0 };
        let origins = &self.origins;
        let origin = |peer| origin_of(origins, peer);
        match net {
            IpNet::V4(_) => insert(&mut self.rib.v4, net, path, origin),
            IpNet::V6(_) => insert(&mut self.rib.v6, net, path, origin),
        };
    }

    /// Takes a route of our own back. One that was not announced is no error.
    pub fn withdraw(&mut self, net: IpNet) {
        let origins = &self.origins;
        let origin = |peer| origin_of(origins, peer);
        match net {
            IpNet::V4(_) => remove(&mut self.rib.v4, net, LOCAL, origin),
            IpNet::V6(_) => remove(&mut self.rib.v6, net, LOCAL, origin),
        };
    }

    /// Every route of our own has been announced once. Until then peers are not told that they know all.
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

    /// Ends all sessions. Nothing but [`Core::order`] and [`Core::status`] makes sense afterwards.
    pub fn shutdown(&mut self, now: Time, how: &Shutdown) {
        self.down = true;
        for number in self.numbers() {
            self.stop_peer(now, number, how);
        }
    }

    fn numbers(&self) -> Vec<u16> {
        self.peers.iter().flatten().map(|peer| peer.number).collect()
    }

    fn peer(&self, number: u16) -> Option<&Peer> {
        self.peers.get(usize::from(number)).and_then(Option::as_ref)
    }

    fn peer_mut(&mut self, number: u16) -> Option<&mut Peer> {
        self.peers.get_mut(usize::from(number)).and_then(Option::as_mut)
    }

    fn new_conn(&mut self, peer: u16, direction: Direction) -> Conn {
        let conn = Conn(self.next_conn);
        self.next_conn += 1;
        self.conns.insert(conn, (peer, direction));
        conn
    }

    /// Removes a peer's paths of a family: all, or those it has not repeated since its epoch began.
    fn drop_paths(&mut self, number: u16, family: Family, stale_only: bool) {
        let Some(peer) = self.peers.get_mut(usize::from(number)).and_then(Option::as_mut) else { return };
        let received = peer.received.get_mut(family);
        let keep = stale_only.then_some(*peer.epoch.get(family));
        if *received == 0 {
            return;
        }
        let origins = &self.origins;
        let origin = |peer| origin_of(origins, peer);
        let removed = match family {
            Family::V4 => self.rib.v4.remove_peer(number, keep, origin),
            Family::V6 => self.rib.v6.remove_peer(number, keep, origin),
        };
        *received = received.saturating_sub(removed as u32);
    }
}

fn origin_of(origins: &[Origin], peer: u16) -> Origin {
    origins.get(usize::from(peer)).copied().unwrap_or(Origin::LOCAL)
}

fn insert<P: Prefix>(
    table: &mut Table<P>,
    net: IpNet,
    path: Path,
    origin: impl Fn(u16) -> Origin,
) -> Option<Effect> {
    P::from_net(net).map(|prefix| table.insert(prefix, path, origin))
}

fn remove<P: Prefix>(
    table: &mut Table<P>,
    net: IpNet,
    peer: u16,
    origin: impl Fn(u16) -> Origin,
) -> Option<Effect> {
    P::from_net(net).map(|prefix| table.remove(prefix, peer, 0, origin))
}

/// The table of a family, for code that is the same for both.
trait Holds<P> {
    fn table(&self) -> &Table<P>;
    fn table_mut(&mut self) -> &mut Table<P>;
}

impl Holds<Ipv4Prefix> for Rib {
    fn table(&self) -> &Table<Ipv4Prefix> {
        &self.v4
    }
    fn table_mut(&mut self) -> &mut Table<Ipv4Prefix> {
        &mut self.v4
    }
}

impl Holds<Ipv6Prefix> for Rib {
    fn table(&self) -> &Table<Ipv6Prefix> {
        &self.v6
    }
    fn table_mut(&mut self) -> &mut Table<Ipv6Prefix> {
        &mut self.v6
    }
}

/// Attributes shared by all who use them.
type Shared = Arc<Attrs>;
