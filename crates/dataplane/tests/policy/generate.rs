//! Generates random plans and packets from a small vocabulary, so that rules and packets often match.

use crate::namespace::id;
use crate::world::{DNAT_CASES, POD_COUNT, PacketLocation, TestPacket, addresses, interface};
use ipnet::IpNet;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use tortie_plan::evaluate::{ConntrackState, Packet};
use tortie_plan::{
    AddressSet, DataplaneSettings, DenyAction, EndpointTier, EndpointToHostAction, HostEndpointPolicy,
    HttpMatch, IcmpMatch, IpVersion, NodePlan, PlannedPolicy, PlannedRule, PolicyId, PolicyKind,
    PortInterval, ProfileRules, RuleAction, RuleSide, SetId, SetKind, SetMember, TierDefaultAction,
    TunnelDevice, TunnelKind, TunnelProtocol, WorkloadPolicy,
};

/// The last two ports are rewritten by the node's DNAT rules; only rewritten packets use them.
const GENERATED_PORTS: [u16; 10] = [22, 53, 80, 443, 4789, 8080, 8081, 65535, 31080, 31081];
const GENERATED_NETS: [&str; 20] = [
    "10.65.0.0/16",
    "10.65.0.0/24",
    "10.65.1.0/30",
    "10.65.1.2/32",
    "10.65.2.4/30",
    "10.65.0.0/30",
    "198.51.100.0/24",
    "198.51.100.4/30",
    "192.168.77.1/32",
    "0.0.0.0/0",
    "fd65::/16",
    "fd65:0::/32",
    "fd65:1::/126",
    "fd65:1::2/128",
    "fd65:2::4/126",
    "2001:db8::/64",
    "2001:db8::4/126",
    "fd77::1/128",
    "192.168.77.0/24",
    "::/0",
];
const SERVICE_RANGES: [&str; 6] = [
    "10.65.1.0/31",
    "198.51.100.4/30",
    "198.51.100.6/32",
    "fd65:1::/127",
    "2001:db8::4/126",
    "2001:db8::6/128",
];
const GENERATED_PROTOCOLS: [u8; 8] = [6, 17, 132, 136, 1, 58, 253, 4];
const NET_SETS: [&str; 4] = ["s:red", "s:green", "s:blue", "svcnoport:cart"];
const PORT_SETS: [&str; 3] = ["n:web", "n:dns", "svc:cart"];
const POLICY_COUNT: usize = 7;
/// Policies whose rules all name destination ports. Lists of many of them are looked up in a map.
const SELECTIVE_POLICIES: Range<usize> = 10..42;
/// Number of such policies in a list that has them.
const SELECTIVE_PER_LIST: RangeInclusive<usize> = 12..=32;

pub struct PlanGenerator {
    random: StdRng,
}

impl PlanGenerator {
    pub fn new(seed: u64) -> PlanGenerator {
        PlanGenerator { random: StdRng::seed_from_u64(seed) }
    }

    fn chance(&mut self, of: f64) -> bool {
        self.random.random_bool(of)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.random).unwrap().clone()
    }

    fn some<T: Clone>(&mut self, of: &[T], at_most: usize) -> Vec<T> {
        let count = self.random.random_range(1..=at_most);
        (0..count).map(|_| self.one(of)).collect()
    }

    fn maybe<T>(&mut self, of: f64, make: impl FnOnce(&mut PlanGenerator) -> T) -> Option<T> {
        self.chance(of).then(|| make(self))
    }

    pub fn settings(&mut self) -> DataplaneSettings {
        let mut settings = DataplaneSettings::default();
        let actions =
            [EndpointToHostAction::Drop, EndpointToHostAction::Return, EndpointToHostAction::Accept];
        settings.policy.endpoint_to_host = self.one(&actions);
        settings.policy.drop_invalid = self.chance(0.7);
        settings.policy.vxlan_from_workloads = self.chance(0.3);
        settings.policy.ipip_from_workloads = self.chance(0.3);
        settings.policy.cut_denied_flows = self.chance(0.3);
        settings.policy.service_loop = self.maybe(0.8, |_| DenyAction::Drop);
        if self.chance(0.5) {
            let nets: Vec<IpNet> =
                self.some(&GENERATED_NETS, 2).iter().map(|net| net.parse().unwrap()).collect();
            for (safe, net) in settings.policy.failsafe_inbound.iter_mut().zip(nets) {
                safe.net = Some(net);
            }
        }
        settings
    }

    pub fn plan(&mut self) -> NodePlan {
        let mut plan = NodePlan::default();
        for id in NET_SETS {
            let members = self
                .some(&GENERATED_NETS, 5)
                .iter()
                .map(|net| SetMember::Net(net.parse().unwrap()))
                .collect();
            plan.sets.insert(SetId::new(id), AddressSet { kind: SetKind::Nets, members });
        }
        for id in PORT_SETS {
            let count = self.random.random_range(0..20);
            let members = (0..count)
                .map(|_| {
                    let (at, protocol) = (self.place(), self.one(&[6, 17, 132]));
                    let address = self.one(&addresses(at));
                    SetMember::Port { address, protocol, port: self.one(&GENERATED_PORTS) }
                })
                .collect();
            plan.sets.insert(SetId::new(id), AddressSet { kind: SetKind::Ports, members });
        }
        for number in 0..POLICY_COUNT {
            let policy = PlannedPolicy {
                tier: "default".into(),
                selector: String::new(),
                ingress: self.rules(4),
                egress: self.rules(4),
            };
            plan.policies.insert(policy_id(number), Arc::new(policy));
        }
        for number in SELECTIVE_POLICIES {
            let (ingress, egress) = (self.selective_rules(), self.selective_rules());
            let policy = PlannedPolicy { tier: "default".into(), selector: String::new(), ingress, egress };
            plan.policies.insert(policy_id(number), Arc::new(policy));
        }
        let open = vec![PlannedRule::new(RuleAction::Allow)];
        plan.profiles.insert("open".into(), Arc::new(ProfileRules { ingress: open.clone(), egress: open }));
        plan.profiles.insert("closed".into(), Arc::new(ProfileRules::default()));
        plan.profiles
            .insert("some".into(), Arc::new(ProfileRules { ingress: self.rules(3), egress: self.rules(3) }));
        for pod in 0..POD_COUNT {
            // Leave out some workloads, so that the plan does not know them.
            if !self.chance(0.9) {
                continue;
            }
            let policy = WorkloadPolicy {
                interface: interface(pod),
                up: self.chance(0.93),
                addresses: addresses(PacketLocation::Pod(pod)),
                allowed_sources: self.maybe(0.3, |random| random.nets()).unwrap_or_default(),
                tiers: self.tiers(),
                profiles: self.profiles(),
                http_proxy: self.chance(0.5),
            };
            plan.workload_policies.insert(id(&pod.to_string()), policy);
        }
        let hosts = self.one(&[0, 0, 1, 2]);
        for number in 0..hosts {
            let endpoint = HostEndpointPolicy {
                interface: self.one(&["*", "eth0", "", "eth9"]).into(),
                expected: addresses(PacketLocation::Host),
                tiers: self.tiers(),
                profiles: self.profiles(),
                untracked: self.maybe(0.3, PlanGenerator::tiers).unwrap_or_default(),
                pre_dnat: self.maybe(0.4, PlanGenerator::tiers).unwrap_or_default(),
                forward: self.maybe(0.5, PlanGenerator::tiers).unwrap_or_default(),
                dscp: None,
            };
            plan.host_endpoints.insert(format!("host-{number}"), endpoint);
        }
        if self.chance(0.3) {
            let ranges = self.some(&SERVICE_RANGES, 3);
            plan.service_ranges = ranges.iter().map(|net| net.parse().unwrap()).collect();
        }
        for kind in TunnelKind::ALL {
            if self.chance(0.3) {
                self.tunnel(kind, &mut plan);
            }
        }
        plan
    }

    /// Adds a tunnel whose peers are addresses that test packets come from.
    fn tunnel(&mut self, kind: TunnelKind, plan: &mut NodePlan) {
        let own =
            addresses(PacketLocation::Host).into_iter().find(|address| address.is_ipv4() == kind.is_ipv4());
        let protocol = match kind {
            TunnelKind::Ipip => TunnelProtocol::Ipip,
            TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => {
                TunnelProtocol::Wireguard { port: self.one(&[51820, 443]), mark: 0x20_0000, threaded: false }
            }
            TunnelKind::VxlanV4 | TunnelKind::VxlanV6 => {
                TunnelProtocol::Vxlan { vni: 4096, port: self.one(&[4789, 8080]), mac: [0x66, 0, 0, 0, 0, 1] }
            }
        };
        let name = kind.device().to_owned();
        let device = TunnelDevice { name, address: None, local: own.unwrap(), mtu: None, protocol };
        plan.tunnels.insert(kind, device);
        let members =
            self.some(&GENERATED_NETS, 3).iter().map(|net| SetMember::Net(net.parse().unwrap())).collect();
        plan.sets.extend(kind.peers().map(|peers| (peers, AddressSet { kind: SetKind::Nets, members })));
    }

    fn profiles(&mut self) -> Vec<String> {
        let mut profiles = self.some(&["open", "open", "closed", "some", "missing"], 2);
        profiles.dedup();
        profiles.into_iter().map(str::to_owned).collect()
    }

    fn tiers(&mut self) -> Vec<EndpointTier> {
        let count = self.random.random_range(0..=3);
        (0..count)
            .map(|number| EndpointTier {
                name: format!("tier{number}"),
                end: self.one(&[TierDefaultAction::Deny, TierDefaultAction::Pass, TierDefaultAction::Pass]),
                ingress: self.policies().into(),
                egress: self.policies().into(),
            })
            .collect()
    }

    fn policies(&mut self) -> Vec<PolicyId> {
        let mut numbers: Vec<usize> = (0..POLICY_COUNT + 1).collect();
        numbers.shuffle(&mut self.random);
        let count = self.random.random_range(0..=3);
        numbers.truncate(count);
        if self.chance(0.35) {
            // Policies for all packets divide the others into several maps.
            let mut selective: Vec<usize> = SELECTIVE_POLICIES.collect();
            selective.shuffle(&mut self.random);
            selective.truncate(self.random.random_range(SELECTIVE_PER_LIST));
            let place = self.random.random_range(0..=selective.len());
            selective.splice(place..place, numbers);
            numbers = selective;
        }
        numbers.into_iter().map(policy_id).collect()
    }

    /// Returns rules that match only certain destination ports.
    fn selective_rules(&mut self) -> Vec<PlannedRule> {
        let count = self.random.random_range(1..=2);
        let mut rules: Vec<PlannedRule> = (0..count).map(|_| self.rule()).collect();
        for rule in &mut rules {
            rule.protocol = Some(self.one(&[6, 6, 17, 17, 132]));
            (rule.not_protocol, rule.icmp, rule.not_icmp) = (None, None, None);
            let ports = self.some(&GENERATED_PORTS, 2).into_iter();
            let span = if self.chance(0.01) { 20 } else { self.one(&[0, 0, 1, 2]) };
            rule.destination.ports =
                ports.map(|first| PortInterval { first, last: first.saturating_add(span) }).collect();
            rule.destination.named_ports.clear();
        }
        rules
    }

    fn rules(&mut self, at_most: usize) -> Vec<PlannedRule> {
        let count = self.random.random_range(0..=at_most);
        (0..count).map(|_| self.rule()).collect()
    }

    fn rule(&mut self) -> PlannedRule {
        let action = self.one(&[
            RuleAction::Allow,
            RuleAction::Allow,
            RuleAction::Deny,
            RuleAction::Deny,
            RuleAction::Pass,
            RuleAction::Log,
        ]);
        let mut rule = PlannedRule::new(action);
        rule.ip_version = self.maybe(0.1, |random| random.one(&[IpVersion::V4, IpVersion::V6]));
        rule.protocol = self.maybe(0.4, |random| random.one(&GENERATED_PROTOCOLS));
        rule.not_protocol = self.maybe(0.1, |random| random.one(&GENERATED_PROTOCOLS));
        rule.icmp = self.maybe(0.08, PlanGenerator::icmp);
        rule.not_icmp = self.maybe(0.08, PlanGenerator::icmp);
        rule.source = self.side();
        rule.destination = self.side();
        rule.http = self.maybe(0.2, |random| {
            Box::new(HttpMatch {
                methods: vec!["GET".to_owned()],
                matches_without_proxy: random.chance(0.5),
                ..HttpMatch::default()
            })
        });
        rule
    }

    fn icmp(&mut self) -> IcmpMatch {
        IcmpMatch { r#type: self.one(&[8, 128, 13, 0]), code: self.maybe(0.5, |random| random.one(&[0, 1])) }
    }

    fn nets(&mut self) -> Vec<IpNet> {
        self.some(&GENERATED_NETS, 4).iter().map(|net| net.parse().unwrap()).collect()
    }

    fn ranges(&mut self) -> Vec<PortInterval> {
        let count = self.random.random_range(1..=3);
        (0..count)
            .map(|_| {
                let (one, other) = (self.one(&GENERATED_PORTS), self.one(&GENERATED_PORTS));
                if self.chance(0.5) {
                    PortInterval { first: one, last: one }
                } else {
                    PortInterval { first: one.min(other), last: one.max(other) }
                }
            })
            .collect()
    }

    fn ids(&mut self, of: &[&str]) -> Vec<SetId> {
        self.some(of, 2).into_iter().map(SetId::new).collect()
    }

    fn side(&mut self) -> RuleSide {
        RuleSide {
            nets: self.maybe(0.12, PlanGenerator::nets).unwrap_or_default(),
            not_nets: self.maybe(0.1, PlanGenerator::nets).unwrap_or_default(),
            sets: self.maybe(0.12, |random| random.ids(&NET_SETS)).unwrap_or_default(),
            not_sets: self.maybe(0.08, |random| random.ids(&NET_SETS)).unwrap_or_default(),
            ports: self.maybe(0.1, PlanGenerator::ranges).unwrap_or_default(),
            named_ports: self.maybe(0.06, |random| random.ids(&PORT_SETS)).unwrap_or_default(),
            not_ports: self.maybe(0.06, PlanGenerator::ranges).unwrap_or_default(),
            not_named_ports: self.maybe(0.05, |random| random.ids(&PORT_SETS)).unwrap_or_default(),
            service: self.maybe(0.04, |random| {
                let all: Vec<&str> = NET_SETS.iter().chain(&PORT_SETS).copied().collect();
                SetId::new(random.one(&all))
            }),
            peer: None,
        }
    }

    fn place(&mut self) -> PacketLocation {
        let pod = self.random.random_range(0..POD_COUNT);
        self.one(&[
            PacketLocation::Pod(pod),
            PacketLocation::Pod(pod),
            PacketLocation::Pod(pod),
            PacketLocation::Outside,
            PacketLocation::Host,
        ])
    }

    pub fn packet(&mut self, plan: &NodePlan) -> TestPacket {
        // Untracked packets are not rewritten by NAT.
        let tracked = plan.host_endpoints.values().all(|endpoint| endpoint.untracked.is_empty());
        if tracked && self.chance(0.1) { self.rewritten() } else { self.plain() }
    }

    fn rewritten(&mut self) -> TestPacket {
        let (from, address, port, to, target, target_port) = self.one(&DNAT_CASES);
        let address: IpAddr = address.parse().unwrap();
        let sources: Vec<IpAddr> =
            addresses(from).into_iter().filter(|source| source.is_ipv4() == address.is_ipv4()).collect();
        let packet = Packet {
            source: self.one(&sources),
            destination: target.parse().unwrap(),
            protocol: Packet::TCP,
            source_port: self.one(&GENERATED_PORTS),
            destination_port: target_port,
            icmp: None,
        };
        TestPacket { from, to, packet, connection: ConntrackState::New, original: Some((address, port)) }
    }

    fn plain(&mut self) -> TestPacket {
        let (from, to) = loop {
            let (from, to) = (self.place(), self.place());
            if from != to {
                break (from, to);
            }
        };
        let v4 = self.chance(0.5);
        let of_family = |at: PacketLocation| -> Vec<IpAddr> {
            addresses(at).into_iter().filter(|address| address.is_ipv4() == v4).collect()
        };
        let claimed = match from {
            PacketLocation::Pod(_) | PacketLocation::Outside if self.chance(0.05) => {
                PacketLocation::Pod(self.random.random_range(0..POD_COUNT))
            }
            from => from,
        };
        let own = if v4 { 1 } else { 58 };
        let protocol = self.one(&[6, 6, 6, 17, 17, 17, 132, 136, own, own, 253, 4]);
        let icmp = (protocol == own).then(|| {
            let kinds: &[u8] = if v4 { &[8, 8, 13, 0] } else { &[128, 128, 129, 135] };
            (self.one(kinds), self.one(&[0, 0, 1]))
        });
        let packet = Packet {
            source: self.one(&of_family(claimed)),
            destination: self.one(&of_family(to)),
            protocol,
            source_port: self.one(&GENERATED_PORTS[..8]),
            destination_port: self.one(&GENERATED_PORTS[..8]),
            icmp,
        };
        // Unsolicited echo replies are invalid; neighbour discovery is not tracked.
        let connection = match icmp {
            Some((0 | 129, _)) => ConntrackState::Invalid,
            Some((135, _)) => ConntrackState::Untracked,
            _ => ConntrackState::New,
        };
        TestPacket { from, to, packet, connection, original: None }
    }
}

/// Returns the id of a policy: numbers that end in 5 are staged, those that end in 6 are namespaced, and `POLICY_COUNT`
/// is in no plan.
fn policy_id(number: usize) -> PolicyId {
    let kind = match number % 10 {
        5 => PolicyKind::StagedGlobalNetworkPolicy,
        6 => PolicyKind::NetworkPolicy,
        _ => PolicyKind::GlobalNetworkPolicy,
    };
    let namespace = if kind == PolicyKind::NetworkPolicy { "shop".into() } else { String::new() };
    PolicyId { kind, namespace, name: format!("policy-{number}") }
}
