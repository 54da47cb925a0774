//! How tunnel addresses of nodes are recorded in IPAM blocks, in the format that all Calico components use.

use super::owner::{Holder, attribute};
use std::collections::BTreeMap;

/// The tunnel types that need an address, in the order in which they are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tunnel {
    WireguardV4,
    WireguardV6,
    Ipip,
    VxlanV4,
    VxlanV6,
}

/// The part of a handle between the tunnel type and the node name.
const TUNNEL_HANDLE: &str = "-tunnel-addr-";

impl Tunnel {
    pub const ALL: [Tunnel; 5] =
        [Tunnel::WireguardV4, Tunnel::WireguardV6, Tunnel::Ipip, Tunnel::VxlanV4, Tunnel::VxlanV6];

    pub const fn version(self) -> u8 {
        match self {
            Tunnel::WireguardV4 | Tunnel::Ipip | Tunnel::VxlanV4 => 4,
            Tunnel::WireguardV6 | Tunnel::VxlanV6 => 6,
        }
    }

    /// Returns the value of the attribute `type`.
    pub const fn attribute(self) -> &'static str {
        match self {
            Tunnel::WireguardV4 => "wireguardTunnelAddress",
            Tunnel::WireguardV6 => "wireguardV6TunnelAddress",
            Tunnel::Ipip => "ipipTunnelAddress",
            Tunnel::VxlanV4 => "vxlanTunnelAddress",
            Tunnel::VxlanV6 => "vxlanV6TunnelAddress",
        }
    }

    /// Returns the tunnel type for the value of an attribute `type`.
    pub fn of_attribute(text: &str) -> Option<Tunnel> {
        Tunnel::ALL.into_iter().find(|tunnel| tunnel.attribute() == text)
    }

    const fn handle_prefix(self) -> &'static str {
        match self {
            Tunnel::WireguardV4 => "wireguard",
            Tunnel::WireguardV6 => "wireguard-v6",
            Tunnel::Ipip => "ipip",
            Tunnel::VxlanV4 => "vxlan",
            Tunnel::VxlanV6 => "vxlan-v6",
        }
    }

    /// Returns the handle of a node's tunnel address, such as `vxlan-v6-tunnel-addr-rack1-n7`.
    pub fn handle(self, node: &str) -> String {
        format!("{}{TUNNEL_HANDLE}{node}", self.handle_prefix())
    }

    /// Returns the tunnel type and the node name of a handle.
    pub fn of_handle(handle: &str) -> Option<(Tunnel, &str)> {
        let (prefix, node) = handle.split_once(TUNNEL_HANDLE)?;
        Tunnel::ALL.into_iter().find(|tunnel| tunnel.handle_prefix() == prefix).map(|tunnel| (tunnel, node))
    }

    pub fn holder(self, node: &str) -> Holder {
        let attributes = BTreeMap::from([
            (attribute::NODE.to_owned(), node.to_owned()),
            (attribute::TYPE.to_owned(), self.attribute().to_owned()),
        ]);
        Holder::new(Some(&self.handle(node)), attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_attributes_lead_back_to_their_tunnels() {
        for tunnel in Tunnel::ALL {
            assert_eq!(Tunnel::of_attribute(tunnel.attribute()), Some(tunnel));
            for node in ["n1", "rack1-n7", "a-tunnel-addr-b"] {
                assert_eq!(Tunnel::of_handle(&tunnel.handle(node)), Some((tunnel, node)));
            }
        }
        assert_eq!(Tunnel::VxlanV6.handle("n1"), "vxlan-v6-tunnel-addr-n1");
        for other in ["k8s-pod-network.1234", "gre-tunnel-addr-n1", "-tunnel-addr-n1", "vxlan"] {
            assert_eq!(Tunnel::of_handle(other), None, "{other}");
        }
        assert_eq!(Tunnel::of_attribute("TunnelAddress"), None);
    }
}
