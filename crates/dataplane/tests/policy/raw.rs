//! Raw frames with arbitrary source addresses, as an attacker inside a pod can send them.

use crate::namespace::{OpenNetns, TestNamespace};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, send, socket};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

const HOST_MAC: [u8; 6] = [0xee; 6];
const BROADCAST_MAC: [u8; 6] = [0xff; 6];
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// A packet socket on an interface of a pod.
pub struct RawLink {
    socket: OwnedFd,
    mac: [u8; 6],
}

impl RawLink {
    pub fn open(pod: &TestNamespace, interface: &str) -> RawLink {
        let open = || {
            let link = getifaddrs()
                .unwrap()
                .filter(|entry| entry.interface_name == interface)
                .find_map(|entry| entry.address?.as_link_addr().copied())
                .expect("the interface is there");
            let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None).unwrap();
            bind(socket.as_raw_fd(), &link).unwrap();
            RawLink { socket, mac: link.addr().unwrap() }
        };
        pod.open().run(open).unwrap()
    }

    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn send(&self, to: [u8; 6], kind: u16, payload: &[u8]) {
        let frame = [&to[..], &self.mac, &kind.to_be_bytes(), payload].concat();
        // A full send queue is not a test failure.
        let _ = send(self.socket.as_raw_fd(), &frame, MsgFlags::empty());
    }

    /// Sends an IP packet to the host.
    pub fn send_ip(&self, packet: &[u8]) {
        let kind = if packet[0] >> 4 == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        self.send(HOST_MAC, kind, packet);
    }

    /// Sends an ARP request with the given sender address.
    pub fn ask(&self, sender: Ipv4Addr, target: Ipv4Addr) {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
        packet.extend(self.mac);
        packet.extend(sender.octets());
        packet.extend([0; 6]);
        packet.extend(target.octets());
        self.send(BROADCAST_MAC, ETHERTYPE_ARP, &packet);
    }

    /// Sends a neighbour solicitation for an address of the host, from any source address, with the sender's MAC as
    /// option.
    pub fn solicit(&self, source: Ipv6Addr, target: Ipv6Addr) {
        let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
        message.extend(target.octets());
        message.extend([1, 1]);
        message.extend(self.mac);
        self.send_ip(&v6(source, target, 58, 255, message));
    }
}

pub fn udp_v4(source: Ipv4Addr, destination: Ipv4Addr, port: u16) -> Vec<u8> {
    v4(source, destination, 17, &udp(port))
}

/// Builds an IPv4 packet of any protocol.
pub fn v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    (packet[2], packet[3]) = (length[0], length[1]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let sum = checksum(&packet).to_be_bytes();
    (packet[10], packet[11]) = (sum[0], sum[1]);
    packet.extend(payload);
    packet
}

pub fn udp_v6(source: Ipv6Addr, destination: Ipv6Addr, port: u16) -> Vec<u8> {
    v6(source, destination, 17, 64, udp(port))
}

fn udp(port: u16) -> Vec<u8> {
    let mut payload = 4000u16.to_be_bytes().to_vec();
    payload.extend(port.to_be_bytes());
    // No checksum, which IPv4 allows.
    payload.extend([0, 12, 0, 0, b't', b'e', b's', b't']);
    payload
}

/// Builds an IPv6 packet with the pseudo-header checksum at the offset that UDP or ICMPv6 uses.
fn v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, hops: u8, mut payload: Vec<u8>) -> Vec<u8> {
    let at = if protocol == 17 { 6 } else { 2 };
    let length = u16::try_from(payload.len()).unwrap();
    let pseudo = [
        &source.octets()[..],
        &destination.octets(),
        &u32::from(length).to_be_bytes(),
        &[0, 0, 0, protocol],
        &payload,
    ]
    .concat();
    let sum = checksum(&pseudo).to_be_bytes();
    (payload[at], payload[at + 1]) = (sum[0], sum[1]);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([protocol, hops]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(payload);
    packet
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
