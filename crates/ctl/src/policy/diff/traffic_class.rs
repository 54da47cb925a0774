//! Partitions all traffic into classes that no rule distinguishes: all ports between two ports that rules
//! mention are equivalent.

use super::subject::{PlanState, rules};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_plan::evaluate::Packet;
use tortie_plan::{PlannedRule, SetMember};

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
    pub fn packet(&self, source: IpAddr, destination: IpAddr, spare: &UnusedIcmp) -> Option<Packet> {
        let packet = |protocol| Packet {
            source,
            destination,
            protocol,
            source_port: 0,
            destination_port: 0,
            icmp: None,
        };
        let own_icmp = if source.is_ipv4() { Packet::ICMP } else { Packet::ICMPV6 };
        Some(match *self {
            TrafficClass::Ports { protocol, first, .. } => {
                Packet { source_port: PROBE_SOURCE_PORT, destination_port: first, ..packet(protocol) }
            }
            TrafficClass::Icmp(Some((kind, code))) => {
                Packet { icmp: Some((kind, code.unwrap_or(spare.code))), ..packet(own_icmp) }
            }
            TrafficClass::Icmp(None) => Packet { icmp: Some((spare.kind, 0)), ..packet(own_icmp) },
            TrafficClass::Protocol(protocol) => packet(protocol),
            TrafficClass::OtherProtocols => packet(UNASSIGNED_PROTOCOL),
        })
    }
}

/// An ICMP type and a code that no rule mentions.
#[derive(Clone, Copy, Debug)]
pub struct UnusedIcmp {
    pub kind: u8,
    pub code: u8,
}

pub fn classes(states: &[&PlanState<'_>]) -> (Vec<TrafficClass>, UnusedIcmp) {
    let all = || states.iter().flat_map(|state| rules(state.plan));
    let mut classes = Vec::new();
    let mentioned: BTreeSet<u8> =
        all().flat_map(|rule| [rule.protocol, rule.not_protocol]).flatten().collect();
    for protocol in PROTOCOLS_WITH_PORTS {
        if [Packet::TCP, Packet::UDP].contains(&protocol) || mentioned.contains(&protocol) {
            classes.extend(ports(states, protocol));
        }
    }
    let icmp: BTreeSet<(u8, Option<u8>)> = all()
        .flat_map(|rule| [rule.icmp, rule.not_icmp])
        .flatten()
        .flat_map(|icmp| [(icmp.r#type, None), (icmp.r#type, icmp.code)])
        .collect();
    let spare = |used: BTreeSet<u8>| (0..=254).find(|number| !used.contains(number)).unwrap_or(254);
    let spare = UnusedIcmp {
        kind: spare(icmp.iter().map(|(kind, _)| *kind).collect()),
        code: spare(icmp.iter().filter_map(|(_, code)| *code).collect()),
    };
    classes.extend(icmp.into_iter().map(|icmp| TrafficClass::Icmp(Some(icmp))));
    classes.push(TrafficClass::Icmp(None));
    let plain = |protocol: &u8| {
        !PROTOCOLS_WITH_PORTS.contains(protocol)
            && ![Packet::ICMP, Packet::ICMPV6, UNASSIGNED_PROTOCOL].contains(protocol)
    };
    classes.extend(mentioned.into_iter().filter(plain).map(TrafficClass::Protocol));
    classes.push(TrafficClass::OtherProtocols);
    (classes, spare)
}

/// Returns the port ranges of a protocol, split wherever a port range of a rule, a named port or a failsafe
/// port begins or ends.
fn ports(states: &[&PlanState<'_>], protocol: u8) -> Vec<TrafficClass> {
    let concerns = |rule: &&PlannedRule| rule.protocol.is_none_or(|wanted| wanted == protocol);
    // Each class begins at one of these.
    let mut starts: BTreeSet<u32> = BTreeSet::from([1]);
    let mut cut = |first: u16, last: u16| starts.extend([u32::from(first), u32::from(last) + 1]);
    for PlanState { plan, settings, .. } in states {
        if !plan.host_endpoints.is_empty() {
            let safe = settings.failsafe_inbound.iter().chain(&settings.failsafe_outbound);
            safe.filter(|safe| safe.protocol == protocol).for_each(|safe| cut(safe.port, safe.port));
        }
        for rule in rules(plan).filter(concerns) {
            let side = &rule.destination;
            side.ports.iter().chain(&side.not_ports).for_each(|range| cut(range.first, range.last));
        }
        for member in plan.sets.values().flat_map(|set| &set.members) {
            match member {
                SetMember::Port { protocol: own, port, .. } if *own == protocol => cut(*port, *port),
                _ => {}
            }
        }
    }
    let starts: Vec<u16> = starts.into_iter().filter_map(|port| u16::try_from(port).ok()).collect();
    let starts: Vec<u16> = starts.into_iter().filter(|port| *port > 0).collect();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
    starts.iter().zip(ends).map(|(&first, last)| TrafficClass::Ports { protocol, first, last }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::cluster::EnforcedPlan;
    use std::sync::Arc;
    use tortie_plan::{
        DataplaneSettings, NodePlan, PlannedPolicy, PolicyId, PolicyKind, PortInterval, RuleAction,
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
