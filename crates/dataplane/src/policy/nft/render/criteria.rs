//! Converts the criteria of a policy rule into lists of matches. A kernel rule can only express a conjunction, so a
//! policy rule becomes one kernel rule for each alternative. A packet that matches one of them leaves the chain, except
//! for Log rules: their alternatives exclude each other, so that no packet is logged twice.

use super::super::ranges;
use super::super::rule::{NftFamily, NftField, NftMatch, NftTest};
use super::dispatch::PROTOCOLS_WITH_PORTS;
use super::names;
use super::{KnownSets, PolicyStage};
use tortie_plan::{IcmpMatch, IpVersion, PlannedRule, PolicyDirection, RuleAction, RuleSide, SetId, SetKind};

/// Conjunction of matches.
type MatchConjunction = Vec<NftMatch>;

/// Returns the alternatives in which a packet can match; each becomes a kernel rule.
pub(super) fn alternatives(
    rule: &PlannedRule,
    direction: PolicyDirection,
    stage: PolicyStage,
    sets: &KnownSets,
) -> Vec<MatchConjunction> {
    // Only workloads have proxies, and their policies have no other stage.
    if rule.needs_proxy() && stage != PolicyStage::Normal {
        return Vec::new();
    }
    let mut found: Vec<MatchConjunction> = if is_of_any_family(rule) {
        of_family(rule, None, sets)
    } else {
        NftFamily::BOTH.into_iter().flat_map(|family| of_family(rule, Some(family), sets)).collect()
    };
    if rule.needs_proxy() {
        found.iter_mut().for_each(|all| all.push(has_proxy(direction)));
    }
    found
}

/// Returns the condition that the workload whose policy is evaluated has a proxy. Its interface is the egress interface
/// of packets to it and the ingress interface of packets from it. Where policy of the host itself is evaluated, these
/// are interfaces of the host, or none.
fn has_proxy(direction: PolicyDirection) -> NftMatch {
    let field = match direction {
        PolicyDirection::Ingress => NftField::OutInterface,
        PolicyDirection::Egress => NftField::InInterface,
    };
    NftMatch::lookup([field], names::PROXIED_WORKLOADS_SET)
}

/// Returns whether the criteria are the same for IPv4 and IPv6.
fn is_of_any_family(rule: &PlannedRule) -> bool {
    rule.ip_version.is_none()
        && rule.icmp.is_none()
        && rule.not_icmp.is_none()
        && rule.sets().next().is_none()
        && [&rule.source, &rule.destination]
            .iter()
            .all(|side| side.nets.is_empty() && side.not_nets.is_empty())
}

fn of_family(rule: &PlannedRule, family: Option<NftFamily>, sets: &KnownSets) -> Vec<MatchConjunction> {
    let other = match family {
        Some(NftFamily::V4) => Some(IpVersion::V6),
        Some(NftFamily::V6) => Some(IpVersion::V4),
        None => None,
    };
    if rule.ip_version.is_some() && rule.ip_version == other {
        return Vec::new();
    }
    // A match on an ICMP type implies the protocol ICMP.
    let icmp = family.filter(|_| rule.icmp.is_some() || rule.not_icmp.is_some()).map(NftFamily::icmp);
    if icmp.is_some() && rule.protocol.is_some() && rule.protocol != icmp {
        return Vec::new();
    }
    let protocol = rule.protocol.or(icmp);
    let found = vec![family.map(NftMatch::family).into_iter().collect()];
    let mut matcher = RuleAlternatives { sets, rule, family, protocol, found };
    if let Some(protocol) = protocol {
        matcher.and(NftMatch::is(NftField::Protocol, [protocol]));
    }
    if let Some(protocol) = rule.not_protocol {
        matcher.and(NftMatch::is(NftField::Protocol, [protocol]).not());
    }
    matcher.icmp();
    matcher.ports(&rule.source, NftField::SourcePort);
    matcher.ports(&rule.destination, NftField::DestinationPort);
    if let Some(family) = family {
        matcher.addresses(&rule.source, family, NftField::Source(family), NftField::SourcePort);
        matcher.addresses(
            &rule.destination,
            family,
            NftField::Destination(family),
            NftField::DestinationPort,
        );
    }
    matcher.found
}

struct RuleAlternatives<'r> {
    sets: &'r KnownSets,
    rule: &'r PlannedRule,
    family: Option<NftFamily>,
    /// The only protocol that can match.
    protocol: Option<u8>,
    found: Vec<MatchConjunction>,
}

impl RuleAlternatives<'_> {
    fn and(&mut self, condition: NftMatch) {
        self.found.iter_mut().for_each(|all| all.push(condition.clone()));
    }

    fn never(&mut self) {
        self.found.clear();
    }

    /// Requires one of these alternatives.
    fn either(&mut self, alternatives: &[MatchConjunction]) {
        for all in std::mem::take(&mut self.found) {
            for alternative in alternatives {
                self.found.push(all.iter().chain(alternative).cloned().collect());
            }
        }
    }

    /// Requires one of these conditions. For Log rules they are made mutually exclusive, as a packet would otherwise be
    /// logged twice.
    fn any(&mut self, conditions: &[NftMatch]) {
        let exclusive = self.rule.action == RuleAction::Log;
        let alternatives: Vec<MatchConjunction> = conditions
            .iter()
            .enumerate()
            .map(|(last, condition)| {
                let before = conditions.iter().take(if exclusive { last } else { 0 });
                before.map(|other| other.clone().not()).chain([condition.clone()]).collect()
            })
            .collect();
        self.either(&alternatives);
    }

    fn icmp(&mut self) {
        if let Some(IcmpMatch { r#type, code }) = self.rule.icmp {
            self.and(NftMatch::is(NftField::IcmpType, [r#type]));
            if let Some(code) = code {
                self.and(NftMatch::is(NftField::IcmpCode, [code]));
            }
        }
        if let Some(IcmpMatch { r#type, code }) = self.rule.not_icmp {
            let kind = NftMatch::is(NftField::IcmpType, [r#type]);
            let mut alternatives = vec![vec![kind.clone().not()]];
            if let Some(code) = code {
                alternatives.push(vec![kind, NftMatch::is(NftField::IcmpCode, [code]).not()]);
            }
            self.either(&alternatives);
        }
    }

    /// Returns whether matching packets have ports; `None` if the protocol is not restricted.
    fn has_ports(&self) -> Option<bool> {
        self.protocol.map(|protocol| PROTOCOLS_WITH_PORTS.contains(&protocol))
    }

    fn ports(&mut self, side: &RuleSide, port: NftField) {
        let has_ports =
            NftMatch::new(NftField::Protocol, NftTest::Within(ranges::from_bytes(&PROTOCOLS_WITH_PORTS)));
        let known = self.has_ports();
        if !(side.ports.is_empty() && side.named_ports.is_empty()) {
            match known {
                Some(true) => {}
                Some(false) => return self.never(),
                None => self.and(has_ports.clone()),
            }
            let mut conditions = Vec::new();
            let ranges = ranges::from_ports(&side.ports);
            if !ranges.is_empty() {
                conditions.push(NftMatch::new(port, NftTest::Within(ranges)));
            }
            conditions.extend(self.named(&side.named_ports, port));
            self.any(&conditions);
        }
        let mut excluded = Vec::new();
        let ranges = ranges::from_ports(&side.not_ports);
        if !ranges.is_empty() {
            excluded.push(NftMatch::new(port, NftTest::Within(ranges)).not());
        }
        excluded.extend(self.named(&side.not_named_ports, port).into_iter().map(NftMatch::not));
        match known {
            _ if excluded.is_empty() => {}
            Some(true) => excluded.into_iter().for_each(|condition| self.and(condition)),
            // A packet without ports has none of the excluded ones.
            Some(false) => {}
            None => {
                let without = vec![has_ports.clone().not()];
                self.either(&[without, [has_ports].into_iter().chain(excluded).collect()]);
            }
        }
    }

    /// Returns lookups in sets of named ports.
    fn named(&self, ids: &[SetId], port: NftField) -> Vec<NftMatch> {
        let Some(family) = self.family else { return Vec::new() };
        let there = ids.iter().filter(|id| self.sets.kind(id) == Some(SetKind::Ports));
        there.map(|id| endpoint_lookup(id, family, port)).collect()
    }

    fn addresses(&mut self, side: &RuleSide, family: NftFamily, address: NftField, port: NftField) {
        if !side.nets.is_empty() {
            let ranges = ranges::from_nets(&side.nets, family);
            if ranges.is_empty() {
                return self.never();
            }
            self.and(NftMatch::new(address, NftTest::Within(ranges)));
        }
        if !side.not_nets.is_empty() {
            let ranges = ranges::from_nets(&side.not_nets, family);
            if ranges.is_empty() {
                return self.never();
            }
            self.and(NftMatch::new(address, NftTest::Within(ranges)).not());
        }
        for id in &side.sets {
            let lookups = self.address_lookups(id, family, address);
            self.any(&lookups);
        }
        for id in &side.not_sets {
            let lookups = self.address_lookups(id, family, address);
            lookups.into_iter().for_each(|lookup| self.and(lookup.not()));
        }
        if let Some(id) = &side.service {
            match self.sets.kind(id) {
                Some(SetKind::Ports) => {
                    match self.has_ports() {
                        Some(true) => {}
                        Some(false) => return self.never(),
                        None => {
                            let ports = NftTest::Within(ranges::from_bytes(&PROTOCOLS_WITH_PORTS));
                            self.and(NftMatch::new(NftField::Protocol, ports));
                        }
                    }
                    self.and(endpoint_lookup(id, family, port));
                }
                _ => {
                    let lookups = self.address_lookups(id, family, address);
                    self.any(&lookups);
                }
            }
        }
    }

    /// Returns lookups in the kernel's sets that together represent a set of nets; empty if the set does not exist.
    fn address_lookups(&self, id: &SetId, family: NftFamily, address: NftField) -> Vec<NftMatch> {
        if self.sets.kind(id) != Some(SetKind::Nets) {
            return Vec::new();
        }
        let mut lookups = vec![NftMatch::lookup([address], names::set(id, family))];
        if self.sets.has_nets(id, family) {
            lookups.push(NftMatch::lookup([address], names::nets(id, family)));
        }
        lookups
    }
}

/// Returns a lookup of the address, protocol and port of one end.
fn endpoint_lookup(id: &SetId, family: NftFamily, port: NftField) -> NftMatch {
    let address = match port {
        NftField::SourcePort => NftField::Source(family),
        _ => NftField::Destination(family),
    };
    NftMatch::lookup([address, NftField::Protocol, port], names::set(id, family))
}
