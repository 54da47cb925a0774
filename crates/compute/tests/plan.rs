//! Computes plans from datastores: the expected plan, and its independence of the order of events.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use serde_json::json;
use std::net::IpAddr;
use tortie_compute::{BgpEnvironment, MAX_FLOATING_IPS, ParameterEnvironment, PlanCompute};
use tortie_model::kubernetes::{KubernetesService, ServiceType};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_plan::{
    NAT_EXCLUSIONS_SET, NAT_SOURCES_SET, NodePlan, PlanUpdate, Route, SetId, SetMember, TunnelKind,
};
use tortie_testkit::samples::stored;

type PlanEntry = (StoreKey, StoreValue);

fn resource(kind: Kind, namespace: &str, name: &str, spec: serde_json::Value) -> PlanEntry {
    stored(kind, json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))
}

fn node(name: &str, address: &str) -> PlanEntry {
    resource(Kind::Node, "", name, json!({"bgp": {"ipv4Address": address, "ipv6Address": "fd00::1/64"}}))
}

fn pool(name: &str, cidr: &str, ipip: &str) -> PlanEntry {
    resource(Kind::IPPool, "", name, json!({"cidr": cidr, "ipipMode": ipip}))
}

/// Returns a block whose addresses are used by the given nodes, from the first address on.
fn block(cidr: &str, owner: Option<&str>, users: &[&str]) -> PlanEntry {
    let attributes: Vec<_> =
        users.iter().map(|node| json!({"handle_id": "h", "secondary": {"node": node}})).collect();
    let allocations: Vec<_> = (0..users.len()).collect();
    let text = json!({
        "cidr": cidr,
        "affinity": owner.map(|owner| format!("host:{owner}")),
        "allocations": allocations,
        "attributes": attributes,
    });
    let key = StoreKey::Block { cidr: cidr.parse().unwrap() };
    let value = StoreValue::decode(&key, text.to_string().as_bytes()).unwrap();
    (key, value)
}

fn endpoint(node: &str, container: &str, interface: &str, address: &str) -> PlanEntry {
    let name = format!("{node}-cni-{container}-eth0");
    let spec = json!({
        "orchestrator": "cni", "node": node, "containerID": container, "endpoint": "eth0",
        "interfaceName": interface, "ipNetworks": [format!("{address}/32")],
    });
    resource(Kind::WorkloadEndpoint, "default", &name, spec)
}

fn felix(spec: serde_json::Value) -> PlanEntry {
    resource(Kind::FelixConfiguration, "", "default", spec)
}

/// Returns the plan of entries, flushed after each entry if `each`, else once at the end.
fn plan_of(entries: &[PlanEntry], each: bool) -> (NodePlan, PlanCompute) {
    let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
    let mut plan = NodePlan::default();
    for (key, value) in entries {
        compute.put(key, value);
        if each {
            compute.flush().into_iter().for_each(|update| plan.apply(update));
        }
    }
    compute.flush().into_iter().for_each(|update| plan.apply(update));
    (plan, compute)
}

fn cluster() -> Vec<PlanEntry> {
    vec![
        node("n1", "172.16.0.1/24"),
        node("n2", "172.16.0.2/24"),
        node("n3", "172.17.0.3/24"),
        pool("plain", "10.0.0.0/16", "Never"),
        pool("wrapped", "10.1.0.0/16", "Always"),
        pool("across", "10.2.0.0/16", "CrossSubnet"),
        block("10.0.0.0/26", Some("n1"), &["n1", "n2"]),
        block("10.0.0.64/26", Some("n2"), &["n2", "n1", "n3"]),
        block("10.1.0.0/26", Some("n2"), &[]),
        block("10.2.0.0/26", Some("n2"), &[]),
        block("10.2.0.64/26", Some("n3"), &[]),
        block("10.9.0.0/26", Some("n2"), &[]),
        endpoint("n1", "c1", "cali1", "10.0.0.0"),
        endpoint("n2", "c2", "cali2", "10.0.0.64"),
    ]
}

fn route(plan: &NodePlan, net: &str) -> Option<Route> {
    let net: ipnet::IpNet = net.parse().unwrap();
    plan.routes.get(&net.into()).copied()
}

fn via(address: &str) -> Option<Route> {
    Some(Route::via(address.parse().unwrap()))
}

fn wrapped(address: &str) -> Option<Route> {
    Some(Route::through(TunnelKind::Ipip, Some(address.parse().unwrap())))
}

#[test]
fn own_blocks_are_blackholes_others_are_routed() {
    let (plan, compute) = plan_of(&cluster(), false);
    assert_eq!(route(&plan, "10.0.0.0/26"), Some(Route::BLACKHOLE));
    assert_eq!(route(&plan, "10.0.0.1/32"), via("172.16.0.2"), "lent by us to n2");
    assert_eq!(route(&plan, "10.0.0.64/26"), via("172.16.0.2"));
    assert_eq!(route(&plan, "10.0.0.65/32"), None, "borrowed by ourselves");
    assert_eq!(route(&plan, "10.0.0.66/32"), via("172.17.0.3"), "lent by n2 to n3");
    assert_eq!(route(&plan, "10.1.0.0/26"), wrapped("172.16.0.2"), "needs a tunnel");
    assert_eq!(route(&plan, "10.2.0.0/26"), via("172.16.0.2"), "same subnet needs none");
    assert_eq!(route(&plan, "10.2.0.64/26"), wrapped("172.17.0.3"), "other subnet does");
    assert_eq!(route(&plan, "10.9.0.0/26"), None, "in no pool");
    assert_eq!(plan.workloads.len(), 1);
    let (id, workload) = plan.workloads.first_key_value().unwrap();
    assert_eq!((id.orchestrator.as_str(), id.workload.as_str()), ("cni", "default/c1"));
    assert_eq!(workload.addresses, ["10.0.0.0".parse::<IpAddr>().unwrap()]);
    assert_eq!(compute.totals().workload_endpoints, 2);
    assert_eq!(compute.problems(), Default::default());
}

#[test]
fn what_is_deleted_leaves_the_plan() {
    let entries = cluster();
    let (mut plan, mut compute) = plan_of(&entries, true);
    for (key, _) in entries.iter().rev() {
        compute.delete(key);
        compute.flush().into_iter().for_each(|update| plan.apply(update));
    }
    assert_eq!(plan, NodePlan::default());
    assert_eq!(compute.totals(), Default::default());
}

#[test]
fn live_workloads_win_over_remote_routes() {
    let mut entries = cluster();
    entries.push(endpoint("n1", "c9", "cali9", "10.0.0.66"));
    let (mut plan, mut compute) = plan_of(&entries, false);
    assert_eq!(route(&plan, "10.0.0.66/32"), None);
    compute.delete(&entries.last().unwrap().0);
    compute.flush().into_iter().for_each(|update| plan.apply(update));
    assert_eq!(route(&plan, "10.0.0.66/32"), via("172.17.0.3"));
}

#[test]
fn first_of_two_endpoints_gets_the_interface() {
    let mut entries = cluster();
    entries.push(endpoint("n1", "a0", "cali1", "10.0.0.5"));
    let (mut plan, mut compute) = plan_of(&entries, true);
    assert_eq!(plan.workloads.keys().map(|id| id.workload.as_str()).collect::<Vec<_>>(), ["default/a0"]);
    assert_eq!(compute.problems().len(), 1);
    compute.delete(&entries.last().unwrap().0);
    compute.flush().into_iter().for_each(|update| plan.apply(update));
    assert_eq!(plan.workloads.keys().map(|id| id.workload.as_str()).collect::<Vec<_>>(), ["default/c1"]);
}

#[test]
fn routes_follow_workloads_or_are_left_out() {
    let mut entries = cluster();
    entries.push(felix(json!({"programClusterRoutes": "Disabled"})));
    let (plan, _) = plan_of(&entries, false);
    assert_eq!(plan.routes.len(), 0, "{:?}", plan.routes);
    entries.push(felix(json!({"routeSource": "WorkloadIPs"})));
    let (plan, _) = plan_of(&entries, true);
    assert_eq!(route(&plan, "10.0.0.64/32"), via("172.16.0.2"));
    assert_eq!(plan.routes.len(), 1);
}

/// The behaviour of `CALICO_NETWORKING_BACKEND` none and vxlan.
#[test]
fn cluster_routes_without_bgp_follow_the_settings() {
    let to_neighbour = |entries: &[PlanEntry], leaves: bool| {
        let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
        if leaves {
            compute.leave_cluster_routes();
        }
        entries.iter().for_each(|(key, value)| compute.put(key, value));
        let mut plan = NodePlan::default();
        compute.flush().into_iter().for_each(|update| plan.apply(update));
        route(&plan, "10.0.0.66/32")
    };
    let mut entries = cluster();
    assert_eq!(to_neighbour(&entries, false), via("172.17.0.3"));
    assert_eq!(to_neighbour(&entries, true), None);
    entries.push(felix(json!({"programClusterRoutes": "Enabled"})));
    assert_eq!(to_neighbour(&entries, true), via("172.17.0.3"));
}

#[test]
fn a_peer_behind_a_gateway_has_a_route() {
    let peer = |gateway: &str| {
        resource(
            Kind::BGPPeer,
            "",
            "far",
            json!({"peerIP": "192.0.2.9", "asNumber": 65000, "reachableBy": gateway}),
        )
    };
    for by_bird in [false, true] {
        let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
        compute.speak_bgp(BgpEnvironment { by_bird, ..BgpEnvironment::default() });
        let mut plan = NodePlan::default();
        let mut learn = |compute: &mut PlanCompute| {
            compute.flush().into_iter().for_each(|update| plan.apply(update));
            route(&plan, "192.0.2.9/32")
        };
        // BIRD writes this route itself.
        let ours = |address: &str| via(address).filter(|_| !by_bird);
        for (key, value) in [node("n1", "10.0.0.1/24"), peer("10.0.0.254")] {
            compute.put(&key, &value);
        }
        assert_eq!(learn(&mut compute), ours("10.0.0.254"));
        let (key, value) = peer("10.0.0.253");
        compute.put(&key, &value);
        assert_eq!(learn(&mut compute), ours("10.0.0.253"));
        compute.delete(&key);
        assert_eq!(learn(&mut compute), None);
    }
}

#[test]
fn bad_objects_are_named_and_others_work() {
    let mut entries = cluster();
    let (key, value) = endpoint("n1", "c3", "cali3", "10.0.0.7");
    let StoreValue::Resource(Resource::WorkloadEndpoint(mut bad)) = value else { unreachable!() };
    bad.spec.mac = "no mac".into();
    entries.push((key.clone(), StoreValue::Resource(Resource::WorkloadEndpoint(bad))));
    let (plan, compute) = plan_of(&entries, false);
    assert_eq!(plan.workloads.len(), 1);
    assert_eq!(compute.problems().keys().collect::<Vec<_>>(), [&key.to_string()]);
}

fn members(plan: &NodePlan, set: &str) -> Option<Vec<String>> {
    let text = |member: &SetMember| match member {
        SetMember::Net(net) => net.to_string(),
        SetMember::Port { .. } => unreachable!(),
    };
    plan.sets.get(&SetId::new(set)).map(|set| set.members.iter().map(text).collect())
}

fn masqueraded(name: &str, cidr: &str) -> PlanEntry {
    resource(Kind::IPPool, "", name, json!({"cidr": cidr, "natOutgoing": true}))
}

#[test]
fn nat_outgoing_excludes_other_pools() {
    let mut compute = PlanCompute::new("n1", ParameterEnvironment::default());
    let mut plan = NodePlan::default();
    let mut put = |compute: &mut PlanCompute, entries: &[PlanEntry]| -> (NodePlan, Vec<PlanUpdate>) {
        entries.iter().for_each(|(key, value)| compute.put(key, value));
        let updates = compute.flush();
        updates.iter().for_each(|update| plan.apply(update.clone()));
        (plan.clone(), updates)
    };
    let (plan, _) = put(&mut compute, &cluster());
    assert_eq!(
        (members(&plan, NAT_SOURCES_SET), members(&plan, NAT_EXCLUSIONS_SET)),
        (None, None),
        "nobody asks for it"
    );

    let balancer = json!({"cidr": "10.8.0.0/16", "natOutgoing": true, "allowedUses": ["LoadBalancer"]});
    let entries = [
        masqueraded("plain", "10.0.0.0/16"),
        masqueraded("six", "fd01::/48"),
        resource(Kind::IPPool, "", "lb", balancer),
    ];
    let (plan, _) = put(&mut compute, &entries);
    assert_eq!(members(&plan, NAT_SOURCES_SET).unwrap(), ["10.0.0.0/16", "fd01::/48"]);
    assert_eq!(
        members(&plan, NAT_EXCLUSIONS_SET).unwrap(),
        ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16", "fd01::/48"]
    );

    let settings =
        json!({"natOutgoingExclusions": "IPPoolsAndHostIPs", "externalNodesList": ["192.0.2.0/30"]});
    let (plan, updates) = put(&mut compute, &[felix(settings)]);
    let hosts = ["172.16.0.1/32", "172.16.0.2/32", "172.17.0.3/32", "192.0.2.0/30", "fd00::1/128"];
    let pools = ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"];
    assert_eq!(members(&plan, NAT_EXCLUSIONS_SET).unwrap(), [&pools[..], &hosts, &["fd01::/48"]].concat());
    // Number of added and removed members in each change of the exclusions.
    let changes = |updates: &[PlanUpdate]| -> Vec<(usize, usize)> {
        let of_nat = updates.iter().filter_map(|update| match update {
            PlanUpdate::Members { set, added, removed } if *set == SetId::new(NAT_EXCLUSIONS_SET) => {
                Some((added.len(), removed.len()))
            }
            _ => None,
        });
        of_nat.collect()
    };
    assert_eq!(changes(&updates), [(5, 0)]);
    // All nodes have the same IPv6 address: it stays until the last node is deleted.
    let (plan, updates) = put(&mut compute, &[node("n2", "172.16.0.9/24")]);
    assert!(members(&plan, NAT_EXCLUSIONS_SET).unwrap().contains(&"fd00::1/128".to_owned()));
    assert_eq!(changes(&updates), [(1, 1)], "one address for another");
    for name in ["n1", "n2", "n3"] {
        compute.delete(&StoreKey::resource(Kind::Node, "", name));
    }
    let (plan, _) = put(&mut compute, &[]);
    assert_eq!(
        members(&plan, NAT_EXCLUSIONS_SET).unwrap(),
        [&pools[..], &["192.0.2.0/30", "fd01::/48"]].concat()
    );
    let (plan, _) = put(&mut compute, &[felix(json!({}))]);
    assert_eq!(members(&plan, NAT_EXCLUSIONS_SET).unwrap(), [&pools[..], &["fd01::/48"]].concat());

    let (plan, _) = put(&mut compute, &[pool("plain", "10.0.0.0/16", "Never")]);
    assert_eq!(members(&plan, NAT_SOURCES_SET).unwrap(), ["fd01::/48"]);
    compute.delete(&StoreKey::resource(Kind::IPPool, "", "six"));
    let (plan, _) = put(&mut compute, &[]);
    assert_eq!((members(&plan, NAT_SOURCES_SET), members(&plan, NAT_EXCLUSIONS_SET)), (None, None));
}

/// Generates entries with few distinct keys, so that keys collide often.
fn any_entry() -> impl Strategy<Value = PlanEntry> {
    let name = prop::sample::select(vec!["n1", "n2", "n3"]);
    let mode = prop::sample::select(vec!["Never", "Always", "CrossSubnet"]);
    prop_oneof![
        (name.clone(), 0u8..2, 1u8..4).prop_map(|(n, net, host)| node(n, &format!("172.16.{net}.{host}/24"))),
        (0u8..3, mode).prop_map(|(i, mode)| pool(&format!("p{i}"), &format!("10.{i}.0.0/16"), mode)),
        (0u8..3, 0u8..2).prop_map(|(i, j)| masqueraded(&format!("p{i}"), &format!("10.{}.0.0/16", i + j))),
        prop::sample::select(vec!["IPPoolsOnly", "IPPoolsAndHostIPs"])
            .prop_map(|v| felix(json!({"natOutgoingExclusions": v}))),
        (0u8..4, 0u8..2, prop::option::of(name.clone()), prop::collection::vec(name.clone(), 0..4))
            .prop_map(|(i, j, owner, users)| block(&format!("10.{i}.0.{}/26", j * 64), owner, &users)),
        (name, 0u8..3, 0u8..2, 0u8..8).prop_map(|(n, c, interface, address)| {
            endpoint(n, &format!("c{c}"), &format!("cali{interface}"), &format!("10.0.0.{address}"))
        }),
        prop::sample::select(vec!["Disabled", "Enabled", "EnabledIPIPOnly"])
            .prop_map(|v| felix(json!({"programClusterRoutes": v}))),
        prop::sample::select(vec!["CalicoIPAM", "WorkloadIPs"])
            .prop_map(|v| felix(json!({"routeSource": v}))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_order_of_news_does_not_matter(
        history in prop::collection::vec((any_entry(), any::<bool>(), any::<bool>()), 0..40),
        order in any::<prop::sample::Index>(),
    ) {
        // One node receives every event, the other only the final state, in another order.
        let mut incremental = PlanCompute::new("n1", ParameterEnvironment::default());
        let mut plan = NodePlan::default();
        let mut state = std::collections::BTreeMap::new();
        for ((key, value), deleted, flush) in &history {
            if *deleted {
                incremental.delete(key);
                state.remove(key);
            } else {
                incremental.put(key, value);
                state.insert(key.clone(), value.clone());
            }
            if *flush {
                incremental.flush().into_iter().for_each(|update| plan.apply(update));
            }
        }
        incremental.flush().into_iter().for_each(|update| plan.apply(update));
        let mut entries: Vec<PlanEntry> = state.into_iter().collect();
        if !entries.is_empty() {
            let turn = order.index(entries.len());
            entries.rotate_left(turn);
            if turn % 2 == 0 {
                entries.reverse();
            }
        }
        let (fresh, compute) = plan_of(&entries, false);
        prop_assert_eq!(&plan, &fresh);
        prop_assert_eq!(incremental.totals(), compute.totals());
        prop_assert_eq!(incremental.problems(), compute.problems());
    }
}

#[test]
fn floating_addresses_and_pool_sets_follow_settings() {
    let mut entries = vec![
        node("n1", "172.16.0.1/24"),
        pool("plain", "10.0.0.0/16", "Never"),
        pool("floating", "192.0.2.0/24", "Never"),
    ];
    let (key, value) = endpoint("n1", "c1", "cali1", "10.0.0.1");
    let StoreValue::Resource(Resource::WorkloadEndpoint(mut endpoint)) = value else { unreachable!() };
    let nat = |internal: &str, external: &str| json!({"internalIP": internal, "externalIP": external});
    endpoint.spec.ip_nats = serde_json::from_value(json!([
        nat("10.0.0.1", "192.0.2.1"),
        nat("10.0.0.9", "192.0.2.9"),
        nat("10.0.0.1", "fd00::1")
    ]))
    .unwrap();
    endpoint.spec.qos_controls =
        Some(serde_json::from_value(json!({"egressPacketRate": 7, "dscp": "EF"})).unwrap());
    entries.push((key.clone(), StoreValue::Resource(Resource::WorkloadEndpoint(endpoint.clone()))));
    let (plan, _) = plan_of(&entries, true);
    let workload = plan.workloads.values().next().unwrap();
    assert!(workload.floating.is_empty(), "disabled by default");
    assert_eq!(workload.qos.egress.packets.unwrap().per_second, 7);
    assert_eq!(workload.qos.dscp, Some(46));
    let pools = SetId::new(tortie_plan::ALL_POOLS_SET);
    let nets = ["10.0.0.0/16", "192.0.2.0/24"].map(|net| SetMember::Net(net.parse().unwrap()));
    assert_eq!(plan.sets[&pools].members, nets.into());

    entries.push(felix(json!({"floatingIPs": "Enabled"})));
    let (plan, mut compute) = plan_of(&entries, true);
    let workload = plan.workloads.values().next().unwrap();
    let routed: Vec<String> = workload.routed().map(|address| address.to_string()).collect();
    assert_eq!(routed, ["10.0.0.1", "192.0.2.1"], "of an address that it has, and of its family");
    assert_eq!(plan_of(&entries, false).0, plan);

    let mut plan = plan;
    endpoint.spec.qos_controls = None;
    compute.put(&key, &StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)));
    compute.flush().into_iter().for_each(|update| plan.apply(update));
    assert!(!plan.sets.contains_key(&pools), "nobody's packets are marked any more");
}

/// Returns an endpoint of a node that requests floating addresses, created in `year`.
fn floating_endpoint(node: &str, container: &str, address: &str, year: u16, externals: &[&str]) -> PlanEntry {
    let (key, value) = endpoint(node, container, &format!("cali{container}"), address);
    let StoreValue::Resource(Resource::WorkloadEndpoint(mut endpoint)) = value else { unreachable!() };
    let nats = externals.iter().map(|external| json!({"internalIP": address, "externalIP": external}));
    endpoint.spec.ip_nats = serde_json::from_value(nats.collect()).unwrap();
    endpoint.metadata.creation_timestamp = Some(format!("{year}-01-01T00:00:00Z"));
    (key, StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)))
}

fn cluster_with_floating_addresses() -> Vec<PlanEntry> {
    let service = KubernetesService {
        form: ServiceType::ClusterIP,
        cluster_ips: vec!["192.0.2.60".parse().unwrap()],
        ingress_ips: vec!["192.0.2.61".parse().unwrap()],
        // Every user who can create a service can name this address, so it is not taken from an endpoint.
        external_ips: vec!["192.0.2.10".parse().unwrap()],
        ..KubernetesService::default()
    };
    let mut entries = cluster();
    entries.extend([
        felix(json!({"floatingIPs": "Enabled"})),
        resource(Kind::IPPool, "", "floating", json!({"cidr": "192.0.2.0/24", "assignmentMode": "Manual"})),
        // A pod that names an address of the pool creates a block, which does not claim its other addresses.
        block("192.0.2.64/26", Some("n3"), &[]),
        resource(Kind::IPPool, "", "off", json!({"cidr": "198.51.100.0/25", "disabled": true})),
        resource(
            Kind::IPPool,
            "",
            "balancers",
            json!({"cidr": "198.51.100.128/25", "allowedUses": ["LoadBalancer"]}),
        ),
        resource(
            Kind::BGPConfiguration,
            "",
            "default",
            json!({"serviceClusterIPs": [{"cidr": "192.0.2.128/28"}]}),
        ),
        resource(
            Kind::Node,
            "",
            "n4",
            json!({"addresses": [{"address": "192.0.2.4", "type": "ExternalIP"}]}),
        ),
        (
            StoreKey::Service { namespace: "shop".into(), name: "web".into() },
            StoreValue::Service(Box::new(service)),
        ),
        endpoint("n3", "unmanaged", "cali5", "192.0.2.70"),
        floating_endpoint("n1", "first", "10.0.0.9", 2020, &["192.0.2.10"]),
        // Its own address sorts first as text, which is Calico's criterion.
        floating_endpoint("n1", "late", "10.0.0.8", 2021, &["192.0.2.10"]),
        floating_endpoint("n2", "away", "10.0.0.70", 2020, &["192.0.2.11"]),
        floating_endpoint("n1", "thief", "10.0.0.7", 2021, &["192.0.2.11"]),
        floating_endpoint(
            "n1",
            "greedy",
            "10.0.0.6",
            2020,
            &[
                "172.16.0.2",
                "192.0.2.4",
                "192.0.2.60",
                "192.0.2.61",
                "192.0.2.129",
                "192.0.2.70",
                "10.0.0.64",
                "10.0.0.120",
                "198.51.100.1",
                "198.51.100.129",
                "203.0.113.1",
                "192.0.2.77",
            ],
        ),
    ]);
    entries
}

#[test]
fn floating_addresses_of_others_are_refused() {
    let entries = cluster_with_floating_addresses();
    let (mut plan, mut compute) = plan_of(&entries, false);
    let floating = |plan: &NodePlan| -> Vec<(String, String)> {
        let pairs = plan.workloads.values().flat_map(|workload| &workload.floating);
        pairs.map(|pair| (pair.internal.to_string(), pair.external.to_string())).collect()
    };
    let pair = |internal: &str, external: &str| (internal.to_owned(), external.to_owned());
    assert_eq!(floating(&plan), [pair("10.0.0.9", "192.0.2.10"), pair("10.0.0.6", "192.0.2.77")]);
    let problem = |compute: &PlanCompute, container: &str| {
        let key = StoreKey::resource(Kind::WorkloadEndpoint, "default", &format!("n1-cni-{container}-eth0"));
        compute.problems().get(&key.to_string()).cloned().unwrap_or_default()
    };
    let greedy = problem(&compute, "greedy");
    for expected in [
        "172.16.0.2: it belongs to a node",
        "192.0.2.4: it belongs to a node",
        "192.0.2.60: it belongs to a service",
        "192.0.2.61: it belongs to a service",
        "192.0.2.129: it belongs to a service",
        "192.0.2.70: it belongs to another endpoint",
        "10.0.0.64: it belongs to another endpoint",
        "10.0.0.120: IPAM gives the addresses of its block to workloads",
        "198.51.100.1: it is in no enabled IPPool",
        "198.51.100.129: it is in no enabled IPPool",
        "203.0.113.1: it is in no enabled IPPool",
    ] {
        assert!(greedy.contains(expected), "{expected}: {greedy}");
    }
    for container in ["late", "thief"] {
        assert!(problem(&compute, container).contains("another endpoint had asked for it before"));
    }
    assert_eq!(problem(&compute, "first"), "");

    // The order of events does not matter, and addresses move to the next claimant when their owners are deleted.
    let reversed: Vec<PlanEntry> = entries.iter().rev().cloned().collect();
    assert_eq!(plan_of(&reversed, true).0, plan);
    let settle = |compute: &mut PlanCompute, plan: &mut NodePlan| {
        compute.flush().into_iter().for_each(|update| plan.apply(update));
        floating(plan)
    };
    compute.delete(&floating_endpoint("n1", "first", "10.0.0.9", 2020, &[]).0);
    compute.delete(&floating_endpoint("n2", "away", "10.0.0.70", 2020, &[]).0);
    let (key, value) = endpoint("n3", "new", "cali9", "192.0.2.77");
    compute.put(&key, &value);
    let expected = [pair("10.0.0.8", "192.0.2.10"), pair("10.0.0.7", "192.0.2.11")];
    assert_eq!(settle(&mut compute, &mut plan), expected);
    let (key, value) = felix(json!({"floatingIPs": "Disabled"}));
    compute.put(&key, &value);
    assert_eq!(settle(&mut compute, &mut plan), []);
    assert_eq!(problem(&compute, "greedy"), "", "nothing is asked of a node that does not do it");
}

#[test]
fn floating_addresses_of_an_endpoint_are_bounded() {
    let many: Vec<String> = (0..=MAX_FLOATING_IPS).map(|last| format!("192.0.2.{last}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let entries = [
        felix(json!({"floatingIPs": "Enabled"})),
        pool("floating", "192.0.2.0/24", "Never"),
        floating_endpoint("n1", "one", "10.0.0.1", 2020, &many),
    ];
    let (plan, compute) = plan_of(&entries, false);
    assert_eq!(plan.workloads.values().next().unwrap().floating.len(), MAX_FLOATING_IPS);
    assert!(compute.problems().values().any(|problem| problem.contains("32 floating addresses")));
}
