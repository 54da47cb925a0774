//! A network of speakers without sockets: connections are queues, and time advances only when no event is pending.

use bytes::Bytes;
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tortie_bgp::core::{BgpPeerState, ConnectionId, PeerStatus, RouteChange, SocketRequest, SpeakerCore};
use tortie_bgp::{PeerConfig, RouteAttrs, SpeakerConfig};

pub type NodeId = usize;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionEnd {
    pub node: NodeId,
    pub conn: ConnectionId,
}

enum SimulatedNetworkEvent {
    Bytes(ConnectionEnd, Bytes),
    Closed(ConnectionEnd),
}

pub struct SimulatedNode {
    pub core: SpeakerCore,
    pub address: IpAddr,
    /// The routes as the kernel would have them.
    pub kernel: BTreeMap<IpNet, Vec<IpAddr>>,
    pub complete: bool,
    pub alive: bool,
    /// Whether this node sends nothing.
    pub stalled: bool,
}

/// A connection whose remote end the test plays.
pub struct PlayedConnection {
    pub inbox: Vec<u8>,
    pub closed: bool,
}

#[derive(Default)]
pub struct SimulatedNetwork {
    pub nodes: Vec<SimulatedNode>,
    pub now: Duration,
    links: HashMap<ConnectionEnd, ConnectionEnd>,
    events: VecDeque<SimulatedNetworkEvent>,
    /// Unreachable addresses.
    pub cut: Vec<IpAddr>,
    pub wires: HashMap<ConnectionEnd, PlayedConnection>,
    /// Connection ends on which no output is requested.
    slow: Vec<ConnectionEnd>,
}

pub fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Returns the configuration of a node `10.0.0.<last>`.
pub fn config(asn: u32, last: u8) -> SpeakerConfig {
    let mut config = SpeakerConfig::new(asn, v4(last));
    config.local_v4 = Some(v4(last));
    config.local_v6 = Some(format!("fd00::{last}").parse().unwrap());
    config
}

pub fn peer(last: u8, asn: u32) -> PeerConfig {
    PeerConfig::new(v4(last).into(), asn)
}

impl SimulatedNetwork {
    pub fn add(&mut self, config: SpeakerConfig) -> NodeId {
        self.add_restarting(config, false)
    }

    pub fn add_restarting(&mut self, config: SpeakerConfig, restarting: bool) -> NodeId {
        let address = config.local_v4.unwrap().into();
        let mut core = SpeakerCore::new(config, restarting, self.now).unwrap();
        if !restarting {
            core.local_complete(self.now);
        }
        let node = SimulatedNode {
            core,
            address,
            kernel: BTreeMap::new(),
            complete: false,
            alive: true,
            stalled: false,
        };
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Creates a full mesh of nodes of one AS, each with the address `10.0.0.<n>`.
    pub fn mesh(count: u8, asn: u32) -> SimulatedNetwork {
        let mut network = SimulatedNetwork::default();
        for own in 1..=count {
            let mut config = config(asn, own);
            for other in (1..=count).filter(|other| *other != own) {
                config.peers.insert(format!("peer{other}"), peer(other, asn));
            }
            network.add(config);
        }
        network
    }

    /// Processes all events that need no time.
    pub fn settle(&mut self) {
        loop {
            let mut busy = false;
            for node in 0..self.nodes.len() {
                busy |= self.work(node);
            }
            match self.events.pop_front() {
                Some(event) => self.deliver(event),
                None if !busy => return,
                None => {}
            }
        }
    }

    /// Advances the time, stopping at every timer.
    pub fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            self.settle();
            let next = self
                .nodes
                .iter()
                .filter(|node| node.alive)
                .filter_map(|node| node.core.next_timer())
                .min()
                .filter(|at| *at <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            for node in self.nodes.iter_mut().filter(|node| node.alive) {
                node.core.tick(self.now);
            }
        }
        self.now = end;
        for node in self.nodes.iter_mut().filter(|node| node.alive) {
            node.core.tick(end);
        }
        self.settle();
    }

    fn work(&mut self, id: NodeId) -> bool {
        let mut busy = false;
        if !self.nodes[id].alive {
            return false;
        }
        while let Some(order) = self.nodes[id].core.next_request() {
            busy = true;
            match order {
                SocketRequest::Connect { conn, dial } => self.connect(id, conn, dial.to.ip()),
                // Attempts succeed or fail immediately.
                SocketRequest::GiveUp { .. } => {}
                SocketRequest::Close { conn, last } => {
                    let end = ConnectionEnd { node: id, conn };
                    self.send(end, last);
                    self.hang_up(end);
                }
            }
        }
        let conns = if self.nodes[id].stalled { Vec::new() } else { self.conns(id) };
        for conn in conns
            .into_iter()
            .filter(|conn| !self.slow.contains(&ConnectionEnd { node: id, conn: *conn }))
            .collect::<Vec<_>>()
        {
            if let Some(bytes) = self.nodes[id].core.output(conn) {
                busy = true;
                self.send(ConnectionEnd { node: id, conn }, bytes);
            }
        }
        for change in self.nodes[id].core.changes(1000) {
            busy = true;
            let node = &mut self.nodes[id];
            match change {
                RouteChange::Set(route) => {
                    let hops = route.next_hops.iter().map(|hop| hop.address).collect();
                    node.kernel.insert(route.prefix, hops);
                }
                RouteChange::Gone(prefix) => {
                    node.kernel.remove(&prefix);
                }
                RouteChange::Complete => node.complete = true,
            }
        }
        self.nodes[id].core.collect_garbage();
        busy
    }

    fn conns(&self, id: NodeId) -> Vec<ConnectionId> {
        let mut conns: Vec<ConnectionId> = self
            .links
            .keys()
            .chain(self.wires.keys())
            .filter(|end| end.node == id)
            .map(|end| end.conn)
            .collect();
        conns.sort();
        conns.dedup();
        conns
    }

    fn connect(&mut self, from: NodeId, conn: ConnectionId, to: IpAddr) {
        let source = self.nodes[from].address;
        let target = self.nodes.iter().rposition(|node| node.address == to && node.alive);
        let now = self.now;
        let local = SocketAddr::new(source, 40000);
        let remote = SocketAddr::new(to, 179);
        let reachable = !self.cut.contains(&to) && !self.cut.contains(&source);
        let accepted = target.filter(|_| reachable).and_then(|target| {
            self.nodes[target]
                .core
                .accepted(now, remote, local)
                .map(|conn| ConnectionEnd { node: target, conn })
        });
        let own = ConnectionEnd { node: from, conn };
        match accepted {
            None => self.nodes[from].core.closed(now, conn, "connection refused"),
            Some(other) => {
                self.links.insert(own, other);
                self.links.insert(other, own);
                self.nodes[from].core.connected(now, conn, local);
            }
        }
    }

    /// Opens a connection from an address that the test plays. Returns `None` if the node rejects it.
    pub fn play(&mut self, from: IpAddr, to: NodeId) -> Option<ConnectionEnd> {
        let local = SocketAddr::new(self.nodes[to].address, 179);
        let conn = self.nodes[to].core.accepted(self.now, local, SocketAddr::new(from, 40001))?;
        let end = ConnectionEnd { node: to, conn };
        self.wires.insert(end, PlayedConnection { inbox: Vec::new(), closed: false });
        Some(end)
    }

    /// Delivers bytes on a played connection.
    pub fn inject(&mut self, end: ConnectionEnd, bytes: &[u8]) {
        let now = self.now;
        self.receive(end, Bytes::copy_from_slice(bytes), now);
        self.settle();
    }

    fn receive(&mut self, end: ConnectionEnd, bytes: Bytes, now: Duration) {
        let core = &mut self.nodes[end.node].core;
        let mut more = core.received(now, end.conn, bytes);
        while more {
            more = core.resume(now, end.conn);
        }
    }

    pub fn hang_up_played(&mut self, end: ConnectionEnd) {
        self.wires.remove(&end);
        let now = self.now;
        self.nodes[end.node].core.closed(now, end.conn, "connection reset");
        self.settle();
    }

    fn send(&mut self, from: ConnectionEnd, bytes: Bytes) {
        if let Some(wire) = self.wires.get_mut(&from) {
            wire.inbox.extend_from_slice(&bytes);
        }
        if bytes.is_empty() {
            return;
        }
        if let Some(to) = self.links.get(&from) {
            self.events.push_back(SimulatedNetworkEvent::Bytes(*to, bytes));
        }
    }

    fn hang_up(&mut self, end: ConnectionEnd) {
        if let Some(wire) = self.wires.get_mut(&end) {
            wire.closed = true;
        }
        if let Some(other) = self.links.remove(&end) {
            self.links.remove(&other);
            self.events.push_back(SimulatedNetworkEvent::Closed(other));
        }
    }

    fn deliver(&mut self, event: SimulatedNetworkEvent) {
        let now = self.now;
        match event {
            SimulatedNetworkEvent::Bytes(end, bytes) if self.nodes[end.node].alive => {
                // Small pieces, so that messages are split anywhere.
                for piece in bytes.chunks(701) {
                    self.receive(end, Bytes::copy_from_slice(piece), now);
                }
            }
            SimulatedNetworkEvent::Closed(end) if self.nodes[end.node].alive => {
                self.nodes[end.node].core.closed(now, end.conn, "connection reset");
            }
            _ => {}
        }
    }

    /// Returns a node's end of its connection to another.
    pub fn end_of(&self, node: NodeId, other: NodeId) -> ConnectionEnd {
        let (end, _) = self.links.iter().find(|(a, b)| (a.node, b.node) == (node, other)).unwrap();
        *end
    }

    /// Blocks the connection from one node to another until [`SimulatedNetwork::release`].
    pub fn slow(&mut self, from: NodeId, to: NodeId) -> ConnectionEnd {
        let end = self.end_of(from, to);
        self.slow.push(end);
        end
    }

    /// Calls [`SimulatedNetwork::slow`] if there is such a connection.
    pub fn try_slow(&mut self, from: NodeId, to: NodeId) -> Option<ConnectionEnd> {
        let there = self.links.iter().any(|(a, b)| (a.node, b.node) == (from, to));
        there.then(|| self.slow(from, to))
    }

    pub fn release(&mut self, end: ConnectionEnd) {
        self.slow.retain(|slow| *slow != end);
    }

    /// Terminates a node as kill -9 does. Its connections are reset.
    pub fn kill(&mut self, id: NodeId) {
        self.nodes[id].alive = false;
        let ends: Vec<ConnectionEnd> = self.links.keys().filter(|end| end.node == id).copied().collect();
        for end in ends {
            self.hang_up(end);
        }
    }

    /// Resets all connections of a node.
    pub fn drop_connections(&mut self, id: NodeId) {
        let ends: Vec<(ConnectionEnd, ConnectionEnd)> =
            self.links.iter().filter(|(end, _)| end.node == id).map(|(a, b)| (*a, *b)).collect();
        for (own, other) in ends {
            self.links.remove(&own);
            self.links.remove(&other);
            self.events.push_back(SimulatedNetworkEvent::Closed(own));
            self.events.push_back(SimulatedNetworkEvent::Closed(other));
        }
    }

    pub fn originate(&mut self, id: NodeId, prefix: &str) {
        self.nodes[id].core.originate(net(prefix), RouteAttrs::local());
    }

    pub fn originate_with(&mut self, id: NodeId, prefix: &str, attrs: RouteAttrs) {
        self.nodes[id].core.originate(net(prefix), attrs);
    }

    /// Returns the next hops of the node's route to the prefix, sorted.
    pub fn routes_to(&self, id: NodeId, prefix: &str) -> Option<Vec<IpAddr>> {
        self.nodes[id].kernel.get(&net(prefix)).cloned().map(|mut hops| {
            hops.sort();
            hops
        })
    }

    pub fn status(&self, id: NodeId, name: &str) -> PeerStatus {
        self.nodes[id]
            .core
            .status(Default::default())
            .peers
            .into_iter()
            .find(|peer| &*peer.name == name)
            .unwrap()
    }

    pub fn is_up(&self, id: NodeId, name: &str) -> bool {
        self.status(id, name).state == BgpPeerState::Established
    }

    pub fn all_up(&self) -> bool {
        self.nodes
            .iter()
            .filter(|node| node.alive)
            .flat_map(|node| node.core.status(Default::default()).peers)
            .all(|peer| peer.state == BgpPeerState::Established)
    }
}
