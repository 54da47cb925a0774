//! A source or destination of packets: a pod, a node or the outside.

use super::packets;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, recv, sendto,
};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use tortie_dataplane::Netns;
use tortie_plan::evaluate::Packet;
use tortie_testkit::bind_when_free;

const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

pub struct PacketPlace {
    netns: Netns,
    /// Raw sockets for sending complete packets.
    v4: OwnedFd,
    v6: OwnedFd,
    /// Raw sockets that receive packets after all kernel filters, before the lookup of a listener.
    ears: Vec<ReceiveSocket>,
    arrived: BTreeSet<u16>,
}

struct ReceiveSocket {
    protocol: u8,
    v4: bool,
    socket: OwnedFd,
}

impl PacketPlace {
    pub fn new(namespace: &str) -> PacketPlace {
        let netns = Netns::open(format!("/run/netns/{namespace}")).unwrap();
        let open = |family, protocol| {
            let socket = || nix::sys::socket::socket(family, SockType::Raw, SockFlag::empty(), protocol);
            netns.run(socket).unwrap().unwrap()
        };
        let (inet, inet6) = (AddressFamily::Inet, AddressFamily::Inet6);
        let heard = [
            (Packet::TCP, inet, SockProtocol::Tcp),
            (Packet::UDP, inet, SockProtocol::Udp),
            (Packet::ICMP, inet, SockProtocol::Icmp),
            (Packet::TCP, inet6, SockProtocol::Tcp),
            (Packet::UDP, inet6, SockProtocol::Udp),
            (Packet::ICMPV6, inet6, SockProtocol::IcmpV6),
        ];
        let ears = heard.map(|(protocol, family, kernel)| ReceiveSocket {
            protocol,
            v4: family == inet,
            socket: open(family, kernel),
        });
        let (v4, v6) = (open(inet, SockProtocol::Raw), open(inet6, SockProtocol::Raw));
        PacketPlace { netns, v4, v6, ears: ears.into(), arrived: BTreeSet::new() }
    }

    pub fn send(&self, packet: &Packet, number: u16) {
        let bytes = packets::bytes(packet, number);
        let sent = match packet.destination {
            IpAddr::V4(address) => {
                let to = SockaddrIn::from(SocketAddrV4::new(address, 0));
                sendto(self.v4.as_raw_fd(), &bytes, &to, MsgFlags::empty())
            }
            IpAddr::V6(address) => {
                let to = SockaddrIn6::from(SocketAddrV6::new(address, 0, 0, 0));
                sendto(self.v6.as_raw_fd(), &bytes, &to, MsgFlags::empty())
            }
        };
        assert_eq!(sent, Ok(bytes.len()), "{packet:?}");
    }

    /// Returns the numbers of all packets that have arrived so far.
    pub fn arrived(&mut self) -> &BTreeSet<u16> {
        let mut buffer = [0; 2048];
        for ear in &self.ears {
            while let Ok(length) = recv(ear.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                // IPv6 raw sockets deliver packets without the IP header.
                let header = if ear.v4 { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
                let body = buffer[..length].get(header..).unwrap_or_default();
                self.arrived.extend(packets::number(ear.protocol, body));
            }
        }
        &self.arrived
    }
}

/// Both ends of a TCP connection.
pub struct PlaceFlow {
    _listener: TcpListener,
    sender: TcpStream,
    receiver: TcpStream,
}

impl PlaceFlow {
    pub fn open(from: &PacketPlace, to: &PacketPlace, address: SocketAddr) -> PlaceFlow {
        let listener = to.netns.run(|| bind_when_free(|| TcpListener::bind(address))).unwrap().unwrap();
        let sender =
            from.netns.run(|| TcpStream::connect_timeout(&address, CONNECTION_TIMEOUT)).unwrap().unwrap();
        let (receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(CONNECTION_TIMEOUT)).unwrap();
        PlaceFlow { _listener: listener, sender, receiver }
    }

    /// Sends a byte and waits until it has arrived.
    pub fn carry(&mut self) {
        self.sender.write_all(b"x").unwrap();
        let mut byte = [0];
        self.receiver.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }
}
