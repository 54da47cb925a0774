//! A node with three pods and an outside host. A probe table counts test packets when they enter the node, and
//! records and drops them after all other chains where they would leave it or reach the host: a recorded packet was
//! allowed.

use crate::namespace::{OpenNetns, TestNamespace, eventually, id, node_pair, request};
use crate::packets::{self, TEST_DSCP};
use crate::table;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto, socket,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use tortie_dataplane::{DataplaneHandle, ReportReceiver, pod};
use tortie_plan::evaluate::{
    ConntrackState, EvaluationStage, EvaluationTrace, NodeEvaluator, Packet, PacketPath, PathPlace,
    TraceStep, VerdictCause,
};
use tortie_plan::flow::{FlowCause, FlowDecision, FlowEvent, FlowKey};
use tortie_plan::{
    DataplaneSettings, EndpointToHostAction, NodePlan, PlanUpdate, PlannedWorkload, PolicyDirection,
};

pub const POD_COUNT: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketLocation {
    Pod(usize),
    Outside,
    Host,
}

#[derive(Clone, Debug)]
pub struct TestPacket {
    pub from: PacketLocation,
    pub to: PacketLocation,
    /// The packet after its destination has been rewritten.
    pub packet: Packet,
    pub connection: ConntrackState,
    /// Destination that the packet is sent to, if NAT rewrites it.
    pub original: Option<(IpAddr, u16)>,
}

/// DNAT rules of the node, both families: sender, address and port that it sends to, then receiver, address and port
/// after NAT.
pub const DNAT_CASES: [(PacketLocation, &str, u16, PacketLocation, &str, u16); 4] = [
    (PacketLocation::Outside, "192.168.77.1", 31080, PacketLocation::Pod(0), "10.65.0.1", 8080),
    (PacketLocation::Outside, "fd77::1", 31080, PacketLocation::Pod(0), "fd65:0::1", 8080),
    (PacketLocation::Host, "203.0.113.1", 31081, PacketLocation::Outside, "198.51.100.1", 443),
    (PacketLocation::Host, "2001:db8:1::1", 31081, PacketLocation::Outside, "2001:db8::1", 443),
];

pub fn interface(pod: usize) -> String {
    format!("cali{pod}")
}

/// Returns the addresses of a location.
pub fn addresses(at: PacketLocation) -> Vec<IpAddr> {
    let texts: Vec<String> = match at {
        PacketLocation::Pod(pod) => {
            let of_pod = |last| [format!("10.65.{pod}.{last}"), format!("fd65:{pod}::{last}")];
            (1..=4).flat_map(of_pod).collect()
        }
        PacketLocation::Outside => {
            (1..=6).flat_map(|last| [format!("198.51.100.{last}"), format!("2001:db8::{last}")]).collect()
        }
        PacketLocation::Host => vec!["192.168.77.1".into(), "fd77::1".into()],
    };
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Raw sockets of a namespace, for sending complete packets.
pub struct RawSockets {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl RawSockets {
    pub fn send(&self, packet: &Packet, bytes: &[u8]) -> nix::Result<usize> {
        match packet.destination {
            IpAddr::V4(address) => {
                let to = SockaddrIn::from(SocketAddrV4::new(address, 0));
                sendto(self.v4.as_raw_fd(), bytes, &to, MsgFlags::empty())
            }
            IpAddr::V6(address) => {
                let to = SockaddrIn6::from(SocketAddrV6::new(address, 0, 0, 0));
                sendto(self.v6.as_raw_fd(), bytes, &to, MsgFlags::empty())
            }
        }
    }
}

pub struct PacketFixture {
    node: TestNamespace,
    _others: Vec<TestNamespace>,
    sockets: BTreeMap<PacketLocation, RawSockets>,
    settings: DataplaneSettings,
    dataplane: Option<(DataplaneHandle, ReportReceiver)>,
    plan: NodePlan,
    flows: Option<Receiver<FlowEvent>>,
    /// The keys that flow events have reported since the last restart.
    flow_keys: BTreeSet<FlowKey>,
}

impl PacketFixture {
    pub async fn new() -> PacketFixture {
        let (node, outside) = node_pair();
        for key in ["all", "eth0", "default"] {
            node.exec(&["sysctl", "-qw", &format!("net.ipv4.conf.{key}.rp_filter=0")]);
        }
        for (net, gateway) in [("198.51.100.0/24", "192.168.77.2"), ("2001:db8::/32", "fd77::2")] {
            node.ip(&format!("route add {net} via {gateway}"));
        }
        node.ip("route add 203.0.113.0/24 via 192.168.77.2");
        for net in ["10.65.0.0/16 via 192.168.77.1", "fd65::/16 via fd77::1"] {
            outside.ip(&format!("route add {net}"));
        }
        let mut sockets =
            BTreeMap::from([(PacketLocation::Host, raw(&node)), (PacketLocation::Outside, raw(&outside))]);
        let mut others = vec![outside];
        for number in 0..POD_COUNT {
            let pod = TestNamespace::new("node");
            let texts: Vec<String> =
                addresses(PacketLocation::Pod(number)).iter().map(IpAddr::to_string).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let wanted = request(&pod, &interface(number), &texts);
            pod::attach(&node.open(), &wanted).await.unwrap();
            sockets.insert(PacketLocation::Pod(number), raw(&pod));
            others.push(pod);
        }
        node.nft(&probe());
        // The test packets have no valid checksums.
        node.exec(&["sysctl", "-qw", "net.netfilter.nf_conntrack_checksum=0"]);
        let plan = NodePlan::default();
        PacketFixture {
            node,
            _others: others,
            sockets,
            settings: DataplaneSettings::default(),
            dataplane: None,
            plan,
            flows: None,
            flow_keys: BTreeSet::new(),
        }
    }

    /// Restarts the daemon with other settings; the table stays.
    pub async fn restart(&mut self, settings: DataplaneSettings) {
        let old = self.dataplane.take();
        let first = old.is_none();
        if let Some((dataplane, _)) = old {
            dataplane.stop().await;
        }
        self.settings = settings.clone();
        let mut started = DataplaneHandle::start(self.node.open(), settings).await.unwrap();
        self.flows = started.0.take_flow_events();
        self.flow_keys.clear();
        let plan = NodePlan { workloads: workloads(), ..self.plan.clone() };
        started.0.replace(plan.clone()).await.unwrap();
        self.plan = plan;
        self.dataplane = Some(started);
        if first {
            self.settle_neighbours();
        }
    }

    /// Adds permanent neighbour entries for the gateways.
    fn settle_neighbours(&self) {
        for other in &self._others {
            for gateway in ["169.254.1.1", "fe80::ecee:eeff:feee:eeee"] {
                if other.has_link("eth0") {
                    other.try_ip(&format!(
                        "neigh replace {gateway} lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent"
                    ));
                }
            }
        }
        let mac = self.node.json("link show dev eth0")[0]["address"].as_str().unwrap().to_owned();
        for address in ["192.168.77.1", "fd77::1"] {
            self._others[0].ip(&format!("neigh replace {address} lladdr {mac} dev eth0 nud permanent"));
        }
    }

    pub async fn apply(&mut self, plan: &NodePlan, as_a_whole: bool) {
        let plan = NodePlan { workloads: workloads(), ..plan.clone() };
        let (dataplane, _) = self.dataplane.as_ref().unwrap();
        if as_a_whole {
            dataplane.replace(plan.clone()).await.unwrap();
        } else {
            let mut outcome = dataplane.apply(updates(&self.plan, &plan)).await.unwrap();
            // Not every kernel has IPIP or WireGuard; policy for their packets is the same.
            let missing = ["interface tunl0", "interface wireguard.cali", "interface wg-v6.cali"];
            outcome.failures.retain(|failure| !missing.contains(&failure.object.to_string().as_str()));
            assert_eq!(outcome.failures, [], "the kernel refused something");
        }
        self.plan = plan;
    }

    /// Asserts that a table created in one transaction equals the current one.
    pub async fn is_the_same_when_made_anew(&self) {
        if self.dataplane.is_none() {
            return;
        }
        let before = table::contents(&self.node);
        self.node.nft("delete table inet tortie");
        let same = || table::exists(&self.node) && table::contents(&self.node) == before;
        eventually("the table is as it was", same).await;
    }

    pub fn listing(&self) -> String {
        self.node.exec(&["nft", "-s", "list", "table", "inet", "tortie"])
    }

    pub fn expected(&self, plan: &NodePlan, sent: &TestPacket) -> bool {
        self.judge(plan, sent).0
    }

    /// Returns whether the evaluator allows a packet, and its decisions as flow events report them; `None` if the cause of a
    /// denial is not recorded with the other decisions.
    pub fn judge(&self, plan: &NodePlan, sent: &TestPacket) -> (bool, Option<FlowDecision>) {
        let interfaces = BTreeMap::from([
            ("lo".to_owned(), vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]),
            ("eth0".to_owned(), addresses(PacketLocation::Host)),
        ]);
        let assignment = tortie_plan::assign(&plan.host_endpoints, &interfaces);
        let node = NodeEvaluator::new(plan, &self.settings, assignment);
        let names: Vec<String> = (0..POD_COUNT).map(interface).collect();
        let place = |at| match at {
            PacketLocation::Host => PathPlace::Host,
            PacketLocation::Outside => PathPlace::Interface("eth0"),
            PacketLocation::Pod(number) => PathPlace::Interface(names[number].as_str()),
        };
        let way = PacketPath {
            connection: sent.connection,
            original_destination: sent.original,
            ..PacketPath::new(place(sent.from), place(sent.to))
        };
        let mut trace = EvaluationTrace::default();
        let allowed = node.judge(&sent.packet, &way, Some(&mut trace)).allowed;
        (allowed, decisions(&trace, allowed))
    }

    /// Receives flow events until the keys of the given packets are there, and returns all keys so far.
    pub async fn flow_keys(&mut self, wanted: &BTreeSet<FlowKey>, patience: Duration) -> &BTreeSet<FlowKey> {
        let deadline = tokio::time::Instant::now() + patience;
        while !wanted.is_subset(&self.flow_keys) {
            let Ok(event) = tokio::time::timeout_at(deadline, self.flows.as_mut().unwrap().recv()).await
            else {
                break;
            };
            if let Some(FlowEvent::Counted { key, .. }) = event {
                self.flow_keys.insert(key);
            }
        }
        &self.flow_keys
    }

    /// Returns the reported keys with the addresses and the port of another one.
    pub fn similar_keys(&self, key: &FlowKey) -> Vec<FlowKey> {
        self.flow_keys.iter().filter(|seen| seen.tuple == key.tuple).cloned().collect()
    }

    /// Sends the packets and returns which got through. Waits up to `patience` for those that are expected.
    pub async fn send(&mut self, packets: &[TestPacket], expected: &[bool], patience: Duration) -> Vec<bool> {
        self.node.nft(
            "flush set inet probe arrived4; flush set inet probe arrived6; reset counters table inet probe",
        );
        for (index, sent) in packets.iter().enumerate() {
            self.emit(sent, number(index));
        }
        let limit = Instant::now() + Duration::from_secs(30);
        while self.entered() < packets.len() {
            assert!(Instant::now() < limit, "{} of {} packets entered", self.entered(), packets.len());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let patience = Instant::now() + patience;
        loop {
            let arrived = self.arrived();
            let came = |index: usize, sent: &TestPacket| {
                arrived.contains(&(sent.packet.source.is_ipv4(), number(index)))
            };
            let found: Vec<bool> =
                packets.iter().enumerate().map(|(index, sent)| came(index, sent)).collect();
            let missing = found.iter().zip(expected).any(|(found, expected)| *expected && !found);
            if !missing || Instant::now() > patience {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn emit(&self, sent: &TestPacket, number: u16) {
        let mut packet = sent.packet;
        if let Some((address, port)) = sent.original {
            (packet.destination, packet.destination_port) = (address, port);
        }
        match self.sockets[&sent.from].send(&packet, &packets::bytes(&packet, number)) {
            // A send of the host that policy drops fails immediately with EPERM.
            Ok(_) | Err(Errno::EPERM) => {}
            Err(error) => panic!("{sent:?}: {error}"),
        }
    }

    fn entered(&self) -> usize {
        let text = self.node.exec(&["nft", "-j", "list", "counters", "table", "inet", "probe"]);
        let listing: Value = serde_json::from_str(&text).unwrap();
        let objects = listing["nftables"].as_array().unwrap().iter();
        let packets = objects.filter_map(|object| object["counter"]["packets"].as_u64()).sum::<u64>();
        usize::try_from(packets).unwrap()
    }

    fn arrived(&self) -> BTreeSet<(bool, u16)> {
        let mut arrived = BTreeSet::new();
        for (set, v4) in [("arrived4", true), ("arrived6", false)] {
            let text = self.node.exec(&["nft", "-j", "list", "set", "inet", "probe", set]);
            let listing: Value = serde_json::from_str(&text).unwrap();
            let objects = listing["nftables"].as_array().unwrap();
            let elements = objects.iter().find_map(|object| object["set"]["elem"].as_array());
            for element in elements.into_iter().flatten() {
                let number = element.as_u64().or(element["elem"]["val"].as_u64()).unwrap();
                arrived.insert((v4, u16::try_from(number).unwrap()));
            }
        }
        arrived
    }
}

/// Returns the number of a packet; never 0, for which the kernel would choose another IP identification.
fn number(index: usize) -> u16 {
    u16::try_from(index + 1).unwrap()
}

/// Returns the decisions of an evaluation as flow events report them: those of workloads, and those of host endpoints
/// about connections.
fn decisions(trace: &EvaluationTrace<'_>, allowed: bool) -> Option<FlowDecision> {
    use PolicyDirection::{Egress, Ingress};
    let mut decision = FlowDecision { allowed, ..FlowDecision::default() };
    let mut at = None;
    for step in &trace.steps {
        match step {
            TraceStep::Workload { direction, .. } => at = Some((EvaluationStage::Normal, *direction)),
            TraceStep::Host { stage, direction, .. } => at = Some((*stage, *direction)),
            TraceStep::Decided { cause, allowed } => {
                let (stage, direction) = at.take().unwrap_or((EvaluationStage::Normal, Egress));
                let Some(cause) = flow_cause(cause, direction) else {
                    if !allowed {
                        return None;
                    }
                    continue;
                };
                let slot = match (stage, direction) {
                    _ if cause == FlowCause::ClosedHost => &mut decision.ingress,
                    _ if cause == FlowCause::ServiceLoop => &mut decision.host_egress,
                    // Tracking ends if untracked policy allows the packet.
                    (EvaluationStage::Untracked, _) if *allowed => return None,
                    (EvaluationStage::Untracked, _) => continue,
                    (EvaluationStage::Normal, Egress) => &mut decision.egress,
                    (EvaluationStage::Normal, Ingress) => &mut decision.ingress,
                    (_, Ingress) => &mut decision.host_ingress,
                    (_, Egress) => &mut decision.host_egress,
                };
                *slot = Some(cause);
            }
            _ => {}
        }
    }
    Some(decision)
}

/// Returns the cause as flow events report it; `None` for causes without an identity.
fn flow_cause(cause: &VerdictCause<'_>, direction: PolicyDirection) -> Option<FlowCause> {
    Some(match cause {
        VerdictCause::Rule(rule) => FlowCause::Rule(rule.id()),
        VerdictCause::TierEnd(tier) => FlowCause::TierEnd { tier: (*tier).to_owned(), direction },
        VerdictCause::NoProfile => FlowCause::NoProfile(direction),
        VerdictCause::MissingProfile(profile) => {
            FlowCause::MissingProfile { profile: (*profile).to_owned(), direction }
        }
        VerdictCause::Spoofed => FlowCause::Spoofed,
        VerdictCause::Encapsulation => FlowCause::Encapsulation,
        VerdictCause::EndpointToHost(EndpointToHostAction::Drop) => FlowCause::ClosedHost,
        VerdictCause::ServiceLoop => FlowCause::ServiceLoop,
        _ => return None,
    })
}

fn workloads() -> BTreeMap<tortie_plan::WorkloadId, PlannedWorkload> {
    (0..POD_COUNT)
        .map(|number| {
            let workload = PlannedWorkload {
                interface: interface(number),
                mac: None,
                addresses: addresses(PacketLocation::Pod(number)),
                // Disable the kernel's reverse path filter, so that our own source check is tested.
                may_spoof: true,
                ..PlannedWorkload::default()
            };
            (id(&number.to_string()), workload)
        })
        .collect()
}

/// Returns the updates between two plans in the order in which `compute` sends them: removals first.
pub fn updates(old: &NodePlan, new: &NodePlan) -> Vec<PlanUpdate> {
    let mut updates = Vec::new();
    for id in old.sets.keys().filter(|id| !new.sets.contains_key(id)) {
        updates.push(PlanUpdate::Set(id.clone(), None));
    }
    for (id, set) in &new.sets {
        let before = old.sets.get(id).filter(|before| before.kind == set.kind);
        if before.is_none() {
            updates.push(PlanUpdate::Set(id.clone(), Some(set.kind)));
        }
        let empty = BTreeSet::new();
        let members = before.map_or(&empty, |set| &set.members);
        updates.push(PlanUpdate::Members {
            set: id.clone(),
            added: set.members.difference(members).copied().collect(),
            removed: members.difference(&set.members).copied().collect(),
        });
    }
    fn differing<K: Ord + Clone, V: Clone + PartialEq>(
        old: &BTreeMap<K, V>,
        new: &BTreeMap<K, V>,
    ) -> Vec<(K, Option<V>)> {
        let keys: BTreeSet<&K> = old.keys().chain(new.keys()).collect();
        let changed = keys.into_iter().filter(|key| old.get(key) != new.get(key));
        changed.map(|key| (key.clone(), new.get(key).cloned())).collect()
    }
    let tunnels = differing(&old.tunnels, &new.tunnels).into_iter();
    updates.extend(tunnels.map(|(kind, device)| PlanUpdate::Tunnel(kind, device)));
    updates.extend(
        differing(&old.policies, &new.policies)
            .into_iter()
            .map(|(id, policy)| PlanUpdate::Policy(id, policy)),
    );
    updates.extend(
        differing(&old.profiles, &new.profiles)
            .into_iter()
            .map(|(id, profile)| PlanUpdate::Profile(id, profile)),
    );
    updates.extend(
        differing(&old.workload_policies, &new.workload_policies)
            .into_iter()
            .map(|(id, policy)| PlanUpdate::WorkloadPolicy(id, policy)),
    );
    let hosts = differing(&old.host_endpoints, &new.host_endpoints);
    updates.extend(hosts.into_iter().map(|(name, endpoint)| PlanUpdate::HostEndpoint(name, endpoint)));
    if old.service_ranges != new.service_ranges {
        updates.push(PlanUpdate::ServiceRanges(new.service_ranges.clone()));
    }
    updates
}

pub fn raw(namespace: &TestNamespace) -> RawSockets {
    let open = |family| socket(family, SockType::Raw, SockFlag::empty(), SockProtocol::Raw).unwrap();
    let (v4, v6) = namespace.open().run(|| (open(AddressFamily::Inet), open(AddressFamily::Inet6))).unwrap();
    RawSockets { v4, v6 }
}

/// Renders the probe table: it counts packets before all other chains, and records and drops them after all others,
/// so that no packet is answered and no connection is established.
fn probe() -> String {
    let mine = |action: &str| format!("ip dscp {TEST_DSCP} {action}; ip6 dscp {TEST_DSCP} {action};");
    let (count, note) = (mine("counter name entered"), mine("goto note"));
    let rewrite = |from: PacketLocation| -> String {
        let rule = |(_, address, port, _, target, target_port): &(
            PacketLocation,
            &str,
            u16,
            PacketLocation,
            &str,
            u16,
        )| {
            let v6 = address.contains(':');
            let (family, target) =
                if v6 { ("ip6", format!("[{target}]")) } else { ("ip", (*target).to_owned()) };
            format!("{family} daddr {address} tcp dport {port} dnat {family} to {target}:{target_port};")
        };
        DNAT_CASES.iter().filter(|rewritten| rewritten.0 == from).map(rule).collect()
    };
    let (rewrite_in, rewrite_out) = (rewrite(PacketLocation::Outside), rewrite(PacketLocation::Host));
    format!(
        "table inet probe {{
            counter entered {{ }}
            set arrived4 {{ typeof ip id; size 65535; flags dynamic; }}
            set arrived6 {{ typeof ip6 flowlabel; size 65535; flags dynamic; }}
            chain note {{
                meta nfproto ipv4 add @arrived4 {{ ip id }}
                meta nfproto ipv6 add @arrived6 {{ ip6 flowlabel }}
                drop
            }}
            chain enter {{ type filter hook prerouting priority -400; {count} }}
            chain make {{ type filter hook output priority -400; {count} }}
            chain rewrite-in {{ type nat hook prerouting priority -100; {rewrite_in} }}
            chain rewrite-out {{ type nat hook output priority -100; {rewrite_out} }}
            chain arrive {{ type filter hook input priority 200; {note} }}
            chain leave {{ type filter hook postrouting priority 200; {note} }}
        }}"
    )
}
