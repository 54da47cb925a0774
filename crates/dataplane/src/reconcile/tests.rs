//! Property tests with random plans and kernels: the kernel always converges on the plan, and foreign routes stay.

use super::links::LinkOperation;
use super::routes::{PROTOCOL_BIRD, PROTOCOL_OURS, RouteOperation, RouteOwnership};
use super::*;
use crate::kernel::{KernelLink, KernelRoute, KernelRouteTarget};
use ipnet::IpNet;
use proptest::prelude::*;
use std::time::Duration;
use tortie_plan::{Route, WorkloadId, WorkloadPeering};

const AFTER_GRACE_PERIOD: Duration = Duration::from_secs(3600);

fn core(snapshot: KernelSnapshot) -> DataplaneCore {
    DataplaneCore::new(DataplaneSettings::default(), Regex::new("^eth").unwrap(), 1, snapshot, Duration::ZERO)
}

fn net(text: &str) -> RouteKey {
    text.parse::<IpNet>().unwrap().into()
}

fn link(index: u32, name: &str, up: bool) -> KernelLink {
    KernelLink { index, name: name.into(), enabled: up, running: up, mtu: 1500, ..KernelLink::default() }
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
    let id = (0u8..4).prop_map(|n| WorkloadId {
        orchestrator: "k8s".into(),
        workload: format!("pod{n}"),
        endpoint: "eth0".into(),
    });
    let addresses = proptest::collection::vec(
        prop_oneof![
            (1u8..5).prop_map(|n| format!("10.0.0.{n}").parse().unwrap()),
            (1u8..3).prop_map(|n| format!("fd00::{n}").parse().unwrap()),
        ],
        0..3,
    );
    let workload = (3u32..6, addresses).prop_map(|(n, addresses)| PlannedWorkload {
        interface: format!("cali{n}"),
        mac: None,
        addresses,
        ..PlannedWorkload::default()
    });
    let route = prop_oneof![
        Just(Route::BLACKHOLE),
        (2u32..4).prop_map(|n| Route::via(format!("192.168.0.{n}").parse().unwrap())),
    ];
    prop_oneof![
        (id, proptest::option::of(workload)).prop_map(|(id, workload)| PlanUpdate::Workload(id, workload)),
        (0u8..3, proptest::option::of(route))
            .prop_map(|(n, route)| PlanUpdate::Route(net(&format!("10.0.{n}.0/26")), route)),
    ]
}

/// Keeps one route per key and metric, as the kernel does.
fn distinct(entries: Vec<KernelRoute>) -> Vec<KernelRoute> {
    let by_place = entries.into_iter().map(|entry| ((entry.key, entry.metric), entry));
    by_place.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn perform(core: &mut DataplaneCore, kernel: &mut Vec<KernelRoute>, now: Duration) -> usize {
    let work = core.route_work(now);
    for operation in &work.operations {
        match operation {
            RouteOperation::Add(new) => {
                assert!(!kernel.iter().any(|entry| entry.same_place(new)), "{new:?} has no room");
                kernel.push(new.clone());
            }
            RouteOperation::Replace { old, new } => {
                kernel.retain(|entry| entry != old);
                kernel.push(new.clone());
            }
            RouteOperation::Delete(old) => {
                assert!(kernel.contains(old), "{old:?} is not there");
                kernel.retain(|entry| entry != old);
            }
        }
        core.done(operation);
    }
    work.operations.len()
}

fn planned(updates: &[PlanUpdate]) -> NodePlan {
    let mut plan = NodePlan::default();
    updates.iter().for_each(|update| plan.apply(update.clone()));
    plan
}

proptest! {
    #[test]
    fn the_kernel_converges_and_foreign_routes_stay(
        links in any_links(),
        entries in proptest::collection::vec(any_entry(), 0..8),
        first in proptest::collection::vec(any_update(), 0..6),
        then in proptest::collection::vec(any_update(), 0..6),
    ) {
        let mut kernel = distinct(entries);
        let addresses = vec![(2, "192.168.0.1/24".parse().unwrap())];
        let snapshot = KernelSnapshot { links, addresses, routes: kernel.clone(), ..KernelSnapshot::default() };
        let mut core = core(snapshot);
        let foreign: Vec<KernelRoute> = kernel
            .iter()
            .filter(|entry| core.ownership(entry, AFTER_GRACE_PERIOD) == RouteOwnership::Foreign)
            .cloned()
            .collect();
        prop_assert_eq!(perform(&mut core, &mut kernel, AFTER_GRACE_PERIOD), 0, "nothing happens before there is a plan");

        core.replace(planned(&first));
        perform(&mut core, &mut kernel, AFTER_GRACE_PERIOD);
        for update in &then {
            core.apply(update.clone());
            perform(&mut core, &mut kernel, AFTER_GRACE_PERIOD);
        }
        for entry in &foreign {
            prop_assert!(kernel.contains(entry), "{:?} was not ours", entry);
        }
        let destinations: BTreeSet<RouteKey> = core.plan.destinations().collect();
        for destination in destinations {
            if let Ok(Some(wanted)) = core.wanted(&destination) {
                let blocked = core.failures.contains_key(&destination);
                prop_assert!(kernel.contains(&wanted) != blocked, "{:?}", wanted);
            }
        }
        for entry in &kernel {
            let wanted = core.wanted(&entry.key).ok().flatten();
            prop_assert!(
                wanted.as_ref() == Some(entry) || core.ownership(entry, AFTER_GRACE_PERIOD) != RouteOwnership::Ours,
                "{:?} is ours and unwanted", entry
            );
        }

        // A daemon that starts with the complete plan finds nothing to do.
        let all: Vec<PlanUpdate> = first.iter().chain(&then).cloned().collect();
        let links = core.links.iter().cloned().collect();
        let addresses = vec![(2, "192.168.0.1/24".parse().unwrap())];
        let mut again = self::core(KernelSnapshot { links, addresses, routes: kernel.clone(), ..KernelSnapshot::default() });
        again.replace(planned(&all));
        prop_assert_eq!(perform(&mut again, &mut kernel, AFTER_GRACE_PERIOD), 0, "a restart changes nothing");
    }
}

fn pod(interface: &str, address: &str) -> PlanUpdate {
    let id = WorkloadId { orchestrator: "k8s".into(), workload: interface.into(), endpoint: "eth0".into() };
    let addresses = vec![address.parse().unwrap()];
    let interface = interface.to_owned();
    PlanUpdate::Workload(id, Some(PlannedWorkload { interface, addresses, ..PlannedWorkload::default() }))
}

#[test]
fn a_route_on_a_young_interface_of_an_unknown_workload_has_ten_seconds() {
    let young = KernelRoute::new(net("10.0.0.1/32"), 0, 3, KernelRouteTarget::Device(3));
    let mut kernel = vec![young.clone()];
    let links = vec![link(3, "cali3", true)];
    let mut core = core(KernelSnapshot { links, routes: kernel.clone(), ..KernelSnapshot::default() });
    core.replace(NodePlan::default());
    perform(&mut core, &mut kernel, Duration::from_secs(9));
    assert_eq!(kernel, [young]);
    core.tick();
    perform(&mut core, &mut kernel, Duration::from_secs(10));
    assert_eq!(kernel, []);
}

#[test]
fn the_plugins_route_gives_way_to_ours_at_once() {
    let plugins = KernelRoute::new(net("10.0.0.1/32"), 0, 3, KernelRouteTarget::Device(3));
    let mut kernel = vec![plugins];
    let links = vec![link(3, "cali3", true)];
    let mut core = core(KernelSnapshot { links, routes: kernel.clone(), ..KernelSnapshot::default() });
    core.replace(planned(&[pod("cali3", "10.0.0.1")]));
    perform(&mut core, &mut kernel, Duration::ZERO);
    assert_eq!(kernel, [KernelRoute::new(net("10.0.0.1/32"), 1024, 3, KernelRouteTarget::Device(3))]);
}

#[test]
fn an_address_claimed_twice_goes_to_the_younger_interface_and_the_other_says_so() {
    let links = vec![link(3, "cali3", true), link(4, "cali4", true)];
    let mut core = core(KernelSnapshot { links, ..KernelSnapshot::default() });
    core.replace(planned(&[pod("cali3", "10.0.0.1"), pod("cali4", "10.0.0.1")]));
    let mut kernel = Vec::new();
    perform(&mut core, &mut kernel, Duration::ZERO);
    assert_eq!(kernel[0].target, KernelRouteTarget::Device(4));
    let states: Vec<WorkloadState> = core.states().map(|(_, state)| state).collect();
    let lost = WorkloadState::Error("address 10.0.0.1 belongs to cali4".into());
    assert_eq!(states, [lost, WorkloadState::Up]);
}

#[test]
fn addresses_that_leave_a_workload_are_reported_once() {
    let mut core = core(KernelSnapshot::default());
    core.replace(planned(&[pod("cali3", "10.0.0.1"), pod("cali4", "10.0.0.2"), pod("cali5", "10.0.0.3")]));
    assert_eq!(core.take_departed(), (vec![], vec![]));
    core.apply(pod("cali3", "10.0.0.9"));
    core.replace(planned(&[pod("cali3", "10.0.0.3"), pod("cali4", "10.0.0.2")]));
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    // 10.0.0.3 belongs to another workload now, the other two to none, and 10.0.0.2 was never removed.
    let gone = vec![address("10.0.0.1"), address("10.0.0.9")];
    assert_eq!(core.take_departed(), (vec![address("10.0.0.3")], gone));
    assert_eq!(core.take_departed(), (vec![], vec![]));
}

#[test]
fn the_address_of_a_session_stays_until_the_speaker_had_time_to_end_it() {
    let own = |index: u32| (index, "169.254.77.1/32".parse::<IpNet>().unwrap());
    let peer = |interface: &str, peers: bool| {
        let PlanUpdate::Workload(id, Some(mut workload)) = pod(interface, "10.0.0.1") else { unreachable!() };
        let addresses = vec![own(0).1.addr()];
        workload.bgp_peer = peers.then(|| WorkloadPeering { name: "workloads".into(), addresses });
        PlanUpdate::Workload(id, Some(workload))
    };
    let seconds = Duration::from_secs;
    let add = |(index, net)| [LinkOperation::AddAddress { index, net }];
    let remove = |(index, net)| [LinkOperation::RemoveAddress { index, net }];
    let mut core = core(KernelSnapshot { links: vec![link(3, "cali3", true)], ..KernelSnapshot::default() });
    core.replace(planned(&[peer("cali3", true)]));
    assert_eq!(core.peering_work(seconds(1)), add(own(3)));
    let (device, net) = own(3);
    core.event(KernelEvent::Address { device, net, present: true });
    assert_eq!(core.peering_work(seconds(2)), []);
    core.apply(peer("cali3", false));
    assert_eq!(core.peering_work(seconds(3)), []);
    // The session is configured again, and removed again.
    core.apply(peer("cali3", true));
    assert_eq!(core.peering_work(seconds(20)), add(own(3)), "which changes nothing");
    core.apply(peer("cali3", false));
    assert_eq!(core.peering_work(seconds(21)), []);
    assert_eq!(core.peering_work(seconds(26)), remove(own(3)));
    assert_eq!(core.peering_work(seconds(27)), remove(own(3)), "until it is gone");
    core.event(KernelEvent::Address { device, net, present: false });
    assert_eq!(core.peering_work(seconds(28)), []);
}

#[test]
fn a_route_left_by_bird_gives_way_and_one_that_we_do_not_want_stays() {
    let block = net("10.0.1.0/26");
    let other = KernelRoute::new(net("10.0.2.0/26"), 0, PROTOCOL_BIRD, KernelRouteTarget::Blackhole);
    let mut kernel =
        vec![KernelRoute::new(block, 0, PROTOCOL_BIRD, KernelRouteTarget::Blackhole), other.clone()];
    let mut core = core(KernelSnapshot { routes: kernel.clone(), ..KernelSnapshot::default() });
    core.replace(planned(&[PlanUpdate::Route(block, Some(Route::BLACKHOLE))]));
    perform(&mut core, &mut kernel, AFTER_GRACE_PERIOD);
    assert_eq!(kernel, [other, KernelRoute::new(block, 0, PROTOCOL_OURS, KernelRouteTarget::Blackhole)]);
}

#[test]
fn where_another_plugin_wires_workloads_nothing_of_it_is_touched() {
    let address: IpAddr = "10.0.0.1".parse().unwrap();
    let id = WorkloadId { orchestrator: "k8s".into(), workload: "pod".into(), endpoint: "eth0".into() };
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
    let mut core = DataplaneCore::new(settings, Regex::new("^eth").unwrap(), 1, snapshot, Duration::ZERO);
    let mut plan = NodePlan::default();
    plan.apply(PlanUpdate::Workload(id.clone(), Some(workload)));
    plan.apply(PlanUpdate::Route(net("10.0.1.0/26"), Some(Route::BLACKHOLE)));
    core.replace(plan);
    let mut kernel = theirs.to_vec();
    assert_eq!(perform(&mut core, &mut kernel, AFTER_GRACE_PERIOD), 0);
    assert_eq!(kernel, theirs);
    assert_eq!(core.conf_work(), Vec::new());
    assert_eq!(core.neighbour_work(), (Vec::new(), Vec::new()));
    assert_eq!(core.states().next(), Some((&id, WorkloadState::Up)));
}

#[test]
fn a_port_of_a_bridge_is_no_interface_to_police() {
    let mut port = link(3, "veth3", true);
    port.master = Some(4);
    let bridge = KernelLink { kind: Some("bridge".into()), ..link(4, "cni0", true) };
    let mut core = core(KernelSnapshot { links: vec![port, bridge], ..KernelSnapshot::default() });
    let id = WorkloadId { orchestrator: "cni".into(), workload: "default/c".into(), endpoint: "eth0".into() };
    let workload = PlannedWorkload { interface: "veth3".into(), ..PlannedWorkload::default() };
    core.apply(PlanUpdate::Workload(id, Some(workload)));
    let (_, state) = core.states().next().unwrap();
    assert!(
        matches!(&state, WorkloadState::Error(why) if why.contains("port of the bridge cni0")),
        "{state:?}"
    );
}
