//! A host that runs workloads: its addresses and its settings for routing and tunnels.

use crate::object::StatusForm;
use crate::scalar::{ASNumber, is_default};
use crate::validation::{FieldChecker, NetworkFamily};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

string_enum! {
    /// The source of a node's address.
    pub enum NodeAddressType { CalicoNodeIP, InternalIP, ExternalIP }
}

pub type Node = TypedObject<NodeSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    #[serde(skip_serializing_if = "is_default")]
    pub bgp: Option<NodeBGPSpec>,
    #[serde(rename = "ipv4VXLANTunnelAddr", skip_serializing_if = "is_default")]
    pub ipv4_vxlan_tunnel_addr: String,
    #[serde(rename = "vxlanTunnelMACAddr", skip_serializing_if = "is_default")]
    pub vxlan_tunnel_mac_addr: String,
    #[serde(rename = "ipv6VXLANTunnelAddr", skip_serializing_if = "is_default")]
    pub ipv6_vxlan_tunnel_addr: String,
    #[serde(rename = "vxlanTunnelMACAddrV6", skip_serializing_if = "is_default")]
    pub vxlan_tunnel_mac_addr_v6: String,
    #[serde(skip_serializing_if = "is_default")]
    pub orch_refs: Vec<OrchRef>,
    #[serde(skip_serializing_if = "is_default")]
    pub wireguard: Option<NodeWireguardSpec>,
    #[serde(skip_serializing_if = "is_default")]
    pub addresses: Vec<NodeAddress>,
    #[serde(skip_serializing_if = "is_default")]
    pub interfaces: Vec<NodeInterface>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeBGPSpec {
    /// Defaults to the AS number of the cluster.
    #[serde(skip_serializing_if = "is_default")]
    pub as_number: Option<ASNumber>,
    /// Includes the prefix length of the node's network, as does the IPv6 address.
    #[serde(skip_serializing_if = "is_default")]
    pub ipv4_address: String,
    #[serde(skip_serializing_if = "is_default")]
    pub ipv6_address: String,
    #[serde(rename = "ipv4IPIPTunnelAddr", skip_serializing_if = "is_default")]
    pub ipv4_ipip_tunnel_addr: String,
    /// Makes the node a route reflector with this cluster ID.
    #[serde(rename = "routeReflectorClusterID", skip_serializing_if = "is_default")]
    pub route_reflector_cluster_id: String,
}

/// The name of the node in an orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct OrchRef {
    #[serde(skip_serializing_if = "is_default")]
    pub node_name: String,
    pub orchestrator: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeWireguardSpec {
    #[serde(rename = "interfaceIPv4Address", skip_serializing_if = "is_default")]
    pub interface_ipv4_address: String,
    #[serde(rename = "interfaceIPv6Address", skip_serializing_if = "is_default")]
    pub interface_ipv6_address: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeAddress {
    pub address: String,
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub type_: NodeAddressType,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeInterface {
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    #[serde(skip_serializing_if = "is_default")]
    pub wireguard_public_key: String,
    #[serde(skip_serializing_if = "is_default")]
    pub wireguard_public_key_v6: String,
    #[serde(rename = "podCIDRs", skip_serializing_if = "is_default")]
    pub pod_cidrs: Vec<String>,
}

impl ResourceSpec for NodeSpec {
    const KIND: Kind = Kind::Node;
    type Status = NodeStatus;
    const STATUS: StatusForm = StatusForm::Always;

    fn check(node: &Node, at: &FieldChecker<'_>) {
        node.spec.check(&at.field("spec"));
        node.status.check(&at.field("status"));
    }
}

impl NodeSpec {
    fn check(&self, at: &FieldChecker<'_>) {
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
            let is_key = || BASE64_STANDARD.decode(text).is_ok_and(|key| key.len() == 32);
            at.field(key).ensure(text.is_empty() || is_key(), text, "must be 32 bytes in base64");
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
