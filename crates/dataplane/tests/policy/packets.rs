//! Encodes test packets as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tortie_plan::evaluate::Packet;

/// DSCP value of test packets, so that no other traffic is counted.
pub const TEST_DSCP: u8 = 0x15;

/// Encodes a packet that carries a number in its IPv4 identification field or IPv6 flow label.
pub fn bytes(packet: &Packet, number: u16) -> Vec<u8> {
    let payload = transport(packet);
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => v4(source, destination, packet, number, &payload),
        (IpAddr::V6(source), IpAddr::V6(destination)) => v6(source, destination, packet, number, &payload),
        _ => panic!("{packet:?} is of two families"),
    }
}

fn v4(source: Ipv4Addr, destination: Ipv4Addr, packet: &Packet, number: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let [high, low] = number.to_be_bytes();
    let mut bytes =
        vec![0x45, TEST_DSCP << 2, length[0], length[1], high, low, 0, 0, 64, packet.protocol, 0, 0];
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(payload);
    bytes
}

fn v6(source: Ipv6Addr, destination: Ipv6Addr, packet: &Packet, number: u16, payload: &[u8]) -> Vec<u8> {
    let class = TEST_DSCP << 2;
    let [high, low] = number.to_be_bytes();
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![0x60 | class >> 4, class << 4, high, low, length[0], length[1], packet.protocol, 64];
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(payload);
    bytes
}

/// Returns a transport header that connection tracking accepts as the start of a flow, for protocols that it tracks.
fn transport(packet: &Packet) -> Vec<u8> {
    let ports = [packet.source_port.to_be_bytes(), packet.destination_port.to_be_bytes()].concat();
    let with_ports = |rest: &[u8]| [ports.as_slice(), rest].concat();
    match packet.protocol {
        Packet::TCP => with_ports(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]),
        Packet::UDP => with_ports(&[0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        Packet::UDPLITE => with_ports(&[0, 8, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0]),
        Packet::SCTP => {
            let mut rest = vec![0; 8];
            // INIT chunk: tag, window, streams, initial TSN.
            rest.extend([1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
            with_ports(&rest)
        }
        Packet::ICMP | Packet::ICMPV6 => {
            let (kind, code) = packet.icmp.unwrap();
            let mut message = vec![kind, code, 0, 0, ports[0], ports[1], 0, 1];
            message.extend([0; 16]);
            message
        }
        _ => vec![0; 8],
    }
}
