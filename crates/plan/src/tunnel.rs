//! Tunnels between nodes: the devices of this one, and where those of the others are.

use crate::set::SetId;
use std::net::IpAddr;

/// The tunnels that a node can have; one device for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TunnelKind {
    VxlanV4,
    VxlanV6,
    /// For IPv4 alone.
    Ipip,
}

impl TunnelKind {
    pub const ALL: [TunnelKind; 3] = [TunnelKind::VxlanV4, TunnelKind::VxlanV6, TunnelKind::Ipip];

    pub const fn device(self) -> &'static str {
        match self {
            TunnelKind::VxlanV4 => "vxlan.calico",
            TunnelKind::VxlanV6 => "vxlan-v6.calico",
            TunnelKind::Ipip => "tunl0",
        }
    }

    pub const fn is_ipv4(self) -> bool {
        match self {
            TunnelKind::VxlanV4 | TunnelKind::Ipip => true,
            TunnelKind::VxlanV6 => false,
        }
    }

    /// Bytes that it adds to a packet.
    pub const fn overhead(self) -> u32 {
        match self {
            TunnelKind::VxlanV4 => 50,
            TunnelKind::VxlanV6 => 70,
            TunnelKind::Ipip => 20,
        }
    }

    /// The set of the plan with the nodes from which wrapped packets are taken.
    pub fn peers(self) -> SetId {
        SetId(
            match self {
                TunnelKind::VxlanV4 => "all-vxlan-net",
                TunnelKind::VxlanV6 => "all-vxlan-v6-net",
                TunnelKind::Ipip => "all-hosts-net",
            }
            .into(),
        )
    }
}

/// A tunnel device of this node. While it is in the plan, wrapped packets of its kind are taken from the peers' set and
/// from nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelDevice {
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
    Vxlan { vni: u32, port: u16, mac: [u8; 6] },
    Ipip,
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
