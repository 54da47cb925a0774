//! Conversion between Kubernetes nodes and Calico nodes. Calico's fields are stored in annotations of the Kubernetes
//! node.

use super::core::{CoreMetadata, CoreNode};
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_model::kinds::{
    Node, NodeAddress, NodeAddressType, NodeBGPSpec, NodeInterface, NodeSpec, NodeStatus, NodeWireguardSpec,
    OrchRef,
};
use tortie_model::{Kind, StoreKey};

const ANNOTATION_PREFIX: &str = "projectcalico.org/";
/// Never stored: lists the labels that come from Kubernetes.
const KUBE_LABELS_ANNOTATION: &str = "projectcalico.org/kube-labels";

type StringMap = BTreeMap<String, String>;

/// Converts a node. With `use_pod_cidr`, the tunnel addresses come from the pod CIDR of the node.
pub fn read(core: &CoreNode, use_pod_cidr: bool) -> (StoreKey, Node) {
    let meta = &core.metadata;
    let text =
        |name: &str| meta.annotations.get(&format!("{ANNOTATION_PREFIX}{name}")).cloned().unwrap_or_default();
    let checked =
        |name: &str, fits: fn(&str) -> bool| Some(text(name)).filter(|text| fits(text)).unwrap_or_default();
    let bgp = NodeBGPSpec {
        as_number: text("ASNumber").parse().ok(),
        ipv4_address: checked("IPv4Address", is_net),
        ipv6_address: checked("IPv6Address", is_net),
        ipv4_ipip_tunnel_addr: checked("IPv4IPIPTunnelAddr", is_address),
        route_reflector_cluster_id: text("RouteReflectorClusterID"),
    };
    let wireguard = NodeWireguardSpec {
        interface_ipv4_address: checked("IPv4WireguardInterfaceAddr", is_address),
        interface_ipv6_address: checked("IPv6WireguardInterfaceAddr", is_address),
    };
    let status = NodeStatus {
        wireguard_public_key: text("WireguardPublicKey"),
        wireguard_public_key_v6: text("WireguardPublicKeyV6"),
        pod_cidrs: pod_cidrs(core),
    };
    let addresses = addresses(&bgp, core);
    let mut spec = NodeSpec {
        bgp: (bgp != NodeBGPSpec::default()).then_some(bgp),
        ipv4_vxlan_tunnel_addr: checked("IPv4VXLANTunnelAddr", is_address),
        vxlan_tunnel_mac_addr: text("VXLANTunnelMACAddr"),
        ipv6_vxlan_tunnel_addr: checked("IPv6VXLANTunnelAddr", is_address),
        vxlan_tunnel_mac_addr_v6: text("VXLANTunnelMACAddrV6"),
        orch_refs: vec![OrchRef { node_name: meta.name.clone(), orchestrator: "k8s".into() }],
        wireguard: (wireguard != NodeWireguardSpec::default()).then_some(wireguard),
        addresses,
        interfaces: json_annotation::<Vec<NodeInterface>>(meta, "Interfaces"),
    };
    if use_pod_cidr && let Some(address) = first_pod_address(core) {
        spec.bgp.get_or_insert_default().ipv4_ipip_tunnel_addr = address.clone();
        if !status.wireguard_public_key.is_empty() {
            spec.wireguard.get_or_insert_default().interface_ipv4_address = address;
        }
    }
    let mut metadata = meta.derived(meta.name.clone(), "", meta.uid.clone());
    metadata.labels = json_annotation::<StringMap>(meta, "labels");
    metadata.labels.extend(meta.labels.clone());
    metadata.annotations = json_annotation::<StringMap>(meta, "annotations");
    metadata.annotations.insert(KUBE_LABELS_ANNOTATION.into(), json!(meta.labels).to_string());
    let mut node = Node::new(metadata, spec);
    node.status = status;
    (StoreKey::resource(Kind::Node, "", &meta.name), node)
}

fn is_net(text: &str) -> bool {
    text.parse::<IpNet>().is_ok() || is_address(text)
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Returns an annotation that contains JSON. An unreadable one counts as absent.
fn json_annotation<T: DeserializeOwned + Default>(meta: &CoreMetadata, name: &str) -> T {
    let text = meta.annotations.get(&format!("{ANNOTATION_PREFIX}{name}"));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn pod_cidrs(core: &CoreNode) -> Vec<String> {
    let spec = &core.spec;
    if spec.pod_cidrs.is_empty() && !spec.pod_cidr.is_empty() {
        return vec![spec.pod_cidr.clone()];
    }
    spec.pod_cidrs.clone()
}

fn first_pod_address(core: &CoreNode) -> Option<String> {
    let cidr: IpNet = pod_cidrs(core).first()?.parse().ok()?;
    cidr.hosts().next().map(|address| address.to_string())
}

fn addresses(bgp: &NodeBGPSpec, core: &CoreNode) -> Vec<NodeAddress> {
    let own = [&bgp.ipv4_address, &bgp.ipv6_address].into_iter().filter(|text| !text.is_empty());
    let own = own.map(|text| NodeAddress { address: text.clone(), type_: NodeAddressType::CalicoNodeIP });
    let kubernetes = core.status.addresses.iter().filter_map(|address| {
        let type_ = match address.type_.as_str() {
            "InternalIP" => NodeAddressType::InternalIP,
            "ExternalIP" => NodeAddressType::ExternalIP,
            _ => return None,
        };
        Some(NodeAddress { address: address.address.clone(), type_ })
    });
    own.chain(kubernetes).collect()
}

fn to_annotation(is_empty: bool, value: Json) -> String {
    if is_empty { String::new() } else { value.to_string() }
}

/// Returns the merge patch that stores the fields of a Calico node in the Kubernetes node.
pub fn patch(node: &Node) -> Json {
    let Node { metadata: meta, spec, status, .. } = node;
    let bgp = spec.bgp.clone().unwrap_or_default();
    let wireguard = spec.wireguard.clone().unwrap_or_default();
    let kube_labels: StringMap = meta
        .annotations
        .get(KUBE_LABELS_ANNOTATION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let own_labels: BTreeMap<&String, &String> =
        meta.labels.iter().filter(|(key, _)| !kube_labels.contains_key(*key)).collect();
    let own_annotations: BTreeMap<&String, &String> =
        meta.annotations.iter().filter(|(key, _)| *key != KUBE_LABELS_ANNOTATION).collect();
    let mut annotations = Map::new();
    for (name, value) in [
        ("IPv4Address", bgp.ipv4_address),
        ("IPv6Address", bgp.ipv6_address),
        ("ASNumber", bgp.as_number.map(|number| number.0.to_string()).unwrap_or_default()),
        ("RouteReflectorClusterID", bgp.route_reflector_cluster_id),
        ("IPv4IPIPTunnelAddr", bgp.ipv4_ipip_tunnel_addr),
        ("IPv4VXLANTunnelAddr", spec.ipv4_vxlan_tunnel_addr.clone()),
        ("VXLANTunnelMACAddr", spec.vxlan_tunnel_mac_addr.clone()),
        ("IPv6VXLANTunnelAddr", spec.ipv6_vxlan_tunnel_addr.clone()),
        ("VXLANTunnelMACAddrV6", spec.vxlan_tunnel_mac_addr_v6.clone()),
        ("IPv4WireguardInterfaceAddr", wireguard.interface_ipv4_address),
        ("IPv6WireguardInterfaceAddr", wireguard.interface_ipv6_address),
        ("WireguardPublicKey", status.wireguard_public_key.clone()),
        ("WireguardPublicKeyV6", status.wireguard_public_key_v6.clone()),
        ("Interfaces", to_annotation(spec.interfaces.is_empty(), json!(spec.interfaces))),
        ("labels", to_annotation(own_labels.is_empty(), json!(own_labels))),
        ("annotations", to_annotation(own_annotations.is_empty(), json!(own_annotations))),
    ] {
        // Null removes an annotation.
        let value = if value.is_empty() { Json::Null } else { value.into() };
        annotations.insert(format!("{ANNOTATION_PREFIX}{name}"), value);
    }
    json!({"metadata": {"annotations": annotations}})
}

#[cfg(test)]
mod tests;
