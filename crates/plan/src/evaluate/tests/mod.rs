//! Tests of Calico's policy semantics on hand-written plans.

mod matches;
mod nodes;
mod requests;
mod tiers;

use super::*;
use crate::*;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn global(name: &str) -> PolicyId {
    PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name: name.into() }
}

pub fn staged(name: &str) -> PolicyId {
    PolicyId { kind: PolicyKind::StagedGlobalNetworkPolicy, ..global(name) }
}

pub fn allow() -> PlannedRule {
    PlannedRule::new(RuleAction::Allow)
}

pub fn to_port(action: RuleAction, protocol: u8, port: u16) -> PlannedRule {
    let mut rule = PlannedRule { protocol: Some(protocol), ..PlannedRule::new(action) };
    rule.destination.ports = vec![PortInterval { first: port, last: port }];
    rule
}

pub fn deny() -> PlannedRule {
    PlannedRule::new(RuleAction::Deny)
}

/// Returns a policy with the same rules in both directions.
pub fn policy(rules: &[PlannedRule]) -> Arc<PlannedPolicy> {
    Arc::new(PlannedPolicy { ingress: rules.to_vec(), egress: rules.to_vec(), ..PlannedPolicy::default() })
}

pub fn profile(rules: &[PlannedRule]) -> Arc<ProfileRules> {
    Arc::new(ProfileRules { ingress: rules.to_vec(), egress: rules.to_vec() })
}

/// Returns a tier whose policies apply to both directions.
pub fn tier(name: &str, end: TierDefaultAction, policies: &[PolicyId]) -> EndpointTier {
    EndpointTier { name: name.into(), end, ingress: policies.into(), egress: policies.into() }
}

pub fn tcp(source: &str, destination: &str, port: u16) -> Packet {
    let (source, destination) = (address(source), address(destination));
    let (source_port, destination_port) = (40000, port);
    Packet { source, destination, protocol: Packet::TCP, source_port, destination_port, icmp: None }
}

pub fn udp(source: &str, destination: &str, port: u16) -> Packet {
    Packet { protocol: Packet::UDP, ..tcp(source, destination, port) }
}

/// Returns a packet without ports.
pub fn plain(protocol: u8, source: &str, destination: &str) -> Packet {
    Packet { protocol, source_port: 0, ..tcp(source, destination, 0) }
}

pub fn icmp(source: &str, destination: &str, kind: u8, code: u8) -> Packet {
    let protocol = if destination.contains(':') { Packet::ICMPV6 } else { Packet::ICMP };
    Packet { icmp: Some((kind, code)), ..plain(protocol, source, destination) }
}

pub fn set_of_nets(plan: &mut NodePlan, name: &str, nets: &[&str]) -> SetId {
    let members: BTreeSet<SetMember> = nets.iter().map(|text| SetMember::Net(net(text))).collect();
    plan.sets.insert(SetId::new(name), AddressSet { kind: SetKind::Nets, members });
    SetId::new(name)
}

pub fn set_of_ports(plan: &mut NodePlan, name: &str, ports: &[(&str, u8, u16)]) -> SetId {
    let member = |(text, protocol, port): &(&str, u8, u16)| SetMember::Port {
        address: address(text),
        protocol: *protocol,
        port: *port,
    };
    let members = ports.iter().map(member).collect();
    plan.sets.insert(SetId::new(name), AddressSet { kind: SetKind::Ports, members });
    SetId::new(name)
}
