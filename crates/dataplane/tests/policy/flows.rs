//! Flow events: connections and denied packets are reported with the rule that decided, within the limits.

use crate::namespace::{OpenNetns, TestNamespace, eventually};
use crate::plans::{
    POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, change, guarded, ingress, open_plan, two_pods, udp,
};
use crate::raw::{RawLink, udp_v4};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tortie_dataplane::{DataplaneHandle, ReportReceiver};
use tortie_plan::flow::{
    ConnectionOutcome, ConnectionRecord, FlowCause, FlowDecision, FlowEvent, FlowInterfaces, FlowKey,
    FlowLoss, FlowOpening, FlowSourceSettings,
};
use tortie_plan::{DataplaneSettings, NodePlan, PlannedRule, PolicyDirection, RuleAction};

const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
const LAST_SCANNED_PORT: u16 = 65_001;
/// Workloads may not send VXLAN.
const VXLAN_PORT: u16 = 4789;
/// Packets after which the sender gives the CPU to the kernel's thread that receives them: its queue holds 1000.
const PACKETS_PER_TURN: usize = 64;

fn quick() -> FlowSourceSettings {
    FlowSourceSettings {
        count_interval: Duration::from_millis(100),
        connection_interval: Duration::from_millis(200),
        ..FlowSourceSettings::default()
    }
}

fn recording(flows: Option<FlowSourceSettings>) -> DataplaneSettings {
    let mut settings = DataplaneSettings::default();
    settings.policy.flows = flows;
    settings
}

/// A running dataplane, and the events so far.
struct FlowFixture {
    dataplane: DataplaneHandle,
    _reports: ReportReceiver,
    events: Receiver<FlowEvent>,
    opened: Vec<FlowOpening>,
    denied: Vec<FlowOpening>,
    counted: BTreeMap<FlowKey, u64>,
    others: BTreeMap<bool, u64>,
    ended: Vec<ConnectionRecord>,
    live: Vec<ConnectionRecord>,
    losses: Vec<(FlowLoss, u64)>,
}

impl FlowFixture {
    async fn start(node: &TestNamespace, plan: &NodePlan, flows: FlowSourceSettings) -> FlowFixture {
        let (mut dataplane, reports) =
            DataplaneHandle::start(node.open(), recording(Some(flows))).await.unwrap();
        let outcome = dataplane.replace(plan.clone()).await.unwrap();
        assert_eq!(outcome.failures, [], "{}", listing(node));
        let events = dataplane.take_flow_events().unwrap();
        assert!(dataplane.take_flow_events().is_none());
        FlowFixture {
            dataplane,
            _reports: reports,
            events,
            opened: Vec::new(),
            denied: Vec::new(),
            counted: BTreeMap::new(),
            others: BTreeMap::new(),
            ended: Vec::new(),
            live: Vec::new(),
            losses: Vec::new(),
        }
    }

    fn accept(&mut self, event: FlowEvent) {
        match event {
            FlowEvent::Opened(opening) => self.opened.push(opening),
            FlowEvent::Denied(opening) => self.denied.push(opening),
            FlowEvent::Counted { key, count, .. } => *self.counted.entry(key).or_default() += count,
            FlowEvent::Other { allowed, count } => *self.others.entry(allowed).or_default() += count,
            FlowEvent::Ended(record) => self.ended.push(record),
            FlowEvent::Live(record) => self.live.push(record),
            FlowEvent::LiveComplete { .. } => {}
            FlowEvent::Lost { loss, events } => self.losses.push((loss, events)),
        }
    }

    /// Receives events until the condition holds.
    async fn until(&mut self, what: &str, mut so: impl FnMut(&FlowFixture) -> bool) {
        let deadline = tokio::time::Instant::now() + EVENT_TIMEOUT;
        while !so(self) {
            match tokio::time::timeout_at(deadline, self.events.recv()).await {
                Ok(Some(event)) => self.accept(event),
                Ok(None) => panic!("{what}: the source has ended"),
                Err(_) => panic!(
                    "{what}: opened {:#?} denied {:#?} counted {:#?} others {:?} losses {:?} live {:#?} ended {:#?}",
                    self.opened, self.denied, self.counted, self.others, self.losses, self.live, self.ended
                ),
            }
        }
    }

    /// Returns the sum of the counts of UDP packets to pod two, with packets that have no key.
    fn total(&self, allowed: bool) -> u64 {
        let keys = self.keys(allowed).map(|(_, count)| count);
        keys.sum::<u64>() + self.others.get(&allowed).copied().unwrap_or_default()
    }

    /// Returns the keys of UDP packets to pod two. The kernel's own packets (neighbour discovery) have keys too.
    fn keys(&self, allowed: bool) -> impl Iterator<Item = (&FlowKey, &u64)> {
        let two = POD_TWO_ADDRESSES.map(address);
        self.counted.iter().filter(move |(key, _)| {
            let tuple = key.tuple;
            key.decision.allowed == allowed && tuple.protocol == 17 && two.contains(&tuple.destination)
        })
    }

    fn decision(&self, allowed: bool, destination: IpAddr, port: u16) -> Option<(&FlowDecision, u64)> {
        let found = self.counted.iter().find(|(key, _)| {
            let tuple = key.tuple;
            key.decision.allowed == allowed
                && (tuple.destination, tuple.destination_port) == (destination, port)
        });
        found.map(|(key, count)| (&key.decision, *count))
    }
}

fn listing(node: &TestNamespace) -> String {
    node.exec(&["nft", "-s", "list", "table", "inet", "tortie"])
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn send_udp(from: &TestNamespace, destination: IpAddr, ports: impl IntoIterator<Item = u16>) {
    let ports: Vec<u16> = ports.into_iter().collect();
    let unspecified = if destination.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let send = || {
        let socket = UdpSocket::bind(unspecified).unwrap();
        for turn in ports.chunks(PACKETS_PER_TURN) {
            for port in turn {
                // Rejected and refused packets make later sends fail.
                let _ = socket.send_to(b"test", SocketAddr::new(destination, *port));
            }
            std::thread::yield_now();
        }
    };
    from.open().run(send).unwrap();
}

fn scanned_ports() -> impl Iterator<Item = u16> {
    (1..=LAST_SCANNED_PORT).filter(|port| *port != VXLAN_PORT)
}

fn rule(cause: &Option<FlowCause>) -> String {
    cause.as_ref().map(FlowCause::to_string).unwrap_or_default()
}

/// Ports 1000 and 1001 are allowed by rules, 2000 is denied by a rule, everything else by the end of the tier.
fn guard_plan() -> NodePlan {
    let rules = vec![udp(RuleAction::Allow, 1000), udp(RuleAction::Deny, 2000), udp(RuleAction::Allow, 1001)];
    guarded(open_plan(), &[("guard", ingress(rules))])
}

#[tokio::test(flavor = "multi_thread")]
async fn flows_carry_the_rules_that_decided() {
    let (node, one, _two) = two_pods().await;
    let mut flows = FlowFixture::start(&node, &guard_plan(), quick()).await;
    for two in POD_TWO_ADDRESSES.map(address) {
        // Three connections of one key, and one packet for each kind of denial.
        (0..3).for_each(|_| send_udp(&one, two, [1000]));
        send_udp(&one, two, [1001, 2000, 3000]);
    }
    RawLink::open(&one, "eth0").send_ip(&udp_v4(
        "10.99.0.1".parse().unwrap(),
        POD_TWO_ADDRESSES[0].parse().unwrap(),
        1000,
    ));
    flows.until("all are counted", |flows| flows.total(true) >= 8 && flows.total(false) >= 5).await;
    flows
        .until("all first packets are reported", |flows| flows.opened.len() >= 4 && flows.denied.len() >= 5)
        .await;
    for two in POD_TWO_ADDRESSES.map(address) {
        let (decision, count) = flows.decision(true, two, 1000).unwrap();
        assert_eq!(rule(&decision.egress), "profile/open egress rule 1");
        assert_eq!(rule(&decision.ingress), "gnp/guard ingress rule 1");
        assert_eq!(count, 3);
        assert_eq!(rule(&flows.decision(true, two, 1001).unwrap().0.ingress), "gnp/guard ingress rule 3");
        let (denied, count) = flows.decision(false, two, 2000).unwrap();
        assert_eq!((rule(&denied.ingress).as_str(), count), ("gnp/guard ingress rule 2", 1));
        assert_eq!(rule(&denied.egress), "profile/open egress rule 1");
        let (ended, _) = flows.decision(false, two, 3000).unwrap();
        assert_eq!(
            ended.ingress,
            Some(FlowCause::TierEnd { tier: "default".into(), direction: PolicyDirection::Ingress })
        );
        let opening = flows.opened.iter().find(|opening| opening.key.tuple.destination == two).unwrap();
        assert_eq!(opening.key.decision.egress, decision.egress);
        assert_eq!(
            opening.interfaces,
            Some(FlowInterfaces { input: Some("cali1".into()), output: Some("cali2".into()) })
        );
        assert_ne!(opening.connection.source_port, 0);
        assert_eq!(opening.connection.original_destination, None);
        assert_eq!(opening.generation, flows.dataplane.policy_generation().get());
    }
    let spoofed = flows.denied.iter().find(|denied| denied.key.tuple.source == address("10.99.0.1")).unwrap();
    assert_eq!(spoofed.key.decision.egress, Some(FlowCause::Spoofed));
    assert_eq!(spoofed.key.tuple.destination_port, 1000);
    assert_eq!(spoofed.interfaces.as_ref().unwrap().input.as_deref(), Some("cali1"));
    let (decision, _) = flows
        .counted
        .iter()
        .find(|(key, _)| key.tuple.source == address("10.99.0.1"))
        .map(|(key, count)| (&key.decision, count))
        .unwrap();
    assert_eq!(decision, &spoofed.key.decision);
    assert_eq!((flows.total(true), flows.total(false)), (8, 5), "{:#?}", flows.counted);
    assert_eq!(flows.losses, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_records_flows_only_if_enabled() {
    let (node, _one, _two) = two_pods().await;
    let (dataplane, _reports) = DataplaneHandle::start(node.open(), recording(None)).await.unwrap();
    dataplane.replace(guard_plan()).await.unwrap();
    let off = listing(&node);
    assert!(!off.contains("flow"), "{off}");
    assert!(!off.contains("ct label"), "{off}");
    dataplane.configure(recording(Some(quick()))).await.unwrap();
    let on = listing(&node);
    for part in
        ["set flow-keys-allowed-4", "set flow-keys-denied-6", "chain flows-denied", "chain flows-postrouting"]
    {
        assert!(on.contains(part), "{part}: {on}");
    }
    assert_eq!(node.exec(&["sysctl", "-n", "net.netfilter.nf_conntrack_acct"]).trim(), "1");
    dataplane.configure(recording(None)).await.unwrap();
    assert_eq!(listing(&node), off);
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_are_counted_beyond_the_limits() {
    let (node, one, two) = two_pods().await;
    let limits = FlowSourceSettings { new_keys_per_second: 100, max_keys: 300, ..quick() };
    // The open plan allows the scan; a second one meets the end of a tier.
    let mut flows = FlowFixture::start(&node, &open_plan(), limits).await;
    let destination = address(POD_TWO_ADDRESSES[0]);
    two.nft(
        "table inet probe {
            counter came { }
            chain c { type filter hook input priority -400; meta l4proto udp counter name came drop; }
        }",
    );
    let came = || {
        let text = two.exec(&["nft", "list", "counter", "inet", "probe", "came"]);
        let packets =
            text.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap().to_owned();
        packets.parse::<u64>().unwrap()
    };
    let scanned = u64::from(LAST_SCANNED_PORT) - 1;
    send_udp(&one, destination, scanned_ports());
    eventually("all packets arrive", || came() == scanned).await;
    flows.until("all connections are counted", |flows| flows.total(true) >= scanned).await;
    assert_eq!(flows.total(true), scanned);
    let keys = flows.keys(true).count();
    assert!((100..=300).contains(&keys), "{keys} keys");
    // A known key is still counted by itself.
    let (known, before) = flows.keys(true).next().map(|(key, count)| (key.clone(), *count)).unwrap();
    send_udp(&one, destination, [known.tuple.destination_port]);
    flows.until("the known key is counted", |flows| flows.counted[&known] > before).await;

    flows
        .dataplane
        .replace(guarded(open_plan(), &[("guard", ingress(vec![udp(RuleAction::Allow, 1)]))]))
        .await
        .unwrap();
    send_udp(&one, destination, scanned_ports());
    // Port 1 is allowed.
    flows.until("all denied packets are counted", |flows| flows.total(false) >= scanned - 1).await;
    assert_eq!(flows.total(false), scanned - 1);
    eventually("only one packet arrives", || came() == scanned + 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_sets_count_what_does_not_fit() {
    let (node, one, _two) = two_pods().await;
    let limits = FlowSourceSettings {
        new_keys_per_second: 100_000,
        max_keys: 10,
        key_timeout: Duration::from_millis(500),
        ..quick()
    };
    let mut flows = FlowFixture::start(&node, &open_plan(), limits).await;
    let destination = address(POD_TWO_ADDRESSES[0]);
    send_udp(&one, destination, 1000..1100);
    flows.until("all are counted", |flows| flows.total(true) >= 100).await;
    assert_eq!((flows.keys(true).count(), flows.others.get(&true)), (10, Some(&90)));
    // Idle keys make room.
    let mut port = 2000;
    while flows.keys(true).count() == 10 {
        port += 1;
        assert!(port < 3000, "no key was removed: {}", listing(&node));
        let before = flows.total(true);
        send_udp(&one, destination, [port]);
        flows.until("it is counted", |flows| flows.total(true) > before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_keep_their_meaning_across_changes() {
    let (node, one, two) = two_pods().await;
    let mut flows = FlowFixture::start(&node, &guard_plan(), quick()).await;
    let destination = SocketAddr::new(address(POD_TWO_ADDRESSES[0]), 1000);
    let server = two.open().run(|| UdpSocket::bind("0.0.0.0:1000").unwrap()).unwrap();
    let client = one.open().run(|| UdpSocket::bind("0.0.0.0:4000").unwrap()).unwrap();
    client.send_to(b"ping", destination).unwrap();
    let (_, peer) = server.recv_from(&mut [0; 8]).unwrap();
    server.send_to(b"pong", peer).unwrap();
    client.recv_from(&mut [0; 8]).unwrap();
    let is_first = |live: &ConnectionRecord| {
        let decision = live.decision.as_ref().unwrap();
        live.connection.source_port == 4000 && rule(&decision.ingress) == "gnp/guard ingress rule 1"
    };
    flows.until("it is live", |flows| flows.live.iter().any(is_first)).await;
    let live = flows.live.iter().find(|live| is_first(live)).unwrap();
    assert_eq!((live.sent.packets, live.received.packets), (1, 1));
    assert!(live.started.is_some());

    // The same rule after a restart, and another one in its place after a change.
    flows.dataplane.stop().await;
    let mut flows = FlowFixture::start(&node, &guard_plan(), quick()).await;
    flows.until("it is live after the restart", |flows| flows.live.iter().any(is_first)).await;
    let changed = ingress(vec![PlannedRule::new(RuleAction::Allow)]);
    let before = flows.dataplane.policy_generation().get();
    flows.dataplane.apply(vec![change("guard", changed.clone())]).await.unwrap();
    assert!(flows.dataplane.policy_generation().get() > before);
    client.send_to(b"ping", destination).unwrap();
    flows.live.clear();
    flows.until("it keeps its rule", |flows| flows.live.iter().any(is_first)).await;
    flows.dataplane.stop().await;
    let mut flows = FlowFixture::start(&node, &guarded(open_plan(), &[("guard", changed)]), quick()).await;
    let is_unknown = |live: &ConnectionRecord| {
        let decision = live.decision.as_ref().unwrap();
        live.connection.source_port == 4000 && matches!(decision.ingress, Some(FlowCause::Unknown(_)))
    };
    flows.until("the rule is unknown, not its successor", |flows| flows.live.iter().any(is_unknown)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_connections_report_totals_and_outcome() {
    let (node, one, two) = two_pods().await;
    let mut flows = FlowFixture::start(&node, &open_plan(), quick()).await;
    // Ended connections leave connection tracking at once.
    for name in ["time_wait", "close", "last_ack", "fin_wait", "close_wait"] {
        node.exec(&["sysctl", "-qw", &format!("net.netfilter.nf_conntrack_tcp_timeout_{name}=1")]);
    }
    let listener = two.open().run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        stream.write_all(&[b'x'; 5000]).unwrap();
    });
    let two_address = address(POD_TWO_ADDRESSES[0]);
    let connect = || {
        let mut stream = TcpStream::connect(SocketAddr::new(two_address, 80)).unwrap();
        stream.write_all(b"request").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), 5000);
        assert!(TcpStream::connect(SocketAddr::new(two_address, 81)).is_err());
    };
    one.open().run(connect).unwrap();
    server.join().unwrap();
    let ended = |flows: &FlowFixture, port| {
        let of_port = |record: &&ConnectionRecord| record.connection.flow.destination_port == port;
        flows.ended.iter().find(of_port).cloned()
    };
    flows.until("both have ended", |flows| ended(flows, 80).is_some() && ended(flows, 81).is_some()).await;
    let complete = ended(&flows, 80).unwrap();
    assert_eq!(complete.outcome, Some(ConnectionOutcome::Established));
    assert!(complete.received.bytes > 5000 && complete.sent.bytes < 5000, "{complete:?}");
    assert!(complete.started.unwrap() < complete.stopped.unwrap());
    assert_eq!(complete.connection.flow.source, address(POD_ONE_ADDRESSES[0]));
    assert_eq!(ended(&flows, 81).unwrap().outcome, Some(ConnectionOutcome::Refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn flow_recording_can_stop_and_start_again() {
    let (node, one, _two) = two_pods().await;
    let mut flows = FlowFixture::start(&node, &open_plan(), quick()).await;
    let destination = address(POD_TWO_ADDRESSES[0]);
    send_udp(&one, destination, [1000]);
    flows.until("the first", |flows| flows.decision(true, destination, 1000).is_some()).await;
    flows.dataplane.configure(recording(None)).await.unwrap();
    send_udp(&one, destination, [1001]);
    flows.dataplane.configure(recording(Some(quick()))).await.unwrap();
    send_udp(&one, destination, [1002]);
    flows.until("the third", |flows| flows.decision(true, destination, 1002).is_some()).await;
    assert!(flows.decision(true, destination, 1001).is_none());
    let (decision, _) = flows.decision(true, destination, 1002).unwrap();
    assert_eq!(rule(&decision.ingress), "profile/open ingress rule 1");
}
