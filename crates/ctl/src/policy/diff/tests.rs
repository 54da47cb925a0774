//! The verdict for a group equals the verdict for each of its members.

use super::compare::{MAX_VERDICTS, VerdictComparison, compare};
use super::subject::{PlanState, TrafficSubject, subjects};
use super::summary::summarise;
use super::traffic_class::TrafficClass;
use crate::policy::cluster::PolicyCluster;
use tortie_plan::PolicyDirection;
use tortie_plan::evaluate::{Packet, PolicyOutcome};
use tortie_testkit::conformance::{ConformanceCase, cases, world};

/// Returns the cluster of the conformance cases before and after a case is applied.
fn clusters(case: &ConformanceCase) -> (PolicyCluster, PolicyCluster) {
    let mut before = PolicyCluster::default();
    world().into_iter().for_each(|resource| before.put(resource));
    let mut after = before.clone();
    case.steps.iter().flat_map(|step| step.applied()).for_each(|resource| after.put(resource));
    (before, after)
}

fn ingress_closed() -> (PolicyCluster, PolicyCluster) {
    clusters(&cases().into_iter().find(|case| case.number == 2).unwrap())
}

#[test]
fn only_ends_that_a_change_touches_are_judged() {
    let (before, after) = ingress_closed();
    let all = compare(&before, &after, MAX_VERDICTS);
    let names: Vec<&str> = all.groups.iter().map(|group| group.first().name.as_str()).collect();
    assert_eq!(all.concerned, names.len(), "everybody to the one pod that has a policy now");
    assert_eq!(all.judged, all.concerned);
    assert!(!all.changes.is_empty());
    assert!(all.changes.iter().all(|change| names[change.to] == "shop/p" && !change.allowed));
    assert_eq!(compare(&after, &after, MAX_VERDICTS).concerned, 0);
}

#[test]
fn what_was_left_out_is_said() {
    let (before, after) = ingress_closed();
    let all = compare(&before, &after, MAX_VERDICTS);
    assert_eq!(summarise(Vec::new(), &all).sampled, None);
    let some = compare(&before, &after, all.classes.len() * 8);
    assert!(0 < some.judged && some.judged < some.concerned, "{} of {}", some.judged, some.concerned);
    assert!(some.changes.len() < all.changes.len());
    assert!(summarise(Vec::new(), &some).text().contains("there may be more changes"));
}

fn packets(source: std::net::IpAddr, destination: std::net::IpAddr) -> Vec<Packet> {
    let plain = |protocol| Packet {
        source,
        destination,
        protocol,
        source_port: 50000,
        destination_port: 0,
        icmp: None,
    };
    let icmp = if source.is_ipv4() { Packet::ICMP } else { Packet::ICMPV6 };
    let ports = [1, 21, 22, 23, 25, 52, 53, 54, 79, 80, 81, 85, 90, 91, 443, 8080, 8081, 65535];
    let ports = ports.into_iter().flat_map(|destination_port| {
        [Packet::TCP, Packet::UDP].map(|protocol| Packet { destination_port, ..plain(protocol) })
    });
    let types = [0, 3, 8, 128].map(|kind| Packet { icmp: Some((kind, 0)), ..plain(icmp) });
    ports.chain(types).chain([plain(47), plain(253)]).collect()
}

/// Returns the new verdict for a packet according to the comparison, if it changes.
fn said(
    comparison: &VerdictComparison,
    from: &TrafficSubject,
    to: &TrafficSubject,
    packet: &Packet,
) -> Option<bool> {
    let group = |subject: &TrafficSubject| {
        let has = |group: &super::groups::SubjectGroup| group.members.iter().any(|m| m.name == subject.name);
        comparison.groups.iter().position(has).unwrap()
    };
    let (from, to) = (group(from), group(to));
    let types: Vec<u8> = comparison
        .classes
        .iter()
        .filter_map(|class| if let TrafficClass::Icmp(Some((kind, _))) = class { Some(*kind) } else { None })
        .collect();
    let covers = |class: &TrafficClass| match (*class, packet.icmp) {
        (TrafficClass::Ports { protocol, first, last }, None) => {
            protocol == packet.protocol && (first..=last).contains(&packet.destination_port)
        }
        (TrafficClass::Icmp(Some((kind, None))), Some((own, _))) => kind == own,
        (TrafficClass::Icmp(None), Some((own, _))) => !types.contains(&own),
        (TrafficClass::Protocol(protocol), None) => protocol == packet.protocol,
        (TrafficClass::OtherProtocols, None) => !packet.has_ports(),
        _ => false,
    };
    let v4 = packet.source.is_ipv4();
    let mut changes = comparison.changes.iter();
    changes
        .find(|change| (change.from, change.to, change.v4) == (from, to, v4) && covers(&change.class))
        .map(|change| change.allowed)
}

#[test]
fn groups_and_lanes_lose_nothing() {
    let (mut changed, mut same) = (0, 0);
    for case in cases() {
        let (before, after) = clusters(&case);
        let comparison = compare(&before, &after, MAX_VERDICTS);
        let (old, new) = (before.enforced_everywhere(), after.enforced_everywhere());
        let (old, new) = (PlanState::new(&old), PlanState::new(&new));
        let everybody = subjects(&before, &after, &[&old, &new]);
        for from in &everybody {
            for to in everybody.iter().filter(|to| to.name != from.name && from.is_policed_with(to)) {
                for v4 in [true, false] {
                    let of = |subject: &TrafficSubject| {
                        subject.addresses.iter().copied().find(|a| a.is_ipv4() == v4)
                    };
                    let Some((source, destination)) = of(from).zip(of(to)) else { continue };
                    for packet in packets(source, destination) {
                        let allows = |state: &PlanState<'_>| {
                            let says = |subject, direction| {
                                let decision = state.decide(subject, direction, &packet);
                                decision.is_none_or(|decision| decision.outcome == PolicyOutcome::Allow)
                            };
                            says(from, PolicyDirection::Egress) && says(to, PolicyDirection::Ingress)
                        };
                        let (was, is) = (allows(&old), allows(&new));
                        let expected = (was != is).then_some(is);
                        let at = || format!("case {}: {} to {}, {packet:?}", case.number, from.name, to.name);
                        assert_eq!(said(&comparison, from, to, &packet), expected, "{}", at());
                        if was == is { same += 1 } else { changed += 1 }
                    }
                }
            }
        }
    }
    assert!(changed > 1000 && same > 1000, "{changed} changed, {same} did not");
}
