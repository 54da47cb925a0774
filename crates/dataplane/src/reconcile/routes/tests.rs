use super::super::tests::{
    AFTER_GRACE_PERIOD, ModelKernel, any_history, any_workload, converges, core, link, operations, perform,
    planned, workload_id,
};
use super::super::{DataplaneCore, KernelObservation, Reconcilers, WorkloadState};
use super::ownership::RouteOwnership;
use super::*;
use crate::kernel::KernelLink;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use regex::Regex;
use std::time::Duration;
use tortie_plan::{DataplaneSettings, NodePlan, Route};

fn net(text: &str) -> RouteKey {
    text.parse::<IpNet>().unwrap().into()
}

/// Generates links: eth0 is 2, cali3 to cali5 are 3 to 5.
fn any_links() -> impl Strategy<Value = Vec<KernelLink>> {
    proptest::collection::vec((3u32..6, any::<bool>()), 0..4).prop_map(|workloads| {
        let mut links: BTreeMap<u32, KernelLink> = BTreeMap::from([(2, link(2, "eth0", true))]);
        for (index, up) in workloads {
            links.insert(index, link(index, &format!("cali{index}"), up));
        }
        links.into_values().collect()
    })
}

fn any_entry() -> impl Strategy<Value = KernelRoute> {
    let target = prop_oneof![
        Just(KernelRouteTarget::Blackhole),
        (2u32..6).prop_map(KernelRouteTarget::Device),
        (2u32..4).prop_map(|n| KernelRouteTarget::Gateway {
            via: format!("192.168.0.{n}").parse().unwrap(),
            device: 2
        }),
        Just(KernelRouteTarget::Other { device: Some(2) }),
    ];
    let protocol = prop_oneof![Just(2u8), Just(3), Just(4), Just(12), Just(80)];
    let metric = prop_oneof![Just(0u32), Just(1024)];
    (any_net(), metric, protocol, target)
        .prop_map(|(net, metric, protocol, target)| KernelRoute::new(net, metric, protocol, target))
}

fn any_net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (1u8..5).prop_map(|n| format!("10.0.0.{n}/32").parse().unwrap()),
        (0u8..3).prop_map(|n| format!("10.0.{n}.0/26").parse().unwrap()),
        (1u8..3).prop_map(|n| format!("fd00::{n}/128").parse().unwrap()),
    ]
}

fn any_update() -> impl Strategy<Value = PlanUpdate> {
    let route = prop_oneof![
        Just(Route::BLACKHOLE),
        (2u32..4).prop_map(|n| Route::via(format!("192.168.0.{n}").parse().unwrap())),
    ];
    prop_oneof![
        any_workload(),
        (0u8..3, proptest::option::of(route))
            .prop_map(|(n, route)| PlanUpdate::Route(net(&format!("10.0.{n}.0/26")), route)),
    ]
}

/// Keeps one route per key and metric, as the kernel does.
fn distinct(entries: Vec<KernelRoute>) -> Vec<KernelRoute> {
    let by_place = entries.into_iter().map(|entry| ((entry.key, entry.metric), entry));
    by_place.collect::<BTreeMap<_, _>>().into_values().collect()
}

struct RouteModel;

impl ModelKernel for RouteModel {
    type Reconciler = RouteReconciler;
    type State = Vec<KernelRoute>;

    fn select(reconcilers: &mut Reconcilers) -> &mut RouteReconciler {
        &mut reconcilers.routes
    }

    fn read(kernel: &Vec<KernelRoute>, snapshot: &mut KernelSnapshot) {
        snapshot.routes = kernel.clone();
    }

    fn execute(kernel: &mut Vec<KernelRoute>, operation: &RouteOperation) -> Vec<KernelObservation> {
        let RouteOperation::Change(change) = operation else { return Vec::new() };
        match change {
            RouteChange::Add(new) => {
                assert!(!kernel.iter().any(|entry| entry.same_place(new)), "{new:?} has no room");
                kernel.push(new.clone());
            }
            RouteChange::Replace { old, new } => {
                kernel.retain(|entry| entry != old);
                kernel.push(new.clone());
            }
            RouteChange::Delete(old) => {
                assert!(kernel.contains(old), "{old:?} is not there");
                kernel.retain(|entry| entry != old);
            }
        }
        Vec::new()
    }

    fn foreign(kernel: &Vec<KernelRoute>, core: &DataplaneCore) -> BTreeSet<String> {
        let routes = &core.reconcilers.routes;
        let foreign =
            kernel.iter().filter(|entry| routes.ownership(entry, &core.context) == RouteOwnership::Foreign);
        foreign.map(|entry| format!("{entry:?}")).collect()
    }

    fn check(kernel: &Vec<KernelRoute>, core: &DataplaneCore) -> Result<(), TestCaseError> {
        let routes = &core.reconcilers.routes;
        let destinations: BTreeSet<RouteKey> = core.context.plan.destinations().collect();
        for destination in destinations {
            if let Ok(Some(desired)) = routes.desired_route(&destination, &core.context) {
                let is_blocked = routes.failures.contains_key(&destination);
                prop_assert!(kernel.contains(&desired) != is_blocked, "{:?}", desired);
            }
        }
        for entry in kernel {
            let desired = routes.desired_route(&entry.key, &core.context).ok().flatten();
            prop_assert!(
                desired.as_ref() == Some(entry)
                    || routes.ownership(entry, &core.context) != RouteOwnership::Ours,
                "{:?} is ours and unwanted",
                entry
            );
        }
        Ok(())
    }
}

fn any_state() -> impl Strategy<Value = Vec<KernelRoute>> {
    proptest::collection::vec(any_entry(), 0..8).prop_map(distinct)
}

proptest! {
    #[test]
    fn the_kernel_converges_and_foreign_routes_stay(
        links in any_links(),
        state in any_state(),
        first in proptest::collection::vec(any_update(), 0..6),
        history in any_history(any_update(), any_state()),
    ) {
        let addresses = vec![(2, "192.168.0.1/24".parse().unwrap())];
        let host = KernelSnapshot { links, addresses, ..KernelSnapshot::default() };
        converges::<RouteModel>(&host, state, &first, history)?;
    }
}

/// Executes the operations that are due at a time.
fn perform_at(core: &mut DataplaneCore, kernel: &mut Vec<KernelRoute>, now: Duration) {
    core.set_time(now);
    perform::<RouteModel>(core, kernel);
}

fn pod(interface: &str, address: &str) -> PlanUpdate {
    let id = workload_id(interface);
    let addresses = vec![address.parse().unwrap()];
    let interface = interface.to_owned();
    PlanUpdate::Workload(id, Some(PlannedWorkload { interface, addresses, ..PlannedWorkload::default() }))
}

#[test]
fn a_new_interface_keeps_routes_ten_seconds() {
    let young = KernelRoute::new(net("10.0.0.1/32"), 0, 3, KernelRouteTarget::Device(3));
    let mut kernel = vec![young.clone()];
    let links = vec![link(3, "cali3", true)];
    let mut core = core(KernelSnapshot { links, routes: kernel.clone(), ..KernelSnapshot::default() });
    core.replace(NodePlan::default());
    perform_at(&mut core, &mut kernel, Duration::from_secs(9));
    assert_eq!(kernel, [young]);
    core.tick();
    perform_at(&mut core, &mut kernel, Duration::from_secs(10));
    assert_eq!(kernel, []);
}

#[test]
fn our_route_replaces_that_of_the_plugin() {
    let plugins = KernelRoute::new(net("10.0.0.1/32"), 0, 3, KernelRouteTarget::Device(3));
    let mut kernel = vec![plugins];
    let links = vec![link(3, "cali3", true)];
    let mut core = core(KernelSnapshot { links, routes: kernel.clone(), ..KernelSnapshot::default() });
    core.replace(planned(&[pod("cali3", "10.0.0.1")]));
    perform_at(&mut core, &mut kernel, Duration::ZERO);
    assert_eq!(kernel, [KernelRoute::new(net("10.0.0.1/32"), 1024, 3, KernelRouteTarget::Device(3))]);
}

#[test]
fn the_newer_interface_gets_a_shared_address() {
    let links = vec![link(3, "cali3", true), link(4, "cali4", true)];
    let mut core = core(KernelSnapshot { links, ..KernelSnapshot::default() });
    core.replace(planned(&[pod("cali3", "10.0.0.1"), pod("cali4", "10.0.0.1")]));
    let mut kernel = Vec::new();
    perform_at(&mut core, &mut kernel, Duration::ZERO);
    assert_eq!(kernel[0].target, KernelRouteTarget::Device(4));
    let states: Vec<WorkloadState> = core.states().map(|(_, state)| state).collect();
    let lost = WorkloadState::Error("address 10.0.0.1 belongs to cali4".into());
    assert_eq!(states, [lost, WorkloadState::Up]);
}

#[test]
fn flows_of_addresses_that_leave_a_workload_end() {
    let mut core = core(KernelSnapshot::default());
    core.replace(planned(&[pod("cali3", "10.0.0.1"), pod("cali4", "10.0.0.2"), pod("cali5", "10.0.0.3")]));
    let ended = |core: &mut DataplaneCore| operations(core, |kinds| &mut kinds.routes, ReconcileStep::Write);
    assert_eq!(ended(&mut core), []);
    core.apply(pod("cali3", "10.0.0.9"));
    core.replace(planned(&[pod("cali3", "10.0.0.3"), pod("cali4", "10.0.0.2")]));
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    // 10.0.0.3 belongs to another workload now, the other two to none, and 10.0.0.2 was never removed.
    let moving = [address("10.0.0.3")].into();
    let leaving = [address("10.0.0.1"), address("10.0.0.9")].into();
    assert_eq!(ended(&mut core), [RouteOperation::EndFlows { moving, leaving }]);
    assert_eq!(ended(&mut core), []);
}

#[test]
fn only_desired_routes_replace_those_of_bird() {
    let block = net("10.0.1.0/26");
    let other = KernelRoute::new(net("10.0.2.0/26"), 0, PROTOCOL_BIRD, KernelRouteTarget::Blackhole);
    let mut kernel =
        vec![KernelRoute::new(block, 0, PROTOCOL_BIRD, KernelRouteTarget::Blackhole), other.clone()];
    let mut core = core(KernelSnapshot { routes: kernel.clone(), ..KernelSnapshot::default() });
    core.replace(planned(&[PlanUpdate::Route(block, Some(Route::BLACKHOLE))]));
    perform_at(&mut core, &mut kernel, AFTER_GRACE_PERIOD);
    assert_eq!(kernel, [other, KernelRoute::new(block, 0, PROTOCOL_OURS, KernelRouteTarget::Blackhole)]);
}

#[test]
fn nothing_of_another_cni_plugin_is_touched() {
    let address: IpAddr = "10.0.0.1".parse().unwrap();
    let id = workload_id("pod");
    let mac = Some([2, 0, 0, 0, 0, 1]);
    let workload = PlannedWorkload {
        interface: "eni3".into(),
        mac,
        addresses: vec![address],
        ..PlannedWorkload::default()
    };
    let theirs = [
        KernelRoute::new(IpNet::from(address), 0, 3, KernelRouteTarget::Device(3)),
        KernelRoute::new(net("10.0.0.2/32"), 0, 4, KernelRouteTarget::Device(3)),
        KernelRoute::new(net("10.0.9.0/24"), 0, PROTOCOL_OURS, KernelRouteTarget::Blackhole),
    ];
    let snapshot = KernelSnapshot {
        links: vec![link(2, "eth0", true), link(3, "eni3", true)],
        routes: theirs.to_vec(),
        ..KernelSnapshot::default()
    };
    let settings = DataplaneSettings {
        interface_prefixes: vec!["eni".into()],
        program_routes: false,
        ..DataplaneSettings::default()
    };
    let mut core = DataplaneCore::new(settings, Regex::new("^eth").unwrap(), 1, snapshot);
    let mut plan = NodePlan::default();
    plan.apply(PlanUpdate::Workload(id.clone(), Some(workload)));
    plan.apply(PlanUpdate::Route(net("10.0.1.0/26"), Some(Route::BLACKHOLE)));
    core.replace(plan);
    let mut kernel = theirs.to_vec();
    perform_at(&mut core, &mut kernel, AFTER_GRACE_PERIOD);
    assert_eq!(kernel, theirs);
    assert_eq!(operations(&mut core, |kinds| &mut kinds.sysctls, ReconcileStep::Write), []);
    assert_eq!(operations(&mut core, |kinds| &mut kinds.neighbours, ReconcileStep::Write), []);
    assert_eq!(operations(&mut core, |kinds| &mut kinds.neighbours, ReconcileStep::Remove), []);
    assert_eq!(core.states().next(), Some((&id, WorkloadState::Up)));
}

#[test]
fn ports_of_a_bridge_are_reported() {
    let mut port = link(3, "veth3", true);
    port.master = Some(4);
    let bridge = KernelLink { kind: Some("bridge".into()), ..link(4, "cni0", true) };
    let mut core = core(KernelSnapshot { links: vec![port, bridge], ..KernelSnapshot::default() });
    let id = workload_id("default/c");
    let workload = PlannedWorkload { interface: "veth3".into(), ..PlannedWorkload::default() };
    core.apply(PlanUpdate::Workload(id, Some(workload)));
    let (_, state) = core.states().next().unwrap();
    assert!(
        matches!(&state, WorkloadState::Error(why) if why.contains("port of the bridge cni0")),
        "{state:?}"
    );
}
