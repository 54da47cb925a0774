//! How tunnel addresses of nodes are recorded in IPAM blocks, in the format that all Calico components use.

use super::owner::{AddressHolder, attribute};
use std::collections::BTreeMap;

/// The tunnel types that need an address, in the order in which they are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelType {
    WireguardV4,
    WireguardV6,
    Ipip,
    VxlanV4,
    VxlanV6,
}

/// The part of a handle between the tunnel type and the node name.
const TUNNEL_HANDLE_INFIX: &str = "-tunnel-addr-";

impl TunnelType {
    pub const ALL: [TunnelType; 5] = [
        TunnelType::WireguardV4,
        TunnelType::WireguardV6,
        TunnelType::Ipip,
        TunnelType::VxlanV4,
        TunnelType::VxlanV6,
    ];

    pub const fn version(self) -> u8 {
        match self {
            TunnelType::WireguardV4 | TunnelType::Ipip | TunnelType::VxlanV4 => 4,
            TunnelType::WireguardV6 | TunnelType::VxlanV6 => 6,
        }
    }

    /// Returns the value of the attribute `type`.
    pub const fn attribute(self) -> &'static str {
        match self {
            TunnelType::WireguardV4 => "wireguardTunnelAddress",
            TunnelType::WireguardV6 => "wireguardV6TunnelAddress",
            TunnelType::Ipip => "ipipTunnelAddress",
            TunnelType::VxlanV4 => "vxlanTunnelAddress",
            TunnelType::VxlanV6 => "vxlanV6TunnelAddress",
        }
    }

    /// Returns the tunnel type for the value of an attribute `type`.
    pub fn of_attribute(text: &str) -> Option<TunnelType> {
        TunnelType::ALL.into_iter().find(|tunnel| tunnel.attribute() == text)
    }

    const fn handle_prefix(self) -> &'static str {
        match self {
            TunnelType::WireguardV4 => "wireguard",
            TunnelType::WireguardV6 => "wireguard-v6",
            TunnelType::Ipip => "ipip",
            TunnelType::VxlanV4 => "vxlan",
            TunnelType::VxlanV6 => "vxlan-v6",
        }
    }

    /// Returns the handle of a node's tunnel address, such as `vxlan-v6-tunnel-addr-rack1-n7`.
    pub fn handle(self, node: &str) -> String {
        format!("{}{TUNNEL_HANDLE_INFIX}{node}", self.handle_prefix())
    }

    /// Returns the tunnel type and the node name of a handle.
    pub fn of_handle(handle: &str) -> Option<(TunnelType, &str)> {
        let (prefix, node) = handle.split_once(TUNNEL_HANDLE_INFIX)?;
        TunnelType::ALL
            .into_iter()
            .find(|tunnel| tunnel.handle_prefix() == prefix)
            .map(|tunnel| (tunnel, node))
    }

    pub fn holder(self, node: &str) -> AddressHolder {
        let attributes = BTreeMap::from([
            (attribute::NODE_ATTRIBUTE.to_owned(), node.to_owned()),
            (attribute::TYPE_ATTRIBUTE.to_owned(), self.attribute().to_owned()),
        ]);
        AddressHolder::new(Some(&self.handle(node)), attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_attributes_lead_back_to_their_tunnels() {
        for tunnel in TunnelType::ALL {
            assert_eq!(TunnelType::of_attribute(tunnel.attribute()), Some(tunnel));
            for node in ["n1", "rack1-n7", "a-tunnel-addr-b"] {
                assert_eq!(TunnelType::of_handle(&tunnel.handle(node)), Some((tunnel, node)));
            }
        }
        assert_eq!(TunnelType::VxlanV6.handle("n1"), "vxlan-v6-tunnel-addr-n1");
        for other in ["k8s-pod-network.1234", "gre-tunnel-addr-n1", "-tunnel-addr-n1", "vxlan"] {
            assert_eq!(TunnelType::of_handle(other), None, "{other}");
        }
        assert_eq!(TunnelType::of_attribute("TunnelAddress"), None);
    }
}
