//! Replies to single messages.

use crate::samples::{
    ALL_SERVERS, CLIENT_LINK_LOCAL, CLIENT_MAC, Client4, association, frame6, message6, option6, options_of,
    port, solicitation, sum_with_checksum,
};
use std::net::{Ipv4Addr, Ipv6Addr};
use tortie_dhcp::codec::RejectReason;
use tortie_dhcp::codec::dhcp4::Dhcp4ReplyType;
use tortie_dhcp::codec::dhcp6::Dhcp6ReplyType;
use tortie_dhcp::lease::PortState;
use tortie_dhcp::respond::{ReplyType, respond};

const GATEWAY: [u8; 4] = [10, 65, 0, 1];
const ADDRESS: [u8; 4] = [10, 65, 0, 2];
const OFFER: Option<ReplyType> = Some(ReplyType::Dhcp4(Dhcp4ReplyType::Offer));
const ACK: Option<ReplyType> = Some(ReplyType::Dhcp4(Dhcp4ReplyType::Ack));
const NAK: Option<ReplyType> = Some(ReplyType::Dhcp4(Dhcp4ReplyType::Nak));

fn ask(frame: &[u8], port: &PortState) -> Result<(Option<ReplyType>, Vec<u8>), RejectReason> {
    let mut reply = Vec::new();
    respond(frame, port, &mut reply).map(|processed| (processed.reply, reply))
}

#[test]
fn discover_is_offered_everything_once() {
    let (reply, frame) = ask(&Client4::new(1).frame(), &port()).unwrap();
    assert_eq!(reply, OFFER);
    assert_eq!(&frame[..6], CLIENT_MAC);
    assert_eq!(&frame[30..34], ADDRESS, "sent to the granted address");
    assert_eq!(&frame[42 + 16..42 + 20], ADDRESS, "yiaddr");
    assert!(frame.len() >= 42 + 300, "not shorter than BOOTP");
    let options = options_of(&frame);
    for (code, value) in [
        (1, &[255, 255, 255, 0][..]),
        (3, &GATEWAY),
        (6, &[9, 9, 9, 9]),
        (12, b"web"),
        (15, b"cloud.example"),
        (26, &1450_u16.to_be_bytes()),
        (28, &[10, 65, 0, 255]),
        (51, &3600_u32.to_be_bytes()),
        (53, &[2]),
        (54, &GATEWAY),
        (58, &1800_u32.to_be_bytes()),
        (59, &3150_u32.to_be_bytes()),
    ] {
        assert_eq!(options.get(&code).map(Vec::as_slice), Some(value), "option {code}");
    }
    assert!(!options.contains_key(&121) && !options.contains_key(&249));
}

#[test]
fn requests_are_acknowledged_only_for_the_address() {
    let own = |request: Client4| ask(&request.frame(), &port()).map(|(reply, _)| reply);
    assert_eq!(own(Client4::new(3).with(50, &ADDRESS).with(54, &GATEWAY)), Ok(ACK), "selecting");
    assert_eq!(own(Client4::new(3).with(50, &ADDRESS)), Ok(ACK), "after a restart");
    let renewal = Client4 { ciaddr: ADDRESS.into(), source: ADDRESS.into(), ..Client4::new(3) };
    assert_eq!(own(renewal), Ok(ACK));
    assert_eq!(own(Client4::new(3).with(50, &[10, 65, 0, 3])), Ok(NAK));
    assert_eq!(own(Client4 { ciaddr: Ipv4Addr::new(10, 65, 0, 3), ..Client4::new(3) }), Ok(NAK));
    assert_eq!(
        own(Client4::new(3).with(50, &ADDRESS).with(54, &[1, 2, 3, 4])),
        Err(RejectReason::OtherServer)
    );
    assert_eq!(own(Client4::new(3)), Err(RejectReason::Malformed), "no address at all");
    for silent in [4, 7] {
        assert_eq!(own(Client4::new(silent).with(54, &GATEWAY)), Ok(None));
    }
}

#[test]
fn a_nak_is_broadcast_without_addresses() {
    let (_, frame) = ask(&Client4::new(3).with(50, &[10, 0, 0, 9]).frame(), &port()).unwrap();
    assert_eq!((&frame[..6], &frame[30..34]), (&[0xff; 6][..], &[0xff; 4][..]));
    assert_eq!(&frame[42 + 12..42 + 28], [0; 16]);
    assert_eq!(options_of(&frame).into_keys().collect::<Vec<_>>(), [53, 54, 56]);
}

#[test]
fn inform_gets_settings_without_lease() {
    let request = Client4 { ciaddr: ADDRESS.into(), source: ADDRESS.into(), ..Client4::new(8) };
    let (reply, frame) = ask(&request.frame(), &port()).unwrap();
    assert_eq!(reply, ACK);
    assert_eq!(&frame[42 + 16..42 + 20], [0; 4]);
    let options = options_of(&frame);
    assert!(options.contains_key(&6) && !options.contains_key(&51));
}

#[test]
fn only_requested_options_are_sent() {
    let request = Client4 { flags: 0x8000, ..Client4::new(1) }.with(55, &[1, 26]).with(61, b"\x01client");
    let (_, frame) = ask(&request.frame(), &port()).unwrap();
    assert_eq!(&frame[..6], [0xff; 6], "the client asked for a broadcast");
    let options = options_of(&frame);
    assert_eq!(options.keys().copied().collect::<Vec<_>>(), [1, 26, 51, 53, 54, 58, 59, 61]);
    assert_eq!(options[&61], b"\x01client");
}

#[test]
fn routes_include_the_default_route() {
    let mut port = port();
    let lease = port.lease.v4.as_mut().unwrap();
    lease.routes = vec![
        ("192.0.2.0/25".parse().unwrap(), Ipv4Addr::new(10, 65, 0, 9)),
        ("10.66.0.0/16".parse().unwrap(), Ipv4Addr::UNSPECIFIED),
    ];
    let routes = |port: &PortState, parameters: &[u8]| {
        options_of(&ask(&Client4::new(1).with(55, parameters).frame(), port).unwrap().1)
    };
    let expected =
        [&[25, 192, 0, 2, 0, 10, 65, 0, 9][..], &[16, 10, 66, 0, 0, 0, 0], &[0, 10, 65, 0, 1]].concat();
    assert_eq!(routes(&port, &[3, 121])[&121], expected);
    assert_eq!(routes(&port, &[3, 249])[&249], expected);
    assert!(!routes(&port, &[121, 249]).contains_key(&249));
    // A gateway outside of the subnet needs a route to itself.
    let lease = port.lease.v4.as_mut().unwrap();
    lease.routes.clear();
    lease.gateway = Some(Ipv4Addr::new(169, 254, 1, 1));
    assert_eq!(routes(&port, &[121])[&121], [32, 169, 254, 1, 1, 0, 0, 0, 0, 0, 169, 254, 1, 1]);
}

#[test]
fn long_options_are_split_or_left_out() {
    let mut port = port();
    let route = |number: u8| (format!("192.0.{number}.0/24").parse().unwrap(), Ipv4Addr::new(10, 65, 0, 9));
    port.lease.v4.as_mut().unwrap().routes = (0..60).map(route).collect();
    let mut reply = Vec::new();
    let small = respond(&Client4::new(1).frame(), &port, &mut reply).unwrap();
    assert!(small.is_truncated && reply.len() <= 14 + 576, "{}", reply.len());
    assert!(!options_of(&reply).contains_key(&121));
    let request = Client4::new(1).with(57, &1400_u16.to_be_bytes());
    let large = respond(&request.frame(), &port, &mut reply).unwrap();
    assert!(!large.is_truncated && reply.len() <= 14 + 1400);
    assert_eq!(options_of(&reply)[&121].len(), 60 * 8 + 5);
}

#[test]
fn foreign_messages_get_no_reply() {
    let rejected = |client: Client4| ask(&client.frame(), &port()).map(|_| ()).unwrap_err();
    let other = [2, 0, 0, 0, 0, 9];
    assert_eq!(rejected(Client4 { mac: other, ..Client4::new(1) }), RejectReason::ForeignMac);
    assert_eq!(rejected(Client4 { chaddr: other, ..Client4::new(1) }), RejectReason::ForeignMac);
    assert_eq!(
        rejected(Client4 { giaddr: Ipv4Addr::new(10, 65, 0, 2), ..Client4::new(1) }),
        RejectReason::Relayed
    );
    assert_eq!(rejected(Client4 { source: GATEWAY.into(), ..Client4::new(1) }), RejectReason::ForeignSource);
    for server_message in [2, 5, 6, 0, 99] {
        assert_eq!(rejected(Client4::new(server_message)), RejectReason::UnknownMessage);
    }
    let mut without = port();
    without.lease.v4 = None;
    assert_eq!(ask(&Client4::new(1).frame(), &without).unwrap_err(), RejectReason::NoLease);
}

/// Returns the options of a DHCPv6 reply; checks lengths, checksum and addresses.
fn options6_of(frame: &[u8]) -> (u8, Vec<(u16, Vec<u8>)>) {
    let ip = &frame[14..];
    assert_eq!(usize::from(ip[4]) << 8 | usize::from(ip[5]), ip.len() - 40);
    assert_eq!(sum_with_checksum(&ip[8..40], ip[6], &ip[40..]), 0, "checksum");
    assert_eq!(&frame[..6], CLIENT_MAC);
    let message = &ip[48..];
    (message[0], split6(&message[4..]))
}

fn split6(mut rest: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(rest[2]) << 8 | usize::from(rest[3]);
        options.push((u16::from_be_bytes([rest[0], rest[1]]), rest[4..4 + length].to_vec()));
        rest = &rest[4 + length..];
    }
    options
}

/// Type and options of a DHCPv6 message.
type Dhcp6Reply = (u8, Vec<(u16, Vec<u8>)>);

fn ask6(message_type: u8, options: &[Vec<u8>]) -> Result<Dhcp6Reply, RejectReason> {
    let frame = frame6(CLIENT_LINK_LOCAL, ALL_SERVERS, &message6(message_type, options));
    let (_, reply) = ask(&frame, &port())?;
    Ok(options6_of(&reply))
}

fn find(options: &[(u16, Vec<u8>)], code: u16) -> Option<&[u8]> {
    options.iter().find(|(its, _)| *its == code).map(|(_, value)| value.as_slice())
}

fn server_id() -> Vec<u8> {
    let (_, options) = ask6(1, &[association(1, &[])]).unwrap();
    option6(2, find(&options, 2).unwrap())
}

#[test]
fn solicit_is_advertised_then_granted() {
    let (kind, options) = ask6(1, &[association(7, &[])]).unwrap();
    assert_eq!(kind, Dhcp6ReplyType::Advertise as u8);
    let granted = find(&options, 3).unwrap();
    assert_eq!(&granted[..12], [0, 0, 0, 7, 0, 0, 7, 8, 0, 0, 11, 64], "id, T1, T2");
    let address: Ipv6Addr = "fd00:65::2".parse().unwrap();
    assert_eq!(&split6(&granted[12..])[0].1[..16], address.octets());
    assert_eq!(find(&options, 23).unwrap(), "2620:fe::fe".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(find(&options, 24).unwrap(), b"\x05cloud\x07example\0");
    assert!(find(&options, 14).is_none());
    let (kind, options) = ask6(1, &[association(7, &[]), option6(14, &[])]).unwrap();
    assert_eq!(kind, Dhcp6ReplyType::Reply as u8, "rapid commit");
    assert!(find(&options, 14).is_some());
    for message in [3, 5] {
        let (kind, options) = ask6(message, &[server_id(), association(7, &["fd00:65::2"])]).unwrap();
        assert_eq!((kind, find(&options, 3).unwrap().len()), (7, 12 + 28), "message {message}");
    }
}

#[test]
fn other_addresses_are_withdrawn() {
    let (_, options) = ask6(6, &[association(7, &["fd00:65::9"])]).unwrap();
    let addresses = split6(&find(&options, 3).unwrap()[12..]);
    assert_eq!(addresses.len(), 2);
    assert_eq!(&addresses[1].1[16..], [0; 8], "no lifetime");
    let status = |addresses: &[&str]| {
        let (_, options) = ask6(4, &[association(7, addresses)]).unwrap();
        find(&options, 13).unwrap().to_vec()
    };
    assert_eq!(status(&["fd00:65::2"]), [0, 0]);
    assert_eq!(status(&["fd00:65::9"]), [0, 4]);
    assert_eq!(ask6(4, &[association(7, &[])]).unwrap_err(), RejectReason::NoAnswer);
    for (message, server, code) in
        [(1, None, 2), (3, Some(server_id()), 2), (5, Some(server_id()), 3), (6, None, 3)]
    {
        let mut sent = vec![association(1, &[]), association(2, &[])];
        sent.extend(server);
        let (_, options) = ask6(message, &sent).unwrap();
        let second = &options.iter().rfind(|(code, _)| *code == 3).unwrap().1[12..];
        assert_eq!(second, [0, 13, 0, 2, 0, code], "message {message}");
    }
}

#[test]
fn information_needs_no_association() {
    let (kind, options) = ask6(11, &[]).unwrap();
    assert_eq!(kind, 7);
    assert!(find(&options, 23).is_some() && find(&options, 3).is_none());
    let (_, options) = ask6(8, &[server_id(), association(7, &["fd00:65::2"])]).unwrap();
    assert_eq!(find(&options, 13).unwrap(), [0, 0], "release");
}

#[test]
fn identifiers_and_addresses_are_checked() {
    assert_eq!(ask6(1, &[server_id()]).unwrap_err(), RejectReason::Malformed);
    assert_eq!(ask6(3, &[]).unwrap_err(), RejectReason::Malformed);
    assert_eq!(ask6(3, &[option6(2, &[0, 3, 0, 1, 9, 9])]).unwrap_err(), RejectReason::OtherServer);
    assert_eq!(ask6(12, &[]).unwrap_err(), RejectReason::Relayed);
    assert_eq!(ask6(1, &[option6(1, &[0, 1, 2])]).unwrap_err(), RejectReason::Malformed, "two identifiers");
    let message = message6(1, &[association(1, &[])]);
    for (source, destination) in [("fd00::9", "ff02::1:2"), ("fe80::1", "fe80::2"), ("::", "ff02::1:2")]
        .map(|(s, d)| (s.parse().unwrap(), d.parse().unwrap()))
    {
        assert_eq!(
            ask(&frame6(source, destination, &message), &port()).unwrap_err(),
            RejectReason::ForeignSource
        );
    }
    let mut without = port();
    without.link.link_local = None;
    let frame = frame6(CLIENT_LINK_LOCAL, ALL_SERVERS, &message);
    assert_eq!(ask(&frame, &without).unwrap_err(), RejectReason::NoLinkLocal);
}

#[test]
fn solicitations_get_an_advertisement() {
    let solicit = [133, 0, 0, 0, 0, 0, 0, 0];
    for (source, destination) in
        [(CLIENT_LINK_LOCAL, CLIENT_LINK_LOCAL), (Ipv6Addr::UNSPECIFIED, "ff02::1".parse().unwrap())]
    {
        let (reply, frame) = ask(&solicitation(source, 255, &solicit), &port()).unwrap();
        assert_eq!(reply, Some(ReplyType::RouterAdvertisement));
        let ip = &frame[14..];
        assert_eq!((ip[7], &ip[24..40]), (255, &destination.octets()[..]));
        assert_eq!(sum_with_checksum(&ip[8..40], 58, &ip[40..]), 0);
        let message = &ip[40..];
        assert_eq!((message[0], message[5], &message[6..8]), (134, 0xc0, &9000_u16.to_be_bytes()[..]));
        assert_eq!(&message[24..32], [5, 1, 0, 0, 0, 0, 5, 170], "MTU");
        assert_eq!(&message[32..36], [3, 4, 64, 0], "a prefix that is neither on-link nor autonomous");
        assert_eq!(&message[64..66], [25, 3], "DNS server");
        assert_eq!(&message[88..90], [31, 3], "domain");
        assert_eq!(message.len(), 88 + 24);
    }
    let rejected = |frame: &[u8]| ask(frame, &port()).unwrap_err();
    assert_eq!(rejected(&solicitation(CLIENT_LINK_LOCAL, 64, &solicit)), RejectReason::ForeignSource);
    assert_eq!(
        rejected(&solicitation("fd00::2".parse().unwrap(), 255, &solicit)),
        RejectReason::ForeignSource
    );
    let endless = [&solicit[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(rejected(&solicitation(CLIENT_LINK_LOCAL, 255, &endless)), RejectReason::Malformed);
}

#[test]
fn prefixes_outlive_short_leases() {
    let frame = solicitation(CLIENT_LINK_LOCAL, 255, &[133, 0, 0, 0, 0, 0, 0, 0]);
    for (lease_seconds, lifetime) in [(60, 1800_u32), (3600, 3600)] {
        let mut port = port();
        port.lease.lease_seconds = lease_seconds;
        let message = ask(&frame, &port).unwrap().1[54..].to_vec();
        let expected = lifetime.to_be_bytes();
        assert_eq!((&message[36..40], &message[40..44]), (&expected[..], &expected[..]), "{lease_seconds}");
        assert_eq!(&message[68..72], expected, "DNS server, {lease_seconds}");
        // Leases keep the configured lifetime.
        let request = frame6(CLIENT_LINK_LOCAL, ALL_SERVERS, &message6(1, &[association(7, &[])]));
        let (_, options) = options6_of(&ask(&request, &port).unwrap().1);
        let address = &split6(&find(&options, 3).unwrap()[12..])[0].1;
        assert_eq!(&address[16..20], &u32::to_be_bytes(lease_seconds), "{lease_seconds}");
    }
}
