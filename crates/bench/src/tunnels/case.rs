//! Encapsulation cases to measure, with the addresses that they use.

use crate::namespace::{BenchResult, NamespaceGroup};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BenchTunnelType {
    Vxlan,
    Ipip,
    Wireguard,
}

#[derive(Clone, Copy)]
pub struct EncapsulationCase {
    pub name: &'static str,
    /// Encapsulation of the pool, or WireGuard between the nodes.
    pub tunnel: Option<BenchTunnelType>,
    /// Whether packets within a rack are not encapsulated.
    pub is_cross_subnet: bool,
    /// Whether the nodes are in different racks with a router between them.
    pub is_routed: bool,
    pub v6: bool,
}

impl EncapsulationCase {
    pub const ALL: [EncapsulationCase; 12] = {
        let within =
            EncapsulationCase { name: "", tunnel: None, is_cross_subnet: false, is_routed: false, v6: false };
        let (vxlan, ipip, wireguard) =
            (Some(BenchTunnelType::Vxlan), Some(BenchTunnelType::Ipip), Some(BenchTunnelType::Wireguard));
        let routed = EncapsulationCase { is_routed: true, ..within };
        let crossing = EncapsulationCase { is_cross_subnet: true, ..within };
        [
            EncapsulationCase { name: "plain", ..within },
            EncapsulationCase { name: "plain, IPv6", v6: true, ..within },
            EncapsulationCase { name: "VXLAN", tunnel: vxlan, ..within },
            EncapsulationCase { name: "VXLAN, IPv6", tunnel: vxlan, v6: true, ..within },
            EncapsulationCase { name: "VXLAN between racks", tunnel: vxlan, ..routed },
            EncapsulationCase { name: "VXLAN CrossSubnet, in a rack", tunnel: vxlan, ..crossing },
            EncapsulationCase {
                name: "VXLAN CrossSubnet, between racks",
                tunnel: vxlan,
                is_routed: true,
                ..crossing
            },
            EncapsulationCase { name: "IPIP", tunnel: ipip, ..within },
            EncapsulationCase { name: "IPIP CrossSubnet, in a rack", tunnel: ipip, ..crossing },
            EncapsulationCase {
                name: "IPIP CrossSubnet, between racks",
                tunnel: ipip,
                is_routed: true,
                ..crossing
            },
            EncapsulationCase { name: "WireGuard", tunnel: wireguard, ..within },
            EncapsulationCase { name: "WireGuard, IPv6", tunnel: wireguard, v6: true, ..within },
        ]
    };

    /// Returns the same nodes without a tunnel.
    pub fn plain(self) -> EncapsulationCase {
        EncapsulationCase { tunnel: None, is_cross_subnet: false, ..self }
    }

    /// Returns the tunnel that packets between these two nodes use.
    pub fn taken(self) -> Option<BenchTunnelType> {
        self.tunnel.filter(|_| self.is_routed || !self.is_cross_subnet)
    }

    /// Returns the pool's mode for this type of tunnel.
    pub fn mode(self, tunnel: BenchTunnelType) -> &'static str {
        match (self.tunnel == Some(tunnel), self.is_cross_subnet) {
            (false, _) => "Never",
            (true, false) => "Always",
            (true, true) => "CrossSubnet",
        }
    }

    /// Returns the MTU of pods, which allows for the largest overhead that their packets may get.
    pub fn mtu(self) -> u32 {
        let overhead = match (self.tunnel, self.v6) {
            (None, _) => 0,
            (Some(BenchTunnelType::Ipip), _) => 20,
            (Some(BenchTunnelType::Vxlan), false) => 50,
            (Some(BenchTunnelType::Vxlan), true) => 70,
            (Some(BenchTunnelType::Wireguard), false) => 60,
            (Some(BenchTunnelType::Wireguard), true) => 80,
        };
        1500 - overhead
    }

    pub fn node(self, number: u8) -> IpNet {
        let (rack, host) = if self.is_routed { (number, 1) } else { (0, number + 1) };
        self.of_rack(rack, host)
    }

    /// Returns the router's address in the rack of a node.
    pub fn router(self, number: u8) -> IpNet {
        self.of_rack(number, 254)
    }

    fn of_rack(self, rack: u8, host: u8) -> IpNet {
        let (address, length): (IpAddr, u8) = match self.v6 {
            false => (Ipv4Addr::new(172, 30, rack, host).into(), 24),
            true => (Ipv6Addr::new(0xfd30, 0, 0, rack.into(), 0, 0, 0, host.into()).into(), 64),
        };
        IpNet::new_assert(address, length)
    }

    /// Returns the default gateway of a node.
    pub fn gateway(self, number: u8) -> IpAddr {
        if self.is_routed { self.router(number).addr() } else { self.node(1 - number).addr() }
    }

    pub fn pod(self, number: u8) -> IpAddr {
        self.of_block(number, 10)
    }

    /// Returns the tunnel address of a node.
    pub fn end(self, number: u8) -> IpAddr {
        self.of_block(number, 1)
    }

    pub fn block(self, number: u8) -> IpNet {
        IpNet::new_assert(self.of_block(number, 0), if self.v6 { 122 } else { 26 })
    }

    pub fn pool(self) -> IpNet {
        IpNet::new_assert(self.of_block(0, 0), if self.v6 { 48 } else { 16 })
    }

    fn of_block(self, number: u8, host: u8) -> IpAddr {
        match self.v6 {
            false => Ipv4Addr::new(10, 65, number, host).into(),
            true => Ipv6Addr::new(0xfd65, 0, 0, number.into(), 0, 0, 0, host.into()).into(),
        }
    }

    /// Returns whether the running kernel supports this tunnel.
    pub fn is_there(self) -> BenchResult<bool> {
        let words = match self.tunnel {
            None => return Ok(true),
            Some(BenchTunnelType::Vxlan) => "link add try type vxlan id 1 dstport 4789",
            Some(BenchTunnelType::Ipip) => "link add try type ipip local 192.0.2.1 remote 192.0.2.2",
            Some(BenchTunnelType::Wireguard) => "link add try type wireguard",
        };
        let place = NamespaceGroup::new(1)?;
        let made = Command::new("ip").args(["-n", place.name(0)]).args(words.split(' ')).output()?;
        Ok(made.status.success())
    }
}
