//! A host that runs workloads: its addresses and its settings for routing and tunnels.

use crate::object::StatusForm;
use crate::scalar::ASNumber;
use crate::validation::{FieldChecker, NetworkFamily};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

string_enum! {
    /// The source of a node's address.
    pub enum NodeAddressType { CalicoNodeIP, InternalIP, ExternalIP }
}

pub type Node = TypedObject<NodeSpec>;

api_types! {
    pub struct NodeSpec {
        pub bgp: Option<NodeBGPSpec>,
        #[serde(rename = "ipv4VXLANTunnelAddr")]
        pub ipv4_vxlan_tunnel_addr: String,
        #[serde(rename = "vxlanTunnelMACAddr")]
        pub vxlan_tunnel_mac_addr: String,
        #[serde(rename = "ipv6VXLANTunnelAddr")]
        pub ipv6_vxlan_tunnel_addr: String,
        #[serde(rename = "vxlanTunnelMACAddrV6")]
        pub vxlan_tunnel_mac_addr_v6: String,
        pub orch_refs: Vec<OrchRef>,
        pub wireguard: Option<NodeWireguardSpec>,
        pub addresses: Vec<NodeAddress>,
        pub interfaces: Vec<NodeInterface>,
    }

    pub struct NodeBGPSpec {
        /// Defaults to the AS number of the cluster.
        pub as_number: Option<ASNumber>,
        /// Includes the prefix length of the node's network, as does the IPv6 address.
        pub ipv4_address: String,
        pub ipv6_address: String,
        #[serde(rename = "ipv4IPIPTunnelAddr")]
        pub ipv4_ipip_tunnel_addr: String,
        /// Makes the node a route reflector with this cluster ID.
        #[serde(rename = "routeReflectorClusterID")]
        pub route_reflector_cluster_id: String,
    }

    /// The name of the node in an orchestrator.
    pub struct OrchRef {
        pub node_name: String,
        pub orchestrator: String = always,
    }

    pub struct NodeWireguardSpec {
        #[serde(rename = "interfaceIPv4Address")]
        pub interface_ipv4_address: String,
        #[serde(rename = "interfaceIPv6Address")]
        pub interface_ipv6_address: String,
    }

    pub struct NodeAddress {
        pub address: String = always,
        #[serde(rename = "type")]
        pub type_: NodeAddressType,
    }

    pub struct NodeInterface {
        pub name: String,
        pub addresses: Vec<String>,
    }

    pub struct NodeStatus {
        pub wireguard_public_key: String,
        pub wireguard_public_key_v6: String,
        #[serde(rename = "podCIDRs")]
        pub pod_cidrs: Vec<String>,
    }
}

/// Annotation in which a node publishes its [`NetworkWarning`]s as JSON.
const NETWORK_WARNINGS_ANNOTATION: &str = "tortie/network-warnings";

/// A configured mode of the network that is not in force on a node, as the node itself reports it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NetworkWarning {
    /// The object that is not in force: `IPPool(pods)`, `WireGuard`.
    pub object: String,
    pub reason: String,
    /// The recommended action.
    pub advice: String,
}

impl Node {
    /// Returns the published warnings of the node. An unreadable annotation counts as absent.
    pub fn network_warnings(&self) -> Vec<NetworkWarning> {
        let text = self.metadata.annotations.get(NETWORK_WARNINGS_ANNOTATION);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Replaces the published warnings of the node.
    pub fn set_network_warnings(&mut self, warnings: &[NetworkWarning]) {
        let annotations = &mut self.metadata.annotations;
        match serde_json::to_string(warnings) {
            Ok(text) if !warnings.is_empty() => {
                annotations.insert(NETWORK_WARNINGS_ANNOTATION.to_owned(), text)
            }
            _ => annotations.remove(NETWORK_WARNINGS_ANNOTATION),
        };
    }
}

impl ResourceSpec for NodeSpec {
    const KIND: Kind = Kind::Node;
    type Status = NodeStatus;
    const STATUS: StatusForm = StatusForm::Always;

    fn check(node: &Node, at: &FieldChecker<'_>) {
        node.spec.check_spec(&at.field("spec"));
        node.status.check(&at.field("status"));
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        if let Some(bgp) = &self.bgp {
            bgp.check(&at.field("bgp"));
        }
        check_ip(at, "ipv4VXLANTunnelAddr", &self.ipv4_vxlan_tunnel_addr, NetworkFamily::V4);
        check_ip(at, "ipv6VXLANTunnelAddr", &self.ipv6_vxlan_tunnel_addr, NetworkFamily::V6);
        for (key, mac) in [
            ("vxlanTunnelMACAddr", &self.vxlan_tunnel_mac_addr),
            ("vxlanTunnelMACAddrV6", &self.vxlan_tunnel_mac_addr_v6),
        ] {
            if !mac.is_empty() {
                at.field(key).mac(mac);
            }
        }
        for (at, reference) in at.field("orchRefs").each(&self.orch_refs) {
            at.field("orchestrator").ensure(
                !reference.orchestrator.is_empty(),
                "",
                "must name an orchestrator",
            );
        }
        if let Some(wireguard) = &self.wireguard {
            let at = at.field("wireguard");
            check_ip(&at, "interfaceIPv4Address", &wireguard.interface_ipv4_address, NetworkFamily::V4);
            check_ip(&at, "interfaceIPv6Address", &wireguard.interface_ipv6_address, NetworkFamily::V6);
        }
        for (at, address) in at.field("addresses").each(&self.addresses) {
            at.field("address").cidr(&address.address);
            at.field("type").one_of(&address.type_);
        }
        for (at, interface) in at.field("interfaces").each(&self.interfaces) {
            at.field("name").interface(&interface.name);
            for (at, address) in at.field("addresses").each(&interface.addresses) {
                at.cidr(address);
            }
        }
    }
}

impl NodeBGPSpec {
    fn check(&self, at: &FieldChecker<'_>) {
        at.ensure(*self != NodeBGPSpec::default(), "{}", "must not be empty: leave it out instead");
        for (key, text, family) in [
            ("ipv4Address", &self.ipv4_address, NetworkFamily::V4),
            ("ipv6Address", &self.ipv6_address, NetworkFamily::V6),
        ] {
            let at = at.field(key);
            if !text.is_empty()
                && let Some(net) = at.cidr(text)
            {
                at.ensure(NetworkFamily::of_net(net) == family, text, format!("must be an {family} address"));
            }
        }
        check_ip(at, "ipv4IPIPTunnelAddr", &self.ipv4_ipip_tunnel_addr, NetworkFamily::V4);
        check_ip(at, "routeReflectorClusterID", &self.route_reflector_cluster_id, NetworkFamily::V4);
    }
}

impl NodeStatus {
    fn check(&self, at: &FieldChecker<'_>) {
        for (key, text) in [
            ("wireguardPublicKey", &self.wireguard_public_key),
            ("wireguardPublicKeyV6", &self.wireguard_public_key_v6),
        ] {
            let fits = text.is_empty() || BASE64_STANDARD.decode(text).is_ok_and(|key| key.len() == 32);
            at.field(key).ensure(fits, text, "must be 32 bytes in base64");
        }
        for (at, cidr) in at.field("podCIDRs").each(&self.pod_cidrs) {
            at.cidr(cidr);
        }
    }
}

fn check_ip(at: &FieldChecker<'_>, key: &str, text: &str, family: NetworkFamily) {
    if !text.is_empty() {
        at.field(key).ip_of(text, family);
    }
}
