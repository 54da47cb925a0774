use super::super::fdb::tests::{any_vtep, host as tunnels, tunnel};
use super::super::tests::{ModelKernel, any_history, any_workload, converges, link};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::net::IpAddr;

struct NeighbourModel;

impl ModelKernel for NeighbourModel {
    type Reconciler = NeighbourReconciler;
    type State = BTreeMap<NeighbourKey, Mac>;

    fn select(reconcilers: &mut Reconcilers) -> &mut NeighbourReconciler {
        &mut reconcilers.neighbours
    }

    fn read(state: &Self::State, snapshot: &mut KernelSnapshot) {
        snapshot.neighbours = state.iter().map(|(key, mac)| (*key, *mac)).collect();
    }

    /// As in the kernel, the deletion of an entry that another program has deleted is not an error.
    fn execute(state: &mut Self::State, operation: &NeighbourOperation) -> Vec<KernelObservation> {
        match operation {
            NeighbourOperation::Set { key, mac, .. } => state.insert(*key, *mac),
            NeighbourOperation::Delete(key) => state.remove(key),
        };
        Vec::new()
    }

    /// Plans have only the addresses below 10.0.0.100.
    fn foreign(state: &Self::State, _: &DataplaneCore) -> BTreeSet<String> {
        let theirs: [IpAddr; 2] = ["10.0.0.100".parse().unwrap(), "10.0.0.101".parse().unwrap()];
        let foreign = state.iter().filter(|(key, _)| key.device != 7 && theirs.contains(&key.address));
        foreign.map(|entry| format!("{entry:?}")).collect()
    }

    fn check(state: &Self::State, core: &DataplaneCore) -> Result<(), TestCaseError> {
        for link in core.context.links.iter() {
            let desired = desired_entries(link.index, &core.context);
            for (key, mac) in &desired {
                prop_assert_eq!(state.get(key), Some(mac), "{:?}", key);
            }
            if core.context.vxlan_tunnel_at(link.index).is_some() {
                let there: Vec<&NeighbourKey> =
                    state.range(NeighbourKey::all_of(link.index)).map(|(key, _)| key).collect();
                prop_assert_eq!(there, desired.keys().collect::<Vec<_>>());
            }
        }
        Ok(())
    }
}

fn any_state() -> impl Strategy<Value = BTreeMap<NeighbourKey, Mac>> {
    let address = prop_oneof![
        (1u8..5).prop_map(|n| format!("10.0.0.{n}").parse().unwrap()),
        (100u8..102).prop_map(|n| format!("10.0.0.{n}").parse().unwrap()),
        (2u8..5).prop_map(|n| format!("10.1.0.{n}").parse().unwrap()),
    ];
    let key = (prop_oneof![3u32..6, Just(7)], address)
        .prop_map(|(device, address)| NeighbourKey { device, address });
    proptest::collection::btree_map(key, (1u8..5).prop_map(|n| [2, 0, 0, 0, 0, n]), 0..6)
}

proptest! {
    #[test]
    fn neighbours_converge_and_foreign_ones_stay(
        state in any_state(),
        first in proptest::collection::vec(prop_oneof![any_vtep(), any_workload()], 0..5),
        history in any_history(prop_oneof![any_vtep(), any_workload()], any_state()),
    ) {
        let mut host = tunnels();
        host.links.extend((3..6).map(|index| link(index, &format!("cali{index}"), index != 5)));
        let first: Vec<PlanUpdate> = [tunnel()].into_iter().chain(first).collect();
        converges::<NeighbourModel>(&host, state, &first, history)?;
    }
}
