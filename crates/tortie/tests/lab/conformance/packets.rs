//! Encodes complete packets with correct checksums, each with a unique number.

use std::net::IpAddr;
use tortie_plan::evaluate::Packet;

/// DSCP value that marks test packets.
pub const TEST_DSCP: u8 = 0x2b;
/// Upper half of the tag in test packets; the lower half is the packet's number.
const PACKET_TAG: u32 = 0xc0de << 16;

/// Encodes a packet with its number in the IP identification or flow label, and in the tag that the receiver reads.
pub fn bytes(packet: &Packet, number: u16) -> Vec<u8> {
    let body = transport(packet, number);
    let length = u16::try_from(body.len()).unwrap();
    let [high, low] = number.to_be_bytes();
    let class = TEST_DSCP << 2;
    let mut bytes = match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [long, short] = (length + 20).to_be_bytes();
            // The kernel fills in the header checksum.
            let head = [0x45, class, long, short, high, low, 0, 0, 64, packet.protocol, 0, 0];
            [&head[..], &source.octets(), &destination.octets()].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let [long, short] = length.to_be_bytes();
            let head = [0x60 | class >> 4, class << 4, high, low, long, short, packet.protocol, 64];
            [&head[..], &source.octets(), &destination.octets()].concat()
        }
        _ => panic!("{packet:?} is of two families"),
    };
    bytes.extend(body);
    bytes
}

/// Returns the number of a test packet from its transport header and payload.
pub fn number(protocol: u8, body: &[u8]) -> Option<u16> {
    let at = if protocol == Packet::TCP { 4 } else { 8 };
    let tag = u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?);
    (tag & 0xffff_0000 == PACKET_TAG).then_some(u16::try_from(tag & 0xffff).ok()?)
}

/// Returns a transport header that starts a connection, for protocols that have connections.
fn transport(packet: &Packet, number: u16) -> Vec<u8> {
    let tag = (PACKET_TAG | u32::from(number)).to_be_bytes();
    let ports = [packet.source_port.to_be_bytes(), packet.destination_port.to_be_bytes()].concat();
    let (mut bytes, at) = match (packet.protocol, packet.icmp) {
        (Packet::TCP, _) => {
            let flags_and_window = [0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0];
            ([&ports[..], &tag, &flags_and_window].concat(), 16)
        }
        (Packet::UDP, _) => ([&ports[..], &[0, 12, 0, 0], &tag].concat(), 6),
        (_, Some((kind, code))) => {
            let [high, low] = number.to_be_bytes();
            ([&[kind, code, 0, 0, high, low, 0, 1], &tag[..]].concat(), 2)
        }
        _ => panic!("no way to send {packet:?}"),
    };
    let sum = checksum(&[pseudo_header(packet, bytes.len()), bytes.clone()].concat());
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn pseudo_header(packet: &Packet, length: usize) -> Vec<u8> {
    let [high, low] = u16::try_from(length).unwrap().to_be_bytes();
    match (packet.source, packet.destination) {
        _ if packet.protocol == Packet::ICMP => Vec::new(),
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            [&source.octets()[..], &destination.octets(), &[0, packet.protocol, high, low]].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let rest = [0, 0, high, low, 0, 0, 0, packet.protocol];
            [&source.octets()[..], &destination.octets(), &rest].concat()
        }
        _ => panic!("{packet:?} is of two families"),
    }
}

/// Returns the checksum of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
