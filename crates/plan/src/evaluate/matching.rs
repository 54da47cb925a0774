//! Matches packets against rules and reports the criteria that a packet does not meet.

use super::index::{AddressSets, EvaluationIndex};
use super::packet::Packet;
use super::request::{PeerIdentity, ProxiedTraffic, RequestContext};
use crate::policy::{
    HttpMatch, IcmpMatch, IpVersion, PeerMatch, PlannedRule, PortInterval, RuleAction, RuleSide,
};
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
    /// The method or the path of a request.
    HttpRequest(&'p HttpMatch),
    /// Conditions on HTTP requests, for a connection that a proxy does not parse as HTTP.
    HttpConnection,
    /// The authenticated identity of one end.
    Peer(PacketEnd, &'p PeerMatch),
}

/// The traffic that rules are compared with.
#[derive(Clone, Copy)]
pub(super) struct RuleSubject<'s> {
    pub packet: &'s Packet,
    /// The endpoint has a proxy that enforces HTTP conditions on the connections that the kernel passes to it.
    pub http_proxy: bool,
    /// Present if the proxy asks; absent if the kernel decides about a connection.
    pub request: Option<&'s RequestContext<'s>>,
}

impl<'s> RuleSubject<'s> {
    /// Returns the subject of the kernel's decision about a connection.
    pub fn connection(packet: &'s Packet, http_proxy: bool) -> RuleSubject<'s> {
        RuleSubject { packet, http_proxy, request: None }
    }
}

impl<'p> EvaluationIndex<'p> {
    /// Returns whether a rule matches. `namespace` is that of its policy, or empty.
    pub(super) fn matches(&self, rule: &'p PlannedRule, namespace: &str, subject: &RuleSubject<'_>) -> bool {
        self.check(rule, namespace, subject, &mut |_| ControlFlow::Break(())).is_continue()
    }

    /// Returns all criteria of a rule that the traffic does not meet.
    pub(super) fn misses(
        &self,
        rule: &'p PlannedRule,
        namespace: &str,
        subject: &RuleSubject<'_>,
    ) -> Vec<RuleCriterion<'p>> {
        let mut misses = Vec::new();
        let _ = self.check(rule, namespace, subject, &mut |criterion| {
            misses.push(criterion);
            ControlFlow::Continue(())
        });
        misses
    }

    fn check(
        &self,
        rule: &'p PlannedRule,
        namespace: &str,
        subject: &RuleSubject<'_>,
        missed: &mut MissCallback<'_, 'p>,
    ) -> ControlFlow<()> {
        let packet = subject.packet;
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
        match subject.request {
            Some(request) => check_request(rule, namespace, request, missed),
            None if rule.needs_proxy() && !subject.http_proxy => missed(RuleCriterion::Http),
            None => ControlFlow::Continue(()),
        }
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

    /// Returns whether the port at one end of a packet is in one of the ranges or sets.
    fn match_port(&self, ranges: &[PortInterval], named: &[SetId], end: PacketEnd, packet: &Packet) -> bool {
        let (address, port) = address_and_port(packet, end);
        packet.has_ports()
            && (ranges.iter().any(|range| range.first <= port && port <= range.last)
                || named.iter().any(|set| self.has_port(set, address, packet.protocol, port)))
    }
}

/// Checks the conditions that only a proxy can check.
fn check_request<'p>(
    rule: &'p PlannedRule,
    namespace: &str,
    request: &RequestContext<'_>,
    missed: &mut MissCallback<'_, 'p>,
) -> ControlFlow<()> {
    check_peer(&rule.source, PacketEnd::Source, request.source, namespace, missed)?;
    check_peer(&rule.destination, PacketEnd::Destination, request.destination, namespace, missed)?;
    let Some(http) = rule.http.as_deref() else { return ControlFlow::Continue(()) };
    match request.traffic {
        ProxiedTraffic::Request(request) if !request.satisfies(http, rule.action) => {
            missed(RuleCriterion::HttpRequest(http))
        }
        // A rule that denies must not deny less than its author wrote.
        ProxiedTraffic::Connection
            if !request.http_rules_match_connections && rule.action != RuleAction::Deny =>
        {
            missed(RuleCriterion::HttpConnection)
        }
        ProxiedTraffic::Request(_) | ProxiedTraffic::Connection => ControlFlow::Continue(()),
    }
}

fn check_peer<'p>(
    side: &'p RuleSide,
    end: PacketEnd,
    identity: Option<&dyn PeerIdentity>,
    namespace: &str,
    missed: &mut MissCallback<'_, 'p>,
) -> ControlFlow<()> {
    match (side.peer.as_deref(), identity) {
        (Some(peer), Some(identity)) if !identity.matches(peer, namespace) => {
            missed(RuleCriterion::Peer(end, peer))
        }
        _ => ControlFlow::Continue(()),
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
