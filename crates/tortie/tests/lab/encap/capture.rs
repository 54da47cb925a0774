//! What goes over an interface, seen as a sniffer sees it: whole frames, of both directions.

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use tortie_dataplane::Netns;

const VXLAN_PORT: u16 = 4789;
const UDP: u8 = 17;
const ETHERNET: usize = 14;
const UDP_AND_VXLAN: usize = 16;
/// Room for what comes while nobody reads.
const BUFFER: usize = 8 << 20;

/// A packet of the pods, and whether it was seen inside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub wrapped: bool,
}

/// A packet socket on an interface of a namespace.
pub struct Capture {
    socket: OwnedFd,
}

impl Capture {
    pub fn start(namespace: &str, interface: &str) -> Capture {
        let open = || {
            let link = getifaddrs()
                .unwrap()
                .filter(|entry| entry.interface_name == interface)
                .find_map(|entry| entry.address?.as_link_addr().copied())
                .unwrap_or_else(|| panic!("{interface} is not there"));
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll)
                    .unwrap();
            setsockopt(&socket, sockopt::RcvBuf, &BUFFER).unwrap();
            // Which leaves the protocols as they are.
            bind(socket.as_raw_fd(), &link).unwrap();
            Capture { socket }
        };
        let path = format!("/run/netns/{namespace}");
        let capture = Netns::open(&path).unwrap().run(open).unwrap();
        // What came by other interfaces before it was bound to this one.
        capture.packets();
        capture
    }

    /// The packets that were seen since the last time.
    pub fn packets(&self) -> Vec<Seen> {
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

/// The packet of a frame: the inner one if there is one.
fn read(frame: &[u8]) -> Option<Seen> {
    let (source, destination, protocol, rest) = ip(frame.get(ETHERNET..)?)?;
    let port = rest.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    if protocol == UDP && port == Some(VXLAN_PORT) {
        let (source, destination, ..) = ip(rest.get(UDP_AND_VXLAN + ETHERNET..)?)?;
        return Some(Seen { source, destination, wrapped: true });
    }
    Some(Seen { source, destination, wrapped: false })
}

/// Source, destination, protocol and what follows.
fn ip(packet: &[u8]) -> Option<(IpAddr, IpAddr, u8, &[u8])> {
    let v4 = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok().map(Ipv4Addr::from);
    let v6 = |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok().map(Ipv6Addr::from);
    match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            Some((v4(12)?.into(), v4(16)?.into(), *packet.get(9)?, packet.get(header..)?))
        }
        6 => Some((v6(8)?.into(), v6(24)?.into(), *packet.get(6)?, packet.get(40..)?)),
        _ => None,
    }
}
