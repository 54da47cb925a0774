//! A packet as policy sees it.

use crate::policy::{IcmpMatch, IpVersion};
use crate::tunnel::TunnelProtocol;
use std::net::IpAddr;

/// Header fields of a packet. Source and destination have the same family; the destination is the one after DNAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Port of TCP, UDP, SCTP and UDPLite; meaningless for other protocols.
    pub source_port: u16,
    pub destination_port: u16,
    /// Type and code of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
}

impl Packet {
    pub const ICMP: u8 = 1;
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
    pub const SCTP: u8 = 132;
    pub const UDPLITE: u8 = 136;

    /// Returns whether this is a packet of a tunnel with the protocol.
    pub(super) fn is_encapsulated(&self, tunnel: TunnelProtocol) -> bool {
        match tunnel {
            TunnelProtocol::Vxlan { port, .. } | TunnelProtocol::Wireguard { port, .. } => {
                self.protocol == Packet::UDP && self.destination_port == port
            }
            TunnelProtocol::Ipip => self.protocol == Packet::IPIP,
        }
    }

    pub fn version(&self) -> IpVersion {
        match self.destination {
            IpAddr::V4(_) => IpVersion::V4,
            IpAddr::V6(_) => IpVersion::V6,
        }
    }

    pub fn has_ports(&self) -> bool {
        matches!(self.protocol, Packet::TCP | Packet::UDP | Packet::SCTP | Packet::UDPLITE)
    }

    /// Returns type and code if the packet is ICMP over IPv4 or ICMPv6 over IPv6.
    pub(super) fn own_icmp(&self) -> Option<(u8, u8)> {
        let own = match self.version() {
            IpVersion::V4 => Packet::ICMP,
            IpVersion::V6 => Packet::ICMPV6,
        };
        self.icmp.filter(|_| self.protocol == own)
    }

    pub(super) fn is_icmp(&self, wanted: &IcmpMatch) -> bool {
        self.own_icmp().is_some_and(|(kind, code)| {
            kind == wanted.r#type && wanted.code.is_none_or(|wanted| wanted == code)
        })
    }
}

/// The connection tracking state of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConntrackState {
    #[default]
    New,
    Established,
    Related,
    Invalid,
    Untracked,
}

impl ConntrackState {
    /// Returns whether the packet belongs to a flow that was allowed before.
    pub(super) fn is_known(self) -> bool {
        matches!(self, ConntrackState::Established | ConntrackState::Related)
    }
}
