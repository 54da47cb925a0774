//! Which object of the cluster an address belongs to.

use crate::cluster::{PolicyEntry, PolicyNode, namespace, object, pod};
use serde_json::{Value as Json, json};
use std::net::IpAddr;
use tortie_model::{Kind, Resource, StoreValue};
use tortie_plan::{AddressIdentity, IdentityKind};

fn identify(node: &PolicyNode, address: &str) -> Option<AddressIdentity> {
    node.compute.identify(address.parse::<IpAddr>().unwrap())
}

fn name_of(node: &PolicyNode, address: &str) -> String {
    identify(node, address).map_or_else(String::new, |found| format!("{}/{}", found.namespace, found.name))
}

/// Returns a pod whose name was generated from a prefix.
fn generated(name: &str, prefix: &str, address: &str) -> PolicyEntry {
    let (key, mut value) = pod("n2", "shop", name, json!({"app": "web"}), address);
    let StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) = &mut value else { panic!("{value:?}") };
    endpoint.metadata.generate_name = prefix.to_owned();
    (key, value)
}

fn set(kind: Kind, namespace: &str, name: &str, nets: Json) -> PolicyEntry {
    object(kind, namespace, name, json!({}), json!({"nets": nets}))
}

#[test]
fn workloads_have_the_name_of_their_owner() {
    let web = generated("web-7d9f-abcde", "web-7d9f-", "10.0.0.1/32");
    let mut node = PolicyNode::with(&[
        namespace("shop", json!({"team": "red"})),
        web.clone(),
        pod("n1", "shop", "db-0", json!({}), "10.0.0.2/32"),
    ]);
    let found = identify(&node, "10.0.0.1").unwrap();
    assert_eq!((found.kind, found.name.as_str()), (IdentityKind::Workload, "web-7d9f-*"));
    for label in ["app=web", "pcns.team=red", "projectcalico.org/namespace=shop"] {
        assert!(found.labels.iter().any(|known| known == label), "{label} is not in {:?}", found.labels);
    }
    assert_eq!(name_of(&node, "10.0.0.2"), "shop/db-0", "on this node");
    assert_eq!(identify(&node, "10.0.0.3"), None);
    node.put(&[generated("web-7d9f-abcde", "", "10.0.0.1/32")]);
    assert_eq!(name_of(&node, "10.0.0.1"), "shop/web-7d9f-abcde", "the prefix alone has changed");
    node.delete(&web);
    assert_eq!(identify(&node, "10.0.0.1"), None);
}

#[test]
fn the_longest_prefix_of_a_network_set_counts() {
    let host = object(
        Kind::HostEndpoint,
        "",
        "gateway",
        json!({}),
        json!({"node": "n2", "interfaceName": "eth0", "expectedIPs": ["192.0.2.9"]}),
    );
    let node = PolicyNode::with(&[
        namespace("shop", json!({})),
        set(Kind::GlobalNetworkSet, "", "everything", json!(["0.0.0.0/0", "::/0"])),
        set(Kind::GlobalNetworkSet, "", "offices", json!(["192.0.2.0/24"])),
        set(Kind::NetworkSet, "shop", "partner", json!(["192.0.2.128/25", "192.0.2.9/32"])),
        pod("n2", "shop", "web", json!({}), "192.0.2.130/32"),
        host,
    ]);
    for (address, expected) in [
        ("192.0.2.1", "/offices"),
        ("192.0.2.129", "shop/partner"),
        ("192.0.2.130", "shop/web"),
        ("192.0.2.9", "/gateway"),
        ("198.51.100.1", "/everything"),
        ("2001:db8::1", "/everything"),
    ] {
        assert_eq!(name_of(&node, address), expected, "{address}");
    }
}
