//! Messages with every error described in RFC 4271 section 6 and RFC 7606: the session reacts as specified, and other
//! sessions are not affected.

use crate::net::*;
use bytes::Bytes;
use proptest::prelude::*;
use rustbgpd_wire::{Afi, Capability, Message, OpenMessage, Safi, decode_message, encode_message};
use tortie_bgp::core::BgpPeerState;
use tortie_bgp::{BgpFamily, PeerConfig};

pub const PLAYED_PEER: u8 = 66;
const VALID_PREFIX: &str = "192.0.2.0/24";

pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend((19 + body.len() as u16).to_be_bytes());
    message.push(kind);
    message.extend(body);
    message
}

pub fn update(withdrawn: &[u8], attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let mut body = (withdrawn.len() as u16).to_be_bytes().to_vec();
    body.extend(withdrawn);
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body.extend(nlri);
    message(2, &body)
}

pub const ORIGIN: &[u8] = &[0x40, 1, 1, 0];
/// An AS_SEQUENCE that contains 65001.
pub const AS_PATH: &[u8] = &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9];
pub const NEXT_HOP: &[u8] = &[0x40, 3, 4, 10, 0, 0, 66];
/// 192.0.2.0/24
const NLRI: &[u8] = &[24, 192, 0, 2];

pub fn attributes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn good() -> Vec<u8> {
    update(&[], &attributes(&[ORIGIN, AS_PATH, NEXT_HOP]), NLRI)
}

pub fn open(asn: u32) -> Vec<u8> {
    let open = OpenMessage {
        version: 4,
        my_as: asn as u16,
        hold_time: 90,
        bgp_identifier: v4(PLAYED_PEER),
        capabilities: vec![
            Capability::MultiProtocol { afi: Afi::Ipv4, safi: Safi::Unicast },
            Capability::MultiProtocol { afi: Afi::Ipv6, safi: Safi::Unicast },
            Capability::FourOctetAs { asn },
            Capability::RouteRefresh,
        ],
    };
    encode_message(&Message::Open(open)).unwrap().to_vec()
}

/// Returns a node with an ordinary peer and one played by the test.
pub fn scene(asn: u32) -> SimulatedNetwork {
    let mut network = SimulatedNetwork::default();
    let mut own = config(65000, 1);
    own.peers.insert("ordinary".into(), peer(2, 65000));
    let played = PeerConfig { passive: true, families: BgpFamily::ALL.to_vec(), ..peer(PLAYED_PEER, asn) };
    own.peers.insert("played".into(), played);
    let mut other = config(65000, 2);
    other.peers.insert("node".into(), peer(1, 65000));
    network.add(own);
    network.add(other);
    network.originate(1, "198.51.100.0/24");
    network.run(10);
    assert!(network.is_up(0, "ordinary"));
    network
}

/// Brings up the played session and announces [`VALID_PREFIX`].
pub fn established(network: &mut SimulatedNetwork, asn: u32) -> ConnectionEnd {
    let end = network.play(v4(PLAYED_PEER).into(), 0).unwrap();
    network.inject(end, &open(asn));
    network.inject(end, &message(4, &[]));
    network.inject(end, &good());
    assert_eq!(network.status(0, "played").state, BgpPeerState::Established);
    assert!(network.routes_to(0, VALID_PREFIX).is_some());
    network.wires.get_mut(&end).unwrap().inbox.clear();
    end
}

/// Returns the last NOTIFICATION that a played connection received.
pub fn notification(network: &SimulatedNetwork, end: ConnectionEnd) -> Option<(u8, u8)> {
    let mut bytes = Bytes::copy_from_slice(&network.wires[&end].inbox);
    let mut last = None;
    while !bytes.is_empty() {
        let length = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
        let mut one = bytes.split_to(length);
        if let Message::Notification(notification) = decode_message(&mut one, 65535).unwrap() {
            last = Some((notification.code.as_u8(), notification.subcode));
        }
    }
    last
}

pub fn others_are_well(network: &SimulatedNetwork) {
    let ordinary = network.status(0, "ordinary");
    assert_eq!((ordinary.state, ordinary.established), (BgpPeerState::Established, 1));
    assert!(network.routes_to(0, "198.51.100.0/24").is_some());
}

#[derive(Debug, PartialEq)]
enum ExpectedReaction {
    /// The session ends with this NOTIFICATION.
    Reset(u8, u8),
    /// The route is treated as withdrawn.
    Withdrawn,
    /// The attribute is ignored, the route is kept.
    Kept,
}

#[test]
fn wrong_headers_end_the_session() {
    let keepalive = message(4, &[]);
    let with = |at: usize, value: u8| {
        let mut bytes = keepalive.clone();
        bytes[at] = value;
        bytes
    };
    for (name, bytes, expected) in [
        ("marker", with(0, 0), (1, 1)),
        ("too short", with(17, 18), (1, 2)),
        ("too long", with(16, 0xff), (1, 2)),
        ("keepalive with a body", message(4, &[0]), (1, 2)),
        ("update without lengths", message(2, &[0, 0]), (1, 2)),
        ("unknown type", with(18, 99), (1, 3)),
    ] {
        let mut network = scene(65001);
        let end = established(&mut network, 65001);
        network.inject(end, &bytes);
        assert!(network.wires[&end].closed, "{name}");
        let got = notification(&network, end).unwrap();
        // A body that is too short may also be reported as a malformed attribute list.
        let same = got == expected || (name == "update without lengths" && got == (3, 1));
        assert!(same, "{name}: {got:?}");
        assert_eq!(network.routes_to(0, VALID_PREFIX), None, "{name}");
        others_are_well(&network);
    }
}

#[test]
fn wrong_opens_are_refused() {
    let change = |work: fn(&mut Vec<u8>)| {
        let mut bytes = open(65001);
        work(&mut bytes);
        bytes
    };
    for (name, bytes, expected) in [
        ("version", change(|open| open[19] = 3), (2, 1)),
        ("AS", open(65009), (2, 2)),
        ("identifier", change(|open| open[24..28].fill(0)), (2, 3)),
        ("optional parameter", change(|open| open[29] = 77), (2, 4)),
        ("hold time", change(|open| open[23] = 1), (2, 6)),
        ("truncated parameters", change(|open| open[30] = 200), (2, 0)),
    ] {
        let mut network = scene(65001);
        let end = network.play(v4(PLAYED_PEER).into(), 0).unwrap();
        network.settle();
        network.inject(end, &bytes);
        assert!(network.wires[&end].closed, "{name}");
        assert_eq!(notification(&network, end), Some(expected), "{name}");
        assert_ne!(network.status(0, "played").state, BgpPeerState::Established, "{name}");
        others_are_well(&network);
    }
}

#[test]
fn messages_in_the_wrong_state_are_refused() {
    for (name, bytes) in
        [("update", good()), ("keepalive", message(4, &[])), ("refresh", message(5, &[0, 1, 0, 1]))]
    {
        let mut network = scene(65001);
        let end = network.play(v4(PLAYED_PEER).into(), 0).unwrap();
        network.settle();
        network.inject(end, &bytes);
        assert_eq!(notification(&network, end).map(|(code, _)| code), Some(5), "{name}");
        others_are_well(&network);
    }
    let mut network = scene(65001);
    let end = established(&mut network, 65001);
    network.inject(end, &open(65001));
    assert_eq!(notification(&network, end).map(|(code, _)| code), Some(5), "a second OPEN");
    others_are_well(&network);
}

#[test]
fn wrong_updates() {
    use ExpectedReaction::*;
    let all = |parts: &[&[u8]]| update(&[], &attributes(parts), NLRI);
    let with = |extra: &[u8]| update(&[], &attributes(&[ORIGIN, AS_PATH, NEXT_HOP, extra]), NLRI);
    let external: Vec<(&str, Vec<u8>, ExpectedReaction)> = vec![
        // RFC 4271 section 6.3 and RFC 7606 sections 3 and 4: lists and lengths.
        ("withdrawn length too large", message(2, &[0, 9, 0, 0]), Reset(3, 1)),
        ("attribute length too large", message(2, &[0, 0, 0, 9]), Reset(3, 1)),
        ("attribute runs over its list", all(&[ORIGIN, AS_PATH, NEXT_HOP, &[0x40, 5, 200]]), Withdrawn),
        ("attribute header cut", all(&[ORIGIN, AS_PATH, NEXT_HOP, &[0x40]]), Withdrawn),
        ("origin twice: the first counts", all(&[ORIGIN, AS_PATH, NEXT_HOP, ORIGIN]), Kept),
        ("multiprotocol attribute twice", with(&[&MP_REACH[..], &MP_REACH[..]].concat()), Reset(3, 1)),
        // Section 3 (c): flags.
        ("optional origin", all(&[&[0xc0, 1, 1, 0], AS_PATH, NEXT_HOP]), Withdrawn),
        ("unknown well-known attribute", with(&[0x40, 200, 1, 0]), Withdrawn),
        ("unknown optional attribute", with(&[0xc0, 200, 1, 0]), Kept),
        // Section 3 (d): missing mandatory attributes.
        ("no origin", all(&[AS_PATH, NEXT_HOP]), Withdrawn),
        ("no path", all(&[ORIGIN, NEXT_HOP]), Withdrawn),
        ("no next hop", all(&[ORIGIN, AS_PATH]), Withdrawn),
        ("no attributes", all(&[]), Withdrawn),
        // Section 7, attribute by attribute.
        ("origin of unknown value", all(&[&[0x40, 1, 1, 9], AS_PATH, NEXT_HOP]), Withdrawn),
        ("origin of two octets", all(&[&[0x40, 1, 2, 0, 0], AS_PATH, NEXT_HOP]), Withdrawn),
        ("path segment cut", all(&[ORIGIN, &[0x40, 2, 4, 2, 9, 0, 0], NEXT_HOP]), Withdrawn),
        (
            "path segment of unknown type",
            all(&[ORIGIN, &[0x40, 2, 6, 9, 1, 0, 0, 0, 1], NEXT_HOP]),
            Withdrawn,
        ),
        ("empty path segment", all(&[ORIGIN, &[0x40, 2, 2, 2, 0], NEXT_HOP]), Withdrawn),
        ("AS 0 in the path", all(&[ORIGIN, &[0x40, 2, 6, 2, 1, 0, 0, 0, 0], NEXT_HOP]), Withdrawn),
        ("a set in the path", all(&[ORIGIN, &[0x40, 2, 6, 1, 1, 0, 0, 0, 1], NEXT_HOP]), Withdrawn),
        ("next hop of three octets", all(&[ORIGIN, AS_PATH, &[0x40, 3, 3, 10, 0, 0]]), Withdrawn),
        ("next hop 0.0.0.0", all(&[ORIGIN, AS_PATH, &[0x40, 3, 4, 0, 0, 0, 0]]), Withdrawn),
        ("next hop multicast", all(&[ORIGIN, AS_PATH, &[0x40, 3, 4, 224, 0, 0, 1]]), Withdrawn),
        ("next hop ourselves", all(&[ORIGIN, AS_PATH, &[0x40, 3, 4, 10, 0, 0, 1]]), Withdrawn),
        ("MED of three octets", with(&[0x80, 4, 3, 0, 0, 0]), Withdrawn),
        ("LOCAL_PREF of three octets from outside", with(&[0x40, 5, 3, 0, 0, 0]), Kept),
        ("ATOMIC_AGGREGATE with a value", with(&[0x40, 6, 1, 0]), Kept),
        ("AGGREGATOR of five octets", with(&[0xc0, 7, 5, 0, 0, 0, 0, 0]), Kept),
        ("communities of three octets", with(&[0xc0, 8, 3, 0, 0, 0]), Withdrawn),
        ("ORIGINATOR_ID from outside", with(&[0x80, 9, 3, 0, 0, 0]), Kept),
        ("CLUSTER_LIST from outside", with(&[0x80, 10, 3, 0, 0, 0]), Kept),
        ("extended communities of seven octets", with(&[0xc0, 16, 7, 0, 0, 0, 0, 0, 0, 0]), Withdrawn),
        ("large communities of eleven octets", with(&[&[0xc0, 32, 11][..], &[0; 11]].concat()), Withdrawn),
        // Section 5.3: prefixes that cannot be parsed.
        (
            "prefix of 33 bits",
            update(&[], &attributes(&[ORIGIN, AS_PATH, NEXT_HOP]), &[33, 1, 2, 3, 4, 5]),
            Reset(3, 10),
        ),
        ("prefix cut", update(&[], &attributes(&[ORIGIN, AS_PATH, NEXT_HOP]), &[24, 1]), Reset(3, 10)),
        ("withdrawn prefix of 60 bits", update(&[60, 1, 2, 3, 4, 5, 6, 7, 8], &[], &[]), Reset(3, 10)),
        ("IPv6 prefix of 129 bits", with(&[&MP_REACH[..24], &[129, 0, 0, 0, 0, 0]].concat()), Reset(3, 9)),
        ("IPv6 next hop of 15 octets", with(&[0x80, 14, 7, 0, 2, 1, 15, 0, 0, 0]), Reset(3, 9)),
        // Loops.
        ("our AS in the path", all(&[ORIGIN, &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe8], NEXT_HOP]), Withdrawn),
    ];
    for (name, bytes, expected) in external {
        let mut network = scene(65001);
        let end = established(&mut network, 65001);
        check(&mut network, end, name, &bytes, &expected);
    }
    let internal: Vec<(&str, Vec<u8>, ExpectedReaction)> = vec![
        ("LOCAL_PREF of three octets", with(&[0x40, 5, 3, 0, 0, 0]), Withdrawn),
        ("ORIGINATOR_ID of three octets", with(&[0x80, 9, 3, 0, 0, 0]), Withdrawn),
        ("CLUSTER_LIST of three octets", with(&[0x80, 10, 3, 0, 0, 0]), Withdrawn),
        ("we are the originator", with(&[0x80, 9, 4, 10, 0, 0, 1]), Withdrawn),
    ];
    for (name, bytes, expected) in internal {
        let mut network = scene(65000);
        let end = established(&mut network, 65000);
        check(&mut network, end, name, &bytes, &expected);
    }
}

/// 2001:db8::/32 with next hop fd00::66.
const MP_REACH: [u8; 29] = [
    0x80, 14, 26, 0, 2, 1, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x66, 0, 32, 0x20, 1, 0xd,
    0xb8,
];

fn check(
    network: &mut SimulatedNetwork,
    end: ConnectionEnd,
    name: &str,
    bytes: &[u8],
    expected: &ExpectedReaction,
) {
    network.inject(end, bytes);
    let status = network.status(0, "played");
    match expected {
        ExpectedReaction::Reset(code, subcode) => {
            let got = notification(network, end);
            assert!(network.wires[&end].closed, "{name}: the session goes on");
            assert_eq!(got, Some((*code, *subcode)), "{name}");
            assert_eq!(network.routes_to(0, VALID_PREFIX), None, "{name}");
        }
        ExpectedReaction::Withdrawn => {
            assert_eq!(status.state, BgpPeerState::Established, "{name}: {:?}", status.last_error);
            assert_eq!(network.routes_to(0, VALID_PREFIX), None, "{name}: the route is still there");
            network.inject(end, &good());
            assert!(
                network.routes_to(0, VALID_PREFIX).is_some(),
                "{name}: the session does not work any more"
            );
        }
        ExpectedReaction::Kept => {
            assert_eq!(status.state, BgpPeerState::Established, "{name}: {:?}", status.last_error);
            assert!(network.routes_to(0, VALID_PREFIX).is_some(), "{name}: the route is gone");
        }
    }
    others_are_well(network);
}

#[test]
fn a_good_ipv6_route_and_its_withdrawal() {
    let mut network = scene(65001);
    let end = established(&mut network, 65001);
    network.inject(end, &update(&[], &attributes(&[ORIGIN, AS_PATH, &MP_REACH]), &[]));
    assert_eq!(network.routes_to(0, "2001:db8::/32"), Some(vec![ip("fd00::66")]));
    network.inject(end, &update(&[], &[0x80, 15, 8, 0, 2, 1, 32, 0x20, 1, 0xd, 0xb8], &[]));
    assert_eq!(network.routes_to(0, "2001:db8::/32"), None);
    others_are_well(&network);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_hurt_only_their_sender(
        prologue in 0u8..3,
        pieces in proptest::collection::vec(prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60),
            (1u8..6, proptest::collection::vec(any::<u8>(), 0..60)).prop_map(|(kind, body)| message(kind, &body)),
            (0usize..60, any::<u8>()).prop_map(|(at, value)| {
                let mut bytes = good();
                let at = at % bytes.len();
                bytes[at] = value;
                bytes
            }),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(|attributes| update(&[], &attributes, NLRI)),
            Just(good()),
        ], 0..12),
    ) {
        let mut network = scene(65001);
        let end = network.play(v4(PLAYED_PEER).into(), 0).unwrap();
        if prologue > 0 {
            network.inject(end, &open(65001));
        }
        if prologue > 1 {
            network.inject(end, &message(4, &[]));
        }
        for piece in pieces {
            network.inject(end, &piece);
        }
        network.run(5);
        others_are_well(&network);
    }
}
