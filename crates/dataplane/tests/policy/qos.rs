//! QoS limits and floating IPs of workloads with real packets: rates, DSCP marks, and where connections to floating
//! addresses end.

use crate::namespace::{OpenNetns, TestNamespace, eventually, id, node_pair, plan, pod, workload};
use crate::world::updates;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use tortie_dataplane::DataplaneHandle;
use tortie_plan::{
    ALL_POOLS_SET, AddressSet, BandwidthLimit, DataplaneSettings, FloatingIp, NodePlan, PacketRate,
    PlanUpdate, PlannedWorkload, QosSettings, SetId, SetKind, SetMember,
};
use tortie_testkit::bind_when_free;

const POD_ADDRESSES: [&str; 2] = ["10.65.0.2", "fd80:65::2"];
const OTHER_POD_ADDRESSES: [&str; 2] = ["10.65.0.3", "fd80:65::3"];
const NODE_ADDRESSES: [&str; 2] = ["192.168.77.1", "fd77::1"];
const OUTSIDE_ADDRESSES: [&str; 2] = ["192.168.77.2", "fd77::2"];
const FLOATING_ADDRESSES: [&str; 2] = ["192.0.2.10", "2001:db8::10"];

/// Counters of a token bucket qdisc.
struct TokenBucketStats {
    bytes: u64,
    overlimits: u64,
}

struct QosFixture {
    node: TestNamespace,
    there: TestNamespace,
    pod: TestNamespace,
    other: TestNamespace,
    plan: NodePlan,
    dataplane: DataplaneHandle,
}

fn workloads(one: PlannedWorkload) -> NodePlan {
    let mut plan = plan(&[("one", one), ("two", workload("cali2", &OTHER_POD_ADDRESSES))], &[]);
    let pools = ["10.65.0.0/16", "fd80:65::/48"].map(|net| SetMember::Net(net.parse().unwrap()));
    plan.sets.insert(SetId::new(ALL_POOLS_SET), AddressSet { kind: SetKind::Nets, members: pools.into() });
    plan
}

fn limited(qos: QosSettings) -> PlannedWorkload {
    PlannedWorkload { qos, ..workload("cali1", &POD_ADDRESSES) }
}

impl QosFixture {
    async fn new(one: PlannedWorkload) -> QosFixture {
        let (node, there) = node_pair();
        for (net, gateway) in [("10.65.0.0/16", NODE_ADDRESSES[0]), ("fd80:65::/48", NODE_ADDRESSES[1])] {
            there.ip(&format!("route add {net} via {gateway}"));
        }
        for (address, gateway) in FLOATING_ADDRESSES.into_iter().zip(NODE_ADDRESSES) {
            there.ip(&format!("route add {address} via {gateway}"));
        }
        let pod = self::pod(&node, "cali1", &POD_ADDRESSES).await;
        let other = self::pod(&node, "cali2", &OTHER_POD_ADDRESSES).await;
        let (dataplane, _) = DataplaneHandle::start(node.open(), DataplaneSettings::default()).await.unwrap();
        let plan = workloads(one);
        let outcome = dataplane.replace(plan.clone()).await.unwrap();
        assert_eq!(outcome.failures, []);
        QosFixture { node, there, pod, other, plan, dataplane }
    }

    async fn apply(&mut self, one: PlannedWorkload) {
        let plan = workloads(one.clone());
        let mut changes = updates(&self.plan, &plan);
        changes.push(PlanUpdate::Workload(id("one"), Some(one)));
        let outcome = self.dataplane.apply(changes).await.unwrap();
        assert_eq!(outcome.failures, []);
        self.plan = plan;
    }

    fn table(&self) -> String {
        self.node.exec(&["nft", "list", "table", "inet", "tortie"])
    }

    fn qdiscs(&self) -> String {
        self.node.exec(&["tc", "qdisc", "show"])
    }

    /// Returns the name of the IFB device that shapes the pod's egress traffic.
    fn ifb(&self) -> String {
        let device = self.node.exec(&["ip", "-o", "link", "show", "type", "ifb"]);
        device.split_whitespace().nth(1).unwrap_or_default().trim_end_matches(':').to_owned()
    }

    fn bucket(&self, device: &str) -> TokenBucketStats {
        let shown = self.node.exec(&["tc", "-s", "-j", "qdisc", "show", "dev", device]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let tbf = shown.as_array().unwrap().iter().find(|qdisc| qdisc["kind"] == "tbf").unwrap();
        let number = |name: &str| tbf[name].as_u64().unwrap();
        TokenBucketStats { bytes: number("bytes"), overlimits: number("overlimits") }
    }
}

/// Sends `count` datagrams in one burst and returns how many arrive.
async fn arrived(from: &TestNamespace, to: &TestNamespace, address: &str, count: usize) -> usize {
    let receiver = bind(to, address);
    let sender = bind(from, if address.contains(':') { "::" } else { "0.0.0.0" });
    let target = receiver.local_addr().unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    // The first datagram resolves the neighbours; repeat it until it arrives.
    eventually("a datagram arrives", || {
        let _ = sender.send_to(b"first", target);
        receiver.recv_from(&mut [0; 64]).is_ok()
    })
    .await;
    while receiver.recv_from(&mut [0; 64]).is_ok() {}
    for _ in 0..count {
        sender.send_to(b"more", target).unwrap();
    }
    std::iter::from_fn(|| receiver.recv_from(&mut [0; 64]).ok()).take(count).count()
}

fn bind(at: &TestNamespace, address: &str) -> UdpSocket {
    let address = SocketAddr::new(address.parse().unwrap(), 0);
    at.open().run(move || bind_when_free(|| UdpSocket::bind(address)).unwrap()).unwrap()
}

fn listen(at: &TestNamespace, address: &str) -> TcpListener {
    let address = SocketAddr::new(address.parse().unwrap(), 0);
    at.open().run(move || bind_when_free(|| TcpListener::bind(address)).unwrap()).unwrap()
}

fn connect(from: &TestNamespace, to: SocketAddr) -> std::io::Result<TcpStream> {
    from.open().run(move || TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn packet_rate_limits_apply_per_direction() {
    let slow = Some(PacketRate { per_second: 1, burst: 5 });
    let mut qos = QosSettings::default();
    qos.ingress.packets = slow;
    let mut world = QosFixture::new(limited(qos)).await;
    for (pod, there) in POD_ADDRESSES.into_iter().zip(OUTSIDE_ADDRESSES) {
        let heard = arrived(&world.there, &world.pod, pod, 50).await;
        assert!(heard < 25, "{heard} of 50 came\n{}", world.table());
        assert_eq!(arrived(&world.pod, &world.there, there, 50).await, 50, "the other direction");
    }
    assert_eq!(arrived(&world.there, &world.other, OTHER_POD_ADDRESSES[0], 50).await, 50, "another workload");

    let mut qos = QosSettings::default();
    qos.egress.packets = slow;
    world.apply(limited(qos)).await;
    let heard = arrived(&world.pod, &world.there, OUTSIDE_ADDRESSES[0], 50).await;
    assert!(heard < 25, "{heard} of 50 came\n{}", world.table());
    assert_eq!(arrived(&world.there, &world.pod, POD_ADDRESSES[0], 50).await, 50, "not limited any more");
    world.apply(limited(QosSettings::default())).await;
    assert_eq!(arrived(&world.pod, &world.there, OUTSIDE_ADDRESSES[0], 50).await, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_limits_reset_excess_and_survive_policy_changes() {
    let mut qos = QosSettings::default();
    qos.ingress.connections = Some(3);
    let mut world = QosFixture::new(limited(qos)).await;
    for address in POD_ADDRESSES {
        let listener = listen(&world.pod, address);
        let to = listener.local_addr().unwrap();
        let mut open: Vec<TcpStream> = Vec::new();
        // Connections of the other family may still be closing.
        eventually("three connections are there", || {
            open.extend(connect(&world.there, to));
            open.len() == 3
        })
        .await;
        let accepted: Vec<_> = open.iter().map(|_| listener.accept().unwrap()).collect();
        assert!(connect(&world.there, to).is_err(), "a fourth connection\n{}", world.table());

        // Changing the packet rate rewrites the chain; the connection count must survive.
        let mut changed = qos;
        changed.ingress.packets = Some(PacketRate { per_second: 10_000, burst: 10_000 });
        world.apply(limited(changed)).await;
        assert!(connect(&world.there, to).is_err(), "still three are open\n{}", world.table());
        world.apply(limited(qos)).await;

        drop((open, accepted));
        eventually("closed connections are counted no more", || connect(&world.there, to).is_ok()).await;
    }
    assert_eq!(
        connect(&world.pod, listen(&world.there, OUTSIDE_ADDRESSES[0]).local_addr().unwrap()).map(drop).ok(),
        Some(())
    );
}

/// The bucket holds 100 kB: a transfer of 300 kB at once exceeds it, and the kernel counts the overlimits.
#[tokio::test(flavor = "multi_thread")]
async fn bandwidth_limits_hold_both_ways_and_are_restored() {
    const AMOUNT: usize = 300_000;
    let slow = Some(BandwidthLimit { bits_per_second: 1_600_000, burst_bits: 800_000, peak: None });
    let mut qos = QosSettings::default();
    (qos.ingress.bandwidth, qos.egress.bandwidth) = (slow, slow);
    let world = QosFixture::new(limited(qos)).await;
    let device = world.ifb();
    for (from, to, address, bucket) in [
        (&world.pod, &world.there, OUTSIDE_ADDRESSES[0], device.as_str()),
        (&world.there, &world.pod, POD_ADDRESSES[1], "cali1"),
    ] {
        let before = world.bucket(bucket);
        transfer(from, to, address, AMOUNT);
        let after = world.bucket(bucket);
        assert!(after.bytes - before.bytes >= AMOUNT as u64, "{}", world.qdiscs());
        assert!(after.overlimits > before.overlimits, "nothing had to wait\n{}", world.qdiscs());
    }

    for undo in ["qdisc del dev cali1 root", "qdisc del dev cali1 ingress"] {
        world.node.exec(&format!("tc {undo}"));
    }
    let whole = |world: &QosFixture| {
        let filters = world.node.exec(&["tc", "filter", "show", "dev", "cali1", "ingress"]);
        world.qdiscs().matches("tbf").count() == 2 && filters.contains(&device)
    };
    eventually("both come back", || whole(&world)).await;
    world.node.ip(&format!("link del {device}"));
    eventually("the device comes back", || whole(&world)).await;
    let before = world.bucket(&device);
    transfer(&world.pod, &world.there, OUTSIDE_ADDRESSES[1], AMOUNT);
    assert!(world.bucket(&device).overlimits > before.overlimits, "{}", world.qdiscs());

    // After a restart the same qdiscs are in place: their counters continue.
    let before = world.bucket(&device);
    let QosFixture { node, there, pod, other, plan, dataplane } = world;
    dataplane.stop().await;
    let (dataplane, _) = DataplaneHandle::start(node.open(), DataplaneSettings::default()).await.unwrap();
    assert_eq!(dataplane.replace(plan.clone()).await.unwrap().failures, []);
    let mut world = QosFixture { node, there, pod, other, plan, dataplane };
    assert!(world.bucket(&device).bytes >= before.bytes, "{}", world.qdiscs());

    world.apply(limited(QosSettings::default())).await;
    assert!(!world.qdiscs().contains("tbf") && !world.qdiscs().contains("ingress"), "{}", world.qdiscs());
    assert_eq!(world.node.exec(&["ip", "-o", "link", "show", "type", "ifb"]), "");
    transfer(&world.pod, &world.there, OUTSIDE_ADDRESSES[0], AMOUNT);
}

/// Transfers `amount` bytes and waits until the receiver has them all.
fn transfer(from: &TestNamespace, to: &TestNamespace, address: &str, amount: usize) {
    let listener = listen(to, address);
    let mut sender = connect(from, listener.local_addr().unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(&vec![7; amount]).unwrap());
        let mut heard = Vec::new();
        receiver.read_to_end(&mut heard).unwrap();
        assert_eq!(heard.len(), amount);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn dscp_is_set_only_on_leaving_packets() {
    let qos = QosSettings { dscp: Some(46), ..QosSettings::default() };
    let world = QosFixture::new(limited(qos)).await;
    for (there, other) in OUTSIDE_ADDRESSES.into_iter().zip(OTHER_POD_ADDRESSES) {
        assert_eq!(seen(&world.pod, &world.there, there).await, 46, "{}", world.table());
        assert_eq!(seen(&world.pod, &world.other, other).await, 0, "inside the cluster");
        assert_eq!(seen(&world.other, &world.there, there).await, 0, "of another workload");
    }
}

/// Returns the DSCP that datagrams carry on arrival: 0, or 46 (expedited forwarding).
async fn seen(from: &TestNamespace, to: &TestNamespace, address: &str) -> u8 {
    let receiver = bind(to, address);
    receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let sender = bind(from, if address.contains(':') { "::" } else { "0.0.0.0" });
    let target = receiver.local_addr().unwrap();
    to.exec("nft add table inet seen");
    to.exec("nft add chain inet seen in { type filter hook input priority 0 ; }");
    let family = if address.contains(':') { "ip6" } else { "ip" };
    for dscp in ["cs0", "ef"] {
        let rule = format!("udp dport {} {family} dscp {dscp} counter", target.port());
        to.exec(&format!("nft add rule inet seen in {rule}"));
    }
    eventually("a datagram arrives", || {
        let _ = sender.send_to(b"marked?", target);
        receiver.recv_from(&mut [0; 64]).is_ok()
    })
    .await;
    let listing = to.exec("nft list table inet seen");
    to.exec("nft delete table inet seen");
    let counted: Vec<&str> =
        listing.lines().filter(|line| line.contains("dscp") && !line.contains("packets 0 ")).collect();
    match counted[..] {
        [only] if only.contains("dscp ef") => 46,
        [only] if only.contains("dscp cs0") => 0,
        _ => panic!("{listing}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn floating_addresses_follow_their_workload() {
    let floating: Vec<FloatingIp> = FLOATING_ADDRESSES
        .into_iter()
        .zip(POD_ADDRESSES)
        .map(|(external, internal)| FloatingIp {
            external: external.parse().unwrap(),
            internal: internal.parse().unwrap(),
        })
        .collect();
    let mut world = QosFixture::new(PlannedWorkload { floating, ..workload("cali1", &POD_ADDRESSES) }).await;
    for ((external, own), node) in FLOATING_ADDRESSES.into_iter().zip(POD_ADDRESSES).zip(NODE_ADDRESSES) {
        let listener = listen(&world.pod, own);
        let port = listener.local_addr().unwrap().port();
        let to = SocketAddr::new(external.parse().unwrap(), port);
        for (name, from) in [("outside", &world.there), ("a workload", &world.other)] {
            let caller = connect(from, to);
            let caller = caller.unwrap_or_else(|error| panic!("{name}: {error}\n{}", world.table()));
            let (callee, peer) = listener.accept().unwrap();
            assert_eq!(callee.local_addr().unwrap().ip().to_string(), own, "{name}");
            assert_eq!(caller.peer_addr().unwrap(), to, "{name} does not notice");
            assert_ne!(peer.ip().to_string(), external, "{name}");
        }
        let caller = connect(&world.pod, to).unwrap();
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip().to_string(), external, "itself, by the floating address");
        drop(caller);
        let route = world.node.exec(&["ip", "-o", "route", "get", external]);
        assert!(route.contains("cali1"), "{route} {node}");
        // The node's own traffic is not translated: a pod must not be able to take over connections of the node.
        let own = world.node.open().run(move || TcpStream::connect_timeout(&to, Duration::from_secs(1)));
        assert!(own.unwrap().is_err(), "the host\n{}", world.table());
    }
    let listener = listen(&world.pod, POD_ADDRESSES[0]);
    let to = SocketAddr::new(FLOATING_ADDRESSES[0].parse().unwrap(), listener.local_addr().unwrap().port());
    let mut caller = connect(&world.there, to).unwrap();
    let (mut callee, _) = listener.accept().unwrap();
    callee.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    world.apply(workload("cali1", &POD_ADDRESSES)).await;
    eventually("connections go with the address", || {
        while callee.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        let _ = caller.write(b"still there?");
        callee.read(&mut [0; 64]).is_err()
    })
    .await;
    assert!(!world.table().contains("floating"), "{}", world.table());
    let route = world.node.exec(&["ip", "-o", "-6", "route"]) + &world.node.exec(&["ip", "-o", "route"]);
    assert!(FLOATING_ADDRESSES.iter().all(|address| !route.contains(address)), "{route}");
    assert!(world.plan.workloads.contains_key(&id("one")));
}

/// An earlier version translated the host's traffic too, so that a pod could claim the address of a server that the
/// host uses.
#[tokio::test(flavor = "multi_thread")]
async fn leftover_translation_of_host_traffic_is_removed() {
    let (node, there) = node_pair();
    let _pod = self::pod(&node, "cali1", &POD_ADDRESSES).await;
    node.ip(&format!("route add {} dev cali1", POD_ADDRESSES[0]));
    node.ip(&format!("route add {}/32 dev cali1", OUTSIDE_ADDRESSES[0]));
    node.nft(&format!(
        "table inet tortie {{
            set floating-external-4 {{ type ipv4_addr; elements = {{ {server} }}; }}
            chain floating-in {{ type nat hook prerouting priority -110; }}
            chain floating-out {{ type nat hook output priority -110;
                ip daddr @floating-external-4 dnat ip to {pod}; }}
        }}",
        server = OUTSIDE_ADDRESSES[0],
        pod = POD_ADDRESSES[0],
    ));
    let server = listen(&there, OUTSIDE_ADDRESSES[0]);
    let to = server.local_addr().unwrap();
    assert!(connect(&node, to).is_err(), "the pod has the server's address");
    assert_eq!(tortie_dataplane::free_host_traffic(&node.open()).await.unwrap(), 1);
    connect(&node, to).unwrap();
    let table = node.exec(&["nft", "list", "table", "inet", "tortie"]);
    assert!(!table.contains("floating-out") && table.contains("floating-in"), "{table}");
    assert_eq!(tortie_dataplane::free_host_traffic(&node.open()).await.unwrap(), 0, "nothing is left to do");
}
