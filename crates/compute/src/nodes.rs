//! The properties of a node that the plan depends on, parsed once for all parts of the computation.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ipnet::IpNet;
use sha1::{Digest, Sha1};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use tortie_model::kinds::{Node, NodeAddressType, NodeBGPSpec};
use tortie_plan::TunnelKind;

/// First byte of every MAC that is derived from a node name. Its bits mean: locally administered, not multicast.
const DERIVED_MAC_PREFIX: u8 = 0x66;

/// Maximum number of addresses with which one node is a peer of policy rules. Every node of the cluster stores them for
/// each rule that selects nodes.
pub(crate) const MAX_PEER_ADDRESSES: usize = 64;

/// Label with the value `true` on nodes that must not receive external traffic for services.
const EXCLUDE_FROM_LB_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The properties of a Node that the plan depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    pub labels: BTreeMap<String, String>,
    /// IPv4 address of the node, with the prefix length of its subnet if that is known.
    pub v4: Option<IpNet>,
    pub v6: Option<IpNet>,
    pub vxlan_v4: VxlanEndpoint,
    pub vxlan_v6: VxlanEndpoint,
    /// The address of its IPIP tunnel.
    pub ipip: Option<IpAddr>,
    pub wireguard_v4: WireguardEndpoint,
    pub wireguard_v6: WireguardEndpoint,
    /// Every address of the node in the datastore, including those of its tunnels.
    pub all_addresses: Vec<IpAddr>,
    /// The addresses that the node has as a peer of policy rules: `all_addresses`, each once, up to
    /// [`MAX_PEER_ADDRESSES`].
    pub peer_addresses: Vec<IpAddr>,
    /// Number of addresses beyond this limit.
    pub excess_peer_addresses: usize,
    /// The addresses that the node uses for BGP sessions.
    pub bgp_v4: Option<IpAddr>,
    pub bgp_v6: Option<IpAddr>,
    /// The subnet of `bgp_v4`; `None` if its prefix length is unknown.
    pub bgp_v4_subnet: Option<IpNet>,
    pub as_number: Option<u32>,
    /// Cluster ID of a route reflector.
    pub cluster_id: Option<Ipv4Addr>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WireguardEndpoint {
    /// `None` until IPAM has assigned an address, and always if nodes encrypt traffic between their own addresses.
    pub address: Option<IpAddr>,
    /// `None` if the node does not encrypt.
    pub key: Option<[u8; 32]>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VxlanEndpoint {
    /// `None` until IPAM has assigned an address.
    pub address: Option<IpAddr>,
    pub mac: [u8; 6],
}

impl NodeFacts {
    pub fn from_node(node: &Node) -> NodeFacts {
        let spec = &node.spec;
        let status = &node.status;
        let name = &node.metadata.name;
        let none = NodeBGPSpec::default();
        let bgp = spec.bgp.as_ref().unwrap_or(&none);
        let routing = [parse_net(&bgp.ipv4_address), parse_net(&bgp.ipv6_address)];
        let listed: Vec<(&NodeAddressType, IpNet)> = spec
            .addresses
            .iter()
            .filter_map(|listed| Some((&listed.type_, parse_net(&listed.address)?)))
            .collect();
        let (v4, v6) = choose_addresses(routing, &listed);
        let (wireguard_v4, wireguard_v6) = match &spec.wireguard {
            Some(wireguard) => (
                tunnel_address(&wireguard.interface_ipv4_address, true),
                tunnel_address(&wireguard.interface_ipv6_address, false),
            ),
            None => (None, None),
        };
        let mut facts = NodeFacts {
            labels: node.metadata.labels.clone(),
            v4,
            v6,
            vxlan_v4: VxlanEndpoint {
                address: tunnel_address(&spec.ipv4_vxlan_tunnel_addr, true),
                mac: parse_mac(&spec.vxlan_tunnel_mac_addr).unwrap_or_else(|| derive_mac(name)),
            },
            vxlan_v6: VxlanEndpoint {
                address: tunnel_address(&spec.ipv6_vxlan_tunnel_addr, false),
                mac: parse_mac(&spec.vxlan_tunnel_mac_addr_v6)
                    .unwrap_or_else(|| derive_mac(&format!("{name}-v6"))),
            },
            ipip: tunnel_address(&bgp.ipv4_ipip_tunnel_addr, true),
            wireguard_v4: WireguardEndpoint {
                address: wireguard_v4,
                key: parse_key(&status.wireguard_public_key),
            },
            wireguard_v6: WireguardEndpoint {
                address: wireguard_v6,
                key: parse_key(&status.wireguard_public_key_v6),
            },
            all_addresses: Vec::new(),
            peer_addresses: Vec::new(),
            excess_peer_addresses: 0,
            bgp_v4: routing[0].map(|net| net.addr()).filter(IpAddr::is_ipv4),
            bgp_v6: routing[1].map(|net| net.addr()).filter(IpAddr::is_ipv6),
            bgp_v4_subnet: routing[0].filter(|_| bgp.ipv4_address.contains('/')).map(|net| net.trunc()),
            as_number: bgp.as_number.map(|number| number.0).filter(|number| *number != 0),
            cluster_id: bgp.route_reflector_cluster_id.parse().ok(),
        };
        let own = v4.into_iter().chain(v6).chain(listed.into_iter().map(|(_, net)| net));
        let tunnels =
            [facts.vxlan_v4.address, facts.vxlan_v6.address, facts.ipip, wireguard_v4, wireguard_v6];
        facts.all_addresses = own.map(|net| net.addr()).chain(tunnels.into_iter().flatten()).collect();
        let mut seen = BTreeSet::new();
        let distinct = facts.all_addresses.iter().copied().filter(|address| seen.insert(*address));
        facts.peer_addresses = distinct.take(MAX_PEER_ADDRESSES).collect();
        seen.extend(&facts.all_addresses);
        facts.excess_peer_addresses = seen.len() - facts.peer_addresses.len();
        facts
    }

    pub fn address(&self, is_ipv4: bool) -> Option<IpNet> {
        if is_ipv4 { self.v4 } else { self.v6 }
    }

    /// Returns the node's address of each family as a prefix of full length.
    pub fn host_nets(&self) -> Vec<IpNet> {
        [self.v4, self.v6].into_iter().flatten().map(|net| IpNet::from(net.addr())).collect()
    }

    pub fn bgp_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.bgp_v4.into_iter().chain(self.bgp_v6)
    }

    /// Returns the BGP address that has the same family as another address.
    pub fn bgp_address_like(&self, other: IpAddr) -> Option<IpAddr> {
        if other.is_ipv4() { self.bgp_v4 } else { self.bgp_v6 }
    }

    /// Returns whether the node must not advertise the addresses of services.
    pub fn is_excluded_from_services(&self) -> bool {
        self.labels.get(EXCLUDE_FROM_LB_LABEL).is_some_and(|value| value == "true")
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

/// Derives the MAC of a VXLAN device from the node name, so that other nodes know it without a stored MAC.
fn derive_mac(name: &str) -> [u8; 6] {
    let mut mac = [DERIVED_MAC_PREFIX; 6];
    let digest = Sha1::digest(name.as_bytes());
    mac.iter_mut().skip(1).zip(digest).for_each(|(byte, hashed)| *byte = hashed);
    mac
}

/// Returns one address of each family: the address for BGP, or else an internal address, or else an external address.
fn choose_addresses(
    routing: [Option<IpNet>; 2],
    listed: &[(&NodeAddressType, IpNet)],
) -> (Option<IpNet>, Option<IpNet>) {
    let by_type = [NodeAddressType::CalicoNodeIP, NodeAddressType::InternalIP, NodeAddressType::ExternalIP];
    let listed = by_type.iter().flat_map(|wanted| listed.iter().filter(move |(kind, _)| *kind == wanted));
    let candidates = routing.into_iter().flatten().chain(listed.map(|(_, net)| *net));
    let mut v4 = None;
    let mut v6 = None;
    for net in candidates {
        match net {
            IpNet::V4(_) => v4 = v4.or(Some(net)),
            IpNet::V6(_) => v6 = v6.or(Some(net)),
        }
    }
    (v4, v6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_macs_match_calico() {
        assert_eq!(derive_mac("worker-7"), [0x66, 0xc4, 0xa2, 0x2f, 0x77, 0x0c]);
        assert_eq!(derive_mac("worker-7-v6"), [0x66, 0xeb, 0x0c, 0x9c, 0xa1, 0x98]);
    }

    #[test]
    fn invalid_macs_are_ignored() {
        assert_eq!(parse_mac("66:c4:A2:2f:77:0c"), Some([0x66, 0xc4, 0xa2, 0x2f, 0x77, 0x0c]));
        for bad in ["", "66:c4:a2:2f:77", "66:c4:a2:2f:77:0c:01", "66:c4:a2:2f:77:xx", "6666:0:0:0:0:0"] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
    }
}
