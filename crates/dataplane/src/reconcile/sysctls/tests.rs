use super::super::tests::{ModelKernel, any_history, any_workload, converges, link};
use super::super::{DataplaneCore, KernelObservation, Reconcilers};
use super::*;
use crate::kernel::{KernelLink, LinkSettings};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tortie_plan::PlannedWorkload;

const RIGHT: LinkSettings = LinkSettings {
    v4_forwarding: Some(1),
    proxy_arp: Some(1),
    rp_filter: Some(1),
    route_localnet: Some(0),
    v6_forwarding: Some(1),
    proxy_ndp: Some(1),
    accept_ra: Some(0),
};
const INPUTS: SysctlInputs = SysctlInputs { rp_filter: 1, ipv6: true, loopback: false, is_first: false };

fn keys(conf: LinkSettings, inputs: SysctlInputs) -> Vec<String> {
    let workload = PlannedWorkload { interface: "cali1".into(), ..PlannedWorkload::default() };
    let missing = missing_settings("cali1", &conf, &workload, inputs);
    missing.into_iter().map(|setting| format!("{}={}", setting.key, setting.value)).collect()
}

#[test]
fn only_what_differs_is_written() {
    assert_eq!(keys(RIGHT, INPUTS), [""; 0]);
    let spoofing = SysctlInputs { rp_filter: 0, ..INPUTS };
    assert_eq!(keys(RIGHT, spoofing), ["net/ipv4/conf/cali1/rp_filter=0"]);
    let conf = LinkSettings { proxy_arp: Some(0), accept_ra: Some(1), ..RIGHT };
    assert_eq!(keys(conf, INPUTS), ["net/ipv4/conf/cali1/proxy_arp=1", "net/ipv6/conf/cali1/accept_ra=0"]);
}

#[test]
fn loopback_is_routed_only_if_a_service_listens() {
    let loopback = SysctlInputs { loopback: true, ..INPUTS };
    assert_eq!(keys(RIGHT, loopback), ["net/ipv4/conf/cali1/route_localnet=1"]);
    let theirs = LinkSettings { route_localnet: Some(1), ..RIGHT };
    assert_eq!(keys(theirs, INPUTS), [""; 0], "somebody else's");
}

#[test]
fn unreported_settings_are_written_once() {
    let first = SysctlInputs { is_first: true, ..INPUTS };
    assert_eq!(keys(RIGHT, first), ["net/ipv4/neigh/cali1/proxy_delay=0"]);
    assert_eq!(keys(LinkSettings { proxy_ndp: None, ..RIGHT }, INPUTS), [""; 0]);
}

struct SysctlModel;

type LinkStates = BTreeMap<u32, KernelLink>;

impl ModelKernel for SysctlModel {
    type Reconciler = SysctlReconciler;
    type State = LinkStates;

    fn select(reconcilers: &mut Reconcilers) -> &mut SysctlReconciler {
        &mut reconcilers.sysctls
    }

    fn read(state: &LinkStates, snapshot: &mut KernelSnapshot) {
        snapshot.links = state.values().cloned().collect();
    }

    fn execute(state: &mut LinkStates, operation: &SysctlOperation) -> Vec<KernelObservation> {
        let link = state.get_mut(&operation.index).expect("the interface exists");
        for setting in &operation.settings {
            let value = Some(setting.value);
            match setting.key.replace(&link.name, "IF").as_str() {
                "net/ipv4/conf/IF/proxy_arp" => link.conf.proxy_arp = value,
                "net/ipv4/conf/IF/forwarding" => link.conf.v4_forwarding = value,
                "net/ipv4/conf/IF/rp_filter" => link.conf.rp_filter = value,
                "net/ipv6/conf/IF/accept_ra" => link.conf.accept_ra = value,
                "net/ipv6/conf/IF/proxy_ndp" => link.conf.proxy_ndp = value,
                "net/ipv6/conf/IF/forwarding" => link.conf.v6_forwarding = value,
                "net/ipv4/neigh/IF/proxy_delay" => {}
                other => panic!("{other} is not known"),
            }
        }
        vec![KernelObservation::Link { index: operation.index, link: Some(link.clone()) }]
    }

    /// Interfaces of the host.
    fn foreign(state: &LinkStates, core: &DataplaneCore) -> BTreeSet<String> {
        let foreign = state.values().filter(|link| !core.context.has_workload_prefix(&link.name));
        foreign.map(|link| format!("{link:?}")).collect()
    }

    fn check(state: &LinkStates, core: &DataplaneCore) -> Result<(), TestCaseError> {
        for link in state.values() {
            if core.context.workload_behind(link.index).is_some() {
                prop_assert_eq!(
                    link.conf,
                    LinkSettings { route_localnet: link.conf.route_localnet, ..RIGHT }
                );
            }
        }
        Ok(())
    }
}

fn any_state() -> impl Strategy<Value = LinkStates> {
    let links = proptest::collection::vec((any::<bool>(), proptest::collection::vec(0i32..2, 7)), 4);
    links.prop_map(|links| {
        let mut state = LinkStates::new();
        for (index, (up, values)) in (2u32..).zip(links) {
            let name = if index == 2 { "eth0".to_owned() } else { format!("cali{index}") };
            let conf = LinkSettings {
                v4_forwarding: Some(values[0]),
                proxy_arp: Some(values[1]),
                rp_filter: Some(values[2]),
                route_localnet: Some(values[3]),
                v6_forwarding: Some(values[4]),
                proxy_ndp: Some(values[5]),
                accept_ra: Some(values[6]),
            };
            state.insert(index, KernelLink { conf, ..link(index, &name, up) });
        }
        state
    })
}

proptest! {
    #[test]
    fn sysctls_converge_and_interfaces_of_the_host_stay(
        state in any_state(),
        first in proptest::collection::vec(any_workload(), 0..4),
        history in any_history(any_workload(), any_state()),
    ) {
        converges::<SysctlModel>(&KernelSnapshot::default(), state, &first, history)?;
    }
}
