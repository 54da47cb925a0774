//! Outgoing NAT with real packets: the source address that the destination sees.

use crate::namespace::{OpenNetns, TestNamespace, eventually, node_pair, plan, pod, workload};
use crate::world::updates;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use tortie_dataplane::DataplaneHandle;
use tortie_plan::{
    AddressSet, DataplaneSettings, NAT_EXCLUSIONS_SET, NAT_SOURCES_SET, NatSettings, NodePlan, PortInterval,
    SetId, SetKind, SetMember,
};
use tortie_testkit::bind_when_free;

/// Pod addresses of a pool with natOutgoing (`NAT_POD_ADDRESSES`) and of a pool without it (`NO_NAT_POD_ADDRESSES`).
const NAT_POD_ADDRESSES: [&str; 2] = ["10.65.0.2", "fd80:65::2"];
const NO_NAT_POD_ADDRESSES: [&str; 2] = ["10.66.0.2", "fd80:66::2"];
/// Addresses of the destination host: outside all pools, in the pool of the first pod, and in a pool without local
/// pods.
const DESTINATION_ADDRESSES: [&str; 6] =
    ["198.51.100.1", "2001:db8::1", "10.65.9.9", "fd80:65:0:9::9", "10.67.0.1", "fd80:67::1"];
const NODE_ADDRESSES: [&str; 2] = ["192.168.77.1", "fd77::1"];

struct NatFixture {
    node: TestNamespace,
    there: TestNamespace,
    pods: [TestNamespace; 2],
    plan: NodePlan,
    dataplane: DataplaneHandle,
    settings: DataplaneSettings,
}

fn nets(nets: &[&str]) -> AddressSet {
    let members = nets.iter().map(|net| SetMember::Net(net.parse().unwrap())).collect();
    AddressSet { kind: SetKind::Nets, members }
}

fn with_nat(mut plan: NodePlan, sources: &[&str], exclusions: &[&str]) -> NodePlan {
    plan.sets.insert(SetId::new(NAT_SOURCES_SET), nets(sources));
    plan.sets.insert(SetId::new(NAT_EXCLUSIONS_SET), nets(exclusions));
    plan
}

fn workloads() -> NodePlan {
    plan(
        &[("one", workload("cali1", &NAT_POD_ADDRESSES)), ("two", workload("cali2", &NO_NAT_POD_ADDRESSES))],
        &[],
    )
}

fn masquerading() -> NodePlan {
    let pools =
        ["10.65.0.0/16", "10.66.0.0/16", "10.67.0.0/16", "fd80:65::/48", "fd80:66::/48", "fd80:67::/48"];
    with_nat(workloads(), &["10.65.0.0/16", "fd80:65::/48"], &pools)
}

impl NatFixture {
    async fn new() -> NatFixture {
        let (node, there) = node_pair();
        for address in DESTINATION_ADDRESSES {
            let length = if address.contains(':') { 128 } else { 32 };
            there.ip(&format!("addr add {address}/{length} dev lo"));
            let gateway = if address.contains(':') { "fd77::2" } else { "192.168.77.2" };
            node.ip(&format!("route add {address}/{length} via {gateway}"));
        }
        for net in ["10.65.0.0/16 via 192.168.77.1", "10.66.0.0/16 via 192.168.77.1"] {
            there.ip(&format!("route add {net}"));
        }
        for net in ["fd80:65::/48 via fd77::1", "fd80:66::/48 via fd77::1"] {
            there.ip(&format!("route add {net}"));
        }
        let pods =
            [pod(&node, "cali1", &NAT_POD_ADDRESSES).await, pod(&node, "cali2", &NO_NAT_POD_ADDRESSES).await];
        let settings = DataplaneSettings::default();
        let (dataplane, _) = DataplaneHandle::start(node.open(), settings.clone()).await.unwrap();
        let plan = masquerading();
        let outcome = dataplane.replace(plan.clone()).await.unwrap();
        assert_eq!(outcome.failures, []);
        NatFixture { node, there, pods, plan, dataplane, settings }
    }

    async fn apply(&mut self, plan: NodePlan) {
        let outcome = self.dataplane.apply(updates(&self.plan, &plan)).await.unwrap();
        assert_eq!(outcome.failures, []);
        self.plan = plan;
    }

    async fn configure(&mut self, nat: NatSettings) {
        self.settings.nat = nat;
        let outcome = self.dataplane.configure(self.settings.clone()).await.unwrap();
        assert_eq!(outcome.failures, []);
    }

    /// Returns the source address that the destination sees for a datagram of a pod.
    async fn seen(&self, pod: usize, to: &str) -> SocketAddr {
        let to: IpAddr = to.parse().unwrap();
        seen(&self.pods[pod], &self.there, SocketAddr::new(to, 0)).await
    }

    /// Asserts that the kernel translates as the plan demands, for every pod and every destination.
    async fn holds(&self) {
        for (pod, own) in [NAT_POD_ADDRESSES, NO_NAT_POD_ADDRESSES].into_iter().enumerate() {
            for to in DESTINATION_ADDRESSES {
                let v6 = usize::from(to.contains(':'));
                let source = own[v6].parse().unwrap();
                let translated =
                    self.plan.is_translated(source, to.parse().unwrap(), "eth0", &self.settings.nat);
                let expected = if translated { NODE_ADDRESSES[v6] } else { own[v6] };
                let listing = || self.node.exec(&["nft", "list", "table", "inet", "tortie"]);
                let seen = self.seen(pod, to).await.ip().to_string();
                assert_eq!(seen, expected, "from {} to {to}\n{}", own[v6], listing());
            }
        }
    }
}

/// Sends a datagram and returns the source that the destination sees. Uses a new socket each time: a flow keeps the
/// address of its first packet.
async fn seen(from: &TestNamespace, there: &TestNamespace, to: SocketAddr) -> SocketAddr {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let listener = there.open().run(move || bind_when_free(|| UdpSocket::bind(to)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    listener.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let sender = from.open().run(|| UdpSocket::bind(any).unwrap()).unwrap();
    let mut source = None;
    eventually("a datagram arrives", || {
        let _ = sender.send_to(b"who am I", to);
        source = listener.recv_from(&mut [0; 64]).ok().map(|(_, source)| source);
        source.is_some()
    })
    .await;
    source.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_leaving_all_pools_get_the_node_address() {
    let mut world = NatFixture::new().await;
    assert_eq!(world.seen(0, DESTINATION_ADDRESSES[0]).await.ip().to_string(), NODE_ADDRESSES[0]);
    assert_eq!(world.seen(0, DESTINATION_ADDRESSES[1]).await.ip().to_string(), NODE_ADDRESSES[1]);
    assert_eq!(
        world.seen(0, DESTINATION_ADDRESSES[2]).await.ip().to_string(),
        NAT_POD_ADDRESSES[0],
        "the same pool"
    );
    assert_eq!(
        world.seen(0, DESTINATION_ADDRESSES[5]).await.ip().to_string(),
        NAT_POD_ADDRESSES[1],
        "another pool"
    );
    assert_eq!(
        world.seen(1, DESTINATION_ADDRESSES[0]).await.ip().to_string(),
        NO_NAT_POD_ADDRESSES[0],
        "a pool without natOutgoing"
    );
    world.holds().await;

    // Change the sets while the dataplane runs.
    let excluded = ["10.65.0.0/16", "fd80:65::/48", "198.51.100.1/32", "2001:db8::1/128"];
    world.apply(with_nat(workloads(), &["10.65.0.0/16", "fd80:65::/48"], &excluded)).await;
    world.holds().await;
    world.apply(with_nat(workloads(), &["10.66.0.2/32", "fd80:66::2/128"], &["10.66.0.0/16"])).await;
    world.holds().await;
    world.apply(workloads()).await;
    world.holds().await;
    let listing = world.node.exec(&["nft", "list", "table", "inet", "tortie"]);
    assert!(!listing.contains("masquerade") && !listing.contains("masq-"), "{listing}");
    world.apply(masquerading()).await;
    world.holds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nat_uses_configured_ports_address_and_interface() {
    let mut world = NatFixture::new().await;
    let ports = PortInterval { first: 40_000, last: 40_007 };
    world.configure(NatSettings { ports: Some(ports), ..NatSettings::default() }).await;
    for to in [DESTINATION_ADDRESSES[0], DESTINATION_ADDRESSES[1]] {
        let seen = world.seen(0, to).await;
        assert!((40_000..=40_007).contains(&seen.port()), "{seen}");
    }
    assert!(world.pods[0].pings(DESTINATION_ADDRESSES[0]), "what has no ports is translated all the same");

    world.node.ip("addr add 192.168.77.9/24 dev eth0");
    let address = "192.168.77.9".parse().ok();
    world.configure(NatSettings { ports: Some(ports), address, ..NatSettings::default() }).await;
    let by_address = world.seen(0, DESTINATION_ADDRESSES[0]).await;
    assert_eq!(by_address.ip().to_string(), "192.168.77.9");
    assert!((40_000..=40_007).contains(&by_address.port()), "{by_address}");
    assert_eq!(
        world.seen(0, DESTINATION_ADDRESSES[1]).await.ip().to_string(),
        NODE_ADDRESSES[1],
        "an IPv4 address is for IPv4"
    );

    for (filter, translated) in [("eth1", false), ("eth0", true), ("et", false), ("et+", true), ("+", true)] {
        world.configure(NatSettings { out_interface: Some(filter.into()), ..NatSettings::default() }).await;
        for v6 in [0, 1] {
            let expected = if translated { NODE_ADDRESSES[v6] } else { NAT_POD_ADDRESSES[v6] };
            assert_eq!(world.seen(0, DESTINATION_ADDRESSES[v6]).await.ip().to_string(), expected, "{filter}");
        }
        world.holds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_outlive_the_daemon_and_changes_of_nat() {
    let mut world = NatFixture::new().await;
    let listener = world.there.open().run(|| TcpListener::bind("198.51.100.1:0").unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let mut client = world.pods[0].open().run(move || TcpStream::connect(to).unwrap()).unwrap();
    let (mut server, from) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(tortie_testkit::CONDITION_TIMEOUT)).unwrap();
    }
    assert_eq!(from.ip().to_string(), NODE_ADDRESSES[0]);
    let mut speaks = |when: &str| {
        let mut heard = [0; 4];
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut heard).unwrap();
        server.write_all(&heard).unwrap();
        client.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"ping", "{when}");
    };
    speaks("at first");
    let handles = |world: &NatFixture| world.node.exec(&["nft", "-a", "list", "table", "inet", "tortie"]);
    let before = handles(&world);
    world.dataplane.stop().await;
    speaks("without a daemon");
    let (dataplane, _) = DataplaneHandle::start(world.node.open(), world.settings.clone()).await.unwrap();
    dataplane.replace(masquerading()).await.unwrap();
    world.dataplane = dataplane;
    let without_counters = |text: String| -> Vec<String> {
        text.lines().map(|line| line.split("counter packets").next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(without_counters(handles(&world)), without_counters(before), "nothing is written anew");
    speaks("with another daemon");
    world.holds().await;
    world.node.nft("flush chain inet tortie nat-outgoing");
    eventually("what somebody took away comes back", || handles(&world).contains("goto masquerade-4")).await;
    world.holds().await;
    world.apply(workloads()).await;
    speaks("without NAT for new connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_reaches_itself_through_a_service() {
    let world = NatFixture::new().await;
    // Service NAT rules as kube-proxy writes them.
    world.node.nft(
        "table ip services {
            chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.1 udp dport 53 dnat to 10.65.0.2:5353; }
            chain post { type nat hook postrouting priority 100;
                ct status dnat ip saddr 10.65.0.2 ip daddr 10.65.0.2 masquerade; }
        }",
    );
    let pod = world.pods[0].open();
    let (server, client) = pod
        .run(|| {
            (
                bind_when_free(|| UdpSocket::bind("0.0.0.0:5353")).unwrap(),
                UdpSocket::bind("0.0.0.0:0").unwrap(),
            )
        })
        .unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    }
    eventually("the service answers", || {
        let _ = client.send_to(b"question", "10.96.0.1:53");
        let Ok((_, from)) = server.recv_from(&mut [0; 64]) else { return false };
        assert_ne!(
            from.ip().to_string(),
            NAT_POD_ADDRESSES[0],
            "it would answer itself, by the wrong address"
        );
        let _ = server.send_to(b"answer", from);
        let heard = client.recv_from(&mut [0; 64]);
        heard.is_ok_and(|(_, from)| from.to_string() == "10.96.0.1:53")
    })
    .await;
}
