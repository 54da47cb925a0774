//! The addresses and tunnel endpoints of a node, which routing depends on.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ipnet::IpNet;
use sha1::{Digest, Sha1};
use std::net::IpAddr;
use tortie_model::kinds::{Node, NodeAddressType};
use tortie_plan::TunnelKind;

/// First byte of every MAC that is derived from a node name: locally administered, not multicast.
const DERIVED_MAC_PREFIX: u8 = 0x66;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeAddresses {
    /// With the prefix length of its subnet, if known.
    pub v4: Option<IpNet>,
    pub v6: Option<IpNet>,
    pub vxlan_v4: VxlanEndpoint,
    pub vxlan_v6: VxlanEndpoint,
    /// The address of its IPIP tunnel.
    pub ipip: Option<IpAddr>,
    pub wireguard_v4: WireguardEndpoint,
    pub wireguard_v6: WireguardEndpoint,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WireguardEndpoint {
    /// `None` until one has been allocated, and if nodes use their own addresses.
    pub address: Option<IpAddr>,
    /// `None` if the node does not encrypt.
    pub key: Option<[u8; 32]>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VxlanEndpoint {
    /// `None` until one has been allocated.
    pub address: Option<IpAddr>,
    pub mac: [u8; 6],
}

impl NodeAddresses {
    pub fn of(node: &Node) -> NodeAddresses {
        let spec = &node.spec;
        let name = &node.metadata.name;
        let (v4, v6) = addresses(node);
        let end = |address: &str, is_ipv4: bool, mac: &str, name: &str| VxlanEndpoint {
            address: tunnel_address(address, is_ipv4),
            mac: parse_mac(mac).unwrap_or_else(|| derived_mac(name)),
        };
        let ipip = spec.bgp.as_ref().and_then(|bgp| tunnel_address(&bgp.ipv4_ipip_tunnel_addr, true));
        let wireguard = spec.wireguard.clone().unwrap_or_default();
        let wireguard_end = |address: &str, is_ipv4: bool, key: &str| WireguardEndpoint {
            address: tunnel_address(address, is_ipv4),
            key: parse_key(key),
        };
        let status = &node.status;
        NodeAddresses {
            wireguard_v4: wireguard_end(
                &wireguard.interface_ipv4_address,
                true,
                &status.wireguard_public_key,
            ),
            wireguard_v6: wireguard_end(
                &wireguard.interface_ipv6_address,
                false,
                &status.wireguard_public_key_v6,
            ),
            v4,
            v6,
            vxlan_v4: end(&spec.ipv4_vxlan_tunnel_addr, true, &spec.vxlan_tunnel_mac_addr, name),
            vxlan_v6: end(
                &spec.ipv6_vxlan_tunnel_addr,
                false,
                &spec.vxlan_tunnel_mac_addr_v6,
                &format!("{name}-v6"),
            ),
            ipip,
        }
    }

    pub fn address(&self, is_ipv4: bool) -> Option<IpNet> {
        if is_ipv4 { self.v4 } else { self.v6 }
    }

    /// Returns the node's address of each family as a prefix of full length.
    pub fn host_nets(&self) -> Vec<IpNet> {
        [self.v4, self.v6].into_iter().flatten().map(|net| IpNet::from(net.addr())).collect()
    }

    /// Returns every address of the node in the datastore, including those of its tunnels.
    pub fn all_addresses(&self, node: &Node) -> Vec<IpAddr> {
        let listed = node.spec.addresses.iter().filter_map(|listed| parse_net(&listed.address));
        let own = [self.v4, self.v6].into_iter().flatten().chain(listed).map(|net| net.addr());
        let tunnels = [
            self.vxlan_v4.address,
            self.vxlan_v6.address,
            self.ipip,
            self.wireguard_v4.address,
            self.wireguard_v6.address,
        ];
        own.chain(tunnels.into_iter().flatten()).collect()
    }

    pub fn vxlan(&self, is_ipv4: bool) -> VxlanEndpoint {
        if is_ipv4 { self.vxlan_v4 } else { self.vxlan_v6 }
    }

    pub fn wireguard(&self, is_ipv4: bool) -> WireguardEndpoint {
        if is_ipv4 { self.wireguard_v4 } else { self.wireguard_v6 }
    }

    /// Returns the address of this node inside a tunnel.
    pub fn tunnel_address(&self, tunnel: TunnelKind) -> Option<IpAddr> {
        match tunnel {
            TunnelKind::VxlanV4 => self.vxlan_v4.address,
            TunnelKind::VxlanV6 => self.vxlan_v6.address,
            TunnelKind::Ipip => self.ipip,
            TunnelKind::WireguardV4 => self.wireguard_v4.address,
            TunnelKind::WireguardV6 => self.wireguard_v6.address,
        }
    }
}

/// Parses the address of a tunnel. Some clients write it with a prefix length.
fn tunnel_address(text: &str, is_ipv4: bool) -> Option<IpAddr> {
    parse_net(text).map(|net| net.addr()).filter(|address| address.is_ipv4() == is_ipv4)
}

fn parse_net(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().map(IpNet::from).ok())
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// Parses a public key. All zeros count as no key, as in the kernel.
fn parse_key(text: &str) -> Option<[u8; 32]> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    <[u8; 32]>::try_from(bytes).ok().filter(|key| *key != [0; 32])
}

/// Returns the MAC of a VXLAN device for which none is configured: every node can derive it from the node name.
fn derived_mac(name: &str) -> [u8; 6] {
    let mut mac = [DERIVED_MAC_PREFIX; 6];
    let digest = Sha1::digest(name.as_bytes());
    mac.iter_mut().skip(1).zip(digest).for_each(|(byte, hashed)| *byte = hashed);
    mac
}

/// Returns one address of each family: the one BGP uses, else an internal one, else an external one.
fn addresses(node: &Node) -> (Option<IpNet>, Option<IpNet>) {
    let bgp = node.spec.bgp.as_ref();
    let routing = [bgp.map(|bgp| bgp.ipv4_address.as_str()), bgp.map(|bgp| bgp.ipv6_address.as_str())];
    let listed = |kind: NodeAddressType| {
        node.spec.addresses.iter().filter(move |a| a.type_ == kind).map(|a| a.address.as_str())
    };
    let candidates = routing
        .into_iter()
        .flatten()
        .chain(listed(NodeAddressType::CalicoNodeIP))
        .chain(listed(NodeAddressType::InternalIP))
        .chain(listed(NodeAddressType::ExternalIP));
    let (mut v4, mut v6) = (None, None);
    for text in candidates {
        match parse_net(text) {
            Some(net @ IpNet::V4(_)) => v4 = v4.or(Some(net)),
            Some(net @ IpNet::V6(_)) => v6 = v6.or(Some(net)),
            None => {}
        }
    }
    (v4, v6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_those_of_the_reference() {
        assert_eq!(derived_mac("worker-7"), [0x66, 0xc4, 0xa2, 0x2f, 0x77, 0x0c]);
        assert_eq!(derived_mac("worker-7-v6"), [0x66, 0xeb, 0x0c, 0x9c, 0xa1, 0x98]);
    }

    #[test]
    fn a_mac_that_is_none_is_not_used() {
        assert_eq!(parse_mac("66:c4:A2:2f:77:0c"), Some([0x66, 0xc4, 0xa2, 0x2f, 0x77, 0x0c]));
        for bad in ["", "66:c4:a2:2f:77", "66:c4:a2:2f:77:0c:01", "66:c4:a2:2f:77:xx", "6666:0:0:0:0:0"] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
    }
}
