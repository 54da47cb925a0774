use super::super::tests::{ModelKernel, any_history, converges, link};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use crate::kernel::{KernelLink, VxlanAttributes};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tortie_plan::{TunnelDevice, TunnelKind, TunnelProtocol, Vtep, VtepId};

const DEVICE: u32 = 7;
const FOREIGN_DEVICE: u32 = 8;
const VTEP: TunnelKind = TunnelKind::VxlanV4;

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

fn vxlan(index: u32, name: &str) -> KernelLink {
    let attributes = VxlanAttributes { vni: index, port: 4789, local: None, parent: None, learning: false };
    KernelLink { kind: Some("vxlan".into()), vxlan: Some(attributes), ..link(index, name, true) }
}

pub fn host() -> KernelSnapshot {
    let links = vec![vxlan(DEVICE, VTEP.device()), vxlan(FOREIGN_DEVICE, "flannel.1")];
    KernelSnapshot { links, ..KernelSnapshot::default() }
}

pub fn tunnel() -> PlanUpdate {
    let protocol = TunnelProtocol::Vxlan { vni: DEVICE, port: 4789, mac: mac(1) };
    let local = "192.168.0.1".parse().unwrap();
    let name = VTEP.device().to_owned();
    PlanUpdate::Tunnel(VTEP, Some(TunnelDevice { name, address: None, local, mtu: None, protocol }))
}

pub fn any_vtep() -> impl Strategy<Value = PlanUpdate> {
    let vtep = (2u8..5, 2u8..5).prop_map(|(number, node)| Vtep {
        address: format!("10.1.0.{number}").parse().unwrap(),
        mac: mac(number),
        node: format!("192.168.0.{node}").parse().unwrap(),
    });
    (2u8..5, proptest::option::of(vtep))
        .prop_map(|(node, vtep)| PlanUpdate::Vtep(VtepId { tunnel: VTEP, node: format!("n{node}") }, vtep))
}

struct FdbModel;

impl ModelKernel for FdbModel {
    type Reconciler = FdbReconciler;
    type State = BTreeSet<(FdbKey, IpAddr)>;

    fn select(reconcilers: &mut Reconcilers) -> &mut FdbReconciler {
        &mut reconcilers.fdb
    }

    fn read(state: &Self::State, snapshot: &mut KernelSnapshot) {
        snapshot.fdb = state.iter().copied().collect();
    }

    fn execute(state: &mut Self::State, operation: &FdbOperation) -> Vec<KernelObservation> {
        match operation {
            FdbOperation::Set { key, node, .. } => {
                state.insert((*key, *node));
            }
            FdbOperation::Delete { key, node } => {
                assert!(state.remove(&(*key, *node)), "{operation:?} is not possible");
            }
        }
        Vec::new()
    }

    fn foreign(state: &Self::State, _: &DataplaneCore) -> BTreeSet<String> {
        let foreign = state.iter().filter(|(key, _)| key.device == FOREIGN_DEVICE);
        foreign.map(|entry| format!("{entry:?}")).collect()
    }

    fn check(state: &Self::State, core: &DataplaneCore) -> Result<(), TestCaseError> {
        let desired: BTreeSet<(FdbKey, IpAddr)> =
            desired_entries(DEVICE, &core.context).into_iter().collect();
        let ours: BTreeSet<(FdbKey, IpAddr)> =
            state.iter().filter(|(key, _)| key.device == DEVICE).copied().collect();
        prop_assert_eq!(ours, desired);
        Ok(())
    }
}

fn any_state() -> impl Strategy<Value = BTreeSet<(FdbKey, IpAddr)>> {
    let device = prop_oneof![Just(DEVICE), Just(FOREIGN_DEVICE)];
    let entry = (device, 2u8..5, 2u8..5).prop_map(|(device, number, node)| {
        (FdbKey { device, mac: mac(number) }, format!("192.168.0.{node}").parse().unwrap())
    });
    proptest::collection::btree_set(entry, 0..5)
}

proptest! {
    #[test]
    fn forwarding_entries_converge_and_foreign_ones_stay(
        state in any_state(),
        first in proptest::collection::vec(any_vtep(), 0..4),
        history in any_history(any_vtep(), any_state()),
    ) {
        let first: Vec<PlanUpdate> = [tunnel()].into_iter().chain(first).collect();
        converges::<FdbModel>(&host(), state, &first, history)?;
    }
}
