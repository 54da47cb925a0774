use super::super::tests::{ModelKernel, any_history, converges, core, operations, workload_id};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use crate::kernel::KernelLink;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tortie_plan::{BandwidthLimit, NodePlan, PlannedWorkload};

const CALI: u32 = 3;
const IFB: u32 = 4;
const FOREIGN: u32 = 5;

fn link(index: u32, name: &str, kind: &str) -> KernelLink {
    let kind = Some(kind.to_owned());
    KernelLink { index, name: name.into(), kind, enabled: true, mtu: 1500, ..KernelLink::default() }
}

fn limit(is_limited: bool) -> Option<BandwidthLimit> {
    is_limited.then_some(BandwidthLimit { bits_per_second: 8_000_000, burst_bits: 800_000, peak: None })
}

fn workload(interface: &str, ingress: bool, egress: bool) -> PlannedWorkload {
    let mut workload = PlannedWorkload { interface: interface.into(), ..PlannedWorkload::default() };
    workload.qos.ingress.bandwidth = limit(ingress);
    workload.qos.egress.bandwidth = limit(egress);
    workload
}

fn next(core: &mut DataplaneCore) -> Vec<ShapingChange> {
    let due = operations(core, |kinds| &mut kinds.shaping, ReconcileStep::Write);
    due.into_iter().map(|operation| operation.change).collect()
}

#[test]
fn buckets_exist_before_and_after_their_redirections() {
    let links = vec![link(CALI, "cali1", "veth")];
    let mut core = core(KernelSnapshot { links, ..KernelSnapshot::default() });
    let shaped = workload("cali1", false, true);
    let wanted = token_bucket(&shaped.qos.egress.bandwidth.unwrap(), 1500);
    core.replace(NodePlan { workloads: [(workload_id("web"), shaped)].into(), ..NodePlan::default() });
    let name = ifb_name("cali1");
    assert_eq!(next(&mut core), [ShapingChange::CreateDevice { name: name.clone(), mtu: 1500 }]);
    core.set_link(IFB, Some(link(IFB, &name, "ifb")));
    assert_eq!(next(&mut core), [ShapingChange::SetBucket { device: IFB, bucket: wanted }]);
    let mut qdiscs = QdiscState { buckets: [(IFB, wanted)].into(), ..QdiscState::default() };
    core.reconcilers.shaping.replace_observed(qdiscs.clone());
    assert_eq!(next(&mut core), [ShapingChange::Redirect { device: CALI, to: IFB }]);
    qdiscs.redirected.insert(CALI, Some(IFB));
    core.reconcilers.shaping.replace_observed(qdiscs.clone());
    assert_eq!(next(&mut core), []);

    core.apply(PlanUpdate::Workload(workload_id("web"), Some(workload("cali1", false, false))));
    assert_eq!(next(&mut core), [ShapingChange::DeleteRedirection { device: CALI }]);
    qdiscs.redirected.clear();
    core.reconcilers.shaping.replace_observed(qdiscs);
    assert_eq!(next(&mut core), [ShapingChange::DeleteDevice { device: IFB }]);
}

/// For example those of the CNI plugin `bandwidth`, which has its own devices.
#[test]
fn redirections_of_others_stay() {
    let links = vec![
        link(CALI, "cali1", "veth"),
        link(FOREIGN, "bwp123", "ifb"),
        link(IFB, &ifb_name("cali9"), "ifb"),
    ];
    let qdiscs = QdiscState { redirected: [(CALI, Some(FOREIGN))].into(), ..QdiscState::default() };
    let mut core = core(KernelSnapshot { links, qdiscs, ..KernelSnapshot::default() });
    assert_eq!(next(&mut core), [], "before the first plan");
    let workloads = [(workload_id("web"), workload("cali1", false, false))].into();
    core.replace(NodePlan { workloads, ..NodePlan::default() });
    assert_eq!(next(&mut core), [ShapingChange::DeleteDevice { device: IFB }], "one of a former run");
}

struct ShapingModel;

#[derive(Clone, Debug, PartialEq)]
struct ShapingModelState {
    /// Devices for the redirection, by index.
    devices: BTreeMap<u32, KernelLink>,
    qdiscs: QdiscState,
}

impl ModelKernel for ShapingModel {
    type Reconciler = ShapingReconciler;
    type State = ShapingModelState;

    fn select(reconcilers: &mut Reconcilers) -> &mut ShapingReconciler {
        &mut reconcilers.shaping
    }

    fn read(state: &ShapingModelState, snapshot: &mut KernelSnapshot) {
        snapshot.links.extend(state.devices.values().cloned());
        snapshot.qdiscs = state.qdiscs.clone();
    }

    fn execute(state: &mut ShapingModelState, operation: &ShapingOperation) -> Vec<KernelObservation> {
        let ShapingModelState { devices, qdiscs } = state;
        match &operation.change {
            ShapingChange::SetBucket { device, bucket } => {
                qdiscs.buckets.insert(*device, *bucket);
            }
            ShapingChange::DeleteBucket { device } => {
                assert!(qdiscs.buckets.remove(device).is_some(), "{operation:?}");
            }
            ShapingChange::CreateDevice { name, mtu } => {
                assert!(devices.values().all(|device| device.name != *name), "{name} exists");
                let index = (20..).find(|index| !devices.contains_key(index)).unwrap();
                let device = KernelLink { enabled: false, mtu: *mtu, ..link(index, name, "ifb") };
                devices.insert(index, device.clone());
                return vec![KernelObservation::Link { index, link: Some(device) }];
            }
            ShapingChange::SetUp { device: index } => {
                let device = devices.get_mut(index).expect("the device exists");
                device.enabled = true;
                return vec![KernelObservation::Link { index: *index, link: Some(device.clone()) }];
            }
            ShapingChange::Redirect { device, to } => {
                assert!(devices.contains_key(to) && qdiscs.buckets.contains_key(to), "{operation:?}");
                assert_eq!(qdiscs.redirected.insert(*device, Some(*to)), None, "the qdisc exists");
            }
            ShapingChange::DeleteRedirection { device } => {
                assert!(qdiscs.redirected.remove(device).is_some(), "{operation:?}");
            }
            ShapingChange::DeleteDevice { device } => {
                assert!(devices.remove(device).is_some(), "{operation:?}");
                qdiscs.buckets.remove(device);
                return vec![KernelObservation::Link { index: *device, link: None }];
            }
        }
        Vec::new()
    }

    fn observe(state: &ShapingModelState) -> Option<KernelObservation> {
        Some(KernelObservation::Qdiscs(state.qdiscs.clone()))
    }

    /// Devices of other programs, and the redirections of the interface that no workload of the plan has.
    fn foreign(state: &ShapingModelState, _: &DataplaneCore) -> BTreeSet<String> {
        let devices = state.devices.values().filter(|device| !is_shaping_device(device));
        let mut foreign: BTreeSet<String> = devices.map(|device| format!("{device:?}")).collect();
        let redirected = state.qdiscs.redirected.get(&2).filter(|target| **target == Some(FOREIGN));
        foreign.extend(redirected.map(|target| format!("{target:?}")));
        foreign
    }

    fn check(state: &ShapingModelState, core: &DataplaneCore) -> Result<(), TestCaseError> {
        let mut devices = BTreeSet::new();
        for (link, workload) in shaped_workloads(&core.context) {
            let limits = &workload.qos;
            prop_assert_eq!(
                state.qdiscs.buckets.contains_key(&link.index),
                limits.ingress.bandwidth.is_some()
            );
            let device = state.devices.values().find(|device| device.name == ifb_name(&link.name));
            prop_assert_eq!(device.is_some(), limits.egress.bandwidth.is_some());
            if let Some(device) = device {
                devices.insert(device.index);
                prop_assert!(state.qdiscs.buckets.contains_key(&device.index));
                prop_assert_eq!(state.qdiscs.redirected.get(&link.index), Some(&Some(device.index)));
            }
        }
        let ours =
            state.devices.values().filter(|device| is_shaping_device(device)).map(|device| device.index);
        prop_assert_eq!(ours.collect::<BTreeSet<u32>>(), devices, "no device is surplus");
        Ok(())
    }
}

fn host() -> KernelSnapshot {
    let mut links: Vec<KernelLink> =
        (6..9).map(|index| link(index, &format!("cali{index}"), "veth")).collect();
    links.push(link(2, "eth0", "veth"));
    KernelSnapshot { links, ..KernelSnapshot::default() }
}

fn any_state() -> impl Strategy<Value = ShapingModelState> {
    let devices = proptest::collection::btree_set(6u32..10, 0..3);
    let redirected = proptest::collection::vec((6u32..9, 0usize..4), 0..3);
    (devices, redirected, any::<bool>()).prop_map(|(interfaces, redirected, is_foreign)| {
        let mut devices = BTreeMap::from([(FOREIGN, link(FOREIGN, "bwp123", "ifb"))]);
        let mut qdiscs = QdiscState::default();
        for interface in interfaces {
            let index = interface + 10;
            devices.insert(index, link(index, &ifb_name(&format!("cali{interface}")), "ifb"));
        }
        let targets: Vec<u32> = devices.keys().copied().collect();
        for (interface, target) in redirected {
            qdiscs.redirected.insert(interface, targets.get(target).copied());
        }
        if is_foreign {
            qdiscs.redirected.insert(2, Some(FOREIGN));
        }
        ShapingModelState { devices, qdiscs }
    })
}

fn any_update() -> impl Strategy<Value = PlanUpdate> {
    (6u32..9, proptest::option::of((any::<bool>(), any::<bool>()))).prop_map(|(number, limits)| {
        let interface = format!("cali{number}");
        let workload = limits.map(|(ingress, egress)| workload(&interface, ingress, egress));
        PlanUpdate::Workload(workload_id(&interface), workload)
    })
}

proptest! {
    #[test]
    fn shaping_converges_and_foreign_devices_stay(
        state in any_state(),
        first in proptest::collection::vec(any_update(), 0..4),
        history in any_history(any_update(), any_state()),
    ) {
        converges::<ShapingModel>(&host(), state, &first, history)?;
    }
}
