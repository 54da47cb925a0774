use super::super::tests::{ModelKernel, any_history, converges, core, operations};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use crate::kernel::{KernelLink, LinkSettings};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::{NodePlan, PlanUpdate};

const OURS: u8 = 80;

fn link(index: u32, name: &str, kind: Option<&str>) -> KernelLink {
    KernelLink {
        index,
        name: name.into(),
        enabled: true,
        kind: kind.map(Into::into),
        mac: Some([2, 0, 0, 0, 0, 1]),
        conf: LinkSettings { proxy_ndp: Some(0), ..LinkSettings::default() },
        ..KernelLink::default()
    }
}

fn entry(device: u32, address: &str, protocol: u8) -> ProxyEntry {
    ProxyEntry { key: NeighbourKey { device, address: address.parse().unwrap() }, protocol }
}

fn add(device: u32, name: &str, address: &str) -> ProxyOperation {
    ProxyOperation::Add { entry: entry(device, address, OURS), name: name.into() }
}

fn host(proxies: Vec<ProxyEntry>) -> KernelSnapshot {
    let links = vec![
        link(2, "eth0", None),
        link(3, "eth1", None),
        link(4, "vxlan0", Some("vxlan")),
        link(5, "cali1", None),
    ];
    let nets = [
        (2, "192.0.2.1/24"),
        (2, "fd00::1/64"),
        (3, "198.51.100.1/24"),
        (4, "192.0.2.9/24"),
        (5, "192.0.2.8/24"),
    ];
    let addresses = nets.map(|(device, net)| (device, net.parse().unwrap())).into();
    KernelSnapshot { links, addresses, proxies, ..KernelSnapshot::default() }
}

fn proxied(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn due(core: &mut DataplaneCore) -> Vec<ProxyOperation> {
    operations(core, |kinds| &mut kinds.proxies, ReconcileStep::Write)
}

#[test]
fn an_interface_answers_for_its_own_subnet() {
    let mut core = core(host(vec![]));
    core.replace(NodePlan {
        proxied: proxied(&["192.0.2.77", "fd00::77", "10.0.0.1", "192.0.2.1"]),
        ..NodePlan::default()
    });
    let mut keys = Vec::new();
    let mut added = Vec::new();
    for operation in due(&mut core) {
        match operation {
            ProxyOperation::WriteSettings { settings, .. } => {
                keys.extend(settings.into_iter().map(|setting| setting.key));
            }
            other => added.push(other),
        }
    }
    assert_eq!(added, [add(2, "eth0", "192.0.2.77"), add(2, "eth0", "fd00::77")]);
    let delay = |family: &str| format!("net/{family}/neigh/eth0/proxy_delay");
    assert_eq!(keys, [delay("ipv4"), delay("ipv6"), "net/ipv6/conf/eth0/proxy_ndp".into()]);
}

#[test]
fn ours_change_and_foreign_entries_stay() {
    let old = entry(2, "192.0.2.50", OURS);
    let mut core = core(host(vec![old, entry(3, "198.51.100.9", 0)]));
    assert_eq!(due(&mut core), [], "before the first plan");
    core.replace(NodePlan { proxied: proxied(&["198.51.100.9"]), ..NodePlan::default() });
    let mut work = due(&mut core);
    work.retain(|operation| !matches!(operation, ProxyOperation::WriteSettings { .. }));
    let interface = ProxyInterface { device: 2, family: ProxyFamily::V4 };
    let delete = ProxyOperation::Delete { entry: old, name: "eth0".into() };
    let reset = ProxyOperation::ResetSettings { interface, name: "eth0".into() };
    assert_eq!(work, [delete.clone(), reset], "an old one of ours, the only one of its interface");
    core.reconcilers.proxies.record(delete, Ok(()), &core.context);
    core.apply(PlanUpdate::Proxied(BTreeSet::new()));
    assert_eq!(due(&mut core), []);
    core.reconcilers.proxies.replace_observed(Vec::new());
    assert!(!core.reconcilers.proxies.is_used(&core.context));
}

struct ProxyModel;

type ProxyEntries = BTreeMap<NeighbourKey, u8>;

impl ModelKernel for ProxyModel {
    type Reconciler = ProxyReconciler;
    type State = ProxyEntries;

    fn select(reconcilers: &mut Reconcilers) -> &mut ProxyReconciler {
        &mut reconcilers.proxies
    }

    fn read(state: &ProxyEntries, snapshot: &mut KernelSnapshot) {
        let entries = state.iter();
        snapshot.proxies =
            entries.map(|(key, protocol)| ProxyEntry { key: *key, protocol: *protocol }).collect();
    }

    fn execute(state: &mut ProxyEntries, operation: &ProxyOperation) -> Vec<KernelObservation> {
        match operation {
            ProxyOperation::Add { entry, .. } => {
                assert_eq!(state.insert(entry.key, entry.protocol), None, "{entry:?} exists");
            }
            ProxyOperation::Delete { entry, .. } => {
                assert_eq!(state.remove(&entry.key), Some(entry.protocol), "{entry:?} is missing");
            }
            ProxyOperation::ResetSettings { interface, .. } => {
                let left = state.keys().any(|key| ProxyInterface::from(key) == *interface);
                assert!(!left, "{interface:?} still has entries");
            }
            ProxyOperation::WriteSettings { .. } => {}
        }
        Vec::new()
    }

    fn foreign(state: &ProxyEntries, _: &DataplaneCore) -> BTreeSet<String> {
        state.iter().filter(|(_, protocol)| **protocol != OURS).map(|entry| format!("{entry:?}")).collect()
    }

    fn check(state: &ProxyEntries, core: &DataplaneCore) -> Result<(), TestCaseError> {
        let desired = desired_proxies(&core.context);
        for key in &desired {
            prop_assert!(state.contains_key(key), "{:?} is missing", key);
        }
        for (key, _) in state.iter().filter(|(_, protocol)| **protocol == OURS) {
            prop_assert!(desired.contains(key), "{:?} is surplus", key);
        }
        Ok(())
    }
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (50u8..53).prop_map(|n| format!("192.0.2.{n}").parse().unwrap()),
        (50u8..52).prop_map(|n| format!("198.51.100.{n}").parse().unwrap()),
        (5u8..7).prop_map(|n| format!("fd00::{n}").parse().unwrap()),
    ]
}

fn any_state() -> impl Strategy<Value = ProxyEntries> {
    let key = (2u32..4, any_address()).prop_map(|(device, address)| NeighbourKey { device, address });
    proptest::collection::btree_map(key, prop_oneof![Just(OURS), Just(0)], 0..5)
}

fn any_update() -> impl Strategy<Value = PlanUpdate> {
    proptest::collection::btree_set(any_address(), 0..4).prop_map(PlanUpdate::Proxied)
}

proptest! {
    #[test]
    fn proxies_converge_and_foreign_ones_stay(
        state in any_state(),
        first in any_update(),
        history in any_history(any_update(), any_state()),
    ) {
        converges::<ProxyModel>(&host(vec![]), state, &[first], history)?;
    }
}
