//! Peers that send as much as they can. Their cost is bounded and counted, and they affect only their own session.

use crate::malformed::{
    AS_PATH, NEXT_HOP, ORIGIN, PLAYED_PEER, attributes, message, notification, others_are_well, scene, update,
};
use crate::net::*;
use bytes::Bytes;
use rustbgpd_wire::{
    AddPathFamily, AddPathMode, Afi, Capability, Message, OpenMessage, Safi, encode_message,
};
use std::time::Duration;
use tortie_bgp::PeerConfig;
use tortie_bgp::core::BgpPeerState;

const ASN: u32 = 65001;
/// Maximum work for one connection in one turn, plus one message of the maximum size.
const MAX_WORK_PER_TURN: u64 = 16 * 1024 + 16 * 1024;

/// Returns a node with an ordinary peer and one played by the test, which sends several paths per prefix.
fn flooded(adjust: impl Fn(&mut PeerConfig)) -> (SimulatedNetwork, ConnectionEnd) {
    let mut network = scene(ASN);
    let mut own = config(65000, 1);
    own.peers.insert("ordinary".into(), peer(2, 65000));
    let mut played = PeerConfig { passive: true, add_path: true, ..peer(PLAYED_PEER, ASN) };
    adjust(&mut played);
    own.peers.insert("played".into(), played);
    let now = network.now;
    network.nodes[0].core.reconfigure(now, own).unwrap();
    let end = establish(&mut network);
    (network, end)
}

fn establish(network: &mut SimulatedNetwork) -> ConnectionEnd {
    let end = network.play(v4(PLAYED_PEER).into(), 0).unwrap();
    network.inject(end, &open());
    network.inject(end, &message(4, &[]));
    assert_eq!(network.status(0, "played").state, BgpPeerState::Established);
    end
}

fn open() -> Vec<u8> {
    let add_path = AddPathFamily { afi: Afi::Ipv4, safi: Safi::Unicast, send_receive: AddPathMode::Both };
    let open = OpenMessage {
        version: 4,
        my_as: ASN as u16,
        hold_time: 90,
        bgp_identifier: v4(PLAYED_PEER),
        capabilities: vec![
            Capability::MultiProtocol { afi: Afi::Ipv4, safi: Safi::Unicast },
            Capability::FourOctetAs { asn: ASN },
            Capability::RouteRefresh,
            Capability::AddPath(vec![add_path]),
        ],
    };
    encode_message(&Message::Open(open)).unwrap().to_vec()
}

/// Builds UPDATEs with these paths: an identifier and a 24-bit prefix each.
fn updates(paths: impl Iterator<Item = (u32, [u8; 3])>) -> Vec<u8> {
    let nlri: Vec<Vec<u8>> =
        paths.map(|(id, [a, b, c])| [&id.to_be_bytes()[..], &[24, a, b, c]].concat()).collect();
    let attributes = attributes(&[ORIGIN, AS_PATH, NEXT_HOP]);
    nlri.chunks(400).flat_map(|some| update(&[], &attributes, &some.concat())).collect()
}

/// Passes bytes to the node as they arrive from a socket, turn by turn. Returns the maximum work of one turn.
fn receive(network: &mut SimulatedNetwork, end: ConnectionEnd, bytes: &[u8]) -> u64 {
    let now = network.now;
    let core = &mut network.nodes[end.node].core;
    let mut most = 0;
    for chunk in bytes.chunks(64 * 1024) {
        let mut before = core.work();
        let mut more = core.received(now, end.conn, Bytes::copy_from_slice(chunk));
        loop {
            most = most.max(core.work() - before);
            if !more {
                break;
            }
            before = core.work();
            more = core.resume(now, end.conn);
        }
    }
    network.settle();
    most
}

#[test]
fn too_many_paths_per_prefix_end_the_session() {
    let (mut network, end) = flooded(|_| {});
    let before = network.nodes[0].core.work();
    let most = receive(&mut network, end, &updates((1..=250_000).map(|id| (id, [192, 0, 2]))));
    let work = network.nodes[0].core.work() - before;
    assert!(most <= MAX_WORK_PER_TURN, "{most} in one turn");
    assert!(work < 10_000, "{work} for a peer that was refused after 64 paths");
    assert_eq!(notification(&network, end), Some((6, 1)), "Cease, Maximum Number of Prefixes Reached");
    let error = network.status(0, "played").last_error.unwrap();
    assert!(error.contains("more than 64 paths to one prefix"), "{error}");
    assert_eq!(network.routes_to(0, "192.0.2.0/24"), None);
    // The peer is blocked, even if it connects.
    assert!(network.play(v4(PLAYED_PEER).into(), 0).is_none());
    network.run(290);
    assert!(network.play(v4(PLAYED_PEER).into(), 0).is_none());
    network.run(20);
    establish(&mut network);
    others_are_well(&network);
}

#[test]
fn prefix_limits_are_reported_and_enforced() {
    let (mut network, end) = flooded(|peer| peer.max_prefixes = Some(100));
    let routes = |from: u8, to: u8| updates((from..to).map(|number| (1, [192, 0, number])));
    receive(&mut network, end, &routes(0, 79));
    assert!(!network.status(0, "played").near_limit);
    receive(&mut network, end, &routes(79, 100));
    assert!(network.status(0, "played").near_limit);
    assert_eq!(network.status(0, "played").state, BgpPeerState::Established);
    receive(&mut network, end, &routes(100, 101));
    assert_eq!(notification(&network, end), Some((6, 1)));
    assert!(!network.status(0, "played").near_limit);
    others_are_well(&network);
}

#[test]
fn a_flood_of_updates_is_handled_in_turns() {
    let (mut network, end) = flooded(|_| {});
    let routes = 200_000u32;
    let bytes = updates((0..routes).map(|number| {
        let [_, a, b, c] = number.to_be_bytes();
        (1, [a + 100, b, c])
    }));
    let before = network.nodes[0].core.work();
    let most = receive(&mut network, end, &bytes);
    let work = network.nodes[0].core.work() - before;
    assert!(most <= MAX_WORK_PER_TURN, "{most} in one turn");
    assert!(work <= u64::from(routes) * 102 / 100, "{work} for {routes} routes");
    assert_eq!(network.status(0, "played").prefixes_in.v4, routes);
    others_are_well(&network);
}

#[test]
fn many_paths_to_one_prefix_stay_cheap() {
    let (mut network, end) = flooded(|peer| peer.max_paths_per_prefix = 20_000);
    let count = 20_000u64;
    let before = network.nodes[0].core.work();
    let most = receive(&mut network, end, &updates((1..=count as u32).rev().map(|id| (id, [192, 0, 2]))));
    let work = network.nodes[0].core.work() - before;
    // A turn ends after a message, and a message has 400 paths.
    assert!(most <= MAX_WORK_PER_TURN + 400 * (1 + count / 16), "{most} in one turn");
    // Each path is searched among the others, sixteen at the cost of one comparison; sorting would cost a hundred
    // times that.
    assert!(work <= count * count / 32 + 3 * count, "{work} for {count} paths");
    assert_eq!(network.status(0, "played").prefixes_in.v4, count as u32);
}

#[test]
fn refreshes_without_end_are_answered_in_turns() {
    let (mut network, end) = flooded(|peer| {
        peer.export = std::sync::Arc::new(tortie_bgp::filter::RouteFilter::reject());
    });
    let now = network.now;
    for number in 0..100_000u32 {
        let prefix = std::net::Ipv4Addr::from(0x0b00_0000 + (number << 8));
        network.nodes[0]
            .core
            .originate(ipnet::Ipv4Net::new(prefix, 24).unwrap().into(), tortie_bgp::RouteAttrs::local());
    }
    network.settle();
    let refresh = message(5, &[0, 1, 0, 1]);
    for _ in 0..100 {
        let core = &mut network.nodes[0].core;
        assert!(!core.received(now, end.conn, Bytes::from(refresh.repeat(100))));
        // There is no output, and the whole table is not walked in one turn.
        assert_eq!(core.output(end.conn), None);
        assert!(core.take_output_pending());
    }
    network.now += Duration::from_secs(1);
    network.settle();
    others_are_well(&network);
}

#[test]
fn connections_without_end_disturb_nobody() {
    let (mut network, _) = flooded(|_| {});
    for _ in 0..10_000 {
        // Half of them send a few bytes and stop.
        if let Some(end) = network.play(v4(PLAYED_PEER).into(), 0) {
            network.inject(end, &[0xff; 7]);
        }
    }
    network.run(3600);
    others_are_well(&network);
}
