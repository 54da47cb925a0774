//! Two connections between two peers (RFC 4271 section 6.8): in every order of events one session comes up and stays
//! up.

use crate::net::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tortie_bgp::core::{BgpPeerState, ConnectionId, SocketRequest, SpeakerCore};

/// The possible next events. Each list is ordered, but any list may be first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NextEvent {
    /// A connection attempt of a node reaches the host of the other, which answers it. From then on the connection
    /// waits to be accepted, even if the node closes it in the meantime.
    Arrival(usize, ConnectionId),
    /// A node is informed that its attempt succeeded.
    Answer(usize, ConnectionId),
    /// The other node accepts the connection.
    Accept(usize, ConnectionId),
    /// The next bytes, or the end, of a connection arrive at a node.
    Data(usize, ConnectionId),
}

enum InFlightItem {
    Bytes(Bytes),
    End,
}

/// Two speakers that both connect, with every event controlled by the test.
struct CollidingPair {
    cores: Vec<SpeakerCore>,
    now: Duration,
    arrivals: VecDeque<(usize, ConnectionId)>,
    answers: VecDeque<(usize, ConnectionId)>,
    /// Connections that a node initiated and the other has not accepted, with the data sent on them.
    queued: VecDeque<((usize, ConnectionId), VecDeque<InFlightItem>)>,
    /// Data in flight to a node's connection.
    data: BTreeMap<(usize, ConnectionId), VecDeque<InFlightItem>>,
    ends: BTreeMap<(usize, ConnectionId), (usize, ConnectionId)>,
}

fn address(node: usize) -> IpAddr {
    v4(node as u8 + 1).into()
}

impl CollidingPair {
    fn new() -> CollidingPair {
        let cores = (0..2).map(|node| {
            let mut config = config(64512, node as u8 + 1);
            config.peers.insert("other".into(), peer(2 - node as u8, 64512));
            let mut core = SpeakerCore::new(config, false, Duration::ZERO).unwrap();
            core.local_complete(Duration::ZERO);
            core
        });
        CollidingPair {
            cores: cores.collect(),
            now: Duration::ZERO,
            arrivals: VecDeque::new(),
            answers: VecDeque::new(),
            queued: VecDeque::new(),
            data: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }

    /// Returns a pair in which both nodes have started to connect.
    fn begin() -> CollidingPair {
        let mut pair = CollidingPair::new();
        pair.carry_out();
        pair
    }

    /// Executes the requests of the speakers, as far as they need no arriving data.
    fn carry_out(&mut self) {
        for node in 0..2 {
            let mut requests = Vec::new();
            while let Some(request) = self.cores[node].next_request() {
                requests.push(request);
            }
            for request in requests {
                match request {
                    SocketRequest::Connect { conn, .. } => self.arrivals.push_back((node, conn)),
                    SocketRequest::GiveUp { conn } => self.give_up(node, conn),
                    SocketRequest::Close { conn, last } => self.close(node, conn, last),
                }
            }
            let queued = self.queued.iter().map(|(made, _)| made);
            let own = queued.chain(self.ends.keys()).filter(|made| made.0 == node).map(|made| made.1);
            for conn in own.collect::<Vec<_>>() {
                if let Some(bytes) = self.cores[node].output(conn) {
                    self.send(node, conn, InFlightItem::Bytes(bytes));
                }
            }
        }
    }

    fn send(&mut self, node: usize, conn: ConnectionId, item: InFlightItem) {
        if let Some((_, sent)) = self.queued.iter_mut().find(|(made, _)| *made == (node, conn)) {
            sent.push_back(item);
        } else if let Some(end) = self.ends.get(&(node, conn)) {
            self.data.entry(*end).or_default().push_back(item);
        }
    }

    fn close(&mut self, node: usize, conn: ConnectionId, last: Bytes) {
        self.arrivals.retain(|attempt| *attempt != (node, conn));
        self.answers.retain(|answered| *answered != (node, conn));
        if !last.is_empty() {
            self.send(node, conn, InFlightItem::Bytes(last));
        }
        self.send(node, conn, InFlightItem::End);
        self.data.remove(&(node, conn));
        self.ends.remove(&(node, conn));
    }

    /// Abandons an attempt. If the host of the other node has answered, the node is informed of the success later.
    fn give_up(&mut self, node: usize, conn: ConnectionId) {
        if self.arrivals.contains(&(node, conn)) {
            self.arrivals.retain(|attempt| *attempt != (node, conn));
            self.cores[node].given_up(self.now, conn);
        }
    }

    fn possible(&self) -> Vec<NextEvent> {
        let arrivals = self.arrivals.iter().map(|(node, conn)| NextEvent::Arrival(*node, *conn));
        let answers = self.answers.iter().map(|(node, conn)| NextEvent::Answer(*node, *conn));
        let queued = self.queued.iter().map(|((node, conn), _)| NextEvent::Accept(*node, *conn));
        let data = self.data.iter().filter(|((node, conn), items)| {
            // A node does not read from a connection of whose success it has not been informed.
            !self.answers.contains(&(*node, *conn)) && !items.is_empty()
        });
        let data = data.map(|((node, conn), _)| NextEvent::Data(*node, *conn));
        arrivals.chain(answers).chain(queued).chain(data).collect()
    }

    fn happen(&mut self, source: NextEvent) {
        let now = self.now;
        match source {
            NextEvent::Arrival(node, conn) => {
                self.arrivals.retain(|attempt| *attempt != (node, conn));
                self.answers.push_back((node, conn));
                self.queued.push_back(((node, conn), VecDeque::new()));
            }
            NextEvent::Answer(node, conn) => {
                self.answers.retain(|answered| *answered != (node, conn));
                self.cores[node].connected(now, conn, SocketAddr::new(address(node), 40000));
            }
            NextEvent::Accept(node, conn) => self.accept(node, conn),
            NextEvent::Data(node, conn) => {
                match self.data.get_mut(&(node, conn)).and_then(VecDeque::pop_front) {
                    Some(InFlightItem::Bytes(bytes)) => {
                        assert!(!self.cores[node].received(now, conn, bytes));
                    }
                    Some(InFlightItem::End) => {
                        self.ends.remove(&(node, conn));
                        self.data.remove(&(node, conn));
                        self.cores[node].closed(now, conn, "closed by the peer");
                    }
                    None => {}
                }
            }
        }
        self.carry_out();
    }

    fn accept(&mut self, node: usize, conn: ConnectionId) {
        let other = 1 - node;
        // Some speakers treat this as a restart and end their session.
        assert!(!self.established(other).0, "node {other} accepts a connection beside its session");
        let place = self.queued.iter().position(|(made, _)| *made == (node, conn));
        let Some((_, sent)) = place.and_then(|place| self.queued.remove(place)) else { return };
        let (local, remote) = (SocketAddr::new(address(other), 179), SocketAddr::new(address(node), 40000));
        match self.cores[other].accepted(self.now, local, remote) {
            Some(accepted) => {
                self.ends.insert((node, conn), (other, accepted));
                self.ends.insert((other, accepted), (node, conn));
                self.data.insert((other, accepted), sent);
            }
            None => self.data.entry((node, conn)).or_default().push_back(InFlightItem::End),
        }
    }

    fn pass_time(&mut self) {
        let next = self.cores.iter().filter_map(SpeakerCore::next_timer).min();
        self.now = self.now.max(next.unwrap_or(self.now));
        let now = self.now;
        self.cores.iter_mut().for_each(|core| core.tick(now));
        self.carry_out();
    }

    fn established(&self, node: usize) -> (bool, u64) {
        let peer = &self.cores[node].status(self.now).peers[0];
        (peer.state == BgpPeerState::Established, peer.established)
    }
}

/// Runs one order of events until long after the session came up; nothing may change in that time. `choices` selects
/// the next event as long as it lasts, after that the oldest is next. Returns the number of alternatives at each
/// step.
fn finish(pair: &mut CollidingPair, choices: &[usize]) -> Vec<usize> {
    let mut alternatives = Vec::new();
    for _ in 0..400 {
        let possible = pair.possible();
        if possible.is_empty() {
            if pair.now > Duration::from_secs(60) {
                break;
            }
            pair.pass_time();
            continue;
        }
        let choice = choices.get(alternatives.len()).copied().unwrap_or(0);
        alternatives.push(possible.len());
        pair.happen(possible[choice % possible.len()]);
    }
    for node in 0..2 {
        let (up, times) = pair.established(node);
        assert!(up, "the session of node {node} is down after {choices:?}");
        assert_eq!(times, 1, "the session of node {node} came up {times} times after {choices:?}");
        let error = &pair.cores[node].status(pair.now).peers[0].last_error;
        assert_eq!(*error, None, "beside the session of node {node} after {choices:?}");
    }
    alternatives
}

/// Tries all combinations of the first choices.
fn every_order(begin: impl Fn() -> CollidingPair) {
    const EXPLORED_CHOICES: usize = 9;
    let mut choices: Vec<usize> = Vec::new();
    for number in 1.. {
        let mut alternatives = finish(&mut begin(), &choices);
        alternatives.truncate(EXPLORED_CHOICES);
        choices.resize(alternatives.len(), 0);
        // The next order: increment the last choice that can be incremented.
        let Some(last) = (0..choices.len()).rev().find(|at| choices[*at] + 1 < alternatives[*at]) else {
            println!("{number} orders");
            return;
        };
        choices.truncate(last + 1);
        choices[last] += 1;
    }
}

#[test]
fn any_order_of_events_ends_in_one_session() {
    every_order(CollidingPair::begin);
}

/// Simulates the loss of the first packet: the attempt is answered just before it is abandoned in favour of the
/// peer's connection, or never.
#[test]
fn a_late_connection_costs_no_session() {
    let given_up = |late: usize, answered: bool| {
        let mut pair = CollidingPair::begin();
        let is_late = |source: &NextEvent| matches!(source, NextEvent::Arrival(node, _) if *node == late);
        while let Some(source) = pair.possible().into_iter().find(|source| !is_late(source)) {
            pair.happen(source);
        }
        assert!(!pair.established(late).0, "the OPEN of the other waits for the attempt");
        let attempt = pair.possible()[0];
        if answered {
            pair.happen(attempt);
        }
        while pair.now < Duration::from_secs(1) {
            pair.pass_time();
        }
        pair
    };
    for late in 0..2 {
        every_order(|| given_up(late, true));
        every_order(|| given_up(late, false));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn any_longer_order_of_events_does_too(choices in proptest::collection::vec(0..12_usize, 10..40)) {
        finish(&mut CollidingPair::begin(), &choices);
    }
}

#[test]
fn a_thousand_peerings_made_again_lose_no_session() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    network.run(10);
    for round in 1..=1000u64 {
        let node = (round % 2) as usize;
        let other = 2 - node as u8;
        let without = config(64512, node as u8 + 1);
        let mut with = without.clone();
        let name = format!("peer{other}");
        with.peers.insert(name.clone(), peer(other, 64512));
        let before = network.status(1 - node, &format!("peer{}", node + 1)).established;
        let now = network.now;
        network.nodes[node].core.reconfigure(now, without).unwrap();
        // Sometimes immediately, sometimes after the other end has detected it or has started to reconnect.
        network.run(round % 7);
        let now = network.now;
        network.nodes[node].core.reconfigure(now, with).unwrap();
        network.run(60);
        assert!(network.all_up(), "round {round}");
        assert_eq!(network.status(node, &name).established, 1, "round {round}: a session was lost");
        let after = network.status(1 - node, &format!("peer{}", node + 1)).established;
        assert_eq!(after, before + 1, "round {round}: a session was lost");
    }
}
