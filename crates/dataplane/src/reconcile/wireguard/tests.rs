//! Property tests with devices in any state: they always converge on the plan, and every route to a peer has a peer
//! that allows its destination.

use super::super::DataplaneCore;
use crate::kernel::{
    KernelLink, KernelSnapshot, PrivateKey, WireguardChange, WireguardPeerState, WireguardState,
};
use ipnet::IpNet;
use proptest::prelude::*;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tortie_plan::{
    DataplaneSettings, NodePlan, Route, RouteKey, RouteTarget, RoutingTable, TunnelDevice, TunnelKind,
    TunnelProtocol, WireguardPeer, WireguardPeerId,
};

const KIND: TunnelKind = TunnelKind::WireguardV4;
const TABLE: RoutingTable = RoutingTable(1);

fn node(number: u8) -> IpAddr {
    format!("192.168.0.{number}").parse().unwrap()
}

fn block(number: u8) -> IpNet {
    format!("10.0.{number}.0/26").parse().unwrap()
}

fn endpoint(number: u8, port: u16) -> SocketAddr {
    SocketAddr::new(node(number), port)
}

/// Builds a plan from nodes with their keys, and the node of each block; `None` for a block outside the tunnel.
fn plan(peers: &BTreeMap<u8, u8>, blocks: &BTreeMap<u8, Option<u8>>, port: u16) -> NodePlan {
    let mut plan = NodePlan::default();
    let protocol = TunnelProtocol::Wireguard { port, mark: 0x20_0000, threaded: false };
    let name = KIND.device().to_owned();
    let device = TunnelDevice { name, address: None, local: node(1), mtu: None, protocol };
    plan.tunnels.insert(KIND, device);
    for (number, key) in peers {
        let id = WireguardPeerId { tunnel: KIND, node: format!("n{number}") };
        let peer = WireguardPeer { key: [*key; 32], endpoint: endpoint(*number, port), keepalive: 0 };
        plan.wireguard_peers.insert(id, peer);
    }
    for (number, at) in blocks {
        let route = match at.filter(|at| peers.contains_key(at)) {
            Some(at) => Route::through(KIND, Some(node(at))),
            None => Route::to(RouteTarget::Throw),
        };
        plan.routes.insert(RouteKey { table: TABLE, destination: block(*number) }, route);
    }
    plan
}

fn core(plan: NodePlan) -> DataplaneCore {
    let link = KernelLink {
        index: 7,
        name: KIND.device().into(),
        enabled: true,
        running: true,
        mtu: 1440,
        kind: Some("wireguard".into()),
        ..KernelLink::default()
    };
    let snapshot = KernelSnapshot { links: vec![link], ..KernelSnapshot::default() };
    let mut core = DataplaneCore::new(
        DataplaneSettings::default(),
        Regex::new("^eth").unwrap(),
        1,
        snapshot,
        Duration::ZERO,
    );
    core.replace(plan);
    core.wireguard(KIND).key = Some(PrivateKey::from_bytes([9; 32]));
    core
}

/// Applies a change as the kernel does: an allowed IP moves from its previous peer to the new one.
fn perform(device: &mut WireguardState, change: &WireguardChange) {
    if let Some(key) = &change.private_key {
        device.private_key = Some(key.clone());
    }
    device.port = change.port.unwrap_or(device.port);
    device.mark = change.mark.unwrap_or(device.mark);
    for (key, peer) in &change.set {
        for other in device.peers.values_mut() {
            other.allowed.retain(|net| !peer.allowed.contains(net));
        }
        let known = device.peers.entry(*key).or_default();
        known.endpoint = peer.endpoint.or(known.endpoint);
        known.keepalive = peer.keepalive;
        known.allowed.extend(peer.allowed.iter().copied());
    }
    for (key, allowed) in &change.narrowed {
        device.peers.get_mut(key).expect("only a peer that is there is narrowed").allowed = allowed.clone();
    }
    for key in &change.removed {
        device.peers.remove(key).expect("only a peer that is there is removed");
    }
}

fn any_device() -> impl Strategy<Value = WireguardState> {
    let peer =
        (0u8..6, 2u8..6, prop_oneof![Just(0u16), Just(25)], proptest::collection::btree_set(0u8..4, 0..3));
    let peers = proptest::collection::vec(peer, 0..4);
    (peers, prop_oneof![Just(0u16), Just(51820)], any::<bool>()).prop_map(|(peers, port, has_key)| {
        let mut taken = BTreeSet::new();
        let mut state = WireguardState { port, ..WireguardState::default() };
        state.private_key = has_key.then(|| PrivateKey::from_bytes([8; 32]));
        for (key, at, keepalive, blocks) in peers {
            let allowed = blocks.into_iter().filter(|number| taken.insert(*number)).map(block).collect();
            let endpoint = Some(endpoint(at, 51820));
            state.peers.insert([key; 32], WireguardPeerState { endpoint, keepalive, allowed });
        }
        state
    })
}

proptest! {
    #[test]
    fn a_device_ends_up_as_planned_and_routes_never_lead_to_nobody(
        peers in proptest::collection::btree_map(2u8..6, 0u8..6, 0..4),
        blocks in proptest::collection::btree_map(0u8..4, proptest::option::of(2u8..6), 0..4),
        port in prop_oneof![Just(51820u16), Just(51900)],
        mut device in any_device(),
    ) {
        // No two nodes share a key.
        let mut keys = BTreeSet::new();
        let peers: BTreeMap<u8, u8> = peers.into_iter().filter(|(_, key)| keys.insert(*key)).collect();
        let plan = plan(&peers, &blocks, port);
        let mut core = core(plan.clone());
        core.wireguard(KIND).state = Some(device.clone());
        if let Some(change) = core.missing_of_wireguard(KIND) {
            perform(&mut device, &change);
        }
        for (key, route) in &plan.routes {
            if let RouteTarget::Tunnel { gateway, .. } = route.target {
                let able = device.peers.values().filter(|peer| peer.allowed.contains(&key.destination));
                let at: Vec<IpAddr> = able.filter_map(|peer| Some(peer.endpoint?.ip())).collect();
                prop_assert_eq!(at, Vec::from_iter(gateway), "before the route leads there");
            }
        }
        core.wireguard(KIND).state = Some(device.clone());
        if let Some(change) = core.unwanted_of_wireguard(KIND) {
            perform(&mut device, &change);
        }
        core.wireguard(KIND).state = Some(device.clone());
        let wanted = core.wanted_wireguard(KIND).unwrap();
        prop_assert_eq!(&device, &wanted);
        prop_assert_eq!(core.missing_of_wireguard(KIND), None, "a second look finds nothing to do");
        prop_assert_eq!(core.unwanted_of_wireguard(KIND), None);
    }
}

#[test]
fn a_new_key_of_a_node_takes_over_what_the_old_one_was_allowed_before_that_one_goes() {
    let blocks = BTreeMap::from([(1, Some(2))]);
    let core_with = |key: u8| core(plan(&BTreeMap::from([(2, key)]), &blocks, 51820));
    let mut device = WireguardState::default();
    let mut core = core_with(1);
    core.wireguard(KIND).state = Some(device.clone());
    perform(&mut device, &core.missing_of_wireguard(KIND).unwrap());
    let mut core = core_with(2);
    core.wireguard(KIND).state = Some(device.clone());
    let change = core.missing_of_wireguard(KIND).unwrap();
    assert_eq!(change.new, BTreeSet::from([[2; 32]]), "who is new is greeted");
    perform(&mut device, &change);
    assert!(device.peers[&[1; 32]].allowed.is_empty() && device.peers[&[2; 32]].allowed.contains(&block(1)));
    core.wireguard(KIND).state = Some(device);
    assert_eq!(core.unwanted_of_wireguard(KIND).unwrap().removed, BTreeSet::from([[1; 32]]));
}

#[test]
fn nothing_is_taken_away_before_the_first_plan() {
    let mut core = core(NodePlan::default());
    core.in_sync = false;
    let peers = BTreeMap::from([([1; 32], WireguardPeerState::default())]);
    core.wireguard(KIND).state = Some(WireguardState { peers, ..WireguardState::default() });
    assert_eq!(core.unwanted_of_wireguard(KIND), None);
    assert_eq!(core.public_keys(), None, "what other nodes know stays as it is");
}
