//! Ethernet, IP and UDP headers.

use super::{RejectReason, split_array, split_slice};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
pub const PROTOCOL_UDP: u8 = 17;
pub const PROTOCOL_ICMPV6: u8 = 58;
pub const DHCP4_SERVER_PORT: u16 = 67;
pub const DHCP4_CLIENT_PORT: u16 = 68;
pub const DHCP6_SERVER_PORT: u16 = 547;
pub const DHCP6_CLIENT_PORT: u16 = 546;
pub const ICMPV6_ROUTER_SOLICITATION: u8 = 133;
/// All_DHCP_Relay_Agents_and_Servers (RFC 8415, 7.1).
pub const ALL_DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// Hop limit of neighbour discovery: packets with a lower one have been routed (RFC 4861, 6.1.1).
const ND_HOP_LIMIT: u8 = 255;
const REPLY_HOP_LIMIT: u8 = 64;

/// A MAC address of 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);

    /// Returns the address that IPv6 packets to a multicast group are sent to (RFC 2464, 7).
    pub fn of_multicast(group: Ipv6Addr) -> MacAddress {
        let [.., a, b, c, d] = group.octets();
        MacAddress([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<MacAddress, ()> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| matches!(part.len(), 1..=2)).ok_or(())?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ())?;
        }
        if parts.next().is_some() { Err(()) } else { Ok(MacAddress(bytes)) }
    }
}

/// A frame from a virtual machine that the server may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedPacket<'a> {
    Dhcp4 { mac: MacAddress, source: Ipv4Addr, message: &'a [u8] },
    Dhcp6 { mac: MacAddress, source: Ipv6Addr, destination: Ipv6Addr, message: &'a [u8] },
    RouterSolicitation { mac: MacAddress, source: Ipv6Addr },
}

/// Parses a frame. Checksums are not checked: a guest whose interface offloads them leaves them incomplete, and a wrong
/// one harms only the sender.
pub fn parse_frame(frame: &[u8]) -> Result<ReceivedPacket<'_>, RejectReason> {
    let (_, rest) = split_array::<6>(frame)?;
    let (mac, rest) = split_array::<6>(rest)?;
    let (ethertype, packet) = split_array::<2>(rest)?;
    match u16::from_be_bytes(ethertype) {
        ETHERTYPE_IPV4 => parse_ipv4(MacAddress(mac), packet),
        ETHERTYPE_IPV6 => parse_ipv6(MacAddress(mac), packet),
        _ => Err(RejectReason::UnknownMessage),
    }
}

fn parse_ipv4(mac: MacAddress, packet: &[u8]) -> Result<ReceivedPacket<'_>, RejectReason> {
    /// Fragment offset and the flag "more fragments".
    const FRAGMENT_MASK: u16 = 0x3fff;
    let (header, _) = split_array::<IPV4_BYTES>(packet)?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let total_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_MASK != 0;
    if header[0] >> 4 != 4 || header_bytes < IPV4_BYTES || total_bytes < header_bytes || is_fragment {
        return Err(RejectReason::Malformed);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(RejectReason::UnknownMessage);
    }
    // A frame may have padding after the packet.
    let (packet, _) = split_slice(packet, total_bytes)?;
    let (_, datagram) = split_slice(packet, header_bytes)?;
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let message = parse_udp(datagram, DHCP4_SERVER_PORT)?;
    Ok(ReceivedPacket::Dhcp4 { mac, source, message })
}

fn parse_ipv6(mac: MacAddress, packet: &[u8]) -> Result<ReceivedPacket<'_>, RejectReason> {
    let (header, rest) = split_array::<IPV6_BYTES>(packet)?;
    if header[0] >> 4 != 6 {
        return Err(RejectReason::Malformed);
    }
    let (payload, _) = split_slice(rest, usize::from(u16::from_be_bytes([header[4], header[5]])))?;
    let (source, _) = split_array::<16>(&header[8..])?;
    let (destination, _) = split_array::<16>(&header[24..])?;
    let (source, destination) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
    // Clients send no extension headers.
    match header[6] {
        PROTOCOL_UDP => {
            let message = parse_udp(payload, DHCP6_SERVER_PORT)?;
            Ok(ReceivedPacket::Dhcp6 { mac, source, destination, message })
        }
        PROTOCOL_ICMPV6 => {
            super::neighbour::check_solicitation(payload)?;
            if header[7] != ND_HOP_LIMIT {
                return Err(RejectReason::ForeignSource);
            }
            Ok(ReceivedPacket::RouterSolicitation { mac, source })
        }
        _ => Err(RejectReason::UnknownMessage),
    }
}

/// Returns the payload of a datagram to this port.
fn parse_udp(datagram: &[u8], port: u16) -> Result<&[u8], RejectReason> {
    let (header, _) = split_array::<UDP_BYTES>(datagram)?;
    if u16::from_be_bytes([header[2], header[3]]) != port {
        return Err(RejectReason::UnknownMessage);
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if length < UDP_BYTES {
        return Err(RejectReason::Malformed);
    }
    Ok(&split_slice(datagram, length)?.0[UDP_BYTES..])
}

/// Addresses of a reply in IPv4.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Route {
    pub source_mac: MacAddress,
    pub destination_mac: MacAddress,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
}

/// Addresses of a reply in IPv6.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Route {
    pub source_mac: MacAddress,
    pub destination_mac: MacAddress,
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
}

/// Replaces the content of the buffer with headers for a DHCPv4 reply. The message follows, then
/// [`finish_dhcp4_frame`].
pub fn begin_dhcp4_frame(buffer: &mut Vec<u8>, route: &Ipv4Route) {
    buffer.clear();
    put_ethernet(buffer, route.destination_mac, route.source_mac, ETHERTYPE_IPV4);
    // Don't fragment: the identification may then be zero (RFC 6864).
    buffer.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, REPLY_HOP_LIMIT, PROTOCOL_UDP, 0, 0]);
    buffer.extend_from_slice(&route.source.octets());
    buffer.extend_from_slice(&route.destination.octets());
    put_udp(buffer, DHCP4_SERVER_PORT, DHCP4_CLIENT_PORT);
}

/// Fills in lengths and checksums.
pub fn finish_dhcp4_frame(buffer: &mut [u8]) {
    let Some(packet) = buffer.get_mut(ETHERNET_BYTES..) else { return };
    let total = packet.len();
    let Some((header, datagram)) = packet.split_at_mut_checked(IPV4_BYTES) else { return };
    header[2..4].copy_from_slice(&length_bytes(total));
    let sum = finish_checksum(add_words(0, header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let length = length_bytes(datagram.len());
    let pseudo = add_words(add_words(0, &header[12..20]), &[0, PROTOCOL_UDP, length[0], length[1]]);
    finish_udp(datagram, pseudo);
}

/// Replaces the content of the buffer with headers for a DHCPv6 reply. The message follows, then
/// [`finish_ipv6_frame`].
pub fn begin_dhcp6_frame(buffer: &mut Vec<u8>, route: &Ipv6Route) {
    begin_ipv6_frame(buffer, route, PROTOCOL_UDP, REPLY_HOP_LIMIT);
    put_udp(buffer, DHCP6_SERVER_PORT, DHCP6_CLIENT_PORT);
}

/// Replaces the content of the buffer with headers for a router advertisement. The message with an empty checksum
/// follows, then [`finish_ipv6_frame`].
pub fn begin_neighbour_frame(buffer: &mut Vec<u8>, route: &Ipv6Route) {
    begin_ipv6_frame(buffer, route, PROTOCOL_ICMPV6, ND_HOP_LIMIT);
}

fn begin_ipv6_frame(buffer: &mut Vec<u8>, route: &Ipv6Route, next_header: u8, hop_limit: u8) {
    buffer.clear();
    put_ethernet(buffer, route.destination_mac, route.source_mac, ETHERTYPE_IPV6);
    buffer.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, next_header, hop_limit]);
    buffer.extend_from_slice(&route.source.octets());
    buffer.extend_from_slice(&route.destination.octets());
}

/// Fills in length and checksum.
pub fn finish_ipv6_frame(buffer: &mut [u8]) {
    let Some(packet) = buffer.get_mut(ETHERNET_BYTES..) else { return };
    let Some((header, payload)) = packet.split_at_mut_checked(IPV6_BYTES) else { return };
    let length = length_bytes(payload.len());
    header[4..6].copy_from_slice(&length);
    let pseudo = add_words(add_words(0, &header[8..40]), &[length[0], length[1], 0, header[6]]);
    if header[6] == PROTOCOL_UDP {
        finish_udp(payload, pseudo);
    } else if payload.len() >= 4 {
        let sum = finish_checksum(add_words(pseudo, payload));
        payload[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

fn put_ethernet(buffer: &mut Vec<u8>, destination: MacAddress, source: MacAddress, ethertype: u16) {
    buffer.extend_from_slice(&destination.0);
    buffer.extend_from_slice(&source.0);
    buffer.extend_from_slice(&ethertype.to_be_bytes());
}

fn put_udp(buffer: &mut Vec<u8>, source: u16, destination: u16) {
    buffer.extend_from_slice(&source.to_be_bytes());
    buffer.extend_from_slice(&destination.to_be_bytes());
    buffer.extend_from_slice(&[0; 4]);
}

fn finish_udp(datagram: &mut [u8], pseudo: u32) {
    if datagram.len() < UDP_BYTES {
        return;
    }
    let length = length_bytes(datagram.len());
    datagram[4..6].copy_from_slice(&length);
    // Zero means that there is no checksum, so a sum of zero is written as its other form (RFC 768).
    let sum = match finish_checksum(add_words(pseudo, datagram)) {
        0 => u16::MAX,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
}

fn length_bytes(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

/// Adds 16-bit words to the sum of the Internet checksum (RFC 1071).
pub(crate) fn add_words(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]);
        sum + u32::from(word)
    })
}

pub(crate) fn finish_checksum(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or_default()
}
