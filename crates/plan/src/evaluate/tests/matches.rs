//! Matching of one rule against one packet.

use super::*;
use crate::evaluate::matching::RuleSubject;

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn matches(rule: &PlannedRule, packet: &Packet) -> bool {
    let plan = NodePlan::default();
    matches_in(&EvaluationIndex::new(&plan), rule, packet)
}

fn matches_in<'p>(index: &EvaluationIndex<'p>, rule: &'p PlannedRule, packet: &Packet) -> bool {
    let matches = index.matches(rule, "", &RuleSubject::connection(packet, false));
    assert_eq!(misses_in(index, rule, packet).is_empty(), matches, "{rule:?} {packet:?}");
    matches
}

fn misses_in<'p>(
    index: &EvaluationIndex<'p>,
    rule: &'p PlannedRule,
    packet: &Packet,
) -> Vec<RuleCriterion<'p>> {
    index.misses(rule, "", &RuleSubject::connection(packet, false))
}

fn rule(change: impl FnOnce(&mut PlannedRule)) -> PlannedRule {
    let mut rule = allow();
    change(&mut rule);
    rule
}

fn ports(ranges: &[(u16, u16)]) -> Vec<PortInterval> {
    ranges.iter().map(|&(first, last)| PortInterval { first, last }).collect()
}

#[test]
fn an_empty_rule_matches_everything() {
    for packet in
        [tcp(A, B, 1), udp(A, B, 1), icmp(A, B, 8, 0), plain(47, A, B), tcp("fd00::1", "fd00::2", 1)]
    {
        assert!(matches(&allow(), &packet));
    }
}

#[test]
fn the_family_of_the_packet_counts() {
    let four = rule(|r| r.ip_version = Some(IpVersion::V4));
    let six = rule(|r| r.ip_version = Some(IpVersion::V6));
    let (p4, p6) = (tcp(A, B, 80), tcp("fd00::1", "fd00::2", 80));
    assert_eq!((matches(&four, &p4), matches(&four, &p6)), (true, false));
    assert_eq!((matches(&six, &p4), matches(&six, &p6)), (false, true));
}

#[test]
fn protocols() {
    let only = rule(|r| r.protocol = Some(6));
    assert_eq!((matches(&only, &tcp(A, B, 1)), matches(&only, &udp(A, B, 1))), (true, false));
    let not = rule(|r| r.not_protocol = Some(6));
    assert_eq!((matches(&not, &tcp(A, B, 1)), matches(&not, &udp(A, B, 1))), (false, true));
}

#[test]
fn icmp_types_belong_to_the_family() {
    let echo = rule(|r| r.icmp = Some(IcmpMatch { r#type: 8, code: None }));
    assert!(matches(&echo, &icmp(A, B, 8, 3)));
    assert!(!matches(&echo, &icmp(A, B, 0, 0)));
    assert!(matches(&echo, &icmp("fd00::1", "fd00::2", 8, 0)));
    assert!(!matches(&echo, &tcp(A, B, 8)));
    let coded = rule(|r| r.icmp = Some(IcmpMatch { r#type: 3, code: Some(1) }));
    assert!(matches(&coded, &icmp(A, B, 3, 1)));
    assert!(!matches(&coded, &icmp(A, B, 3, 2)));
    // ICMP of the other family is a protocol without types.
    let foreign = Packet { protocol: Packet::ICMPV6, ..icmp(A, B, 8, 0) };
    assert!(!matches(&echo, &foreign));
}

#[test]
fn a_negated_icmp_type_is_still_about_icmp() {
    let not = rule(|r| r.not_icmp = Some(IcmpMatch { r#type: 3, code: Some(1) }));
    assert!(!matches(&not, &icmp(A, B, 3, 1)));
    assert!(matches(&not, &icmp(A, B, 3, 2)));
    assert!(matches(&not, &icmp(A, B, 8, 0)));
    assert!(!matches(&not, &tcp(A, B, 80)));
}

#[test]
fn any_net_matches_and_every_negated_excludes() {
    let within = rule(|r| r.source.nets = vec![net("10.0.0.0/31"), net("10.9.0.0/16")]);
    assert!(matches(&within, &tcp(A, B, 80)));
    assert!(matches(&within, &tcp("10.9.1.1", B, 80)));
    assert!(!matches(&within, &tcp(B, A, 80)));
    let outside = rule(|r| r.destination.not_nets = vec![net("10.0.0.1/32"), net("10.0.0.2/32")]);
    assert!(!matches(&outside, &tcp(A, B, 80)));
    assert!(!matches(&outside, &tcp(B, A, 80)));
    assert!(matches(&outside, &tcp(A, "10.0.0.3", 80)));
}

#[test]
fn nets_of_the_other_family_never_match() {
    let six = tcp("fd00::1", "fd00::2", 80);
    for list in ["10.0.0.0/8", "0.0.0.0/0"] {
        let within = rule(|r| r.source.nets = vec![net(list)]);
        let outside = rule(|r| r.source.not_nets = vec![net(list)]);
        assert!(!matches(&within, &six), "{list}");
        assert!(!matches(&outside, &six), "{list}");
    }
    let both = rule(|r| r.source.nets = vec![net("10.0.0.0/8"), net("fd00::/8")]);
    assert!(matches(&both, &six) && matches(&both, &tcp(A, B, 80)));
    // No address is outside of 0.0.0.0/0.
    let outside = rule(|r| r.source.not_nets = vec![net("0.0.0.0/0")]);
    assert!(!matches(&outside, &tcp(A, B, 80)));
}

#[test]
fn ports_and_ranges() {
    let open = rule(|r| {
        r.protocol = Some(6);
        r.destination.ports = ports(&[(22, 22), (80, 90)]);
    });
    let closed = rule(|r| {
        r.protocol = Some(6);
        r.destination.not_ports = ports(&[(22, 22), (80, 90)]);
    });
    for (port, listed) in [(22, true), (79, false), (80, true), (85, true), (90, true), (91, false)] {
        assert_eq!(matches(&open, &tcp(A, B, port)), listed, "{port}");
        assert_eq!(matches(&closed, &tcp(A, B, port)), !listed, "{port}");
    }
    let from = rule(|r| r.source.ports = ports(&[(40000, 40000)]));
    assert!(matches(&from, &tcp(A, B, 80)));
    assert!(!matches(&from, &Packet { source_port: 40001, ..tcp(A, B, 80) }));
    // A packet without ports is in no range.
    assert!(!matches(&rule(|r| r.destination.ports = ports(&[(0, 65535)])), &icmp(A, B, 8, 0)));
}

#[test]
fn sets_match_members_and_negated_sets_others() {
    let mut plan = NodePlan::default();
    let set =
        set_of_nets(&mut plan, "s:x", &["10.0.0.1/32", "fd00::1/128", "172.16.0.0/12", "172.16.0.0/16"]);
    let index = EvaluationIndex::new(&plan);
    let positive = rule(|r| r.source.sets = vec![set.clone()]);
    let negative = rule(|r| r.source.not_sets = vec![set.clone()]);
    for (source, member) in
        [(A, true), ("172.31.255.255", true), (B, false), ("8.8.8.8", false), ("172.32.0.0", false)]
    {
        assert_eq!(matches_in(&index, &positive, &tcp(source, B, 80)), member, "{source}");
        assert_eq!(matches_in(&index, &negative, &tcp(source, B, 80)), !member, "{source}");
    }
    assert!(matches_in(&index, &positive, &tcp("fd00::1", "fd00::2", 80)));
    // Every positive set is required; a missing set is empty.
    let two = rule(|r| r.source.sets = vec![set.clone(), SetId::new("s:none")]);
    assert!(!matches_in(&index, &two, &tcp(A, B, 80)));
    assert_eq!(
        misses_in(&index, &two, &tcp(A, B, 80)),
        [RuleCriterion::Set(PacketEnd::Source, &SetId::new("s:none"))]
    );
}

#[test]
fn named_ports_need_address_protocol_and_port() {
    let mut plan = NodePlan::default();
    let http = set_of_ports(&mut plan, "n:http", &[(B, 6, 8080), ("fd00::2", 6, 8080)]);
    let dns = set_of_ports(&mut plan, "n:dns", &[(B, 6, 53), (B, 17, 53)]);
    let index = EvaluationIndex::new(&plan);
    let named = rule(|r| r.destination.named_ports = vec![http.clone()]);
    assert!(matches_in(&index, &named, &tcp(A, B, 8080)));
    assert!(matches_in(&index, &named, &tcp("fd00::1", "fd00::2", 8080)));
    assert!(!matches_in(&index, &named, &udp(A, B, 8080)));
    assert!(!matches_in(&index, &named, &tcp(A, B, 8081)));
    assert!(
        !matches_in(&index, &named, &tcp(B, A, 8080)),
        "outside of the cluster's endpoints a name means nothing"
    );
    let any = rule(|r| r.destination.named_ports = vec![dns]);
    assert!(matches_in(&index, &any, &tcp(A, B, 53)) && matches_in(&index, &any, &udp(A, B, 53)));
    let mixed = rule(|r| {
        r.destination.named_ports = vec![http.clone()];
        r.destination.ports = ports(&[(443, 443)]);
    });
    assert!(matches_in(&index, &mixed, &tcp(A, B, 443)) && matches_in(&index, &mixed, &tcp(A, B, 8080)));
    assert!(!matches_in(&index, &mixed, &tcp(A, B, 80)));
    let not = rule(|r| r.destination.not_named_ports = vec![http]);
    assert!(!matches_in(&index, &not, &tcp(A, B, 8080)));
    assert!(matches_in(&index, &not, &udp(A, B, 8080)));
    assert!(matches_in(&index, &not, &icmp(A, B, 8, 0)), "what has no ports has none of these");
}

#[test]
fn services_are_endpoints_with_ports_or_addresses_alone() {
    let mut plan = NodePlan::default();
    let service = set_of_ports(&mut plan, "svc:x", &[(B, 6, 8080)]);
    let addresses = set_of_nets(&mut plan, "svcnoport:x", &["10.0.0.1/32"]);
    let index = EvaluationIndex::new(&plan);
    let to = rule(|r| r.destination.service = Some(service));
    assert!(matches_in(&index, &to, &tcp(A, B, 8080)));
    assert!(!matches_in(&index, &to, &tcp(A, B, 80)));
    let from = rule(|r| r.source.service = Some(addresses));
    assert!(matches_in(&index, &from, &tcp(A, B, 1)) && matches_in(&index, &from, &icmp(A, B, 8, 0)));
    assert!(!matches_in(&index, &from, &tcp(B, A, 1)));
}

#[test]
fn http_rules_match_nothing_without_a_proxy() {
    let methods = vec!["GET".to_owned()];
    let mut web = rule(|r| r.http = Some(Box::new(HttpMatch { methods, ..HttpMatch::default() })));
    assert!(!matches(&web, &tcp(A, B, 80)));
    let plan = NodePlan::default();
    assert_eq!(misses_in(&EvaluationIndex::new(&plan), &web, &tcp(A, B, 80)), [RuleCriterion::Http]);
    if let Some(http) = &mut web.http {
        http.matches_without_proxy = true;
    }
    assert!(matches(&web, &tcp(A, B, 80)));
}

#[test]
fn every_miss_is_named() {
    let strict = rule(|r| {
        r.protocol = Some(6);
        r.source.nets = vec![net("192.0.2.0/24")];
        r.destination.ports = ports(&[(443, 443)]);
    });
    let plan = NodePlan::default();
    let misses = misses_in(&EvaluationIndex::new(&plan), &strict, &udp(A, B, 80));
    let side = &strict.destination;
    assert_eq!(
        misses,
        [
            RuleCriterion::Protocol(6),
            RuleCriterion::Nets(PacketEnd::Source, &strict.source.nets),
            RuleCriterion::Ports(PacketEnd::Destination, &side.ports, &side.named_ports),
        ]
    );
}
