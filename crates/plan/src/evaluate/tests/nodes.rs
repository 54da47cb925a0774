//! Paths of packets through a node with two workloads, an uplink and, in some tests, host endpoints.

use super::*;
use PathPlace::{Host, Interface};
use PolicyDirection::{Egress, Ingress};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const NODE: &str = "192.0.2.1";
const OUTSIDE: &str = "198.51.100.7";
const TO_A: PathPlace<'_> = Interface("cali-a");
const TO_B: PathPlace<'_> = Interface("cali-b");
const UPLINK: PathPlace<'_> = Interface("eth0");

fn id(name: &str) -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: format!("shop/{name}"), endpoint: "eth0".into() }
}

struct EvaluatedNode {
    plan: NodePlan,
    settings: DataplaneSettings,
}

impl EvaluatedNode {
    fn new() -> EvaluatedNode {
        let mut plan = NodePlan::default();
        plan.profiles.insert("open".into(), profile(&[allow()]));
        for (name, own) in [("a", [A, "fd00::1"]), ("b", [B, "fd00::2"])] {
            let workload_policy = WorkloadPolicy {
                interface: format!("cali-{name}"),
                up: true,
                addresses: own.map(address).to_vec(),
                profiles: vec!["open".into()],
                ..WorkloadPolicy::default()
            };
            plan.workload_policies.insert(id(name), workload_policy);
        }
        EvaluatedNode { plan, settings: DataplaneSettings::default() }
    }

    fn workload_policy(&mut self, name: &str) -> &mut WorkloadPolicy {
        self.plan.workload_policies.get_mut(&id(name)).unwrap()
    }

    /// Returns a tier with one policy that has these rules in both directions.
    fn list(&mut self, name: &str, rules: &[PlannedRule]) -> Vec<EndpointTier> {
        self.plan.policies.insert(global(name), policy(rules));
        vec![tier("default", TierDefaultAction::Deny, &[global(name)])]
    }

    fn host(&mut self, interface: &str) -> &mut HostEndpointPolicy {
        let endpoint = HostEndpointPolicy { interface: interface.into(), ..HostEndpointPolicy::default() };
        self.plan.host_endpoints.entry("host".into()).or_insert(endpoint)
    }

    fn judge_way(&self, packet: &Packet, way: &PacketPath<'_>) -> (bool, String) {
        let interfaces = [("eth0".to_owned(), vec![address(NODE)]), ("lo".to_owned(), vec![])].into();
        let node =
            NodeEvaluator::new(&self.plan, &self.settings, assign(&self.plan.host_endpoints, &interfaces));
        let mut trace = EvaluationTrace::default();
        let judgement = node.judge(packet, way, None);
        assert_eq!(judgement, node.judge(packet, way, Some(&mut trace)), "asking why changes nothing");
        (judgement.allowed, format!("{:?}", judgement.cause))
    }

    fn judge(&self, packet: &Packet, from: PathPlace<'_>, to: PathPlace<'_>) -> (bool, String) {
        self.judge_way(packet, &PacketPath::new(from, to))
    }

    fn allows(&self, packet: &Packet, from: PathPlace<'_>, to: PathPlace<'_>) -> bool {
        self.judge(packet, from, to).0
    }

    fn allows_in_state(
        &self,
        connection: ConntrackState,
        packet: &Packet,
        from: PathPlace<'_>,
        to: PathPlace<'_>,
    ) -> bool {
        self.judge_way(packet, &PacketPath { connection, ..PacketPath::new(from, to) }).0
    }

    #[track_caller]
    fn denies(&self, packet: &Packet, from: PathPlace<'_>, to: PathPlace<'_>, cause: &str) {
        assert_eq!(self.judge(packet, from, to), (false, cause.to_owned()));
    }
}

#[test]
fn both_sides_have_to_agree() {
    let mut world = EvaluatedNode::new();
    let packet = tcp(A, B, 80);
    assert!(world.allows(&packet, TO_A, TO_B));
    let egress = world.list("out", &[deny()]);
    world.workload_policy("a").tiers = egress;
    assert!(!world.allows(&packet, TO_A, TO_B));
    assert!(!world.allows(&tcp(A, OUTSIDE, 80), TO_A, UPLINK));
    world.workload_policy("a").tiers.clear();
    let ingress = world.list("in", &[to_port(RuleAction::Allow, 6, 81)]);
    world.workload_policy("b").tiers = ingress;
    world.denies(&packet, TO_A, TO_B, "TierEnd(\"default\")");
    assert!(world.allows(&tcp(A, B, 81), TO_A, TO_B));
    world.denies(&tcp(OUTSIDE, B, 80), UPLINK, TO_B, "TierEnd(\"default\")");
}

#[test]
fn down_and_unknown_workloads_pass_no_packets() {
    let mut world = EvaluatedNode::new();
    world.workload_policy("b").up = false;
    world.denies(&tcp(A, B, 80), TO_A, TO_B, "Down");
    world.denies(&tcp(B, A, 80), TO_B, TO_A, "Down");
    world.denies(&tcp(B, NODE, 80), TO_B, Host, "Down");
    world.denies(&tcp(A, B, 80), TO_A, Interface("cali-x"), "UnknownWorkload");
    world.denies(&tcp(B, A, 80), Interface("cali-x"), TO_A, "UnknownWorkload");
    world.denies(&tcp(B, NODE, 80), Interface("cali-x"), Host, "UnknownWorkload");
    assert!(!world.allows_in_state(ConntrackState::Established, &tcp(A, B, 80), TO_A, TO_B));
}

#[test]
fn a_workload_sends_from_its_own_addresses() {
    let mut world = EvaluatedNode::new();
    let forged = tcp("10.0.0.99", B, 80);
    world.denies(&forged, TO_A, TO_B, "Spoofed");
    assert!(!world.allows_in_state(ConntrackState::Established, &forged, TO_A, TO_B));
    world.denies(&forged, TO_A, UPLINK, "Spoofed");
    world.denies(&tcp("fd00::9", "fd00::2", 80), TO_A, TO_B, "Spoofed");
    assert!(world.allows(&tcp("fd00::1", "fd00::2", 80), TO_A, TO_B));
    world.workload_policy("a").allowed_sources = vec![net("10.0.0.96/28")];
    assert!(world.allows(&forged, TO_A, TO_B));
    world.denies(&tcp("10.0.0.95", B, 80), TO_A, TO_B, "Spoofed");
}

#[test]
fn known_flows_pass_and_invalid_packets_do_not() {
    let mut world = EvaluatedNode::new();
    let closed = world.list("closed", &[deny()]);
    world.workload_policy("b").tiers = closed;
    let packet = tcp(A, B, 80);
    for (connection, allowed) in [
        (ConntrackState::New, false),
        (ConntrackState::Established, true),
        (ConntrackState::Related, true),
        (ConntrackState::Invalid, false),
        (ConntrackState::Untracked, false),
    ] {
        assert_eq!(world.allows_in_state(connection, &packet, TO_A, TO_B), allowed, "{connection:?}");
    }
    world.workload_policy("b").tiers.clear();
    assert!(!world.allows_in_state(ConntrackState::Invalid, &packet, TO_A, TO_B));
    world.settings.policy.drop_invalid = false;
    assert!(world.allows_in_state(ConntrackState::Invalid, &packet, TO_A, TO_B));
}

#[test]
fn workloads_do_not_encapsulate() {
    let mut world = EvaluatedNode::new();
    let (vxlan, ipip) = (udp(A, OUTSIDE, 4789), plain(Packet::IPIP, A, OUTSIDE));
    world.denies(&vxlan, TO_A, UPLINK, "Encapsulation");
    world.denies(&ipip, TO_A, UPLINK, "Encapsulation");
    assert!(world.allows(&tcp(A, OUTSIDE, 4789), TO_A, UPLINK));
    assert!(
        world.allows(&udp(OUTSIDE, A, 4789), UPLINK, TO_A),
        "towards a workload it is a packet like others"
    );
    world.settings.policy.vxlan_port = 8472;
    assert!(world.allows(&vxlan, TO_A, UPLINK));
    world.settings.policy.vxlan_port = 4789;
    world.settings.policy.vxlan_from_workloads = true;
    world.settings.policy.ipip_from_workloads = true;
    assert!(world.allows(&vxlan, TO_A, UPLINK) && world.allows(&ipip, TO_A, UPLINK));
}

#[test]
fn tunnels_are_for_nodes_that_are_known() {
    use crate::{AddressSet, SetKind, SetMember, TunnelDevice, TunnelKind, TunnelProtocol};
    const PEER: &str = "192.0.2.2";
    let mut world = EvaluatedNode::new();
    let (vxlan, ipip) = (udp(OUTSIDE, NODE, 4789), plain(Packet::IPIP, OUTSIDE, NODE));
    assert!(world.allows(&vxlan, UPLINK, Host) && world.allows(&ipip, UPLINK, Host), "none of ours");
    for (kind, protocol) in [
        (TunnelKind::VxlanV4, TunnelProtocol::Vxlan { vni: 4096, port: 4789, mac: [0; 6] }),
        (TunnelKind::Ipip, TunnelProtocol::Ipip),
        (TunnelKind::WireguardV4, TunnelProtocol::Wireguard { port: 51820, mark: 0, threaded: false }),
    ] {
        let (name, local) = (kind.device().to_owned(), NODE.parse().unwrap());
        let device = TunnelDevice { name, address: None, local, mtu: None, protocol };
        world.plan.tunnels.insert(kind, device);
        let members = [SetMember::Net(net("192.0.2.2/32"))].into();
        world
            .plan
            .sets
            .extend(kind.peers().map(|peers| (peers, AddressSet { kind: SetKind::Nets, members })));
    }
    world.denies(&vxlan, UPLINK, Host, "UnknownTunnel");
    world.denies(&ipip, UPLINK, Host, "UnknownTunnel");
    world.settings.policy.vxlan_from_workloads = true;
    world.denies(&udp(A, NODE, 4789), TO_A, Host, "UnknownTunnel");
    assert!(world.allows(&udp(OUTSIDE, NODE, 4790), UPLINK, Host));
    // Packets of known nodes pass regardless of host policy and connection tracking state.
    let closed = world.list("closed", &[deny()]);
    world.host("eth0").tiers = closed;
    assert!(!world.allows(&udp(PEER, NODE, 80), UPLINK, Host));
    for (from, to) in [(PEER, NODE), (NODE, PEER)] {
        let (place, way) = if from == PEER { (UPLINK, Host) } else { (Host, UPLINK) };
        assert!(world.allows_in_state(ConntrackState::Invalid, &udp(from, to, 4789), place, way));
        assert!(world.allows(&plain(Packet::IPIP, from, to), place, way));
    }
    assert!(!world.allows(&udp(NODE, OUTSIDE, 4789), Host, UPLINK));
    // WireGuard authenticates its peers by itself.
    assert!(world.allows(&udp(OUTSIDE, NODE, 51820), UPLINK, Host));
    assert!(world.allows(&udp(NODE, OUTSIDE, 51820), Host, UPLINK));
    assert!(!world.allows(&udp(OUTSIDE, NODE, 51821), UPLINK, Host));
}

#[test]
fn workload_to_host_is_a_setting() {
    let mut world = EvaluatedNode::new();
    let packet = tcp(A, NODE, 80);
    world.denies(&packet, TO_A, Host, "EndpointToHost(Drop)");
    assert!(world.allows_in_state(ConntrackState::Established, &packet, TO_A, Host));
    for action in [EndpointToHostAction::Return, EndpointToHostAction::Accept] {
        world.settings.policy.endpoint_to_host = action;
        assert!(world.allows(&packet, TO_A, Host));
        // The host endpoint, which would deny the packet, is not evaluated.
        world.host("*");
        assert!(world.allows(&packet, TO_A, Host));
    }
    let closed = world.list("closed", &[deny()]);
    world.workload_policy("a").tiers = closed;
    assert!(!world.allows(&packet, TO_A, Host));
}

#[test]
fn workloads_reach_no_loopback_and_no_other_link() {
    let mut world = EvaluatedNode::new();
    world.settings.policy.endpoint_to_host = crate::EndpointToHostAction::Accept;
    world.workload_policy("a").allowed_sources = vec![net("0.0.0.0/0"), net("::/0")];
    for (from, to) in [(A, "127.0.0.1"), (A, "127.255.255.255"), ("127.0.0.1", NODE), ("fd00::1", "::1")] {
        world.denies(&tcp(from, to, 80), TO_A, Host, "Loopback");
    }
    world.denies(&tcp("127.0.0.1", B, 80), TO_A, TO_B, "Loopback");
    world.denies(&tcp("fd00::1", "fe80::9", 80), TO_A, TO_A, "LinkLocal");
    assert!(world.allows(&tcp(A, NODE, 80), TO_A, Host));
}

#[test]
fn workloads_are_recognised_by_endpoint_without_interface_prefix() {
    let mut world = EvaluatedNode::new();
    world.workload_policy("a").interface = "tap1".into();
    let tap = Interface("tap1");
    world.denies(&tcp("10.9.9.9", B, 80), tap, TO_B, "Spoofed");
    let closed = world.list("closed", &[deny()]);
    world.workload_policy("a").tiers = closed;
    assert!(!world.allows(&tcp(A, B, 80), tap, TO_B));
}

#[test]
fn neighbours_are_found_whatever_the_policy() {
    let mut world = EvaluatedNode::new();
    let closed = world.list("closed", &[deny()]);
    world.workload_policy("a").tiers = closed;
    let workload = crate::PlannedWorkload {
        interface: "cali-a".into(),
        mac: Some([2, 0, 0, 0, 0, 1]),
        addresses: Vec::new(),
        ..crate::PlannedWorkload::default()
    };
    world.plan.workloads.insert(id("a"), workload);
    const OWN: &str = "fe80::ff:fe00:1";
    for kind in [130, 131, 132, 133, 135, 136] {
        assert!(world.allows(&icmp(OWN, "ff02::1", kind, 0), TO_A, Host), "{kind}");
        world.denies(&icmp("fe80::2", "ff02::1", kind, 0), TO_A, Host, "Spoofed");
    }
    assert!(world.allows(&icmp("::", "ff02::1", 135, 0), TO_A, Host));
    for kind in [128, 134, 137] {
        assert!(!world.allows(&icmp(OWN, "ff02::1", kind, 0), TO_A, Host), "{kind}");
    }
    // Without its MAC, the link-local address of the workload is unknown.
    world.plan.workloads.clear();
    world.denies(&icmp(OWN, "ff02::1", 135, 0), TO_A, Host, "Spoofed");
    assert!(!world.allows(&icmp(A, NODE, 135, 0), TO_A, Host));
}

#[test]
fn the_host_reaches_its_workloads() {
    let mut world = EvaluatedNode::new();
    let closed = world.list("closed", &[deny()]);
    world.workload_policy("a").tiers = closed.clone();
    world.host("*").tiers = closed;
    assert_eq!(world.judge(&tcp(NODE, A, 80), Host, TO_A), (true, "HostToWorkload".into()));
}

#[test]
fn an_interface_without_host_endpoint_is_not_policed() {
    let world = EvaluatedNode::new();
    assert_eq!(world.judge(&tcp(OUTSIDE, NODE, 80), UPLINK, Host), (true, "NoHostEndpoint".into()));
    assert!(world.allows(&tcp(NODE, OUTSIDE, 80), Host, UPLINK));
    assert!(world.allows(&tcp(OUTSIDE, "203.0.113.1", 80), UPLINK, Interface("eth1")));
    assert!(world.allows(&tcp(NODE, NODE, 80), Host, Host));
}

#[test]
fn bare_host_endpoints_allow_failsafes_flows_and_forwarding() {
    for (interface, other) in [("eth0", true), ("*", false), ("", true)] {
        let mut world = EvaluatedNode::new();
        world.host(interface).expected = vec![address(NODE)];
        world.denies(&tcp(OUTSIDE, NODE, 80), UPLINK, Host, "NoProfile");
        world.denies(&tcp(NODE, OUTSIDE, 80), Host, UPLINK, "NoProfile");
        assert_eq!(world.judge(&tcp(OUTSIDE, NODE, 22), UPLINK, Host), (true, "Failsafe".into()));
        assert!(world.allows(&udp(OUTSIDE, NODE, 68), UPLINK, Host));
        assert!(!world.allows(&tcp(NODE, OUTSIDE, 22), Host, UPLINK));
        assert!(world.allows(&udp(NODE, OUTSIDE, 53), Host, UPLINK));
        assert!(!world.allows(&udp(OUTSIDE, NODE, 53), UPLINK, Host));
        assert!(world.allows_in_state(ConntrackState::Established, &tcp(OUTSIDE, NODE, 80), UPLINK, Host));
        assert!(!world.allows_in_state(ConntrackState::Invalid, &tcp(OUTSIDE, NODE, 22), UPLINK, Host));
        assert!(world.allows(&tcp(OUTSIDE, A, 80), UPLINK, TO_A));
        assert!(world.allows(&tcp(A, OUTSIDE, 80), TO_A, UPLINK));
        assert!(!world.allows_in_state(
            ConntrackState::Invalid,
            &tcp(OUTSIDE, A, 80),
            UPLINK,
            Interface("eth1")
        ));
        assert_eq!(world.allows(&tcp(OUTSIDE, NODE, 80), Interface("eth1"), Host), other);
        assert_eq!(world.allows(&tcp(NODE, NODE, 80), Host, Host), other, "lo is an interface like others");
    }
}

#[test]
fn failsafes_may_be_limited_to_a_net() {
    let mut world = EvaluatedNode::new();
    world.host("eth0");
    let safe = |net_: &str| vec![FailsafePort { protocol: 6, port: 22, net: Some(net(net_)) }];
    world.settings.policy.failsafe_inbound = safe("198.51.100.0/24");
    world.settings.policy.failsafe_outbound = safe("203.0.113.0/24");
    assert!(world.allows(&tcp(OUTSIDE, NODE, 22), UPLINK, Host));
    assert!(!world.allows(&tcp("203.0.113.1", NODE, 22), UPLINK, Host));
    assert!(world.allows(&tcp(NODE, "203.0.113.1", 22), Host, UPLINK));
    assert!(!world.allows(&tcp(NODE, OUTSIDE, 22), Host, UPLINK));
}

#[test]
fn normal_host_policy_ignores_forwarded_packets() {
    let mut world = EvaluatedNode::new();
    let web = world.list("web", &[to_port(RuleAction::Allow, 6, 80)]);
    let endpoint = world.host("eth0");
    endpoint.tiers = web;
    endpoint.profiles = vec!["open".into()];
    assert!(world.allows(&tcp(OUTSIDE, NODE, 80), UPLINK, Host));
    world.denies(&tcp(OUTSIDE, NODE, 81), UPLINK, Host, "TierEnd(\"default\")");
    world.denies(&tcp(NODE, OUTSIDE, 81), Host, UPLINK, "TierEnd(\"default\")");
    assert!(world.allows(&tcp(OUTSIDE, A, 81), UPLINK, TO_A));
    // Policy for egress only: the profiles decide ingress.
    let endpoint = world.host("eth0");
    endpoint.tiers[0].ingress = Arc::default();
    assert!(world.allows(&tcp(OUTSIDE, NODE, 81), UPLINK, Host));
    world.host("eth0").profiles.clear();
    world.denies(&tcp(OUTSIDE, NODE, 81), UPLINK, Host, "NoProfile");
}

#[test]
fn forward_policy_is_for_what_passes_through() {
    let mut world = EvaluatedNode::new();
    let web = world.list("web", &[to_port(RuleAction::Allow, 6, 80)]);
    world.host("eth0").forward = web;
    for (packet, from, to) in [
        (tcp(OUTSIDE, A, 0), UPLINK, TO_A),
        (tcp(A, OUTSIDE, 0), TO_A, UPLINK),
        (tcp(OUTSIDE, B, 0), UPLINK, Interface("eth1")),
    ] {
        let port = |destination_port| Packet { destination_port, ..packet };
        assert!(world.allows(&port(80), from, to));
        world.denies(&port(81), from, to, "TierEnd(\"default\")");
        assert!(!world.allows(&port(22), from, to), "failsafes are for the host");
        assert!(world.allows_in_state(ConntrackState::Established, &port(81), from, to));
    }
    assert!(world.allows(&tcp(A, B, 81), TO_A, TO_B));
    // Policy for one direction only: packets of the other direction pass, without profiles.
    world.host("eth0").forward[0].egress = Arc::default();
    assert!(world.allows(&tcp(A, OUTSIDE, 81), TO_A, UPLINK));
    assert!(!world.allows(&tcp(OUTSIDE, A, 81), UPLINK, TO_A));
    // The policy of the workload still applies.
    let closed = world.list("closed", &[deny()]);
    world.workload_policy("a").tiers = closed;
    assert!(!world.allows(&tcp(OUTSIDE, A, 80), UPLINK, TO_A));
}

#[test]
fn forward_policy_of_all_interfaces_covers_workload_interfaces() {
    let mut world = EvaluatedNode::new();
    let web = world.list("web", &[to_port(RuleAction::Allow, 6, 80)]);
    world.host("*").forward = web;
    assert!(world.allows(&tcp(A, B, 80), TO_A, TO_B));
    world.denies(&tcp(A, B, 81), TO_A, TO_B, "TierEnd(\"default\")");
}

#[test]
fn untracked_policy_comes_before_everything() {
    let mut world = EvaluatedNode::new();
    let list =
        world.list("fast", &[to_port(RuleAction::Allow, 17, 5000), to_port(RuleAction::Deny, 17, 5001)]);
    world.host("eth0").untracked = list.clone();
    // A packet that untracked policy allows skips the later stages of this host endpoint.
    assert_eq!(world.judge(&udp(OUTSIDE, NODE, 5000), UPLINK, Host), (true, "AcceptedBefore".into()));
    assert_eq!(world.judge(&udp(NODE, OUTSIDE, 5000), Host, UPLINK), (true, "AcceptedBefore".into()));
    assert!(!world.allows(&udp(OUTSIDE, NODE, 5001), UPLINK, Host));
    assert!(!world.allows_in_state(ConntrackState::Established, &udp(OUTSIDE, NODE, 5001), UPLINK, Host));
    // A packet that does not match continues with the next stage, here a host endpoint that denies everything.
    world.denies(&udp(OUTSIDE, NODE, 5002), UPLINK, Host, "NoProfile");
    // Failsafes and replies to failsafes of the other direction skip the stage and are evaluated later.
    let all = world.list("none", &[deny()]);
    world.host("eth0").untracked = all;
    assert!(world.allows(&tcp(OUTSIDE, NODE, 22), UPLINK, Host));
    let answer = |packet: Packet, port| Packet { source_port: port, ..packet };
    let established = ConntrackState::Established;
    assert!(world.allows_in_state(established, &answer(udp(OUTSIDE, NODE, 4000), 53), UPLINK, Host));
    assert!(!world.allows_in_state(established, &answer(udp(OUTSIDE, NODE, 4000), 54), UPLINK, Host));
    assert!(world.allows_in_state(established, &answer(tcp(NODE, OUTSIDE, 4000), 22), Host, UPLINK));
    // Untracked policy has no effect on a host endpoint for all interfaces.
    let mut world = EvaluatedNode::new();
    world.plan.policies.insert(global("fast"), policy(&[deny()]));
    world.host("*").untracked = list;
    world.host("*").profiles = vec!["open".into()];
    assert!(world.allows(&udp(OUTSIDE, NODE, 5001), UPLINK, Host));
}

#[test]
fn workload_policy_applies_to_untracked_packets() {
    let mut world = EvaluatedNode::new();
    let fast = world.list("fast", &[allow()]);
    let closed = world.list("closed", &[deny()]);
    world.host("eth0").untracked = fast;
    world.host("eth0").forward = closed.clone();
    let packet = udp(OUTSIDE, A, 5000);
    assert!(world.allows(&packet, UPLINK, TO_A), "accepted before the forward policy of where it came in");
    world.workload_policy("a").tiers = closed;
    assert!(!world.allows(&packet, UPLINK, TO_A));
    // The packet is untracked, so it belongs to no known flow.
    assert!(!world.allows_in_state(ConntrackState::Established, &packet, UPLINK, TO_A));
}

#[test]
fn pre_dnat_policy_matches_the_original_destination() {
    let mut world = EvaluatedNode::new();
    let list =
        world.list("ports", &[to_port(RuleAction::Deny, 6, 31080), to_port(RuleAction::Allow, 6, 31081)]);
    world.host("eth0").pre_dnat = list;
    let forwarded = |port| {
        let way =
            PacketPath { original_destination: Some((address(NODE), port)), ..PacketPath::new(UPLINK, TO_A) };
        (tcp(OUTSIDE, A, 8080), way)
    };
    let (packet, way) = forwarded(31080);
    assert!(!world.judge_way(&packet, &way).0);
    assert!(world.judge_way(&packet, &PacketPath { connection: ConntrackState::Established, ..way }).0);
    let (packet, way) = forwarded(30000);
    assert!(world.judge_way(&packet, &way).0, "what it does not know goes on");
    assert!(!world.judge_way(&packet, &PacketPath { connection: ConntrackState::Invalid, ..way }).0);
    // Neither normal nor forward policy of this host endpoint denies a packet that pre-DNAT policy has allowed.
    let closed = world.list("closed", &[deny()]);
    world.host("eth0").forward = closed.clone();
    world.host("eth0").tiers = closed.clone();
    let (packet, way) = forwarded(31081);
    assert!(world.judge_way(&packet, &way).0);
    assert!(world.allows(&tcp(OUTSIDE, NODE, 31081), UPLINK, Host));
    assert!(!world.allows(&tcp(OUTSIDE, NODE, 31082), UPLINK, Host));
    // The policy of the workload does.
    world.workload_policy("a").tiers = closed;
    assert!(!world.judge_way(&packet, &way).0);
}

#[test]
fn pre_dnat_policy_exempts_failsafes_and_covers_workloads() {
    let mut world = EvaluatedNode::new();
    let closed = world.list("closed", &[deny()]);
    world.host("*").pre_dnat = closed;
    assert!(world.allows(&tcp(OUTSIDE, NODE, 22), UPLINK, Host));
    assert!(!world.allows(&tcp(OUTSIDE, NODE, 23), UPLINK, Host));
    assert!(!world.allows(&tcp(A, B, 80), TO_A, TO_B));
}

#[test]
fn the_trace_tells_whose_rules_were_asked() {
    let mut world = EvaluatedNode::new();
    let web = world.list("web", &[to_port(RuleAction::Allow, 6, 80)]);
    world.workload_policy("b").tiers = web.clone();
    world.host("eth0").forward = web;
    let node = NodeEvaluator::new(&world.plan, &world.settings, HostEndpointAssignment::default());
    let mut trace = EvaluationTrace::default();
    node.judge(&tcp(A, B, 80), &PacketPath::new(TO_A, TO_B), Some(&mut trace));
    let parties: Vec<_> = trace
        .steps
        .iter()
        .filter_map(|step| match step {
            TraceStep::Workload { id, direction } => Some((id.workload.as_str(), *direction)),
            _ => None,
        })
        .collect();
    assert_eq!(parties, [("shop/a", Egress), ("shop/b", Ingress)]);
}

#[test]
fn what_is_forwarded_to_no_service_goes_nowhere() {
    let mut world = EvaluatedNode::new();
    world.plan.service_ranges =
        ["10.96.0.0/12", "fd96::/112"].iter().map(|net| net.parse().unwrap()).collect();
    for (from, service) in [(A, "10.96.0.1"), ("fd00::1", "fd96::1")] {
        let stray = tcp(from, service, 80);
        world.denies(&stray, TO_A, UPLINK, "ServiceLoop");
        assert!(world.allows_in_state(ConntrackState::Established, &stray, TO_A, UPLINK));
        assert!(world.allows(&stray, Host, UPLINK), "the host's own packets are not forwarded");
    }
    assert!(world.allows(&tcp(A, OUTSIDE, 80), TO_A, UPLINK));
    world.settings.policy.service_loop = None;
    assert!(world.allows(&tcp(A, "10.96.0.1", 80), TO_A, UPLINK));
}
