//! Tunnels between nodes: the devices of this one, and where those of the others are.

use crate::set::SetId;
use std::net::{IpAddr, SocketAddr};

/// The tunnels that a node can have; one device for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TunnelKind {
    VxlanV4,
    VxlanV6,
    /// For IPv4 alone.
    Ipip,
    WireguardV4,
    WireguardV6,
}

impl TunnelKind {
    pub const ALL: [TunnelKind; 5] = [
        TunnelKind::VxlanV4,
        TunnelKind::VxlanV6,
        TunnelKind::Ipip,
        TunnelKind::WireguardV4,
        TunnelKind::WireguardV6,
    ];

    pub const fn wireguard(is_ipv4: bool) -> TunnelKind {
        if is_ipv4 { TunnelKind::WireguardV4 } else { TunnelKind::WireguardV6 }
    }

    pub const fn is_wireguard(self) -> bool {
        matches!(self, TunnelKind::WireguardV4 | TunnelKind::WireguardV6)
    }

    /// What its device is called, unless an administrator calls that of a WireGuard otherwise.
    pub const fn device(self) -> &'static str {
        match self {
            TunnelKind::VxlanV4 => "vxlan.calico",
            TunnelKind::VxlanV6 => "vxlan-v6.calico",
            TunnelKind::Ipip => "tunl0",
            TunnelKind::WireguardV4 => "wireguard.cali",
            TunnelKind::WireguardV6 => "wg-v6.cali",
        }
    }

    pub const fn is_ipv4(self) -> bool {
        match self {
            TunnelKind::VxlanV4 | TunnelKind::Ipip | TunnelKind::WireguardV4 => true,
            TunnelKind::VxlanV6 | TunnelKind::WireguardV6 => false,
        }
    }

    /// Bytes that it adds to a packet.
    pub const fn overhead(self) -> u32 {
        match self {
            TunnelKind::VxlanV4 => 50,
            TunnelKind::VxlanV6 => 70,
            TunnelKind::Ipip => 20,
            TunnelKind::WireguardV4 => 60,
            TunnelKind::WireguardV6 => 80,
        }
    }

    /// As people call it.
    pub const fn name(self) -> &'static str {
        match self {
            TunnelKind::VxlanV4 => "VXLAN",
            TunnelKind::VxlanV6 => "VXLAN over IPv6",
            TunnelKind::Ipip => "IPIP",
            TunnelKind::WireguardV4 => "WireGuard",
            TunnelKind::WireguardV6 => "WireGuard over IPv6",
        }
    }

    /// The setting that gives its MTU.
    pub const fn mtu_setting(self) -> &'static str {
        match self {
            TunnelKind::VxlanV4 => "vxlanMTU",
            TunnelKind::VxlanV6 => "vxlanMTUV6",
            TunnelKind::Ipip => "ipipMTU",
            TunnelKind::WireguardV4 => "wireguardMTU",
            TunnelKind::WireguardV6 => "wireguardMTUV6",
        }
    }

    /// The set of the plan with the nodes from which wrapped packets are taken. WireGuard knows by itself whose packets
    /// it takes.
    pub fn peers(self) -> Option<SetId> {
        let id = match self {
            TunnelKind::VxlanV4 => "all-vxlan-net",
            TunnelKind::VxlanV6 => "all-vxlan-v6-net",
            TunnelKind::Ipip => "all-hosts-net",
            TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => return None,
        };
        Some(SetId(id.into()))
    }
}

/// A tunnel device of this node. While it is in the plan, wrapped packets of its kind are taken from the peers' set and
/// from nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelDevice {
    pub name: String,
    /// The only address on it; none until one has been allocated.
    pub address: Option<IpAddr>,
    /// The address of this node that wrapped packets come from; the interface that has it carries them.
    pub local: IpAddr,
    /// Given by an administrator; otherwise that of the interface which carries it, less the overhead.
    pub mtu: Option<u32>,
    pub protocol: TunnelProtocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelProtocol {
    Vxlan {
        vni: u32,
        port: u16,
        mac: [u8; 6],
    },
    Ipip,
    /// It listens at `port`. What it sends has `mark`, so that no routing rule leads it back into the tunnel.
    Wireguard {
        port: u16,
        mark: u32,
        /// The kernel gives it a thread of its own to receive (NAPI).
        threaded: bool,
    },
}

/// Which end of a VXLAN: that of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VtepId {
    pub tunnel: TunnelKind,
    pub node: String,
}

/// The end of a VXLAN at another node: becomes a neighbour entry and a forwarding entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// Inside the tunnel.
    pub address: IpAddr,
    pub mac: [u8; 6],
    /// The node's own address, outside.
    pub node: IpAddr,
}

/// Which end of a WireGuard: that of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WireguardPeerId {
    pub tunnel: TunnelKind,
    pub node: String,
}

/// The end of a WireGuard at another node. It may send, and is sent, what the plan's routes lead through the tunnel to
/// the address of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireguardPeer {
    pub key: [u8; 32],
    /// The node's own address, outside.
    pub endpoint: SocketAddr,
    /// In seconds; 0 is never.
    pub keepalive: u16,
}
