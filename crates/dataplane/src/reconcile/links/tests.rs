use super::super::tests::{
    ModelKernel, any_history, converges, core, link, operations, planned, workload_id,
};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use crate::kernel::{KernelEvent, KernelSnapshot, VxlanAttributes};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::time::Duration;
use tortie_plan::{PlannedWorkload, TunnelDevice, TunnelProtocol, WorkloadPeering};

fn due_at(core: &mut DataplaneCore, seconds: u64) -> Vec<LinkOperation> {
    core.set_time(Duration::from_secs(seconds));
    operations(core, |kinds| &mut kinds.peering, ReconcileStep::Write)
}

#[test]
fn a_session_address_stays_until_the_session_ends() {
    let own = |index: u32| (index, "169.254.77.1/32".parse::<IpNet>().unwrap());
    let peer = |interface: &str, peers: bool| {
        let mut workload = PlannedWorkload { interface: interface.into(), ..PlannedWorkload::default() };
        let addresses = vec![own(0).1.addr()];
        workload.bgp_peer = peers.then(|| WorkloadPeering { name: "workloads".into(), addresses });
        PlanUpdate::Workload(workload_id(interface), Some(workload))
    };
    let add = |(index, net)| [LinkOperation::AddAddress { index, interface: "cali3".into(), net }];
    let remove = |(index, net)| [LinkOperation::RemoveAddress { index, net }];
    let mut core = core(KernelSnapshot { links: vec![link(3, "cali3", true)], ..KernelSnapshot::default() });
    core.replace(planned(&[peer("cali3", true)]));
    assert_eq!(due_at(&mut core, 1), add(own(3)));
    let (device, net) = own(3);
    core.handle_event(KernelEvent::Address { device, net, present: true });
    assert_eq!(due_at(&mut core, 2), []);
    core.apply(peer("cali3", false));
    assert_eq!(due_at(&mut core, 3), []);
    // The session is configured again, and removed again.
    core.apply(peer("cali3", true));
    assert_eq!(due_at(&mut core, 20), add(own(3)), "which changes nothing");
    core.apply(peer("cali3", false));
    assert_eq!(due_at(&mut core, 21), []);
    assert_eq!(due_at(&mut core, 26), remove(own(3)));
    assert_eq!(due_at(&mut core, 27), remove(own(3)), "until it is gone");
    core.handle_event(KernelEvent::Address { device, net, present: false });
    assert_eq!(due_at(&mut core, 28), []);
}

struct LinkModel;

/// Interfaces and their addresses.
#[derive(Clone, Debug, Default, PartialEq)]
struct LinkModelState {
    links: BTreeMap<u32, KernelLink>,
    addresses: BTreeSet<(u32, IpNet)>,
}

impl LinkModelState {
    fn observe(&self, index: u32) -> Vec<KernelObservation> {
        vec![KernelObservation::Link { index, link: self.links.get(&index).cloned() }]
    }
}

impl ModelKernel for LinkModel {
    type Reconciler = LinkReconciler;
    type State = LinkModelState;

    fn select(reconcilers: &mut Reconcilers) -> &mut LinkReconciler {
        &mut reconcilers.links
    }

    fn read(state: &LinkModelState, snapshot: &mut KernelSnapshot) {
        snapshot.links.extend(state.links.values().cloned());
        snapshot.addresses.extend(&state.addresses);
    }

    fn execute(state: &mut LinkModelState, operation: &TunnelOperation) -> Vec<KernelObservation> {
        match &operation.change {
            LinkOperation::Create(desired) => {
                assert!(state.links.values().all(|link| link.name != desired.name), "{desired:?} exists");
                let index = (50..).find(|index| !state.links.contains_key(index)).unwrap();
                let mut new = link(index, &desired.name, false);
                new.mtu = desired.mtu;
                new.kind = Some(desired.kind().into());
                if let LinkForm::Vxlan(vxlan, mac) = desired.form {
                    new.vxlan = Some(vxlan);
                    new.mac = Some(mac);
                }
                state.links.insert(index, new);
                state.observe(index)
            }
            LinkOperation::Delete { index } => {
                assert!(state.links.remove(index).is_some(), "{operation:?}");
                state.addresses.retain(|(device, _)| device != index);
                state.observe(*index)
            }
            LinkOperation::SetUp { index } => {
                state.links.get_mut(index).expect("the device exists").enabled = true;
                state.observe(*index)
            }
            LinkOperation::SetMtu { index, mtu } => {
                state.links.get_mut(index).expect("the device exists").mtu = *mtu;
                state.observe(*index)
            }
            LinkOperation::AddAddress { index, net, .. } => {
                assert!(state.addresses.insert((*index, *net)), "{operation:?}");
                vec![KernelObservation::Address { device: *index, net: *net, present: true }]
            }
            LinkOperation::RemoveAddress { index, net } => {
                assert!(state.addresses.remove(&(*index, *net)), "{operation:?}");
                vec![KernelObservation::Address { device: *index, net: *net, present: false }]
            }
        }
    }

    /// Interfaces that do not have the name of one of our devices, and their addresses.
    fn foreign(state: &LinkModelState, core: &DataplaneCore) -> BTreeSet<String> {
        let is_ours = |index: &u32| {
            let name = state.links.get(index).map(|link| link.name.as_str()).unwrap_or_default();
            core.context.tunnel_called(name).is_some()
        };
        let links = state.links.values().filter(|link| !is_ours(&link.index)).map(|link| format!("{link:?}"));
        let addresses = state.addresses.iter().filter(|(index, _)| !is_ours(index));
        links.chain(addresses.map(|address| format!("{address:?}"))).collect()
    }

    fn check(state: &LinkModelState, core: &DataplaneCore) -> Result<(), TestCaseError> {
        for kind in [TunnelKind::VxlanV4, TunnelKind::WireguardV4] {
            let found = state.links.values().find(|link| link.name == kind.device());
            let Some(desired) = desired_link(kind, &core.context)? else {
                prop_assert!(found.is_none(), "{:?} is surplus", found);
                continue;
            };
            let found = found.expect("the device exists");
            prop_assert!(found.enabled && found.mtu == desired.mtu, "{:?}", found);
            let nets: Vec<IpNet> = state
                .addresses
                .iter()
                .filter(|(index, _)| *index == found.index)
                .map(|(_, net)| *net)
                .collect();
            prop_assert_eq!(nets, Vec::from_iter(desired.address));
            if let LinkForm::Vxlan(vxlan, mac) = desired.form {
                prop_assert_eq!((found.vxlan, found.mac), (Some(vxlan), Some(mac)));
            }
        }
        Ok(())
    }
}

fn host() -> KernelSnapshot {
    let addresses = vec![(2, "192.168.0.1/24".parse().unwrap())];
    KernelSnapshot { links: vec![link(2, "eth0", true)], addresses, ..KernelSnapshot::default() }
}

fn any_state() -> impl Strategy<Value = LinkModelState> {
    let device = (any::<bool>(), 1400u32..1402, 1u32..3, proptest::collection::btree_set(1u8..4, 0..3));
    proptest::collection::btree_map(10u32..13, device, 0..4).prop_map(|devices| {
        let mut state = LinkModelState::default();
        for (index, (up, mtu, vni, addresses)) in devices {
            let names = [TunnelKind::VxlanV4.device(), TunnelKind::WireguardV4.device(), "flannel.1"];
            let name = names[(index - 10) as usize];
            let is_wireguard = index == 11;
            let attributes = VxlanAttributes { vni, port: 4789, local: None, parent: None, learning: true };
            let found = KernelLink {
                mtu,
                kind: Some(if is_wireguard { "wireguard" } else { "vxlan" }.into()),
                vxlan: (!is_wireguard).then_some(attributes),
                ..link(index, name, up)
            };
            state.links.insert(index, found);
            let nets = addresses.into_iter().map(|n| format!("10.9.0.{n}/32").parse().unwrap());
            state.addresses.extend(nets.map(|net| (index, net)));
        }
        state
    })
}

fn any_update() -> impl Strategy<Value = PlanUpdate> {
    let device = (any::<bool>(), proptest::option::of(1u8..4), proptest::option::of(Just(1400u32)), 1u32..3);
    let device = device.prop_map(|(is_vxlan, address, mtu, vni)| {
        let kind = if is_vxlan { TunnelKind::VxlanV4 } else { TunnelKind::WireguardV4 };
        let protocol = if is_vxlan {
            TunnelProtocol::Vxlan { vni, port: 4789, mac: [2, 0, 0, 0, 0, 1] }
        } else {
            TunnelProtocol::Wireguard { port: 51820, mark: 1, threaded: false }
        };
        let address = address.map(|n| format!("10.9.0.{n}").parse().unwrap());
        let local = "192.168.0.1".parse().unwrap();
        (kind, TunnelDevice { name: kind.device().into(), address, local, mtu, protocol })
    });
    (device, any::<bool>())
        .prop_map(|((kind, device), is_present)| PlanUpdate::Tunnel(kind, is_present.then_some(device)))
}

proptest! {
    #[test]
    fn tunnel_devices_converge_and_foreign_interfaces_stay(
        state in any_state(),
        first in proptest::collection::vec(any_update(), 0..3),
        history in any_history(any_update(), any_state()),
    ) {
        converges::<LinkModel>(&host(), state, &first, history)?;
    }
}
