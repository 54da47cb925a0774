//! Partitions all traffic into classes that no rule distinguishes: all ports between two ports that rules
//! mention are equivalent.

use super::subject::{PlanState, rules};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_plan::SetMember;
use tortie_plan::evaluate::Packet;

/// Source port of all packets: source ports are not distinguished.
const PROBE_SOURCE_PORT: u16 = 49152;
/// Protocols that have ports.
const PROTOCOLS_WITH_PORTS: [u8; 4] = [Packet::TCP, Packet::UDP, Packet::SCTP, Packet::UDPLITE];
/// An unassigned protocol number that represents all protocols that no rule mentions.
const UNASSIGNED_PROTOCOL: u8 = 253;

/// Traffic that no rule distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficClass {
    Ports {
        protocol: u8,
        first: u16,
        last: u16,
    },
    /// Type and code; `None` represents all types that no rule mentions.
    Icmp(Option<(u8, Option<u8>)>),
    Protocol(u8),
    OtherProtocols,
}

impl TrafficClass {
    /// Returns a packet that represents the class; `None` if the address family has no such traffic.
    pub fn packet(&self, source: IpAddr, destination: IpAddr, unused: &UnusedIcmp) -> Option<Packet> {
        let own_icmp = if source.is_ipv4() { Packet::ICMP } else { Packet::ICMPV6 };
        let mut packet = Packet {
            source,
            destination,
            protocol: own_icmp,
            source_port: 0,
            destination_port: 0,
            icmp: None,
        };
        match *self {
            TrafficClass::Ports { protocol, first, .. } => {
                packet.protocol = protocol;
                packet.source_port = PROBE_SOURCE_PORT;
                packet.destination_port = first;
            }
            TrafficClass::Icmp(Some((kind, code))) => packet.icmp = Some((kind, code.unwrap_or(unused.code))),
            TrafficClass::Icmp(None) => packet.icmp = Some((unused.kind, 0)),
            TrafficClass::Protocol(protocol) => packet.protocol = protocol,
            TrafficClass::OtherProtocols => packet.protocol = UNASSIGNED_PROTOCOL,
        }
        Some(packet)
    }
}

/// An ICMP type and a code that no rule mentions.
#[derive(Clone, Copy, Debug)]
pub struct UnusedIcmp {
    pub kind: u8,
    pub code: u8,
}

pub fn classes(states: &[&PlanState<'_>]) -> (Vec<TrafficClass>, UnusedIcmp) {
    let mut mentioned: BTreeSet<u8> = BTreeSet::new();
    let mut icmp: BTreeSet<(u8, Option<u8>)> = BTreeSet::new();
    for rule in states.iter().flat_map(|state| rules(state.plan)) {
        mentioned.extend([rule.protocol, rule.not_protocol].into_iter().flatten());
        for criterion in [rule.icmp, rule.not_icmp].into_iter().flatten() {
            icmp.extend([(criterion.r#type, None), (criterion.r#type, criterion.code)]);
        }
    }
    let mut classes = Vec::new();
    for protocol in PROTOCOLS_WITH_PORTS {
        if [Packet::TCP, Packet::UDP].contains(&protocol) || mentioned.contains(&protocol) {
            classes.extend(ports(states, protocol));
        }
    }
    let unused = UnusedIcmp {
        kind: find_first_unused(icmp.iter().map(|(kind, _)| *kind).collect()),
        code: find_first_unused(icmp.iter().filter_map(|(_, code)| *code).collect()),
    };
    classes.extend(icmp.into_iter().map(|icmp| TrafficClass::Icmp(Some(icmp))));
    classes.push(TrafficClass::Icmp(None));
    mentioned.retain(|protocol| {
        !PROTOCOLS_WITH_PORTS.contains(protocol)
            && ![Packet::ICMP, Packet::ICMPV6, UNASSIGNED_PROTOCOL].contains(protocol)
    });
    classes.extend(mentioned.into_iter().map(TrafficClass::Protocol));
    classes.push(TrafficClass::OtherProtocols);
    (classes, unused)
}

fn find_first_unused(used: BTreeSet<u8>) -> u8 {
    (0..=254).find(|number| !used.contains(number)).unwrap_or(254)
}

/// Returns the port ranges of a protocol, split wherever a port range of a rule, a named port or a failsafe
/// port begins or ends.
fn ports(states: &[&PlanState<'_>], protocol: u8) -> Vec<TrafficClass> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for PlanState { plan, settings, .. } in states {
        if !plan.host_endpoints.is_empty() {
            let failsafes = settings.failsafe_inbound.iter().chain(&settings.failsafe_outbound);
            let own = failsafes.filter(|failsafe| failsafe.protocol == protocol);
            ranges.extend(own.map(|failsafe| (failsafe.port, failsafe.port)));
        }
        for rule in rules(plan).filter(|rule| rule.protocol.is_none_or(|wanted| wanted == protocol)) {
            let side = &rule.destination;
            ranges.extend(side.ports.iter().chain(&side.not_ports).map(|range| (range.first, range.last)));
        }
        for member in plan.sets.values().flat_map(|set| &set.members) {
            match member {
                SetMember::Port { protocol: own, port, .. } if *own == protocol => {
                    ranges.push((*port, *port))
                }
                _ => {}
            }
        }
    }
    // Each class begins at the start of a range, or after its end.
    let mut starts: BTreeSet<u16> = BTreeSet::from([1]);
    for (first, last) in ranges {
        starts.insert(first);
        starts.extend(last.checked_add(1));
    }
    starts.remove(&0);
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
    starts.iter().zip(ends).map(|(&first, last)| TrafficClass::Ports { protocol, first, last }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::cluster::EnforcedPlan;
    use std::sync::Arc;
    use tortie_plan::{
        DataplaneSettings, NodePlan, PlannedPolicy, PlannedRule, PolicyId, PolicyKind, PortInterval,
        RuleAction,
    };

    #[test]
    fn ports_are_cut_where_rules_cut_them() {
        let mut rule = PlannedRule { protocol: Some(Packet::TCP), ..PlannedRule::new(RuleAction::Allow) };
        rule.destination.ports =
            vec![PortInterval { first: 80, last: 80 }, PortInterval { first: 8000, last: 65535 }];
        let policy = PlannedPolicy { ingress: vec![rule], ..PlannedPolicy::default() };
        let id =
            PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name: "a".into() };
        let mut plan = NodePlan::default();
        plan.policies.insert(id, Arc::new(policy));
        let enforced = EnforcedPlan { plan, settings: DataplaneSettings::default() };
        let (classes, _) = classes(&[&PlanState::new(&enforced)]);
        let of = |wanted: u8| -> Vec<(u16, u16)> {
            classes
                .iter()
                .filter_map(|class| match class {
                    TrafficClass::Ports { protocol, first, last } if *protocol == wanted => {
                        Some((*first, *last))
                    }
                    _ => None,
                })
                .collect()
        };
        assert_eq!(of(Packet::TCP), [(1, 79), (80, 80), (81, 7999), (8000, 65535)]);
        assert_eq!(of(Packet::UDP), [(1, 65535)]);
        assert_eq!(of(Packet::SCTP), []);
    }
}
