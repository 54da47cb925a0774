use super::*;
use serde_json::{Value as Json, json};
use std::net::{IpAddr, Ipv4Addr};
use tortie_model::ipam::BlockAffinity;
use tortie_plan::bgp::{
    AdvertisedNextHop, BgpCommunity, BgpLogSeverity, BgpSessionKind, FilterPrefixOperator,
};

fn resource(kind: Kind, name: &str, spec: Json) -> (StoreKey, StoreValue) {
    let key = StoreKey::resource(kind, "", name);
    let text = json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": spec}).to_string();
    let value = StoreValue::decode(&key, text.as_bytes()).unwrap();
    (key, value)
}

fn node(name: &str, number: u8, bgp: Json) -> (StoreKey, StoreValue) {
    let mut spec =
        json!({"ipv4Address": format!("10.0.0.{number}/24"), "ipv6Address": format!("fd00::{number}/64")});
    for (key, value) in bgp.as_object().unwrap() {
        spec[key] = value.clone();
    }
    resource(Kind::Node, name, json!({"bgp": spec}))
}

fn resolver_at(host: &str, nodes: &[(StoreKey, StoreValue)]) -> BgpResolver {
    let mut resolver = BgpResolver::new(host, BgpEnvironment::default());
    nodes.iter().for_each(|(key, value)| feed(&mut resolver, key, value));
    resolver
}

fn resolver(nodes: &[(StoreKey, StoreValue)]) -> BgpResolver {
    resolver_at("a", nodes)
}

fn put(resolver: &mut BgpResolver, kind: Kind, name: &str, spec: Json) {
    let (key, value) = resource(kind, name, spec);
    feed(resolver, &key, &value);
}

fn feed(resolver: &mut BgpResolver, key: &StoreKey, value: &StoreValue) {
    match value {
        StoreValue::Resource(Resource::Node(node)) => {
            resolver.put_node(&node.metadata.name, Arc::new(NodeFacts::from_node(node)));
        }
        StoreValue::Resource(Resource::IPPool(pool)) => {
            resolver.put_pool(&pool.metadata.name, PoolFacts::read(pool).ok().as_ref());
        }
        _ => resolver.put(key, value).unwrap(),
    }
}

fn peer(resolver: &mut BgpResolver, name: &str, spec: Json) {
    put(resolver, Kind::BGPPeer, name, spec);
}

fn affinity(resolver: &mut BgpResolver, host: &str, cidr: &str, state: AffinityState) {
    let key = affinity_key(host, cidr);
    resolver
        .put(&key, &StoreValue::BlockAffinity(BlockAffinity { state, ..BlockAffinity::default() }))
        .unwrap();
}

fn affinity_key(host: &str, cidr: &str) -> StoreKey {
    StoreKey::BlockAffinity {
        affinity: AffinityType::Host,
        owner: host.to_owned(),
        cidr: cidr.parse().unwrap(),
    }
}

fn names(resolver: &mut BgpResolver) -> Vec<String> {
    resolver.flush().unwrap().sessions.keys().cloned().collect()
}

#[test]
fn mesh_sessions_exist_in_both_families() {
    let mut resolver = resolver(&[node("a", 9, json!({})), node("b", 10, json!({"asNumber": 65001}))]);
    let bgp = resolver.flush().unwrap();
    assert_eq!(bgp.sessions.keys().collect::<Vec<_>>(), ["Mesh_10_0_0_10", "Mesh_fd00__10"]);
    let session = &bgp.sessions["Mesh_10_0_0_10"];
    assert_eq!((session.remote_as, session.port, session.kind), (65001, 179, BgpSessionKind::Mesh));
    assert_eq!(session.source, Some("10.0.0.9".parse().unwrap()));
    assert!(!session.passive, "the larger text calls: 10.0.0.9 is larger than 10.0.0.10");
    assert_eq!((bgp.as_number, bgp.router_id), (64512, Some(Ipv4Addr::new(10, 0, 0, 9))));
    assert!(resolver.flush().is_none(), "nothing changed");

    let mut other = resolver_at("b", &[node("a", 9, json!({})), node("b", 10, json!({"asNumber": 65001}))]);
    let bgp = other.flush().unwrap();
    assert!(bgp.sessions["Mesh_10_0_0_9"].passive);
    assert_eq!(
        bgp.sessions["Mesh_10_0_0_9"].remote_as, 65001,
        "a node without a number is thought to be in ours"
    );
}

#[test]
fn a_reflector_is_not_in_the_mesh() {
    let reflector = json!({"routeReflectorClusterID": "224.0.0.1"});
    let mut resolver =
        resolver(&[node("a", 1, json!({})), node("b", 2, json!({})), node("rr", 3, reflector.clone())]);
    assert_eq!(names(&mut resolver), ["Mesh_10_0_0_2", "Mesh_fd00__2"]);
    // The usual setup of reflectors: all nodes peer with them; seen from an ordinary node and from a reflector.
    let spec = json!({"nodeSelector": "all()", "peerSelector": "name == 'rr'"});
    peer(&mut resolver, "to-reflectors", spec.clone());
    assert_eq!(names(&mut resolver), ["Mesh_10_0_0_2", "Mesh_fd00__2", "Node_10_0_0_3", "Node_fd00__3"]);

    let nodes = [node("a", 1, json!({})), node("b", 2, json!({})), node("rr", 3, reflector)];
    let mut at_reflector = resolver_at("rr", &nodes);
    peer(&mut at_reflector, "to-reflectors", spec);
    let bgp = at_reflector.flush().unwrap();
    let found: Vec<&String> = bgp.sessions.keys().collect();
    assert_eq!(found, ["Node_10_0_0_1", "Node_10_0_0_2", "Node_fd00__1", "Node_fd00__2"]);
    assert!(bgp.sessions.values().all(|session| session.reflect == Some(Ipv4Addr::new(224, 0, 0, 1))));
}

#[test]
fn reflectors_of_one_cluster_are_plain_peers() {
    let reflector = json!({"routeReflectorClusterID": "224.0.0.1"});
    let mut resolver = resolver(&[node("a", 1, reflector.clone()), node("b", 2, reflector)]);
    peer(&mut resolver, "p", json!({"nodeSelector": "all()", "peerSelector": "all()"}));
    let bgp = resolver.flush().unwrap();
    assert_eq!(bgp.sessions["Node_10_0_0_2"].reflect, None);
    // The cluster ID of a peer by address is unknown.
    peer(&mut resolver, "p", json!({"node": "a", "peerIP": "10.0.0.2", "asNumber": 64512}));
    let bgp = resolver.flush().unwrap();
    assert_eq!(bgp.sessions["Node_10_0_0_2"].reflect, Some(Ipv4Addr::new(224, 0, 0, 1)));
}

#[test]
fn peers_by_address() {
    let mut resolver = resolver(&[node("a", 1, json!({}))]);
    let spec = json!({
        "peerIP": "192.0.2.1:1790", "asNumber": 65100, "localASNumber": 65000, "nextHopMode": "Keep", "ttlSecurity": 2,
        "numAllowedLocalASNumbers": 3, "sourceAddress": "None", "keepaliveTime": "10s", "maxRestartTime": "60s",
        "password": {"secretKeyRef": {"name": "s", "key": "k"}}, "filters": ["f"], "reachableBy": "10.0.0.254",
    });
    peer(&mut resolver, "tor", spec);
    let bgp = resolver.flush().unwrap();
    let session = &bgp.sessions["Global_192_0_2_1_port_1790"];
    assert_eq!((session.peer, session.port), (IpAddr::from([192, 0, 2, 1]), 1790));
    assert_eq!((session.remote_as, session.local_as, session.allow_own_as), (65100, Some(65000), 3));
    assert_eq!(
        (session.next_hop, session.ttl_security, session.source),
        (AdvertisedNextHop::Keep, Some(2), None)
    );
    assert_eq!((session.keepalive, session.restart_time), (Some(10), Some(60)));
    assert_eq!(session.password.as_ref().map(|secret| secret.key.as_str()), Some("k"));
    assert_eq!(session.reachable_by, Some(IpAddr::from([10, 0, 0, 254])));
    assert!(bgp.filters.is_empty(), "a filter that does not exist is passed over");
}

#[test]
fn general_peers_precede_peers_of_a_node() {
    let mut resolver = resolver(&[node("a", 1, json!({}))]);
    peer(&mut resolver, "z-general", json!({"peerIP": "192.0.2.1", "asNumber": 1}));
    peer(&mut resolver, "a-own", json!({"node": "a", "peerIP": "192.0.2.1", "asNumber": 2}));
    peer(&mut resolver, "other", json!({"node": "b", "peerIP": "192.0.2.9", "asNumber": 2}));
    peer(&mut resolver, "self", json!({"peerIP": "10.0.0.1", "asNumber": 64512}));
    let bgp = resolver.flush().unwrap();
    assert_eq!(bgp.sessions.keys().collect::<Vec<_>>(), ["Global_192_0_2_1"]);
    assert_eq!(bgp.sessions["Global_192_0_2_1"].remote_as, 1);
}

#[test]
fn peerings_by_address_are_reversed_unless_manual() {
    let nodes = [node("a", 1, json!({})), node("b", 2, json!({}))];
    let mut answering = resolver(&nodes);
    put(&mut answering, Kind::BGPConfiguration, "default", json!({"nodeToNodeMeshEnabled": false}));
    peer(&mut answering, "p", json!({"node": "b", "peerIP": "10.0.0.1", "asNumber": 64512}));
    assert_eq!(names(&mut answering), ["Node_10_0_0_2"]);
    peer(
        &mut answering,
        "p",
        json!({"node": "b", "peerIP": "10.0.0.1", "asNumber": 64512, "reversePeering": "Manual"}),
    );
    assert_eq!(names(&mut answering), Vec::<String>::new());

    put(&mut answering, Kind::BGPConfiguration, "default", json!({"listenPort": 1179}));
    let bgp = answering.flush().unwrap();
    assert_eq!(bgp.sessions["Mesh_10_0_0_2"].port, 1179);
    assert_eq!(bgp.listen_port, 1179);
    // A peer that is not a node listens on the default port.
    peer(&mut answering, "tor", json!({"peerIP": "192.0.2.1", "asNumber": 65100}));
    assert_eq!(answering.flush().unwrap().sessions["Global_192_0_2_1"].port, 179);
}

#[test]
fn the_log_severity_of_the_node_wins() {
    let mut resolver = resolver(&[node("a", 1, json!({}))]);
    let mut last = BgpLogSeverity::default();
    let mut severity = |name: &str, severity: &str| {
        put(&mut resolver, Kind::BGPConfiguration, name, json!({"logSeverityScreen": severity}));
        // Nothing is planned if nothing changed.
        last = resolver.flush().map_or(last, |bgp| bgp.log_severity);
        last
    };
    assert_eq!(severity("default", "Trace"), BgpLogSeverity::Debug);
    assert_eq!(severity("node.a", "Fatal"), BgpLogSeverity::Error);
    assert_eq!(severity("node.b", "Debug"), BgpLogSeverity::Error);
    assert_eq!(severity("node.a", "Info"), BgpLogSeverity::Info);
}

#[test]
fn blocks_and_pools_decide_exports_and_installs() {
    let mut resolver = resolver(&[node("a", 1, json!({}))]);
    let pool = |resolver: &mut BgpResolver, name: &str, spec: Json| put(resolver, Kind::IPPool, name, spec);
    pool(&mut resolver, "plain", json!({"cidr": "10.50.0.0/16"}));
    pool(&mut resolver, "silent", json!({"cidr": "10.51.0.0/16", "disableBGPExport": true}));
    pool(&mut resolver, "vxlan", json!({"cidr": "10.52.0.0/16", "vxlanMode": "Always"}));
    pool(&mut resolver, "ipip", json!({"cidr": "10.53.0.0/16", "ipipMode": "CrossSubnet"}));
    let block: IpNet = "10.50.3.64/26".parse().unwrap();
    affinity(&mut resolver, "a", "10.50.3.64/26", AffinityState::Confirmed);
    affinity(&mut resolver, "a", "10.50.4.0/26", AffinityState::Pending);
    affinity(&mut resolver, "b", "10.50.5.0/26", AffinityState::Confirmed);
    let bgp = resolver.flush().unwrap();
    assert_eq!(bgp.export.blocks, BTreeMap::from([(block, true)]));
    assert_eq!(bgp.export.silent_pools, ["10.51.0.0/16".parse::<IpNet>().unwrap()]);
    let wants = |bgp: &BgpConfig, net: &str| bgp.install.wants(&net.parse().unwrap());
    assert!(wants(&bgp, "10.50.9.0/26") && wants(&bgp, "0.0.0.0/0"));
    assert!(!wants(&bgp, "10.52.9.0/26") && !wants(&bgp, "10.53.9.0/26"));

    affinity(&mut resolver, "a", "10.50.3.64/26", AffinityState::PendingDeletion);
    let configuration =
        json!({"programClusterRoutes": "EnabledIPIPOnly", "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]});
    put(&mut resolver, Kind::BGPConfiguration, "default", configuration);
    let bgp = resolver.flush().unwrap();
    assert_eq!(bgp.export.blocks, BTreeMap::from([(block, false)]));
    assert!(!wants(&bgp, "10.50.9.0/26") && wants(&bgp, "10.53.9.0/26") && !wants(&bgp, "10.96.7.7/32"));
    let wrapped = |hop: &str| {
        let net = "10.53.9.0/26".parse().unwrap();
        bgp.install.tunnel(&net, hop.parse().unwrap()).is_some()
    };
    assert!(wrapped("10.9.0.7") && !wrapped("10.0.0.7"), "only what leaves the node's own subnet");
    resolver.remove(&affinity_key("a", "10.50.3.64/26"));
    assert!(resolver.flush().unwrap().export.blocks.is_empty());
}

#[test]
fn communities_of_a_node_replace_common_ones() {
    let mut resolver = resolver(&[node("a", 1, json!({}))]);
    let common = json!({"communities": [{"name": "blue", "value": "65001:7"}],
        "prefixAdvertisements": [{"cidr": "10.50.0.0/16", "communities": ["blue", "1:2:3", "65001:7"]},
            {"cidr": "fd50::/48", "communities": ["1:2"]}]});
    put(&mut resolver, Kind::BGPConfiguration, "default", common);
    let bgp = resolver.flush().unwrap();
    let both = vec![BgpCommunity::Standard(65001, 7), BgpCommunity::Large(1, 2, 3)];
    assert_eq!(bgp.export.communities[0], ("10.50.0.0/16".parse().unwrap(), both));
    let own = json!({"prefixAdvertisements": [{"cidr": "10.60.0.0/16", "communities": ["3:4"]}]});
    put(&mut resolver, Kind::BGPConfiguration, "node.a", own);
    let bgp = resolver.flush().unwrap();
    let nets: Vec<String> = bgp.export.communities.iter().map(|(net, _)| net.to_string()).collect();
    assert_eq!(nets, ["10.60.0.0/16", "fd50::/48"]);
}

#[test]
fn filters_are_read_and_bad_ones_named() {
    let rule = json!({"cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"max": 24}, "action": "Accept",
        "source": "RemotePeers", "peerType": "eBGP", "priority": 100, "operations": [{"setPriority": {"value": 7}}]});
    let mut resolver = resolver(&[node("a", 1, json!({}))]);
    peer(&mut resolver, "p", json!({"peerIP": "192.0.2.1", "asNumber": 1, "filters": ["f"]}));
    put(&mut resolver, Kind::BGPFilter, "f", json!({"importV4": [rule]}));
    let bgp = resolver.flush().unwrap();
    let rule = &bgp.filters["f"].import_v4[0];
    let prefix = rule.prefix.unwrap();
    assert_eq!((prefix.operator, prefix.length), (FilterPrefixOperator::In, Some((8, 24))));
    assert!(rule.learnt && rule.accept);
    assert_eq!((rule.internal, rule.priority), (Some(false), Some(100)));

    let (key, bad) = resource(Kind::BGPFilter, "f", json!({"importV4": [{"action": "Maybe"}]}));
    assert!(resolver.put(&key, &bad).unwrap_err().to_string().contains("Maybe"));
    assert!(resolver.flush().unwrap().filters.is_empty(), "what cannot be used counts as absent");
}

/// Adds an endpoint of this node or of another.
fn workload(resolver: &mut BgpResolver, node: &str, name: &str, label: &str, profiles: &[&str]) {
    let key = StoreKey::resource(Kind::WorkloadEndpoint, "shop", name);
    let spec = json!({
        "orchestrator": "cni", "node": node, "containerID": name, "endpoint": "eth0", "interfaceName": "cali1",
        "ipNetworks": ["10.65.0.7/32", "10.65.0.8/32", "fd65::7/128"], "profiles": profiles,
    });
    let text =
        json!({"metadata": {"name": name, "namespace": "shop", "labels": {"role": label}}, "spec": spec});
    let value = StoreValue::decode(&key, text.to_string().as_bytes()).unwrap();
    resolver.put(&key, &value).unwrap();
}

#[test]
fn sessions_with_selected_workloads_are_passive() {
    let mut resolver = resolver(&[node("a", 9, json!({}))]);
    workload(&mut resolver, "a", "one", "router", &[]);
    assert_eq!(names(&mut resolver), Vec::<String>::new());
    workload(&mut resolver, "a", "two", "web", &[]);
    assert!(resolver.flush().is_none(), "workloads are of no concern as long as nobody selects any");

    let spec =
        json!({"localWorkloadSelector": "role == 'router'", "asNumber": 65010, "localASNumber": 65020});
    peer(&mut resolver, "routers", spec);
    let bgp = resolver.flush().unwrap();
    assert_eq!(
        bgp.sessions.keys().collect::<Vec<_>>(),
        ["Local_Workload_10_65_0_7", "Local_Workload_fd65__7"]
    );
    let session = &bgp.sessions["Local_Workload_10_65_0_7"];
    assert_eq!((session.kind, session.remote_as), (BgpSessionKind::LocalWorkload, 65010));
    assert_eq!((session.local_as, session.source, session.passive), (Some(65020), None, true));
    let selected = |resolver: &mut BgpResolver| -> Vec<(String, String, usize)> {
        let peers = resolver.take_local_peers().unwrap_or_default().into_iter();
        peers.map(|((_, workload), peer)| (workload, peer.name, peer.addresses.len())).collect()
    };
    assert_eq!(selected(&mut resolver), [("one".into(), "routers".into(), 0)]);

    put(
        &mut resolver,
        Kind::BGPConfiguration,
        "default",
        json!({"localWorkloadPeeringIPV4": "169.254.77.1"}),
    );
    assert!(resolver.flush().is_none(), "the sessions are the same");
    assert_eq!(selected(&mut resolver), [("one".into(), "routers".into(), 1)]);

    // By an inherited label, and by the first of two BGPPeers that select the workload.
    put(&mut resolver, Kind::Profile, "inner", json!({"labelsToApply": {"zone": "inner"}}));
    workload(&mut resolver, "a", "two", "web", &["inner"]);
    peer(&mut resolver, "all", json!({"localWorkloadSelector": "zone == 'inner'", "asNumber": 65030}));
    resolver.flush().unwrap();
    assert_eq!(selected(&mut resolver)[1], ("two".into(), "all".into(), 1));
    workload(&mut resolver, "b", "one", "router", &[]);
    resolver.remove(&StoreKey::resource(Kind::WorkloadEndpoint, "shop", "two"));
    assert_eq!(names(&mut resolver), Vec::<String>::new(), "moved to another node, and gone");
}
