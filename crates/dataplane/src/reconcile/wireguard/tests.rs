//! Property tests with devices in any state: they always converge on the plan, and every route to a peer has a peer
//! that allows its destination.

use super::super::tests::{ModelKernel, any_history, converges};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use crate::kernel::KernelLink;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::net::{IpAddr, SocketAddr};
use tortie_plan::{
    NodePlan, PlanUpdate, Route, RouteKey, RouteTarget, RoutingTable, TunnelDevice, TunnelProtocol,
    WireguardPeer, WireguardPeerId,
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

fn host() -> KernelSnapshot {
    let link = KernelLink {
        index: 7,
        name: KIND.device().into(),
        enabled: true,
        running: true,
        mtu: 1440,
        kind: Some("wireguard".into()),
        ..KernelLink::default()
    };
    KernelSnapshot { links: vec![link], ..KernelSnapshot::default() }
}

fn core(plan: NodePlan) -> DataplaneCore {
    let mut core = super::super::tests::core(host());
    core.replace(plan);
    core.reconcilers.wireguard.set_key(KIND, PrivateKey::from_bytes([9; 32]));
    core
}

fn missing(core: &DataplaneCore) -> Option<WireguardChange> {
    core.reconcilers.wireguard.devices[&KIND].missing(KIND, &core.context)
}

fn surplus(core: &DataplaneCore) -> Option<WireguardChange> {
    core.reconcilers.wireguard.devices[&KIND].surplus(KIND, &core.context)
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
    fn a_route_leads_only_to_an_allowing_peer(
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
        core.reconcilers.wireguard.observe(KIND, device.clone());
        if let Some(change) = missing(&core) {
            perform(&mut device, &change);
        }
        for (key, route) in &plan.routes {
            if let RouteTarget::Tunnel { gateway, .. } = route.target {
                let able = device.peers.values().filter(|peer| peer.allowed.contains(&key.destination));
                let at: Vec<IpAddr> = able.filter_map(|peer| Some(peer.endpoint?.ip())).collect();
                prop_assert_eq!(at, Vec::from_iter(gateway), "before the route leads there");
            }
        }
        core.reconcilers.wireguard.observe(KIND, device.clone());
        if let Some(change) = surplus(&core) {
            perform(&mut device, &change);
        }
        core.reconcilers.wireguard.observe(KIND, device.clone());
        let key = Some(PrivateKey::from_bytes([9; 32]));
        let wanted = desired_state(KIND, key, &core.context).unwrap();
        prop_assert_eq!(&device, &wanted);
        prop_assert_eq!(missing(&core), None, "a second look finds nothing to do");
        prop_assert_eq!(surplus(&core), None);
    }
}

#[test]
fn a_new_key_takes_over_allowed_addresses_first() {
    let blocks = BTreeMap::from([(1, Some(2))]);
    let core_with = |key: u8| core(plan(&BTreeMap::from([(2, key)]), &blocks, 51820));
    let mut device = WireguardState::default();
    let mut core = core_with(1);
    core.reconcilers.wireguard.observe(KIND, device.clone());
    perform(&mut device, &missing(&core).unwrap());
    let mut core = core_with(2);
    core.reconcilers.wireguard.observe(KIND, device.clone());
    let change = missing(&core).unwrap();
    assert_eq!(change.new, BTreeSet::from([[2; 32]]), "who is new is greeted");
    perform(&mut device, &change);
    assert!(device.peers[&[1; 32]].allowed.is_empty() && device.peers[&[2; 32]].allowed.contains(&block(1)));
    core.reconcilers.wireguard.observe(KIND, device);
    assert_eq!(surplus(&core).unwrap().removed, BTreeSet::from([[1; 32]]));
}

#[test]
fn nothing_is_taken_away_before_the_first_plan() {
    let mut core = core(NodePlan::default());
    core.context.in_sync = false;
    let peers = BTreeMap::from([([1; 32], WireguardPeerState::default())]);
    core.reconcilers.wireguard.observe(KIND, WireguardState { peers, ..WireguardState::default() });
    assert_eq!(surplus(&core), None);
    assert_eq!(
        core.reconcilers.wireguard.public_keys(&core.context),
        None,
        "what other nodes know stays as it is"
    );
}

struct WireguardModel;

impl ModelKernel for WireguardModel {
    type Reconciler = WireguardReconciler;
    type State = WireguardState;

    fn select(reconcilers: &mut Reconcilers) -> &mut WireguardReconciler {
        &mut reconcilers.wireguard
    }

    /// The configuration of a device is not part of a snapshot.
    fn read(_: &WireguardState, _: &mut KernelSnapshot) {}

    fn execute(state: &mut WireguardState, operation: &WireguardOperation) -> Vec<KernelObservation> {
        let tunnel = operation.tunnel;
        match &operation.action {
            WireguardAction::LoadKey { .. } => {
                return vec![KernelObservation::WireguardKey {
                    tunnel,
                    key: PrivateKey::from_bytes([9; 32]),
                }];
            }
            WireguardAction::Change(change) => perform(state, change),
            WireguardAction::Read | WireguardAction::SetThreaded { .. } => {}
        }
        vec![KernelObservation::Wireguard { tunnel, state: state.clone() }]
    }

    /// All peers of our device are ours.
    fn foreign(_: &WireguardState, _: &DataplaneCore) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn check(state: &WireguardState, core: &DataplaneCore) -> Result<(), TestCaseError> {
        let key = Some(PrivateKey::from_bytes([9; 32]));
        let desired = desired_state(KIND, key, &core.context).unwrap();
        prop_assert_eq!(state, &desired);
        Ok(())
    }
}

fn any_update() -> impl Strategy<Value = PlanUpdate> {
    let peer = (2u8..6, proptest::option::of(any::<bool>())).prop_map(|(number, peer)| {
        let id = WireguardPeerId { tunnel: KIND, node: format!("n{number}") };
        // A node may get another key, which no other node has.
        let peer = peer.map(|is_new| WireguardPeer {
            key: [if is_new { number + 10 } else { number }; 32],
            endpoint: endpoint(number, 51820),
            keepalive: 0,
        });
        PlanUpdate::WireguardPeer(id, peer)
    });
    let route = (0u8..4, proptest::option::of(2u8..6)).prop_map(|(number, at)| {
        let route = at.map(|at| Route::through(KIND, Some(node(at))));
        PlanUpdate::Route(RouteKey { table: TABLE, destination: block(number) }, route)
    });
    prop_oneof![peer, route]
}

proptest! {
    #[test]
    fn a_device_converges_through_any_history(
        device in any_device(),
        first in proptest::collection::vec(any_update(), 0..5),
        history in any_history(any_update(), any_device()),
    ) {
        let tunnels = plan(&BTreeMap::new(), &BTreeMap::new(), 51820).tunnels;
        let tunnels = tunnels.into_iter().map(|(kind, device)| PlanUpdate::Tunnel(kind, Some(device)));
        let first: Vec<PlanUpdate> = tunnels.chain(first).collect();
        converges::<WireguardModel>(&host(), device, &first, history)?;
    }
}
