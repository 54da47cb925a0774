//! Sends the packets of the cases and checks their fate.

use super::cluster::{ConformanceCluster, DeniedPacket, OUTSIDE_PLACE, PACKET_TIMEOUT, POLL_INTERVAL};
use super::kernel::{ENCAPSULATION_COMMENT, ENDPOINT_TO_HOST_COMMENT, LOG_COUNTER, NodeKernel, RuleCounters};
use super::place::{PacketPlace, PlaceFlow};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use tortie_plan::evaluate::Packet;
use tortie_testkit::conformance::{ConformanceCase, ConformancePacket, ExpectedVerdict};

impl ConformanceCluster {
    /// Sends the packets of a step; checks which arrive, and by the kernel counters which rules decided.
    pub fn send(&mut self, case: &ConformanceCase, packets: &[ConformancePacket]) {
        let title = format!("case {} ({})", case.number, case.title);
        let before = self.counters();
        let mut allowed = Vec::new();
        let mut denied = Vec::new();
        for sent in packets {
            let (source, destination) = self.ends(sent);
            if let Some(flow) = &sent.flow {
                assert_eq!(
                    sent.verdict,
                    ExpectedVerdict::Allow,
                    "{title}: nothing here shows that a flow ends"
                );
                self.carry(flow, sent, destination);
                continue;
            }
            self.sent += 1;
            let number = self.sent;
            self.place(&sent.from).send(&packet(sent, source, destination, number), number);
            match sent.verdict {
                ExpectedVerdict::Allow => allowed.push((sent, number)),
                ExpectedVerdict::Deny => denied.push((sent, number)),
            }
        }
        let deadline = Instant::now() + PACKET_TIMEOUT;
        for (sent, number) in allowed {
            while !self.arrived(&sent.to, number) {
                assert!(Instant::now() < deadline, "{title}: {sent:?} did not arrive");
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        for (sent, number) in denied {
            while !self.home().entered(number) {
                assert!(Instant::now() < deadline, "{title}: {sent:?} did not reach the node");
                std::thread::sleep(POLL_INTERVAL);
            }
            assert!(!self.arrived(&sent.to, number), "{title}: {sent:?} arrived");
            let packet = format!("{title}: {sent:?}");
            self.denied.push(DeniedPacket { to: sent.to.clone(), number, packet });
        }
        self.wait(&format!("what decides in {title}"), |cluster| {
            let after = cluster.counters();
            let more = |cause: &str, packets: u64| {
                let count = |counters: &RuleCounters| counters.get(cause).copied().unwrap_or(0);
                count(&after) >= count(&before) + packets
            };
            packets.iter().filter_map(counted).all(|cause| {
                let expected = packets.iter().filter(|sent| counted(sent) == Some(cause)).count();
                more(cause, u64::try_from(expected).unwrap())
            }) && (!packets.iter().any(|sent| sent.logged) || more(LOG_COUNTER, 1))
        });
    }

    /// Returns the packet counts of all rules on both nodes.
    fn counters(&self) -> RuleCounters {
        let mut counters = RuleCounters::new();
        for (cause, packets) in self.nodes.iter().flat_map(NodeKernel::counters) {
            *counters.entry(cause).or_default() += packets;
        }
        counters
    }

    /// Asserts that no denied packet has arrived late.
    pub fn nothing_came_late(&mut self) {
        assert!(!self.denied.is_empty());
        for DeniedPacket { to, number, packet } in std::mem::take(&mut self.denied) {
            assert!(!self.arrived(&to, number), "{packet} arrived late");
        }
    }

    fn carry(&mut self, name: &str, sent: &ConformancePacket, destination: IpAddr) {
        let address = SocketAddr::new(destination, port(sent).1);
        if !self.flows.contains_key(name) {
            let flow = PlaceFlow::open(self.place(&sent.from), self.place(&sent.to), address);
            self.flows.insert(name.to_owned(), flow);
        }
        self.flows.get_mut(name).unwrap().carry();
    }

    fn place(&self, end: &str) -> &PacketPlace {
        self.places.get(end).unwrap_or(&self.places[OUTSIDE_PLACE])
    }

    fn arrived(&mut self, end: &str, number: u16) -> bool {
        let name = if self.places.contains_key(end) { end } else { OUTSIDE_PLACE };
        self.places.get_mut(name).unwrap().arrived().contains(&number)
    }

    fn ends(&self, sent: &ConformancePacket) -> (IpAddr, IpAddr) {
        let [sources, destinations] = [&sent.from, &sent.to].map(|end| &self.addresses[end]);
        // An external host has one address, which determines the family.
        let literal = [sources, destinations].into_iter().find(|addresses| addresses.len() == 1);
        let v4 = literal.map_or(sent.family != Some(6), |addresses| addresses[0].is_ipv4());
        let of = |addresses: &[IpAddr]| *addresses.iter().find(|address| address.is_ipv4() == v4).unwrap();
        (of(sources), of(destinations))
    }
}

/// Returns the comment of the rule that counts packets decided by this cause, if there is one.
fn counted(sent: &ConformancePacket) -> Option<&str> {
    match sent.by.as_deref()? {
        "connection" => None,
        "encapsulation" => Some(ENCAPSULATION_COMMENT),
        "endpoint to host" => Some(ENDPOINT_TO_HOST_COMMENT),
        "profile kns.shop" => Some("profile/kns.shop"),
        other => Some(other),
    }
}

fn port(sent: &ConformancePacket) -> (u8, u16) {
    let (protocol, number) = sent.port.split_once('/').unwrap();
    let protocol = match protocol {
        "tcp" => Packet::TCP,
        "udp" => Packet::UDP,
        "icmp" => Packet::ICMP,
        "icmpv6" => Packet::ICMPV6,
        other => panic!("{other}"),
    };
    (protocol, number.parse().unwrap())
}

fn packet(sent: &ConformancePacket, source: IpAddr, destination: IpAddr, number: u16) -> Packet {
    let (protocol, to) = port(sent);
    let icmp = [Packet::ICMP, Packet::ICMPV6].contains(&protocol);
    Packet {
        source,
        destination,
        protocol,
        // A unique source port makes each packet a new connection.
        source_port: if icmp { 0 } else { 50000 + number },
        destination_port: if icmp { 0 } else { to },
        icmp: icmp.then(|| (u8::try_from(to).unwrap(), 0)),
    }
}
