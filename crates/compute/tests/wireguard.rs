//! Computes WireGuard devices, peers, routes and rules from the settings and the keys of nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use tortie_compute::{ParameterEnvironment, PlanCompute};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_plan::{
    NodePlan, Route, RouteKey, RouteTarget, RoutingRule, RoutingTable, TunnelKind, TunnelProtocol,
    WireguardPeerId,
};
use tortie_testkit::samples::stored;

type WireguardEntry = (StoreKey, StoreValue);

fn resource(kind: Kind, name: &str, spec: serde_json::Value, status: serde_json::Value) -> WireguardEntry {
    stored(kind, json!({"metadata": {"name": name}, "spec": spec, "status": status}))
}

fn key(number: u8) -> String {
    BASE64_STANDARD.encode([number; 32])
}

/// Node 3 has the addresses 172.16.0.3 and fd00::3.
fn node(number: u8, v4: Option<u8>, v6: Option<u8>) -> WireguardEntry {
    let spec = json!({
        "bgp": {"ipv4Address": format!("172.16.0.{number}/24"), "ipv6Address": format!("fd00::{number}/64")},
        "wireguard": {"interfaceIPv4Address": format!("10.0.{number}.1")},
    });
    let status = json!({
        "wireguardPublicKey": v4.map(key).unwrap_or_default(),
        "wireguardPublicKeyV6": v6.map(key).unwrap_or_default(),
    });
    resource(Kind::Node, &format!("n{number}"), spec, status)
}

fn felix(spec: serde_json::Value) -> WireguardEntry {
    resource(Kind::FelixConfiguration, "default", spec, json!({}))
}

fn pool(name: &str, cidr: &str) -> WireguardEntry {
    resource(Kind::IPPool, name, json!({"cidr": cidr}), json!({}))
}

fn block(cidr: &str, owner: &str, users: &[&str]) -> WireguardEntry {
    let attributes: Vec<_> =
        users.iter().map(|node| json!({"handle_id": "h", "secondary": {"node": node}})).collect();
    let text = json!({
        "cidr": cidr, "affinity": format!("host:{owner}"),
        "allocations": (0..users.len()).collect::<Vec<_>>(), "attributes": attributes,
    });
    let key = StoreKey::Block { cidr: cidr.parse().unwrap() };
    let value = StoreValue::decode(&key, text.to_string().as_bytes()).unwrap();
    (key, value)
}

struct WireguardWorld {
    compute: PlanCompute,
    plan: NodePlan,
}

impl WireguardWorld {
    fn new(entries: &[WireguardEntry]) -> WireguardWorld {
        let mut world = WireguardWorld {
            compute: PlanCompute::new("n1", ParameterEnvironment::default()),
            plan: NodePlan::default(),
        };
        entries.iter().for_each(|(key, value)| world.compute.put(key, value));
        world.flush();
        world
    }

    fn flush(&mut self) {
        let updates = self.compute.flush();
        updates.into_iter().for_each(|update| self.plan.apply(update));
    }

    fn with(mut self, (key, value): WireguardEntry) -> WireguardWorld {
        self.compute.put(&key, &value);
        self.flush();
        self
    }

    fn route(&self, table: u32, net: &str) -> Option<RouteTarget> {
        let key = RouteKey { table: RoutingTable(table), destination: net.parse().unwrap() };
        self.plan.routes.get(&key).map(|route| route.target)
    }

    /// Returns the nodes that are peers, and the first bytes of their keys.
    fn peers(&self, kind: TunnelKind) -> Vec<(String, u8)> {
        let peers = self.plan.wireguard_peers.iter().filter(|(id, _)| id.tunnel == kind);
        peers.map(|(id, peer)| (id.node.clone(), peer.key[0])).collect()
    }
}

fn to(kind: TunnelKind, node: &str) -> Option<RouteTarget> {
    Some(Route::through(kind, Some(node.parse().unwrap())).target)
}

/// n1 to n3 encrypt, n4 does not; n3 has lent one address to n4 and one to n1.
fn cluster() -> Vec<WireguardEntry> {
    vec![
        node(1, Some(1), Some(11)),
        node(2, Some(2), Some(12)),
        node(3, Some(3), Some(13)),
        node(4, None, None),
        pool("v4", "10.0.0.0/16"),
        pool("v6", "fd10::/96"),
        block("10.0.1.0/26", "n1", &["n1"]),
        block("10.0.2.0/26", "n2", &["n2"]),
        block("10.0.3.0/26", "n3", &["n3", "n4", "n1"]),
        block("10.0.4.0/26", "n4", &["n4"]),
        block("fd10::2:0/122", "n2", &["n2"]),
    ]
}

fn on() -> WireguardEntry {
    felix(json!({"wireguardEnabled": true, "wireguardEnabledV6": true}))
}

#[test]
fn wireguard_routes_only_peers_with_keys() {
    let world = WireguardWorld::new(&cluster()).with(on());
    let (v4, v6) = (TunnelKind::WireguardV4, TunnelKind::WireguardV6);
    let device = &world.plan.tunnels[&v4];
    assert_eq!((device.name.as_str(), device.address), ("wireguard.cali", Some("10.0.1.1".parse().unwrap())));
    assert_eq!(device.local.to_string(), "172.16.0.1");
    let protocol = TunnelProtocol::Wireguard { port: 51820, mark: 0x20_0000, threaded: false };
    assert_eq!(device.protocol, protocol);
    assert_eq!(world.plan.tunnels[&v6].name, "wg-v6.cali");
    assert_eq!(world.peers(v4), [("n2".to_owned(), 2), ("n3".to_owned(), 3)]);
    assert_eq!(world.peers(v6), [("n2".to_owned(), 12), ("n3".to_owned(), 13)]);
    let peer = world.plan.wireguard_peers[&WireguardPeerId { tunnel: v6, node: "n2".into() }];
    assert_eq!(peer.endpoint.to_string(), "[fd00::2]:51821");
    let rule = |is_ipv4| RoutingRule { is_ipv4, priority: 99, mark: 0x20_0000, table: RoutingTable(1) };
    assert_eq!(world.plan.routing_rules, [rule(true), rule(false)].into());

    assert_eq!(world.route(1, "10.0.2.0/26"), to(v4, "172.16.0.2"));
    assert_eq!(world.route(1, "10.0.3.0/26"), to(v4, "172.16.0.3"));
    assert_eq!(world.route(1, "fd10::2:0/122"), to(v6, "fd00::2"));
    assert_eq!(world.route(1, "10.0.4.0/26"), Some(RouteTarget::Throw), "n4 has no key");
    assert_eq!(world.route(1, "10.0.3.1/32"), Some(RouteTarget::Throw), "lent to n4");
    assert_eq!(world.route(1, "10.0.3.2/32"), Some(RouteTarget::Throw), "lent to us");
    assert_eq!(world.route(1, "10.0.1.0/26"), Some(RouteTarget::Throw), "our own");
    assert_eq!(world.route(254, "10.0.4.0/26"), Some(Route::via("172.16.0.4".parse().unwrap()).target));
    assert_eq!(world.route(1, "172.16.0.2/32"), None, "nodes speak as they are");
}

#[test]
fn disabling_wireguard_leaves_nothing() {
    let before = WireguardWorld::new(&cluster()).plan;
    let world = WireguardWorld::new(&cluster()).with(on());
    assert_ne!(world.plan, before);
    let world = world.with(felix(json!({})));
    assert_eq!(world.plan, before);
    let only_v6 = world.with(felix(json!({"wireguardEnabledV6": true})));
    assert_eq!(only_v6.plan.tunnels.keys().copied().collect::<Vec<_>>(), [TunnelKind::WireguardV6]);
    assert_eq!(only_v6.route(1, "10.0.2.0/26"), None);
}

#[test]
fn keys_come_change_and_go() {
    let v4 = TunnelKind::WireguardV4;
    let world = WireguardWorld::new(&cluster()).with(on());
    let world = world.with(node(4, Some(4), None));
    assert_eq!(world.route(1, "10.0.4.0/26"), to(v4, "172.16.0.4"));
    assert_eq!(world.route(1, "10.0.3.1/32"), to(v4, "172.16.0.4"));
    let world = world.with(node(4, Some(44), None));
    assert_eq!(world.peers(v4).last(), Some(&("n4".to_owned(), 44)));
    let world = world.with(node(2, None, None));
    assert_eq!(world.route(1, "10.0.2.0/26"), Some(RouteTarget::Throw));
    assert_eq!(world.peers(v4), [("n3".to_owned(), 3), ("n4".to_owned(), 44)]);
}

#[test]
fn shared_keys_are_used_for_neither_node() {
    let v4 = TunnelKind::WireguardV4;
    let world = WireguardWorld::new(&cluster()).with(on()).with(node(2, Some(3), None));
    assert_eq!(world.peers(v4), []);
    assert_eq!(world.route(1, "10.0.3.0/26"), Some(RouteTarget::Throw));
    let world = world.with(node(2, Some(1), None));
    assert_eq!(world.peers(v4), [("n3".to_owned(), 3)], "nor is ours another's");
    let world = world.with(node(2, Some(2), None));
    assert_eq!(world.peers(v4), [("n2".to_owned(), 2), ("n3".to_owned(), 3)]);
}

#[test]
fn settings_are_followed() {
    let world = WireguardWorld::new(&cluster()).with(felix(json!({
        "wireguardEnabled": true, "wireguardListeningPort": 51999, "wireguardMTU": 1300,
        "wireguardInterfaceName": "wg0", "wireguardRoutingRulePriority": 50, "wireguardKeepAlive": "25s",
        "wireguardThreadingEnabled": true, "routeTableRanges": [{"min": 40, "max": 60}],
    })));
    let v4 = TunnelKind::WireguardV4;
    let device = &world.plan.tunnels[&v4];
    assert_eq!((device.name.as_str(), device.mtu), ("wg0", Some(1300)));
    assert_eq!(device.protocol, TunnelProtocol::Wireguard { port: 51999, mark: 0x20_0000, threaded: true });
    let rule = RoutingRule { is_ipv4: true, priority: 50, mark: 0x20_0000, table: RoutingTable(40) };
    assert_eq!(world.plan.routing_rules, [rule].into());
    let peer = world.plan.wireguard_peers[&WireguardPeerId { tunnel: v4, node: "n2".into() }];
    assert_eq!((peer.endpoint.to_string().as_str(), peer.keepalive), ("172.16.0.2:51999", 25));
    assert_eq!(world.route(40, "10.0.2.0/26"), to(v4, "172.16.0.2"));
    let world = world.with(on());
    assert_eq!((world.route(40, "10.0.2.0/26"), world.route(1, "10.0.2.0/26")), (None, to(v4, "172.16.0.2")));
}

#[test]
fn nodes_encrypt_for_each_other_if_they_shall() {
    let v4 = TunnelKind::WireguardV4;
    let hosts = felix(json!({"wireguardEnabled": true, "wireguardHostEncryptionEnabled": true}));
    let world = WireguardWorld::new(&cluster()).with(hosts);
    assert!(world.compute.settings().host_encryption);
    assert_eq!(world.plan.tunnels[&v4].address, None, "they use the addresses that they have");
    assert_eq!(world.route(1, "172.16.0.2/32"), to(v4, "172.16.0.2"));
    assert_eq!(world.route(1, "172.16.0.4/32"), None, "n4 has no key");
    let world = world.with(node(4, Some(4), None));
    assert_eq!(world.route(1, "172.16.0.4/32"), to(v4, "172.16.0.4"));
    let world = world.with(on());
    assert_eq!((world.route(1, "172.16.0.2/32"), world.route(1, "172.16.0.4/32")), (None, None));
}

fn any_entry() -> impl Strategy<Value = WireguardEntry> {
    let keys = || proptest::option::of(1u8..5);
    let settings = (any::<bool>(), any::<bool>(), any::<bool>(), 1u32..3);
    prop_oneof![
        (1u8..5, keys(), keys()).prop_map(|(number, v4, v6)| node(number, v4, v6)),
        (1u8..5, 1u8..5, 1u8..5).prop_map(|(number, owner, user)| {
            block(&format!("10.0.{number}.0/26"), &format!("n{owner}"), &["n1", &format!("n{user}")])
        }),
        Just(pool("v4", "10.0.0.0/16")),
        settings.prop_map(|(v4, v6, hosts, table)| felix(json!({
            "wireguardEnabled": v4, "wireguardEnabledV6": v6, "wireguardHostEncryptionEnabled": hosts,
            "routeTableRanges": [{"min": table, "max": 250}],
        }))),
    ]
}

proptest! {
    #[test]
    fn history_ends_like_its_last_entries(
        history in proptest::collection::vec((any_entry(), any::<bool>()), 1..30),
        flushes in proptest::collection::vec(any::<bool>(), 30),
    ) {
        let mut world = WireguardWorld::new(&[]);
        let mut last: BTreeMap<StoreKey, StoreValue> = BTreeMap::new();
        for (((key, value), present), flush) in history.into_iter().zip(flushes) {
            if present {
                world.compute.put(&key, &value);
                last.insert(key, value);
            } else {
                world.compute.delete(&key);
                last.remove(&key);
            }
            if flush {
                world.flush();
            }
        }
        world.flush();
        let entries: Vec<WireguardEntry> = last.into_iter().collect();
        prop_assert_eq!(world.plan, WireguardWorld::new(&entries).plan);
    }
}
