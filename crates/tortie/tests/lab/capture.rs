//! Captures all frames on an interface, in both directions, and parses their IP headers.

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use tortie_dataplane::Netns;

const VXLAN_PORT: u16 = 4789;
/// Ports for IPv4 and IPv6.
const WIREGUARD_PORTS: [u16; 2] = [51820, 51821];
const PROTOCOL_IPIP: u8 = 4;
const PROTOCOL_UDP: u8 = 17;
const ETHERNET_HEADER_BYTES: usize = 14;
const UDP_VXLAN_HEADER_BYTES: usize = 16;
/// Receive buffer size, for packets that arrive between two reads.
const CAPTURE_BUFFER_BYTES: usize = 8 << 20;

/// Encapsulation of a captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketEncapsulation {
    None,
    Vxlan,
    Ipip,
    /// Encrypted: the addresses are those of the nodes.
    Wireguard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub wrap: PacketEncapsulation,
    /// Whether the packet or its outer packet is a fragment.
    pub is_fragment: bool,
}

/// A packet socket on an interface of a namespace.
pub struct PacketCapture {
    socket: OwnedFd,
}

impl PacketCapture {
    pub fn start(namespace: &str, interface: &str) -> PacketCapture {
        let open = || {
            let link = getifaddrs()
                .unwrap()
                .filter(|entry| entry.interface_name == interface)
                .find_map(|entry| entry.address?.as_link_addr().copied())
                .unwrap_or_else(|| panic!("{interface} is not there"));
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll)
                    .unwrap();
            setsockopt(&socket, sockopt::RcvBuf, &CAPTURE_BUFFER_BYTES).unwrap();
            // The protocol of the address is 0, so that the socket keeps its own.
            bind(socket.as_raw_fd(), &link).unwrap();
            PacketCapture { socket }
        };
        let path = format!("/run/netns/{namespace}");
        let capture = Netns::open(&path).unwrap().run(open).unwrap();
        // Discard packets that other interfaces received before the bind.
        capture.packets();
        capture
    }

    /// Returns the packets captured since the last call.
    pub fn packets(&self) -> Vec<CapturedPacket> {
        let mut packets = Vec::new();
        let mut frame = vec![0; 65536];
        loop {
            match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                Ok(length) => packets.extend(read(&frame[..length])),
                Err(Errno::EAGAIN) => return packets,
                Err(error) => panic!("cannot capture: {error}"),
            }
        }
    }
}

/// Parses a frame; returns the inner packet if there is a readable one.
fn read(frame: &[u8]) -> Option<CapturedPacket> {
    let outer = IpHeader::read(frame.get(ETHERNET_HEADER_BYTES..)?)?;
    let port = outer.rest.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    let port = port.filter(|_| outer.protocol == PROTOCOL_UDP);
    let (inner, wrap) = match port {
        Some(VXLAN_PORT) => (
            IpHeader::read(outer.rest.get(UDP_VXLAN_HEADER_BYTES + ETHERNET_HEADER_BYTES..)?)?,
            PacketEncapsulation::Vxlan,
        ),
        Some(port) if WIREGUARD_PORTS.contains(&port) => (outer, PacketEncapsulation::Wireguard),
        _ if outer.protocol == PROTOCOL_IPIP => (IpHeader::read(outer.rest)?, PacketEncapsulation::Ipip),
        _ => (outer, PacketEncapsulation::None),
    };
    let is_fragment = outer.is_fragment || inner.is_fragment;
    Some(CapturedPacket { source: inner.source, destination: inner.destination, wrap, is_fragment })
}

#[derive(Clone, Copy)]
struct IpHeader<'p> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    is_fragment: bool,
    rest: &'p [u8],
}

impl IpHeader<'_> {
    fn read(packet: &[u8]) -> Option<IpHeader<'_>> {
        const OFFSET_OR_MORE: u16 = 0x3fff;
        const FRAGMENT_HEADER: u8 = 44;
        let v4 = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok().map(Ipv4Addr::from);
        let v6 = |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok().map(Ipv6Addr::from);
        let ip = match packet.first()? >> 4 {
            4 => {
                let header = usize::from(packet[0] & 15) * 4;
                let flags = u16::from_be_bytes(packet.get(6..8)?.try_into().ok()?);
                IpHeader {
                    source: v4(12)?.into(),
                    destination: v4(16)?.into(),
                    protocol: *packet.get(9)?,
                    is_fragment: flags & OFFSET_OR_MORE != 0,
                    rest: packet.get(header..)?,
                }
            }
            6 => IpHeader {
                source: v6(8)?.into(),
                destination: v6(24)?.into(),
                protocol: *packet.get(6)?,
                is_fragment: packet.get(6) == Some(&FRAGMENT_HEADER),
                rest: packet.get(40..)?,
            },
            _ => return None,
        };
        Some(ip)
    }
}
