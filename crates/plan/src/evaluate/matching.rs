//! Matches packets against rules and reports the criteria that a packet does not meet.

use super::index::EvaluationIndex;
use super::packet::Packet;
use crate::policy::{IcmpMatch, IpVersion, PlannedRule, PortInterval, RuleSide};
use crate::set::SetId;
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::ControlFlow;

/// The source or the destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PacketEnd {
    Source,
    Destination,
}

/// One condition of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleCriterion<'p> {
    IpVersion(IpVersion),
    Protocol(u8),
    NotProtocol(u8),
    Icmp(IcmpMatch),
    NotIcmp(IcmpMatch),
    Nets(PacketEnd, &'p [IpNet]),
    NotNets(PacketEnd, &'p [IpNet]),
    /// A list without nets of the packet's family: the rule does not apply to this family.
    Family(PacketEnd, &'p [IpNet]),
    Set(PacketEnd, &'p SetId),
    NotSet(PacketEnd, &'p SetId),
    /// Port ranges and sets of named ports.
    Ports(PacketEnd, &'p [PortInterval], &'p [SetId]),
    NotPorts(PacketEnd, &'p [PortInterval], &'p [SetId]),
    Service(PacketEnd, &'p SetId),
    /// Conditions on HTTP requests, at an endpoint without a proxy that could check them.
    Http,
}

impl<'p> EvaluationIndex<'p> {
    pub fn matches(&self, rule: &'p PlannedRule, packet: &Packet) -> bool {
        self.check(rule, packet, &mut |_| ControlFlow::Break(())).is_continue()
    }

    /// Returns all criteria of a rule that the packet does not meet.
    pub fn misses(&self, rule: &'p PlannedRule, packet: &Packet) -> Vec<RuleCriterion<'p>> {
        let mut misses = Vec::new();
        let _ = self.check(rule, packet, &mut |criterion| {
            misses.push(criterion);
            ControlFlow::Continue(())
        });
        misses
    }

    fn check(
        &self,
        rule: &'p PlannedRule,
        packet: &Packet,
        missed: &mut MissCallback<'_, 'p>,
    ) -> ControlFlow<()> {
        if let Some(version) = rule.ip_version.filter(|version| *version != packet.version()) {
            missed(RuleCriterion::IpVersion(version))?;
        }
        if let Some(protocol) = rule.protocol.filter(|protocol| *protocol != packet.protocol) {
            missed(RuleCriterion::Protocol(protocol))?;
        }
        if let Some(protocol) = rule.not_protocol.filter(|protocol| *protocol == packet.protocol) {
            missed(RuleCriterion::NotProtocol(protocol))?;
        }
        if let Some(icmp) = rule.icmp.filter(|icmp| !packet.is_icmp(icmp)) {
            missed(RuleCriterion::Icmp(icmp))?;
        }
        // A packet that is not ICMP does not match a negated ICMP type either.
        if let Some(icmp) = rule.not_icmp.filter(|icmp| packet.own_icmp().is_none() || packet.is_icmp(icmp)) {
            missed(RuleCriterion::NotIcmp(icmp))?;
        }
        self.check_side(&rule.source, PacketEnd::Source, packet, missed)?;
        self.check_side(&rule.destination, PacketEnd::Destination, packet, missed)?;
        if rule.needs_proxy() {
            missed(RuleCriterion::Http)?;
        }
        ControlFlow::Continue(())
    }

    fn check_side(
        &self,
        side: &'p RuleSide,
        end: PacketEnd,
        packet: &Packet,
        missed: &mut MissCallback<'_, 'p>,
    ) -> ControlFlow<()> {
        let (address, port) = address_and_port(packet, end);
        if of_another_family(&side.nets, address) {
            missed(RuleCriterion::Family(end, &side.nets))?;
        } else if !side.nets.is_empty() && !contain_address(&side.nets, address) {
            missed(RuleCriterion::Nets(end, &side.nets))?;
        }
        if of_another_family(&side.not_nets, address) {
            missed(RuleCriterion::Family(end, &side.not_nets))?;
        } else if contain_address(&side.not_nets, address) {
            missed(RuleCriterion::NotNets(end, &side.not_nets))?;
        }
        for set in side.sets.iter().filter(|set| !self.has_address(set, address)) {
            missed(RuleCriterion::Set(end, set))?;
        }
        for set in side.not_sets.iter().filter(|set| self.has_address(set, address)) {
            missed(RuleCriterion::NotSet(end, set))?;
        }
        let restricted = !side.ports.is_empty() || !side.named_ports.is_empty();
        if restricted && !self.match_port(&side.ports, &side.named_ports, end, packet) {
            missed(RuleCriterion::Ports(end, &side.ports, &side.named_ports))?;
        }
        if self.match_port(&side.not_ports, &side.not_named_ports, end, packet) {
            missed(RuleCriterion::NotPorts(end, &side.not_ports, &side.not_named_ports))?;
        }
        if let Some(set) = side.service.as_ref() {
            let listed = packet.has_ports() && self.has_port(set, address, packet.protocol, port);
            // The service in the source of an ingress rule is a set of addresses without ports.
            if !listed && !self.has_address(set, address) {
                missed(RuleCriterion::Service(end, set))?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether the port at one end of a packet is in one of the ranges or sets.
    fn match_port(&self, ranges: &[PortInterval], named: &[SetId], end: PacketEnd, packet: &Packet) -> bool {
        let (address, port) = address_and_port(packet, end);
        packet.has_ports()
            && (ranges.iter().any(|range| range.first <= port && port <= range.last)
                || named.iter().any(|set| self.has_port(set, address, packet.protocol, port)))
    }
}

fn address_and_port(packet: &Packet, end: PacketEnd) -> (IpAddr, u16) {
    match end {
        PacketEnd::Source => (packet.source, packet.source_port),
        PacketEnd::Destination => (packet.destination, packet.destination_port),
    }
}

fn contain_address(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address))
}

/// Callback for each criterion that is not met; it breaks if one is enough.
type MissCallback<'m, 'p> = dyn FnMut(RuleCriterion<'p>) -> ControlFlow<()> + 'm;

fn of_another_family(nets: &[IpNet], address: IpAddr) -> bool {
    !nets.is_empty() && nets.iter().all(|net| net.addr().is_ipv4() != address.is_ipv4())
}
