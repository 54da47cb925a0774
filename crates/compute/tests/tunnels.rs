//! Computes tunnels from pools: devices, remote endpoints, accepted peers and routes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_compute::{BgpEnvironment, MissingBgpRoutes, ParameterEnvironment, PlanCompute};
use tortie_model::kubernetes::{KubernetesService, ServiceType};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_plan::{NodePlan, Route, RouteKey, RouteTarget, SetMember, TunnelKind, TunnelProtocol, VtepId};
use tortie_testkit::samples::stored;

type TunnelEntry = (StoreKey, StoreValue);

fn resource(kind: Kind, name: &str, spec: serde_json::Value) -> TunnelEntry {
    stored(kind, json!({"metadata": {"name": name}, "spec": spec}))
}

/// Node 3 in network 1 has the addresses 172.16.1.3 and fd00:1::3; its tunnel addresses are 10.0.3.1 and fd10::3:1.
fn node(number: u8, network: u8, has_ends: bool) -> TunnelEntry {
    let mut spec = json!({"bgp": {
        "ipv4Address": format!("172.16.{network}.{number}/24"), "ipv6Address": format!("fd00:{network}::{number}/64"),
    }});
    if has_ends {
        spec["ipv4VXLANTunnelAddr"] = json!(format!("10.0.{number}.1"));
        spec["ipv6VXLANTunnelAddr"] = json!(format!("fd10::{number}:1"));
        spec["bgp"]["ipv4IPIPTunnelAddr"] = json!(format!("10.0.{number}.2"));
    }
    resource(Kind::Node, &format!("n{number}"), spec)
}

fn pool(name: &str, cidr: &str, vxlan: &str, ipip: &str) -> TunnelEntry {
    resource(Kind::IPPool, name, json!({"cidr": cidr, "vxlanMode": vxlan, "ipipMode": ipip}))
}

fn block(cidr: &str, owner: &str, users: &[&str]) -> TunnelEntry {
    let attributes: Vec<_> =
        users.iter().map(|node| json!({"handle_id": "h", "secondary": {"node": node}})).collect();
    let text = json!({
        "cidr": cidr, "affinity": format!("host:{owner}"),
        "allocations": (0..users.len()).collect::<Vec<_>>(), "attributes": attributes,
    });
    let key = StoreKey::Block { cidr: cidr.parse().unwrap() };
    let value = StoreValue::decode(&key, text.to_string().as_bytes()).unwrap();
    (key, value)
}

fn felix(spec: serde_json::Value) -> TunnelEntry {
    resource(Kind::FelixConfiguration, "default", spec)
}

struct TunnelWorld {
    compute: PlanCompute,
    plan: NodePlan,
}

impl TunnelWorld {
    fn new(entries: &[TunnelEntry]) -> TunnelWorld {
        let mut world = TunnelWorld {
            compute: PlanCompute::new("n1", ParameterEnvironment::default()),
            plan: NodePlan::default(),
        };
        entries.iter().for_each(|entry| world.put(entry.clone()));
        world.flush();
        world
    }

    fn put(&mut self, (key, value): TunnelEntry) {
        self.compute.put(&key, &value);
    }

    /// Applies the updates of the plan. Returns their number.
    fn flush(&mut self) -> usize {
        let updates = self.compute.flush();
        let count = updates.len();
        updates.into_iter().for_each(|update| self.plan.apply(update));
        count
    }

    fn with(mut self, entry: TunnelEntry) -> TunnelWorld {
        self.put(entry);
        self.flush();
        self
    }

    fn route(&self, net: &str) -> Option<Route> {
        let net: ipnet::IpNet = net.parse().unwrap();
        self.plan.routes.get(&RouteKey::from(net)).copied()
    }

    fn peers(&self, kind: TunnelKind) -> Vec<String> {
        let set = kind.peers().and_then(|peers| self.plan.sets.get(&peers));
        let members = set.into_iter().flat_map(|set| &set.members);
        members
            .map(|member| match member {
                SetMember::Net(net) => net.to_string(),
                SetMember::Port { .. } => panic!("a port"),
            })
            .collect()
    }
}

fn through(kind: TunnelKind, gateway: &str) -> Option<Route> {
    Some(Route::through(kind, Some(gateway.parse().unwrap())))
}

fn via(address: &str) -> Option<Route> {
    Some(Route::via(address.parse().unwrap()))
}

/// n1 and n2 are in one network, n3 is in another.
fn cluster(vxlan: &str, ipip: &str) -> Vec<TunnelEntry> {
    vec![
        node(1, 0, true),
        node(2, 0, true),
        node(3, 1, true),
        pool("v4", "10.0.0.0/16", vxlan, ipip),
        pool("v6", "fd10::/96", vxlan, "Never"),
        block("10.0.1.0/26", "n1", &["n1"]),
        block("10.0.2.0/26", "n2", &["n2", "n3"]),
        block("10.0.3.0/26", "n3", &["n3"]),
        block("fd10::2:0/122", "n2", &["n2"]),
        block("fd10::3:0/122", "n3", &["n3"]),
    ]
}

/// Returns a node without BGP that has computed these entries.
fn without_bgp(entries: &[TunnelEntry]) -> TunnelWorld {
    let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
    compute.leave_cluster_routes();
    let mut world = TunnelWorld { compute, plan: NodePlan::default() };
    entries.iter().for_each(|entry| world.put(entry.clone()));
    world.flush();
    world
}

fn unrouted(world: &TunnelWorld) -> Vec<String> {
    world.compute.unrouted_pools().into_iter().map(|pool| pool.name).collect()
}

#[test]
fn pools_that_nothing_routes_are_named() {
    let plain = cluster("Never", "Never");
    let world = without_bgp(&plain);
    let [pool] = &world.compute.unrouted_pools()[..] else { panic!("{:?}", unrouted(&world)) };
    assert_eq!(
        (pool.name.as_str(), pool.bgp),
        ("v4", MissingBgpRoutes::Disabled),
        "n1 has no IPv6 block, so no pod that needs the routes"
    );
    let world = world.with(block("fd10::1:0/122", "n1", &["n1"]));
    assert_eq!(unrouted(&world), ["v4", "v6"]);
    assert_eq!(unrouted(&world.with(felix(json!({"programClusterRoutes": "Enabled"})))), [""; 0]);
    // Encapsulated pools have routes of the node, unless the settings disable them.
    for (vxlan, ipip) in [("Always", "Never"), ("CrossSubnet", "Never"), ("Never", "Always")] {
        assert_eq!(unrouted(&without_bgp(&cluster(vxlan, ipip))), [""; 0], "{vxlan} {ipip}");
    }
    let disabled = without_bgp(&cluster("Always", "Never")).with(felix(json!({"vxlanEnabled": false})));
    assert_eq!(unrouted(&disabled), ["v4"]);
    let disabled =
        without_bgp(&cluster("Never", "Always")).with(felix(json!({"programClusterRoutes": "Disabled"})));
    assert_eq!(unrouted(&disabled), ["v4"]);
    // Routes of another program, and blocks of nodes that are gone.
    let others = without_bgp(&plain).with(felix(json!({"routeSyncDisabled": true})));
    assert_eq!(unrouted(&others), [""; 0]);
    let mut gone = without_bgp(&plain);
    gone.compute.delete(&node(2, 0, true).0);
    assert_eq!(unrouted(&gone), ["v4"]);
    gone.compute.delete(&node(3, 0, true).0);
    assert_eq!(unrouted(&gone), [""; 0]);
}

#[test]
fn nodes_without_blocks_miss_no_routes() {
    let mut policy_only = without_bgp(&cluster("Never", "Never"));
    policy_only.compute.delete(&block("10.0.1.0/26", "n1", &[]).0);
    assert_eq!(unrouted(&policy_only), [""; 0]);
    let without_pools: Vec<TunnelEntry> =
        cluster("Never", "Never").into_iter().filter(|(_, value)| !is_pool(value)).collect();
    assert_eq!(unrouted(&without_bgp(&without_pools)), [""; 0]);
}

fn is_pool(value: &StoreValue) -> bool {
    matches!(value, StoreValue::Resource(Resource::IPPool(_)))
}

#[test]
fn bgp_without_peers_provides_no_routes() {
    let bgp = |spec| {
        let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
        compute.speak_bgp(BgpEnvironment { router_id: String::new(), by_bird: false });
        let mut world = TunnelWorld { compute, plan: NodePlan::default() };
        cluster("Never", "Never").into_iter().for_each(|entry| world.put(entry));
        assert_eq!(unrouted(&world), [""; 0], "not computed yet");
        world.with(resource(Kind::BGPConfiguration, "default", spec))
    };
    assert_eq!(unrouted(&bgp(json!({}))), [""; 0]);
    let reason = |spec| bgp(spec).compute.unrouted_pools().first().map(|pool| pool.bgp);
    assert_eq!(reason(json!({"nodeToNodeMeshEnabled": false})), Some(MissingBgpRoutes::NoSessions));
    assert_eq!(reason(json!({"programClusterRoutes": "Disabled"})), Some(MissingBgpRoutes::NotInstalled));
}

#[test]
fn vxlan_pools_have_devices_vteps_and_routes() {
    let world = TunnelWorld::new(&cluster("Always", "Never"));
    assert_eq!(
        world.plan.tunnels.keys().copied().collect::<Vec<_>>(),
        [TunnelKind::VxlanV4, TunnelKind::VxlanV6]
    );
    let device = &world.plan.tunnels[&TunnelKind::VxlanV4];
    assert_eq!(device.address, Some("10.0.1.1".parse().unwrap()));
    assert_eq!(device.local, "172.16.0.1".parse::<IpAddr>().unwrap());
    let TunnelProtocol::Vxlan { vni, port, mac } = device.protocol else { panic!("not VXLAN") };
    assert_eq!((vni, port, mac[0]), (4096, 4789, 0x66));
    let vtep = world.plan.vteps[&VtepId { tunnel: TunnelKind::VxlanV6, node: "n3".into() }];
    assert_eq!((vtep.address, vtep.node), ("fd10::3:1".parse().unwrap(), "fd00:1::3".parse().unwrap()));
    assert_eq!(world.plan.vteps.len(), 4, "two nodes, two families: {:?}", world.plan.vteps.keys());
    assert_eq!(world.peers(TunnelKind::VxlanV4), ["172.16.0.2/32", "172.16.1.3/32"]);
    assert_eq!(world.route("10.0.1.0/26"), Some(Route::BLACKHOLE));
    assert_eq!(world.route("10.0.2.0/26"), through(TunnelKind::VxlanV4, "10.0.2.1"));
    assert_eq!(world.route("10.0.2.1/32"), through(TunnelKind::VxlanV4, "10.0.3.1"), "lent by n2 to n3");
    assert_eq!(world.route("fd10::3:0/122"), through(TunnelKind::VxlanV6, "fd10::3:1"));
    assert_eq!(world.route("fd10::3:1/128"), Some(Route::through(TunnelKind::VxlanV6, None)));
}

#[test]
fn across_subnets_only_what_crosses_is_wrapped() {
    let world = TunnelWorld::new(&cluster("CrossSubnet", "Never"));
    assert_eq!(world.route("10.0.2.0/26"), via("172.16.0.2"));
    assert_eq!(world.route("10.0.3.0/26"), through(TunnelKind::VxlanV4, "10.0.3.1"));
    assert_eq!(world.route("fd10::2:0/122"), via("fd00:0::2"));
    assert_eq!(world.route("fd10::3:0/122"), through(TunnelKind::VxlanV6, "fd10::3:1"));
    // A node that moves into the network of this node no longer needs a tunnel.
    let world = world.with(node(3, 0, true));
    assert_eq!(world.route("10.0.3.0/26"), via("172.16.0.3"));
    let world = TunnelWorld::new(&cluster("Never", "CrossSubnet"));
    assert_eq!(world.route("10.0.2.0/26"), via("172.16.0.2"));
    assert_eq!(world.route("10.0.3.0/26"), through(TunnelKind::Ipip, "172.16.1.3"));
}

#[test]
fn ipip_routes_lead_to_the_node_itself() {
    let world = TunnelWorld::new(&cluster("Never", "Always"));
    assert_eq!(world.plan.tunnels.keys().copied().collect::<Vec<_>>(), [TunnelKind::Ipip]);
    assert_eq!(world.plan.tunnels[&TunnelKind::Ipip].address, Some("10.0.1.2".parse().unwrap()));
    assert_eq!(world.peers(TunnelKind::Ipip), ["172.16.0.1/32", "172.16.0.2/32", "172.16.1.3/32"]);
    assert_eq!(world.route("10.0.2.0/26"), through(TunnelKind::Ipip, "172.16.0.2"));
    assert_eq!(world.plan.vteps.len(), 0);
    assert_eq!(world.route("fd10::2:0/122"), via("fd00:0::2"), "IPv6 has none");
    let world = world.with(felix(json!({"programClusterRoutes": "EnabledNoEncapOnly"})));
    assert_eq!(world.route("10.0.2.0/26"), None, "left to BGP");
    assert_eq!(world.plan.tunnels.len(), 1, "which sends through our device");
}

#[test]
fn routes_wait_for_their_tunnel_endpoint() {
    let world = TunnelWorld::new(&cluster("Always", "Never")).with(node(3, 1, false));
    assert_eq!(world.route("10.0.3.0/26"), None);
    assert_eq!(world.peers(TunnelKind::VxlanV4), ["172.16.0.2/32"]);
    let world = world.with(node(3, 1, true));
    assert_eq!(world.route("10.0.3.0/26"), through(TunnelKind::VxlanV4, "10.0.3.1"));
}

#[test]
fn one_changed_node_changes_little_of_the_plan() {
    let mut entries = cluster("Always", "Never");
    entries.extend((4..250).map(|number| node(number, 1, true)));
    entries.extend((4..250).map(|number| block(&format!("10.0.{number}.0/26"), &format!("n{number}"), &[])));
    let mut world = TunnelWorld::new(&entries);
    assert_eq!(world.plan.vteps.len(), 2 * 248);
    world.put(node(200, 2, true));
    // Two tunnel endpoints and two set members; the routes lead to the same tunnel endpoints as before.
    assert_eq!(world.flush(), 4);
    world.put(node(200, 2, true));
    assert_eq!(world.flush(), 0);
    world.compute.delete(&StoreKey::resource(Kind::Node, "", "n200"));
    // Two tunnel endpoints, two set members, a block and the route to the IPv6 tunnel endpoint.
    assert_eq!(world.flush(), 6);
}

#[test]
fn settings_change_tunnels_and_can_switch_them() {
    let world = TunnelWorld::new(&cluster("Always", "Never"));
    let world = world.with(felix(json!({
        "vxlanVNI": 7, "vxlanPort": 8472, "vxlanMTU": 1400, "externalNodesList": ["192.0.2.0/24", "172.16.0.2"],
    })));
    let device = &world.plan.tunnels[&TunnelKind::VxlanV4];
    assert_eq!(device.mtu, Some(1400));
    assert!(matches!(device.protocol, TunnelProtocol::Vxlan { vni: 7, port: 8472, .. }));
    assert_eq!(world.plan.tunnels[&TunnelKind::VxlanV6].mtu, None);
    assert_eq!(world.peers(TunnelKind::VxlanV4), ["172.16.0.2/32", "172.16.1.3/32", "192.0.2.0/24"]);
    let world = world.with(felix(json!({"externalNodesList": ["172.16.0.2"]})));
    assert_eq!(world.peers(TunnelKind::VxlanV4), ["172.16.0.2/32", "172.16.1.3/32"]);
    let world = world.with(felix(json!({"vxlanEnabled": false})));
    assert_eq!((world.plan.tunnels.len(), world.plan.vteps.len()), (0, 0));
    assert_eq!(world.route("10.0.2.0/26"), None);
    assert!(world.plan.sets.is_empty());
    let world = world.with(felix(json!({})));
    assert_eq!(world.plan.tunnels.len(), 2);
    let world = TunnelWorld::new(&cluster("Never", "Never")).with(felix(json!({"ipipEnabled": true})));
    assert_eq!(world.plan.tunnels.len(), 1, "also where no pool asks for it");
}

/// Generates entries with few distinct nodes, pools and blocks, so that they are replaced and removed often.
fn any_entry() -> impl Strategy<Value = TunnelEntry> {
    let modes = prop::sample::select(vec![
        ("Never", "Never"),
        ("Always", "Never"),
        ("CrossSubnet", "Never"),
        ("Never", "Always"),
        ("Never", "CrossSubnet"),
    ]);
    let name = prop::sample::select(vec!["n1", "n2", "n3", "n4"]);
    prop_oneof![
        3 => (1u8..5, 0u8..2, any::<bool>()).prop_map(|(n, net, ends)| node(n, net, ends)),
        2 => (0u8..2, modes.clone())
            .prop_map(|(i, (vxlan, ipip))| pool(&format!("p{i}"), &format!("10.{i}.0.0/16"), vxlan, ipip)),
        1 => modes.prop_map(|(vxlan, _)| pool("v6", "fd10::/96", vxlan, "Never")),
        2 => (0u8..2, 1u8..5, name.clone(), prop::collection::vec(name.clone(), 0..3)).prop_map(|(i, j, owner, users)|
            block(&format!("10.{i}.{j}.0/26"), owner, &users)),
        1 => (1u8..5, name).prop_map(|(j, owner)| block(&format!("fd10::{j}:0/122"), owner, &[])),
        1 => prop::sample::select(vec![json!({}), json!({"vxlanEnabled": false}), json!({"ipipEnabled": true}),
            json!({"externalNodesList": ["172.16.0.2", "192.0.2.0/24"]}), json!({"vxlanPort": 8472})])
            .prop_map(felix),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_order_of_news_does_not_matter(
        history in prop::collection::vec((any_entry(), prop::bool::weighted(0.2), any::<bool>()), 0..50),
        order in any::<prop::sample::Index>(),
    ) {
        let mut grown = TunnelWorld::new(&[]);
        let mut state = BTreeMap::new();
        for ((key, value), deleted, flush) in history {
            if deleted {
                grown.compute.delete(&key);
                state.remove(&key);
            } else {
                grown.put((key.clone(), value.clone()));
                state.insert(key, value);
            }
            if flush {
                grown.flush();
            }
        }
        grown.flush();
        let mut entries: Vec<TunnelEntry> = state.into_iter().collect();
        if !entries.is_empty() {
            let turn = order.index(entries.len());
            entries.rotate_left(turn);
            if turn % 2 == 0 {
                entries.reverse();
            }
        }
        prop_assert_eq!(&grown.plan, &TunnelWorld::new(&entries).plan);
        // Deleting all entries leaves an empty plan.
        for (key, _) in &entries {
            grown.compute.delete(key);
            grown.flush();
        }
        prop_assert_eq!(grown.plan, NodePlan::default());
    }
}

fn endpoint(name: &str, node: &str, nets: &[&str]) -> TunnelEntry {
    let spec = json!({
        "node": node, "orchestrator": "k8s", "endpoint": "eth0", "pod": name, "interfaceName": format!("cali{name}"),
        "ipNetworks": nets,
    });
    stored(Kind::WorkloadEndpoint, json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}))
}

fn balancer_pool(name: &str, cidr: &str, vxlan: &str) -> TunnelEntry {
    let spec = json!({"cidr": cidr, "vxlanMode": vxlan, "allowedUses": ["LoadBalancer"]});
    resource(Kind::IPPool, name, spec)
}

fn service(address: &str) -> TunnelEntry {
    let service = KubernetesService {
        form: ServiceType::LoadBalancer,
        ingress_ips: vec![address.parse().unwrap()],
        ..KubernetesService::default()
    };
    let key = StoreKey::Service { namespace: "shop".into(), name: address.into() };
    (key, StoreValue::Service(Box::new(service)))
}

/// Services do not get addresses with other owners by requesting them, regardless of their status.
#[test]
fn services_take_no_address_of_others() {
    let on = || felix(json!({"localSubnetL2Reachability": "PodsAndLoadBalancers"}));
    let requested = || {
        let service = KubernetesService {
            form: ServiceType::LoadBalancer,
            load_balancer_ip: "172.16.1.201".parse().ok(),
            ..KubernetesService::default()
        };
        (
            StoreKey::Service { namespace: "shop".into(), name: "asks".into() },
            StoreValue::Service(Box::new(service)),
        )
    };
    let entries = [
        on(),
        node(1, 1, true),
        balancer_pool("link", "172.16.1.0/24", "Never"),
        pool("pods", "172.16.2.0/24", "Never", "Never"),
        endpoint("victim", "n9", &["172.16.1.130/32"]),
        block("172.16.1.64/26", "n9", &[]),
        requested(),
        service("172.16.1.200"),
        service("172.16.1.130"),
        service("172.16.1.70"),
        service("172.16.2.9"),
        service("172.16.1.1"),
    ];
    let mut world = TunnelWorld::new(&entries);
    let proxied =
        |world: &TunnelWorld| world.plan.proxied.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(proxied(&world), ["172.16.1.200"]);
    let problems = world.compute.problems();
    for (address, reason) in [
        ("172.16.1.130", "it belongs to an endpoint"),
        ("172.16.1.70", "it is in a block of IPAM that is not for services"),
        ("172.16.2.9", "its IPPool does not allow LoadBalancer"),
        ("172.16.1.1", "it belongs to a node"),
    ] {
        let problem = &problems[&format!("Service(shop/{address})")];
        assert_eq!(*problem, format!("no node answers for {address}: {reason}"));
    }
    // The order of events does not matter, and the address is free when its owner is deleted.
    let mut reversed = TunnelWorld::new(&[]);
    entries.iter().rev().for_each(|entry| {
        reversed.put(entry.clone());
        reversed.flush();
    });
    assert_eq!(proxied(&reversed), proxied(&world));
    world.compute.delete(&StoreKey::resource(Kind::WorkloadEndpoint, "shop", "victim"));
    world.flush();
    assert_eq!(proxied(&world), ["172.16.1.130", "172.16.1.200"]);
}

#[test]
fn each_service_address_has_one_answering_node() {
    let mut world = TunnelWorld::new(&[
        felix(json!({"localSubnetL2Reachability": "PodsAndLoadBalancers"})),
        node(1, 1, true),
        balancer_pool("link", "172.16.1.128/25", "Never"),
        balancer_pool("wrapped", "10.0.0.0/16", "CrossSubnet"),
        service("10.0.0.7"),
        service("192.0.2.7"),
    ]);
    let addresses: Vec<String> = (200..216).map(|last| format!("172.16.1.{last}")).collect();
    addresses.iter().for_each(|address| world.put(service(address)));
    world.flush();
    let proxied =
        |world: &TunnelWorld| world.plan.proxied.iter().map(ToString::to_string).collect::<Vec<_>>();
    let routed = |world: &TunnelWorld| {
        let host = |(key, route): (&RouteKey, &Route)| {
            (route.target == RouteTarget::Host).then(|| key.destination.addr().to_string())
        };
        world.plan.routes.iter().filter_map(host).collect::<Vec<_>>()
    };
    assert_eq!(proxied(&world), addresses, "there is no other node, and the others are of no pool for it");
    assert_eq!(routed(&world), addresses);
    assert_eq!(world.plan.service_ranges.len(), addresses.len());
    world.put(node(2, 1, true));
    world.flush();
    let share = proxied(&world);
    assert!(!share.is_empty() && share.len() < addresses.len(), "{share:?}");
    assert_eq!(routed(&world), share);
    assert_eq!(world.flush(), 0, "what has not changed is not reported again");
    world.compute.delete(&StoreKey::Service { namespace: "shop".into(), name: share[0].clone() });
    world.flush();
    assert_eq!(proxied(&world), share[1..]);
    world.put(felix(json!({})));
    world.flush();
    assert_eq!((proxied(&world).len(), routed(&world).len(), world.plan.service_ranges.len()), (0, 0, 0));
}

#[test]
fn workloads_of_unencapsulated_pools_are_proxied() {
    let on = || felix(json!({"localSubnetL2Reachability": "PodsAndLoadBalancers"}));
    let mut world = TunnelWorld::new(&[
        node(1, 1, true),
        pool("link", "172.16.1.128/25", "Never", "Never"),
        pool("link6", "fd00:1::1000/116", "Never", "Never"),
        pool("wrapped", "10.0.0.0/16", "CrossSubnet", "Never"),
        endpoint("one", "n1", &["172.16.1.130/32", "fd00:1::1001/128", "10.0.1.7/32", "192.0.2.1/32"]),
        endpoint("two", "n2", &["172.16.1.131/32"]),
    ]);
    let proxied =
        |world: &TunnelWorld| world.plan.proxied.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(proxied(&world), [""; 0], "nothing unless it is asked for");
    world.put(on());
    world.flush();
    assert_eq!(proxied(&world), ["172.16.1.130", "fd00:1::1001"]);
    world.put(pool("link6", "fd00:1::1000/116", "Always", "Never"));
    world.flush();
    assert_eq!(proxied(&world), ["172.16.1.130"], "the pool has encapsulation now");
    world.put(endpoint("two", "n1", &["172.16.1.131/32"]));
    world.flush();
    assert_eq!(proxied(&world), ["172.16.1.130", "172.16.1.131"]);
    assert_eq!(world.flush(), 0, "what has not changed is not reported again");
    world.compute.delete(&StoreKey::resource(Kind::WorkloadEndpoint, "shop", "one"));
    world.flush();
    assert_eq!(proxied(&world), ["172.16.1.131"]);
    world.compute.delete(&StoreKey::resource(Kind::IPPool, "", "link"));
    world.flush();
    assert_eq!(proxied(&world), [""; 0]);
    world.put(pool("link", "172.16.1.128/25", "Never", "Never"));
    world.flush();
    assert_eq!(proxied(&world), ["172.16.1.131"]);
    world.put(felix(json!({})));
    world.flush();
    assert_eq!(proxied(&world), [""; 0]);
}
