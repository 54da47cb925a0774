//! Automatic host endpoints: created, updated and deleted with their nodes.

use crate::absence::{AbsenceClaim, AbsenceSubject, ReferenceCounts, SubjectClass, SubjectOrigin};
use crate::write::ObjectWrite;
use data_encoding::BASE64URL_NOPAD;
use ipnet::IpNet;
use regex::Regex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::kinds::{
    AutoHostEndpointConfig, EnabledSwitch, HostEndpoint, HostEndpointSpec, HostEndpointTemplate, Node,
    NodeAddressType,
};
use tortie_model::selector::Selector;
use tortie_model::{Kind, ObjectMeta, Resource, StoreKey};

/// Label of automatic host endpoints. Others are never modified.
const CREATED_BY_LABEL: (&str, &str) = ("projectcalico.org/created-by", "calico-kube-controllers");
const DEFAULT_ALLOW_PROFILE: &str = "projectcalico-default-allow";
const MAX_NAME_LENGTH: usize = 253;

/// Returns the writes that turn the existing endpoints into the wanted ones. `origin` is the source of the nodes.
pub fn decide_writes(
    config: Option<&AutoHostEndpointConfig>,
    nodes: &BTreeMap<String, Node>,
    found: &BTreeMap<String, HostEndpoint>,
    origin: SubjectOrigin,
) -> Vec<AbsenceClaim<ObjectWrite>> {
    let config = config.filter(|config| config.auto_create == EnabledSwitch::Enabled);
    let wanted: BTreeMap<String, HostEndpoint> = match config {
        Some(config) => {
            let all = nodes.values().flat_map(|node| build_endpoints(config, node));
            all.map(|endpoint| (endpoint.metadata.name.clone(), endpoint)).collect()
        }
        None => BTreeMap::new(),
    };
    let mut writes = Vec::new();
    for endpoint in found.values().filter(|endpoint| is_ours(endpoint)) {
        if wanted.contains_key(&endpoint.metadata.name) {
            continue;
        }
        let write = ObjectWrite::delete(Kind::HostEndpoint, &endpoint.metadata);
        let node = &endpoint.spec.node;
        if config.is_some() && !nodes.contains_key(node) {
            let key = StoreKey::resource(Kind::Node, "", node);
            writes.push(AbsenceClaim::if_absent(write, AbsenceSubject::Object { origin, key }));
        } else {
            writes.push(AbsenceClaim::certain(write));
        }
    }
    for (name, endpoint) in wanted {
        match found.get(&name) {
            None => writes.push(AbsenceClaim::certain(ObjectWrite::Create(Resource::from(endpoint)))),
            // A user's endpoint with the same name.
            Some(existing) if !is_ours(existing) => {}
            Some(existing) if is_same(existing, &endpoint) => {}
            Some(existing) => {
                let mut changed = existing.clone();
                changed.metadata.labels = endpoint.metadata.labels;
                changed.metadata.annotations = endpoint.metadata.annotations;
                changed.spec = endpoint.spec;
                writes.push(AbsenceClaim::certain(ObjectWrite::Update(Resource::from(changed))));
            }
        }
    }
    writes
}

/// Returns the number of nodes with automatic host endpoints.
pub fn count_references(found: &BTreeMap<String, HostEndpoint>) -> ReferenceCounts {
    let ours = found.values().filter(|endpoint| is_ours(endpoint));
    let nodes: BTreeSet<&str> = ours.map(|endpoint| endpoint.spec.node.as_str()).collect();
    ReferenceCounts::from([(SubjectClass::Nodes, nodes.len())])
}

fn is_ours(endpoint: &HostEndpoint) -> bool {
    endpoint.metadata.labels.get(CREATED_BY_LABEL.0).map(String::as_str) == Some(CREATED_BY_LABEL.1)
}

fn is_same(one: &HostEndpoint, other: &HostEndpoint) -> bool {
    one.spec == other.spec
        && one.metadata.labels == other.metadata.labels
        && one.metadata.annotations == other.metadata.annotations
}

/// Returns the wanted endpoints of one node.
fn build_endpoints(config: &AutoHostEndpointConfig, node: &Node) -> Vec<HostEndpoint> {
    let mut endpoints = Vec::new();
    if config.create_default_host_endpoint != EnabledSwitch::Disabled {
        let expected = collect_addresses(node).into_iter().map(|address| address.to_string()).collect();
        endpoints.push(build_endpoint(node, build_name(&[&node.metadata.name]), "*", expected, None));
    }
    for template in &config.templates {
        endpoints.extend(build_from_template(template, node));
    }
    endpoints
}

fn build_from_template(template: &HostEndpointTemplate, node: &Node) -> Vec<HostEndpoint> {
    let name = &node.metadata.name;
    let selects = Selector::parse(&template.node_selector).is_ok_and(|by| by.matches(&node.metadata.labels));
    if !selects {
        return Vec::new();
    }
    let ranges: Vec<IpNet> = template.interface_cidrs.iter().filter_map(|text| text.parse().ok()).collect();
    if template.interface_pattern.is_empty() {
        let expected = select_addresses(collect_addresses(node), &ranges);
        let name = build_name(&[name, &template.generate_name]);
        // An endpoint without an interface is identified by its addresses alone.
        return if expected.is_empty() {
            Vec::new()
        } else {
            vec![build_endpoint(node, name, "", expected, Some(template))]
        };
    }
    let Ok(pattern) = Regex::new(&template.interface_pattern) else { return Vec::new() };
    let matching = node.spec.interfaces.iter().filter(|interface| pattern.is_match(&interface.name));
    let made = matching.filter_map(|interface| {
        let expected = select_addresses(parse_addresses(&interface.addresses), &ranges);
        let is_wanted = ranges.is_empty() || !expected.is_empty();
        let name = build_name(&[name, &template.generate_name, &interface.name]);
        is_wanted.then(|| build_endpoint(node, name, &interface.name, expected, Some(template)))
    });
    made.collect()
}

/// Returns the addresses in these ranges; all of them without ranges.
fn select_addresses(all: Vec<IpAddr>, ranges: &[IpNet]) -> Vec<String> {
    let inside =
        all.iter().filter(|address| ranges.is_empty() || ranges.iter().any(|range| range.contains(*address)));
    inside.map(IpAddr::to_string).collect()
}

fn build_endpoint(
    node: &Node,
    name: String,
    interface: &str,
    expected_ips: Vec<String>,
    template: Option<&HostEndpointTemplate>,
) -> HostEndpoint {
    let mut labels = node.metadata.labels.clone();
    labels.extend(template.iter().flat_map(|template| template.labels.clone()));
    labels.insert(CREATED_BY_LABEL.0.to_owned(), CREATED_BY_LABEL.1.to_owned());
    let annotations = template.map(|template| template.annotations.clone()).unwrap_or_default();
    let spec = HostEndpointSpec {
        node: node.metadata.name.clone(),
        interface_name: interface.to_owned(),
        expected_ips,
        profiles: vec![DEFAULT_ALLOW_PROFILE.to_owned()],
        ports: Vec::new(),
    };
    HostEndpoint::new(ObjectMeta { name, labels, annotations, ..ObjectMeta::default() }, spec)
}

/// Returns all addresses of a node without duplicates, in Calico's order.
fn collect_addresses(node: &Node) -> Vec<IpAddr> {
    let spec = &node.spec;
    let bgp = spec.bgp.as_ref();
    let wireguard = spec.wireguard.as_ref();
    let own = [
        bgp.map(|bgp| &bgp.ipv4_address),
        bgp.map(|bgp| &bgp.ipv6_address),
        bgp.map(|bgp| &bgp.ipv4_ipip_tunnel_addr),
        Some(&spec.ipv4_vxlan_tunnel_addr),
        Some(&spec.ipv6_vxlan_tunnel_addr),
        wireguard.map(|wireguard| &wireguard.interface_ipv4_address),
        wireguard.map(|wireguard| &wireguard.interface_ipv6_address),
    ];
    let internal = spec.addresses.iter().filter(|address| address.type_ == NodeAddressType::InternalIP);
    let interfaces = spec.interfaces.iter().flat_map(|interface| &interface.addresses);
    let all = own.into_iter().flatten().chain(internal.map(|address| &address.address)).chain(interfaces);
    parse_addresses(all)
}

/// Parses addresses with or without a prefix length. Invalid ones are ignored.
fn parse_addresses<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for address in texts.into_iter().filter_map(|text| text.split('/').next()?.parse().ok()) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Returns `<node>-<template>-<interface>-auto-hep`, or a digest of it if that exceeds the maximum name length.
fn build_name(parts: &[&str]) -> String {
    let name = format!("{}-auto-hep", parts.join("-"));
    if name.len() <= MAX_NAME_LENGTH {
        return name;
    }
    let digest = BASE64URL_NOPAD.encode(&Sha256::digest(name.as_bytes())).to_lowercase();
    format!("{}-auto-hep", digest.replace(['-', '_', '.'], ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};
    use tortie_model::StoreValue;

    /// Returns the writes, assuming that every missing node is proven absent.
    fn writes(
        config: Option<&AutoHostEndpointConfig>,
        nodes: &[Node],
        found: &BTreeMap<String, HostEndpoint>,
    ) -> Vec<ObjectWrite> {
        let nodes = nodes.iter().map(|node| (node.metadata.name.clone(), node.clone())).collect();
        let claims = super::decide_writes(config, &nodes, found, SubjectOrigin::Kubernetes);
        claims.into_iter().map(|claim| claim.action).collect()
    }

    fn node(name: &str, labels: Json, spec: Json) -> Node {
        let key = StoreKey::resource(Kind::Node, "", name);
        let text = json!({"metadata": {"name": name, "labels": labels}, "spec": spec}).to_string();
        match StoreValue::decode(&key, text.as_bytes()) {
            Ok(StoreValue::Resource(Resource::Node(node))) => *node,
            other => panic!("{other:?}"),
        }
    }

    fn config(templates: Json) -> AutoHostEndpointConfig {
        serde_json::from_value(json!({"autoCreate": "Enabled", "templates": templates})).unwrap()
    }

    fn worker() -> Node {
        node(
            "n1",
            json!({"rack": "1"}),
            json!({
                "bgp": {"ipv4Address": "10.0.0.1/24", "ipv4IPIPTunnelAddr": "10.77.0.1"}, "ipv4VXLANTunnelAddr": "10.77.0.2",
                "addresses": [{"address": "10.0.0.1", "type": "InternalIP"}, {"address": "203.0.113.1", "type": "ExternalIP"}],
                "interfaces": [{"name": "eth0", "addresses": ["10.0.0.1"]}, {"name": "eth1", "addresses": ["192.168.1.1"]},
                    {"name": "dummy", "addresses": ["nonsense"]}],
            }),
        )
    }

    /// Applies the writes.
    fn carry_out(found: &mut BTreeMap<String, HostEndpoint>, writes: Vec<ObjectWrite>) -> usize {
        let count = writes.len();
        for write in writes {
            match write {
                ObjectWrite::Create(Resource::HostEndpoint(endpoint))
                | ObjectWrite::Update(Resource::HostEndpoint(endpoint)) => {
                    endpoint.validate().unwrap();
                    found.insert(endpoint.metadata.name.clone(), *endpoint);
                }
                ObjectWrite::Delete { name, .. } => _ = found.remove(&name),
                other => panic!("{other:?}"),
            }
        }
        count
    }

    #[test]
    fn endpoints_come_follow_their_nodes_and_go() {
        let (config, mut found) = (config(json!([])), BTreeMap::new());
        let mut nodes = vec![worker()];
        let step = |nodes: &[Node], found: &mut BTreeMap<String, HostEndpoint>| {
            let due = writes(Some(&config), nodes, found);
            carry_out(found, due)
        };
        assert_eq!(step(&nodes, &mut found), 1);
        let made = &found["n1-auto-hep"];
        assert_eq!(made.spec.expected_ips, ["10.0.0.1", "10.77.0.1", "10.77.0.2", "192.168.1.1"]);
        assert_eq!(
            (made.spec.interface_name.as_str(), &made.spec.profiles[..]),
            ("*", &[DEFAULT_ALLOW_PROFILE.to_owned()][..])
        );
        assert_eq!(made.metadata.labels["rack"], "1");
        assert_eq!(step(&nodes, &mut found), 0, "nothing is written twice");
        nodes[0].metadata.labels.insert("rack".into(), "2".into());
        assert_eq!(step(&nodes, &mut found), 1);
        assert_eq!(found["n1-auto-hep"].metadata.labels["rack"], "2");
        nodes[0].spec.interfaces.clear();
        assert_eq!(step(&nodes, &mut found), 1);
        // A manual change is reverted.
        found.get_mut("n1-auto-hep").unwrap().spec.profiles.clear();
        assert_eq!(step(&nodes, &mut found), 1);
        let claims = super::decide_writes(Some(&config), &BTreeMap::new(), &found, SubjectOrigin::Kubernetes);
        assert_eq!(claims[0].absent, [AbsenceSubject::node("n1")].into());
        assert_eq!(step(&[], &mut found), 1);
        assert!(found.is_empty());
    }

    #[test]
    fn nothing_of_others_is_touched() {
        let own = |name: &str| {
            let spec =
                HostEndpointSpec { node: "n1".into(), interface_name: "eth0".into(), ..Default::default() };
            HostEndpoint::new(ObjectMeta { name: name.into(), ..ObjectMeta::default() }, spec)
        };
        let mut found: BTreeMap<String, HostEndpoint> =
            ["n1-auto-hep", "mine"].map(|name| (name.to_owned(), own(name))).into();
        assert_eq!(writes(Some(&config(json!([]))), &[worker()], &found), []);
        assert_eq!(writes(None, &[worker()], &found), []);
        let due = writes(Some(&config(json!([]))), &[node("n2", json!({}), json!({}))], &found);
        assert_eq!(carry_out(&mut found, due), 1);
        let due = writes(None, &[], &found);
        assert_eq!(carry_out(&mut found, due), 1, "those that we made go when they are switched off");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn templates_choose_nodes_addresses_and_interfaces() {
        let templates = json!([
            {"generateName": "data", "interfaceCIDRs": ["192.168.0.0/16"], "labels": {"net": "data", "rack": "x"},
                "annotations": {"a": "b"}, "nodeSelector": "rack == '1'"},
            {"generateName": "none", "interfaceCIDRs": ["172.16.0.0/12"], "nodeSelector": "all()"},
            {"generateName": "eth", "interfacePattern": "^eth", "nodeSelector": "all()"},
            {"generateName": "other", "interfacePattern": "^eth", "nodeSelector": "rack == '7'"},
        ]);
        let config = AutoHostEndpointConfig {
            create_default_host_endpoint: EnabledSwitch::Disabled,
            ..config(templates)
        };
        let mut found = BTreeMap::new();
        let due = writes(Some(&config), &[worker()], &found);
        carry_out(&mut found, due);
        let names: Vec<&String> = found.keys().collect();
        assert_eq!(names, ["n1-data-auto-hep", "n1-eth-eth0-auto-hep", "n1-eth-eth1-auto-hep"]);
        let data = &found["n1-data-auto-hep"];
        assert_eq!(
            (data.spec.expected_ips.clone(), data.spec.interface_name.as_str()),
            (vec!["192.168.1.1".into()], "")
        );
        assert_eq!(
            (data.metadata.labels["rack"].as_str(), data.metadata.annotations["a"].as_str()),
            ("x", "b")
        );
        assert_eq!(found["n1-eth-eth1-auto-hep"].spec.expected_ips, ["192.168.1.1"]);
    }

    #[test]
    fn long_names_are_short() {
        let name = build_name(&[&"n".repeat(250)]);
        assert!(name.len() < 60 && name.ends_with("-auto-hep"), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
    }
}
