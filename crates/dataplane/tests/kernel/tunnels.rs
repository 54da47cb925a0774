//! Tunnels to other nodes: devices, neighbours, forwarding entries and routes, and which senders' packets are
//! accepted.

use crate::namespace::{TestNamespace, eventually, key, node_pair, plan, pod, start, workload};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_dataplane::DataplaneReport;
use tortie_plan::{
    AddressSet, NodePlan, PlanUpdate, Route, SetKind, SetMember, TunnelDevice, TunnelKind, TunnelProtocol,
    Vtep, VtepId,
};

const OWN_VTEP_MAC: [u8; 6] = [0x66, 0, 0, 0, 0, 1];
const OTHER_VTEP_MAC: [u8; 6] = [0x66, 0, 0, 0, 0, 2];
const OTHER_VTEP_MAC_TEXT: &str = "66:00:00:00:00:02";

/// Parameters of one address family: this node has pods in the first block, the other node in the second.
struct TunnelCase {
    kind: TunnelKind,
    /// Underlay addresses of this node and of the other node.
    nodes: [&'static str; 2],
    /// Addresses of the tunnel devices.
    ends: [&'static str; 2],
    blocks: [&'static str; 2],
    pod: &'static str,
}

const TUNNEL_CASE_V4: TunnelCase = TunnelCase {
    kind: TunnelKind::VxlanV4,
    nodes: ["192.168.77.1", "192.168.77.2"],
    ends: ["10.65.0.1", "10.65.1.1"],
    blocks: ["10.65.0.0/26", "10.65.1.0/26"],
    pod: "10.65.0.2",
};

const TUNNEL_CASE_V6: TunnelCase = TunnelCase {
    kind: TunnelKind::VxlanV6,
    nodes: ["fd77::1", "fd77::2"],
    ends: ["fd80:65::1", "fd80:66::1"],
    blocks: ["fd80:65::/122", "fd80:66::/122"],
    pod: "fd80:65::2",
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl TunnelCase {
    fn device(&self) -> TunnelDevice {
        TunnelDevice {
            name: self.kind.device().into(),
            address: Some(address(self.ends[0])),
            local: address(self.nodes[0]),
            mtu: None,
            protocol: TunnelProtocol::Vxlan { vni: 4096, port: 4789, mac: OWN_VTEP_MAC },
        }
    }

    fn vtep(&self) -> Vtep {
        Vtep { address: address(self.ends[1]), mac: OTHER_VTEP_MAC, node: address(self.nodes[1]) }
    }

    fn vtep_id(&self) -> VtepId {
        VtepId { tunnel: self.kind, node: "other".into() }
    }

    /// Adds the tunnel, its remote VTEP and the routes to a plan.
    fn plan(&self, plan: &mut NodePlan) {
        plan.tunnels.insert(self.kind, self.device());
        plan.vteps.insert(self.vtep_id(), self.vtep());
        let members = BTreeSet::from([SetMember::Net(address(self.nodes[1]).into())]);
        plan.sets.insert(self.kind.peers().unwrap(), AddressSet { kind: SetKind::Nets, members });
        plan.routes.insert(key(self.blocks[0]), Route::BLACKHOLE);
        let through = Route::through(self.kind, Some(address(self.ends[1])));
        plan.routes.insert(key(self.blocks[1]), through);
        if self.kind == TunnelKind::VxlanV6 {
            let end = format!("{}/128", self.ends[1]);
            plan.routes.insert(key(&end), Route::through(self.kind, None));
        }
    }

    fn forwarding(&self, node: &TestNamespace) -> Vec<String> {
        let text = node.exec(&["bridge", "fdb", "show", "dev", self.kind.device()]);
        let entries = text.lines().filter(|line| line.contains(" dst "));
        entries.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    fn neighbours(&self, node: &TestNamespace) -> Vec<String> {
        let text = node.ip(&["neigh", "show", "dev", self.kind.device(), "nud", "permanent"]);
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// Returns whether all forwarding entries, neighbours and routes for the other node are present.
    fn is_whole(&self, node: &TestNamespace) -> bool {
        if !node.has_link(self.kind.device()) {
            return false;
        }
        let [_, other] = self.nodes;
        let route = node.routes(self.blocks[1]);
        self.forwarding(node) == [format!("{OTHER_VTEP_MAC_TEXT} dst {other} self permanent")]
            && self.neighbours(node) == [format!("{} lladdr {OTHER_VTEP_MAC_TEXT} PERMANENT", self.ends[1])]
            && route.len() == 1
            && route[0].contains(&format!("via {} dev {} proto 80", self.ends[1], self.kind.device()))
            && route[0].contains("onlink")
            && route[0].contains(&format!(" mtu {}", mtu(node, self.kind.device())))
    }

    /// Configures the other end of the tunnel on the other node with `ip` and `bridge`.
    fn by_hand(&self, other: &TestNamespace, name: &str) {
        let family = if self.kind.is_ipv4() { "-4" } else { "-6" };
        let length = if self.kind.is_ipv4() { 32 } else { 128 };
        let [ours, theirs] = self.nodes;
        other.ip(&format!(
            "link add {name} address {OTHER_VTEP_MAC_TEXT} type vxlan id 4096 dstport 4789 local {theirs} dev eth0 nolearning"
        ));
        let nodad = if self.kind.is_ipv4() { "" } else { "nodad" };
        other.ip(&format!("{family} addr add {}/{length} dev {name} {nodad}", self.ends[1]));
        other.ip(&format!("link set {name} up"));
        other.exec(&format!("bridge fdb append 66:00:00:00:00:01 dst {ours} dev {name} self permanent"));
        other.ip(&format!("{family} neigh add {} lladdr 66:00:00:00:00:01 dev {name}", self.ends[0]));
        other.ip(&format!("{family} route add {} via {} dev {name} onlink", self.blocks[0], self.ends[0]));
    }
}

/// Returns the MTU of an interface.
fn mtu(node: &TestNamespace, link: &str) -> u64 {
    node.json(&format!("link show dev {link}"))[0]["mtu"].as_u64().unwrap()
}

fn whole_plan() -> NodePlan {
    let mut whole = plan(&[("one", workload("cali1", &[TUNNEL_CASE_V4.pod, TUNNEL_CASE_V6.pod]))], &[]);
    TUNNEL_CASE_V4.plan(&mut whole);
    TUNNEL_CASE_V6.plan(&mut whole);
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manually_configured_vxlan_interoperates() {
    let (node, other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    let sandbox = pod(&node, "cali1", &[TUNNEL_CASE_V4.pod, TUNNEL_CASE_V6.pod]).await;
    let outcome = dataplane.replace(whole_plan()).await.unwrap();
    assert_eq!(outcome.failures, []);
    TUNNEL_CASE_V4.by_hand(&other, "vx4");
    TUNNEL_CASE_V6.by_hand(&other, "vx6");
    for side in [&TUNNEL_CASE_V4, &TUNNEL_CASE_V6] {
        assert!(side.is_whole(&node), "{:?} {:?}", side.forwarding(&node), side.neighbours(&node));
        assert!(other.pings(side.pod), "from the other node to our pod");
        assert!(sandbox.pings(side.ends[1]), "from our pod to the other node");
        assert!(node.pings(side.ends[1]), "from our node to the other");
    }
    let link = &node.json("link show dev vxlan.calico")[0];
    assert_eq!((&link["mtu"], &link["address"]), (&1450.into(), &"66:00:00:00:00:01".into()));
    let data = &link["linkinfo"]["info_data"];
    assert_eq!((&data["id"], &data["port"], &data["learning"]), (&4096.into(), &4789.into(), &false.into()));
    assert_eq!((&data["local"], &data["link"]), (&TUNNEL_CASE_V4.nodes[0].into(), &"eth0".into()));
    assert_eq!(node.json("link show dev vxlan-v6.calico")[0]["mtu"], 1430);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_do_to_a_tunnel_is_mended() {
    let (node, _other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(whole_plan()).await.unwrap();
    for side in [&TUNNEL_CASE_V4, &TUNNEL_CASE_V6] {
        let device = side.kind.device();
        assert!(side.is_whole(&node));
        node.ip(&["link", "del", device]);
        eventually("the device is back with all that belongs to it", || side.is_whole(&node)).await;
        node.exec(&format!("bridge fdb del {OTHER_VTEP_MAC_TEXT} dev {device} self"));
        eventually("the forwarding entry is back", || side.is_whole(&node)).await;
        node.exec(&format!("bridge fdb append 66:00:00:00:00:09 dst {} dev {device} self", side.nodes[1]));
        eventually("a foreign forwarding entry is removed", || side.is_whole(&node)).await;
        node.ip(&["neigh", "del", side.ends[1], "dev", device]);
        eventually("the neighbour is back", || side.is_whole(&node)).await;
        node.ip(&["route", "del", side.blocks[1]]);
        eventually("the route is back", || side.is_whole(&node)).await;
        node.ip(&["link", "set", device, "down"]);
        eventually("the device is up again", || side.is_whole(&node)).await;
        node.ip(&["link", "set", device, "mtu", "1300"]);
        eventually("the MTU is as it was", || {
            node.json(&format!("link show dev {device}"))[0]["mtu"] != 1300
        })
        .await;
        node.ip(&["addr", "flush", "dev", device, "scope", "global"]);
        eventually("the address is back", || {
            side.is_whole(&node) && node.ip(&["addr", "show", "dev", device]).contains(side.ends[0])
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_the_tunnel() {
    let (node, _other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(whole_plan()).await.unwrap();
    let index = |name: &str| node.json(&format!("link show dev {name}"))[0]["ifindex"].clone();
    let before = index("vxlan.calico");
    // Leave entries of a node that is removed from the plan before the dataplane restarts.
    node.exec("bridge fdb append 66:00:00:00:00:07 dst 192.168.77.7 dev vxlan.calico self permanent");
    dataplane.stop().await;
    node.ip("neigh add 10.65.7.1 lladdr 66:00:00:00:00:07 dev vxlan.calico");
    node.ip("route add 10.65.7.0/26 via 10.65.7.1 dev vxlan.calico onlink proto 80");
    // The kernel does not add an IPv6 address that the device has with another prefix length.
    let own = TUNNEL_CASE_V6.ends[0];
    let device_v6 = TUNNEL_CASE_V6.kind.device();
    node.ip(&format!("-6 addr del {own}/128 dev {device_v6}"));
    node.ip(&format!("-6 addr add {own}/64 dev {device_v6} nodad"));

    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(whole_plan()).await.unwrap();
    assert_eq!(index("vxlan.calico"), before, "the same device");
    assert!(
        TUNNEL_CASE_V4.is_whole(&node),
        "{:?} {:?}",
        TUNNEL_CASE_V4.forwarding(&node),
        TUNNEL_CASE_V4.neighbours(&node)
    );
    assert_eq!(node.routes("10.65.7.0/26"), [""; 0]);
    let addresses = node.ip(&format!("-6 addr show dev {device_v6}"));
    assert!(
        addresses.contains(&format!("{own}/128")) && !addresses.contains("/64 scope global"),
        "{addresses}"
    );

    let mut device = TUNNEL_CASE_V4.device();
    device.protocol = TunnelProtocol::Vxlan { vni: 7, port: 8472, mac: OWN_VTEP_MAC };
    device.mtu = Some(1400);
    device.address = Some(address("10.65.0.9"));
    let outcome = dataplane.apply(vec![PlanUpdate::Tunnel(TunnelKind::VxlanV4, Some(device))]).await.unwrap();
    assert_eq!(outcome.failures, []);
    assert!(TUNNEL_CASE_V4.is_whole(&node), "made anew with all that belongs to it");
    let link = &node.json("link show dev vxlan.calico")[0];
    let data = &link["linkinfo"]["info_data"];
    assert_eq!((&link["mtu"], &data["id"], &data["port"]), (&1400.into(), &7.into(), &8472.into()));
    let addresses = node.ip("addr show dev vxlan.calico");
    assert!(addresses.contains("10.65.0.9/32") && !addresses.contains("10.65.0.1/32"), "{addresses}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_plan_no_longer_has_is_removed() {
    let (node, _other) = node_pair();
    node.ip("link add vxlan9 type vxlan id 9 dstport 4790 local 192.168.77.1 dev eth0");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(whole_plan()).await.unwrap();
    // The other node leaves the cluster.
    let gone = vec![
        PlanUpdate::Route(key(TUNNEL_CASE_V4.blocks[1]), None),
        PlanUpdate::Vtep(TUNNEL_CASE_V4.vtep_id(), None),
        PlanUpdate::Members {
            set: TUNNEL_CASE_V4.kind.peers().unwrap(),
            added: Vec::new(),
            removed: vec![SetMember::Net(address(TUNNEL_CASE_V4.nodes[1]).into())],
        },
    ];
    assert_eq!(dataplane.apply(gone).await.unwrap().failures, []);
    assert_eq!(TUNNEL_CASE_V4.forwarding(&node), [""; 0]);
    assert_eq!(TUNNEL_CASE_V4.neighbours(&node), [""; 0]);
    assert_eq!(node.routes(TUNNEL_CASE_V4.blocks[1]), [""; 0]);
    assert!(TUNNEL_CASE_V6.is_whole(&node), "the other family is as it was");
    // The node returns with another address and another MAC.
    let elsewhere =
        Vtep { address: address("10.65.1.9"), mac: [2, 0, 0, 0, 0, 9], node: address("192.168.77.9") };
    dataplane.apply(vec![PlanUpdate::Vtep(TUNNEL_CASE_V4.vtep_id(), Some(elsewhere))]).await.unwrap();
    assert_eq!(TUNNEL_CASE_V4.forwarding(&node), ["02:00:00:00:00:09 dst 192.168.77.9 self permanent"]);
    let moved = Vtep { node: address("192.168.77.10"), ..elsewhere };
    dataplane.apply(vec![PlanUpdate::Vtep(TUNNEL_CASE_V4.vtep_id(), Some(moved))]).await.unwrap();
    assert_eq!(TUNNEL_CASE_V4.forwarding(&node), ["02:00:00:00:00:09 dst 192.168.77.10 self permanent"]);
    assert_eq!(TUNNEL_CASE_V4.neighbours(&node), ["10.65.1.9 lladdr 02:00:00:00:00:09 PERMANENT"]);
    // The pools no longer use encapsulation.
    dataplane
        .replace(plan(&[], &[(TUNNEL_CASE_V4.blocks[1], Route::via(address(TUNNEL_CASE_V4.nodes[1])))]))
        .await
        .unwrap();
    assert!(!node.has_link("vxlan.calico") && !node.has_link("vxlan-v6.calico"));
    assert!(node.routes(TUNNEL_CASE_V4.blocks[1])[0].contains("via 192.168.77.2 dev eth0"));
    assert_eq!(node.routes(TUNNEL_CASE_V6.blocks[1]), [""; 0]);
    assert!(node.has_link("vxlan9"), "a tunnel of somebody else");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_changes_to_tunnels_without_a_gap() {
    let (node, _other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    let plain = |side: &TunnelCase| (side.blocks[1], Route::via(address(side.nodes[1])));
    let mut all = plan(&[], &[plain(&TUNNEL_CASE_V4), plain(&TUNNEL_CASE_V6)]);
    assert_eq!(dataplane.replace(all.clone()).await.unwrap().failures, []);
    for _ in 0..3 {
        // The tunnel gateway is inside the block, which has a route without encapsulation until this change.
        TUNNEL_CASE_V4.plan(&mut all);
        TUNNEL_CASE_V6.plan(&mut all);
        assert_eq!(dataplane.replace(all.clone()).await.unwrap().failures, []);
        assert!(
            TUNNEL_CASE_V4.is_whole(&node) && TUNNEL_CASE_V6.is_whole(&node),
            "{:?}",
            node.routes(TUNNEL_CASE_V6.blocks[1])
        );
        all = plan(&[], &[plain(&TUNNEL_CASE_V4), plain(&TUNNEL_CASE_V6)]);
        assert_eq!(dataplane.replace(all.clone()).await.unwrap().failures, []);
        assert!(
            node.routes(TUNNEL_CASE_V6.blocks[1])[0].contains("dev eth0"),
            "{:?}",
            node.routes(TUNNEL_CASE_V6.blocks[1])
        );
    }
}

/// Returns how many packets the rules with this comment have dropped.
fn dropped(node: &TestNamespace, comment: &str) -> u64 {
    let table = node.exec("nft list table inet tortie");
    let rules = table.lines().filter(|line| line.contains(comment));
    let packets = |line: &str| line.split("counter packets ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    rules.filter_map(packets).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn encapsulated_packets_of_strangers_are_dropped() {
    let (node, other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    let sandbox = pod(&node, "cali1", &[TUNNEL_CASE_V4.pod, TUNNEL_CASE_V6.pod]).await;
    let mut whole = whole_plan();
    for side in [&TUNNEL_CASE_V4, &TUNNEL_CASE_V6] {
        whole.sets.get_mut(&side.kind.peers().unwrap()).unwrap().members.clear();
    }
    dataplane.replace(whole).await.unwrap();
    TUNNEL_CASE_V4.by_hand(&other, "vx4");
    TUNNEL_CASE_V6.by_hand(&other, "vx6");
    const UNKNOWN_NODE_COMMENT: &str = "a tunnel of no known node";
    for side in [&TUNNEL_CASE_V4, &TUNNEL_CASE_V6] {
        let before = dropped(&node, UNKNOWN_NODE_COMMENT);
        let ping = ["ping", "-c", "3", "-i", "0.2", "-W", "1", side.pod];
        assert!(!other.try_exec(&ping).status.success(), "a stranger reaches our pod");
        assert!(dropped(&node, UNKNOWN_NODE_COMMENT) > before, "{}", node.exec("nft list table inet tortie"));
        let known = SetMember::Net(address(side.nodes[1]).into());
        let members =
            PlanUpdate::Members { set: side.kind.peers().unwrap(), added: vec![known], removed: Vec::new() };
        dataplane.apply(vec![members]).await.unwrap();
        assert!(other.pings(side.pod), "as a known node it does");
    }
    // The workload sends VXLAN packets as if it were a node.
    sandbox.ip(&format!(
        "link add vx type vxlan id 4096 dstport 4789 local {} remote 192.168.77.1 dev eth0",
        TUNNEL_CASE_V4.pod
    ));
    sandbox.ip("addr add 10.99.0.1/24 dev vx");
    sandbox.ip("link set vx up");
    sandbox.ip("neigh add 10.99.0.2 lladdr 66:00:00:00:00:01 dev vx");
    let before = dropped(&node, UNKNOWN_NODE_COMMENT) + dropped(&node, "workloads may not encapsulate");
    sandbox.try_exec(&["ping", "-c", "2", "-i", "0.2", "-W", "1", "10.99.0.2"]);
    let after = dropped(&node, UNKNOWN_NODE_COMMENT) + dropped(&node, "workloads may not encapsulate");
    assert!(after > before, "{}", node.exec("nft list table inet tortie"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_tunnel_is_reported_alone() {
    let (node, _other) = node_pair();
    let (dataplane, mut reports) = start(&node).await;
    let mut whole = plan(&[], &[]);
    TUNNEL_CASE_V4.plan(&mut whole);
    let lost = TunnelDevice { local: address("192.168.99.1"), ..TUNNEL_CASE_V4.device() };
    whole.tunnels.insert(TunnelKind::VxlanV4, lost);
    TUNNEL_CASE_V6.plan(&mut whole);
    let ipip =
        TunnelDevice { name: "tunl0".into(), protocol: TunnelProtocol::Ipip, ..TUNNEL_CASE_V4.device() };
    whole.tunnels.insert(TunnelKind::Ipip, ipip);
    dataplane.replace(whole).await.unwrap();
    assert!(TUNNEL_CASE_V6.is_whole(&node));
    let named = loop {
        match reports.next().await.expect("the dataplane runs") {
            DataplaneReport::Tunnels(failures) if !failures.is_empty() => break failures,
            _ => {}
        }
    };
    let texts: Vec<String> = named.iter().map(ToString::to_string).collect();
    assert_eq!(texts[0], "interface vxlan.calico: no interface has the node's address 192.168.99.1");
    // Not every kernel has the ipip module.
    if node.try_ip("link add probe type ipip local 192.168.77.1 remote 192.168.77.2").status.success() {
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(node.ip("addr show dev tunl0").contains(TUNNEL_CASE_V4.ends[0]));
    } else {
        assert!(texts[1].starts_with("interface tunl0: this kernel has no ipip devices"), "{texts:?}");
    }
    node.ip("addr add 192.168.99.1/24 dev eth0");
    eventually("the device is there when the address is", || TUNNEL_CASE_V4.is_whole(&node)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnel_routes_of_bird_stay_until_bgp_converged() {
    let (node, _other) = node_pair();
    let mut plan = NodePlan { bgp: Some(Arc::default()), ..NodePlan::default() };
    TUNNEL_CASE_V4.plan(&mut plan);
    let (dataplane, reports) = start(&node).await;
    assert_eq!(dataplane.replace(plan.clone()).await.unwrap().failures, []);
    dataplane.stop().await;
    drop(reports);
    let learnt = "10.65.9.0/26";
    for block in [learnt, TUNNEL_CASE_V4.blocks[1]] {
        node.ip(&format!(
            "route add {block} via {} dev vxlan.calico onlink proto bird metric 32",
            TUNNEL_CASE_V4.ends[1]
        ));
    }
    let (dataplane, _reports) = start(&node).await;
    assert_eq!(dataplane.replace(plan).await.unwrap().failures, []);
    assert_eq!(node.routes(learnt).len(), 1, "nothing else leads there yet");
    assert!(
        TUNNEL_CASE_V4.is_whole(&node),
        "a route of ours took the place of BIRD's: {:?}",
        node.routes(TUNNEL_CASE_V4.blocks[1])
    );
    dataplane.apply(vec![PlanUpdate::LearntComplete]).await.unwrap();
    assert_eq!(node.routes(learnt), [""; 0]);
}
