//! Tunnels between nodes: the devices of this node and the endpoints of other nodes.

use crate::set::SetId;
use std::net::{IpAddr, SocketAddr};

/// Kinds of tunnels; a node has at most one device of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TunnelKind {
    VxlanV4,
    VxlanV6,
    /// IPv4 only.
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

    /// Returns the default name of its device. An administrator may rename WireGuard devices.
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

    /// Returns the bytes that encapsulation adds to a packet.
    pub const fn overhead(self) -> u32 {
        match self {
            TunnelKind::VxlanV4 => 50,
            TunnelKind::VxlanV6 => 70,
            TunnelKind::Ipip => 20,
            TunnelKind::WireguardV4 => 60,
            TunnelKind::WireguardV6 => 80,
        }
    }

    /// Returns the name for users.
    pub const fn name(self) -> &'static str {
        match self {
            TunnelKind::VxlanV4 => "VXLAN",
            TunnelKind::VxlanV6 => "VXLAN over IPv6",
            TunnelKind::Ipip => "IPIP",
            TunnelKind::WireguardV4 => "WireGuard",
            TunnelKind::WireguardV6 => "WireGuard over IPv6",
        }
    }

    /// Returns the name of the setting for its MTU.
    pub const fn mtu_setting(self) -> &'static str {
        match self {
            TunnelKind::VxlanV4 => "vxlanMTU",
            TunnelKind::VxlanV6 => "vxlanMTUV6",
            TunnelKind::Ipip => "ipipMTU",
            TunnelKind::WireguardV4 => "wireguardMTU",
            TunnelKind::WireguardV6 => "wireguardMTUV6",
        }
    }

    /// Returns the ID of the set of nodes from which encapsulated packets are accepted. WireGuard has none: it
    /// authenticates its peers.
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

/// A tunnel device of this node. While it is in the plan, encapsulated packets of its kind are accepted only from
/// nodes in the set of peers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TunnelDevice {
    pub name: String,
    /// The only address of the device; `None` until one has been allocated.
    pub address: Option<IpAddr>,
    /// Source address of encapsulated packets; the interface that has it is the underlay of the tunnel.
    pub local: IpAddr,
    /// Set by an administrator; otherwise the MTU of the underlay interface minus the overhead.
    pub mtu: Option<u32>,
    pub protocol: TunnelProtocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelProtocol {
    Vxlan {
        vni: u32,
        port: u16,
        mac: [u8; 6],
    },
    Ipip,
    /// Listens on `port`. The packets that it sends carry `mark`, so that no routing rule sends them back into the
    /// tunnel.
    Wireguard {
        port: u16,
        mark: u32,
        /// The kernel uses a separate thread to receive (threaded NAPI).
        threaded: bool,
    },
}

/// Identifies the VXLAN endpoint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VtepId {
    pub tunnel: TunnelKind,
    pub node: String,
}

/// The VXLAN endpoint of another node; it becomes a neighbour entry and a forwarding entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vtep {
    /// Address inside the tunnel.
    pub address: IpAddr,
    pub mac: [u8; 6],
    /// The node's own address, outside the tunnel.
    pub node: IpAddr,
}

/// Identifies the WireGuard endpoint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WireguardPeerId {
    pub tunnel: TunnelKind,
    pub node: String,
}

/// The WireGuard peer of another node. Its allowed IPs are the destinations of the plan's routes through the tunnel
/// to the address of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireguardPeer {
    pub key: [u8; 32],
    /// The node's own address, outside the tunnel.
    pub endpoint: SocketAddr,
    /// Keepalive interval in seconds; 0 disables it.
    pub keepalive: u16,
}
