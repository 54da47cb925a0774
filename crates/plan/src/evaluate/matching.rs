//! Matches packets against rules and reports the criteria that a packet does not meet.

use super::index::Index;
use super::packet::Packet;
use crate::policy::{Icmp, IpVersion, PortRange, Rule, Side};
use crate::set::SetId;
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::ControlFlow;

/// The source or the destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    Source,
    Destination,
}

/// One condition of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion<'p> {
    IpVersion(IpVersion),
    Protocol(u8),
    NotProtocol(u8),
    Icmp(Icmp),
    NotIcmp(Icmp),
    Nets(End, &'p [IpNet]),
    NotNets(End, &'p [IpNet]),
    /// A list without nets of the packet's family: the rule does not apply to this family.
    Family(End, &'p [IpNet]),
    Set(End, &'p SetId),
    NotSet(End, &'p SetId),
    /// Port ranges and sets of named ports.
    Ports(End, &'p [PortRange], &'p [SetId]),
    NotPorts(End, &'p [PortRange], &'p [SetId]),
    Service(End, &'p SetId),
}

impl<'p> Index<'p> {
    pub fn matches(&self, rule: &'p Rule, packet: &Packet) -> bool {
        self.check(rule, packet, &mut |_| ControlFlow::Break(())).is_continue()
    }

    /// Returns all criteria of a rule that the packet does not meet.
    pub fn misses(&self, rule: &'p Rule, packet: &Packet) -> Vec<Criterion<'p>> {
        let mut misses = Vec::new();
        let _ = self.check(rule, packet, &mut |criterion| {
            misses.push(criterion);
            ControlFlow::Continue(())
        });
        misses
    }

    fn check(&self, rule: &'p Rule, packet: &Packet, missed: &mut Missed<'_, 'p>) -> ControlFlow<()> {
        if let Some(version) = rule.ip_version.filter(|version| *version != packet.version()) {
            missed(Criterion::IpVersion(version))?;
        }
        if let Some(protocol) = rule.protocol.filter(|protocol| *protocol != packet.protocol) {
            missed(Criterion::Protocol(protocol))?;
        }
        if let Some(protocol) = rule.not_protocol.filter(|protocol| *protocol == packet.protocol) {
            missed(Criterion::NotProtocol(protocol))?;
        }
        if let Some(icmp) = rule.icmp.filter(|icmp| !packet.is_icmp(icmp)) {
            missed(Criterion::Icmp(icmp))?;
        }
        // A packet that is not ICMP does not match a negated ICMP type either.
        if let Some(icmp) = rule.not_icmp.filter(|icmp| packet.own_icmp().is_none() || packet.is_icmp(icmp)) {
            missed(Criterion::NotIcmp(icmp))?;
        }
        self.check_side(&rule.source, End::Source, packet, missed)?;
        self.check_side(&rule.destination, End::Destination, packet, missed)
    }

    fn check_side(
        &self,
        side: &'p Side,
        end: End,
        packet: &Packet,
        missed: &mut Missed<'_, 'p>,
    ) -> ControlFlow<()> {
        let (address, port) = match end {
            End::Source => (packet.source, packet.source_port),
            End::Destination => (packet.destination, packet.destination_port),
        };
        let has = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&address));
        if of_another_family(&side.nets, address) {
            missed(Criterion::Family(end, &side.nets))?;
        } else if !side.nets.is_empty() && !has(&side.nets) {
            missed(Criterion::Nets(end, &side.nets))?;
        }
        if of_another_family(&side.not_nets, address) {
            missed(Criterion::Family(end, &side.not_nets))?;
        } else if has(&side.not_nets) {
            missed(Criterion::NotNets(end, &side.not_nets))?;
        }
        for set in side.sets.iter().filter(|set| !self.has_address(set, address)) {
            missed(Criterion::Set(end, set))?;
        }
        for set in side.not_sets.iter().filter(|set| self.has_address(set, address)) {
            missed(Criterion::NotSet(end, set))?;
        }
        let has = |ranges: &[PortRange], named: &[SetId]| {
            packet.has_ports()
                && (ranges.iter().any(|range| range.first <= port && port <= range.last)
                    || named.iter().any(|set| self.has_port(set, address, packet.protocol, port)))
        };
        let (ranges, named) = (&side.ports, &side.named_ports);
        let restricted = !ranges.is_empty() || !named.is_empty();
        if restricted && !has(ranges, named) {
            missed(Criterion::Ports(end, ranges, named))?;
        }
        if has(&side.not_ports, &side.not_named_ports) {
            missed(Criterion::NotPorts(end, &side.not_ports, &side.not_named_ports))?;
        }
        if let Some(set) = side.service.as_ref() {
            let listed = packet.has_ports() && self.has_port(set, address, packet.protocol, port);
            // The service in the source of an ingress rule is a set of addresses without ports.
            if !listed && !self.has_address(set, address) {
                missed(Criterion::Service(end, set))?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// Callback for each criterion that is not met; it breaks if one is enough.
type Missed<'m, 'p> = dyn FnMut(Criterion<'p>) -> ControlFlow<()> + 'm;

fn of_another_family(nets: &[IpNet], address: IpAddr) -> bool {
    !nets.is_empty() && nets.iter().all(|net| net.addr().is_ipv4() != address.is_ipv4())
}
