//! Feeds arbitrary input from one peer: the speaker must not panic, its other session must stay up, and every message
//! that it sends to the other peer must be well-formed.
//!
//! The input is a script: one byte for the action of the peer, two for a length, then data.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rustbgpd_wire::validate::validate_update_attributes;
use rustbgpd_wire::{
    Afi, Capability, Message, OpenMessage, Safi, decode_message, encode_message, peek_message_length,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tortie_bgp::core::{BgpPeerState, ConnectionId, SpeakerCore};
use tortie_bgp::{BgpFamily, PeerConfig, SpeakerConfig};

const MAX_STEPS: usize = 200;
const ASN: u32 = 65000;
const PEER_ASN: u32 = 65001;
const HEADER: usize = 19;

fuzz_target!(|bytes: &[u8]| {
    let mut scene = Scene::new();
    for (kind, data) in steps(bytes).take(MAX_STEPS) {
        scene.step(kind, data);
        scene.check();
    }
});

fn steps(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, high, low, rest @ ..] = bytes else { return None };
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (data, rest) = rest.split_at(length);
        bytes = rest;
        Some((*kind, data))
    })
}

struct Scene {
    core: SpeakerCore,
    now: Duration,
    wild: Option<ConnectionId>,
    tame: ConnectionId,
}

impl Scene {
    fn new() -> Scene {
        let mut config = SpeakerConfig::new(ASN, Ipv4Addr::new(10, 0, 0, 1));
        config.local_v6 = "fd00::1".parse().ok();
        for (name, last, asn) in [("wild", 66, PEER_ASN), ("tame", 2, ASN)] {
            let address = IpAddr::from([10, 0, 0, last]);
            let peer = PeerConfig {
                passive: true,
                families: BgpFamily::ALL.to_vec(),
                add_path: name == "wild",
                max_prefixes: Some(1000),
                ..PeerConfig::new(address, asn)
            };
            config.peers.insert(name.to_owned(), peer);
        }
        let mut core = SpeakerCore::new(config, false, Duration::ZERO).expect("a good configuration");
        core.local_complete(Duration::ZERO);
        let tame = accept(&mut core, Duration::ZERO, 2).expect("the tame peer is known");
        core.received(Duration::ZERO, tame, open(ASN, 2));
        core.received(Duration::ZERO, tame, message(4, &[]));
        Scene { core, now: Duration::ZERO, wild: None, tame }
    }

    fn step(&mut self, kind: u8, data: &[u8]) {
        let byte = |at: usize| data.get(at).copied().unwrap_or_default();
        match kind % 8 {
            0 => self.wild = accept(&mut self.core, self.now, 66).or(self.wild),
            1 => self.receive(open(PEER_ASN, 66)),
            2 => self.receive(Bytes::copy_from_slice(data)),
            3 => self.receive(message(byte(0) % 6, data.get(1..).unwrap_or_default())),
            4 => self.receive(update(data)),
            5 => {
                if let Some(conn) = self.wild.take() {
                    self.core.closed(self.now, conn, "closed");
                }
            }
            6 => {
                self.now += Duration::from_secs(byte(0).into());
                self.core.tick(self.now);
            }
            _ => self.receive(message(4, &[])),
        }
    }

    fn receive(&mut self, bytes: Bytes) {
        if let Some(conn) = self.wild {
            let mut more = self.core.received(self.now, conn, bytes);
            while more {
                more = self.core.resume(self.now, conn);
            }
        }
    }

    fn check(&mut self) {
        while self.core.next_request().is_some() {}
        if let Some(conn) = self.wild {
            let _ = self.core.output(conn);
        }
        while let Some(output) = self.core.output(self.tame) {
            well_formed(output);
        }
        self.core.changes(100);
        self.core.collect_garbage();
        let status = self.core.status(self.now);
        let tame = status.peers.iter().find(|peer| &*peer.name == "tame").expect("it is configured");
        assert_eq!((tame.state, tame.established), (BgpPeerState::Established, 1));
    }
}

fn well_formed(mut output: Bytes) {
    while !output.is_empty() {
        let length = peek_message_length(&output, u16::MAX).expect("a header").expect("whole messages");
        let mut one = output.split_to(length.into());
        let Message::Update(update) = decode_message(&mut one, u16::MAX).expect("a message") else {
            continue;
        };
        let parsed = update.parse_revised(true, true, false, &[]).expect("an update that can be read");
        assert_eq!(parsed.malformed, [], "attributes we would refuse ourselves");
        if !parsed.update.announced.is_empty() {
            validate_update_attributes(&parsed.update.attributes, true, true, true).expect("all attributes");
        }
    }
}

fn accept(core: &mut SpeakerCore, now: Duration, last: u8) -> Option<ConnectionId> {
    let end = |last: u8, port| SocketAddr::new(IpAddr::from([10, 0, 0, last]), port);
    core.accepted(now, end(1, 179), end(last, 40000))
}

fn message(kind: u8, body: &[u8]) -> Bytes {
    let mut message = vec![0xff; 16];
    message.extend(((HEADER + body.len()) as u16).to_be_bytes());
    message.push(kind);
    message.extend(body);
    message.into()
}

/// Encodes an UPDATE with the data as attributes and one prefix, so that the fuzzer need not find the lengths.
fn update(data: &[u8]) -> Bytes {
    let data = &data[..data.len().min(4000)];
    let mut body = vec![0, 0];
    body.extend((data.len() as u16).to_be_bytes());
    body.extend(data);
    body.extend([24, 192, 0, 2]);
    message(2, &body)
}

fn open(asn: u32, last: u8) -> Bytes {
    let open = OpenMessage {
        version: 4,
        my_as: asn as u16,
        hold_time: 0,
        bgp_identifier: Ipv4Addr::new(10, 0, 0, last),
        capabilities: vec![
            Capability::MultiProtocol { afi: Afi::Ipv4, safi: Safi::Unicast },
            Capability::MultiProtocol { afi: Afi::Ipv6, safi: Safi::Unicast },
            Capability::FourOctetAs { asn },
            Capability::RouteRefresh,
            Capability::EnhancedRouteRefresh,
        ],
    };
    encode_message(&Message::Open(open)).expect("a good OPEN").freeze()
}
