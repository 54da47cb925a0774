//! Converts the criteria of a policy rule into lists of matches. A kernel rule can only express a conjunction, so a
//! policy rule becomes one kernel rule for each alternative. A packet that matches one of them leaves the chain, except
//! for Log rules: their alternatives exclude each other, so that no packet is logged twice.

use super::super::ranges;
use super::super::rule::{Family, Field, Match, Test};
use super::Sets;
use super::names;
use tortie_plan::{Action, Icmp, IpVersion, Rule, SetId, SetKind, Side};

const WITH_PORTS: [u8; 4] = [6, 17, 132, 136];

/// Conjunction of matches.
type All = Vec<Match>;

/// Returns the alternatives in which a packet can match; each becomes a kernel rule.
pub(super) fn alternatives(rule: &Rule, sets: &Sets) -> Vec<All> {
    if is_of_any_family(rule) {
        return of_family(rule, None, sets);
    }
    Family::BOTH.into_iter().flat_map(|family| of_family(rule, Some(family), sets)).collect()
}

/// Whether the criteria are the same for IPv4 and IPv6.
fn is_of_any_family(rule: &Rule) -> bool {
    let plain = |side: &Side| {
        side.nets.is_empty()
            && side.not_nets.is_empty()
            && side.sets.is_empty()
            && side.not_sets.is_empty()
            && side.named_ports.is_empty()
            && side.not_named_ports.is_empty()
            && side.service.is_none()
    };
    rule.ip_version.is_none()
        && rule.icmp.is_none()
        && rule.not_icmp.is_none()
        && plain(&rule.source)
        && plain(&rule.destination)
}

fn of_family(rule: &Rule, family: Option<Family>, sets: &Sets) -> Vec<All> {
    let other = match family {
        Some(Family::V4) => Some(IpVersion::V6),
        Some(Family::V6) => Some(IpVersion::V4),
        None => None,
    };
    if rule.ip_version.is_some() && rule.ip_version == other {
        return Vec::new();
    }
    // A match on an ICMP type implies the protocol ICMP.
    let icmp = family.filter(|_| rule.icmp.is_some() || rule.not_icmp.is_some()).map(Family::icmp);
    if icmp.is_some() && rule.protocol.is_some() && rule.protocol != icmp {
        return Vec::new();
    }
    let protocol = rule.protocol.or(icmp);
    let found = vec![family.map(Match::family).into_iter().collect()];
    let mut matcher = Alternatives { sets, rule, family, protocol, found };
    if let Some(protocol) = protocol {
        matcher.and(Match::is(Field::Protocol, [protocol]));
    }
    if let Some(protocol) = rule.not_protocol {
        matcher.and(Match::is(Field::Protocol, [protocol]).not());
    }
    matcher.icmp();
    matcher.ports(&rule.source, Field::SourcePort);
    matcher.ports(&rule.destination, Field::DestinationPort);
    if let Some(family) = family {
        matcher.addresses(&rule.source, family, Field::Source(family), Field::SourcePort);
        matcher.addresses(&rule.destination, family, Field::Destination(family), Field::DestinationPort);
    }
    matcher.found
}

struct Alternatives<'r> {
    sets: &'r Sets,
    rule: &'r Rule,
    family: Option<Family>,
    /// The only protocol that can match.
    protocol: Option<u8>,
    found: Vec<All>,
}

impl Alternatives<'_> {
    fn and(&mut self, condition: Match) {
        self.found.iter_mut().for_each(|all| all.push(condition.clone()));
    }

    fn never(&mut self) {
        self.found.clear();
    }

    /// Requires one of these alternatives.
    fn either(&mut self, alternatives: &[All]) {
        let found = std::mem::take(&mut self.found);
        let both = |all: &All, alternative: &All| all.iter().chain(alternative).cloned().collect();
        self.found =
            found.iter().flat_map(|all| alternatives.iter().map(move |other| both(all, other))).collect();
    }

    /// Requires one of these conditions. For Log rules they are made mutually exclusive, as a packet would otherwise be
    /// logged twice.
    fn any(&mut self, conditions: &[Match]) {
        let exclusive = self.rule.action == Action::Log;
        let alternatives: Vec<All> = conditions
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
        if let Some(Icmp { r#type, code }) = self.rule.icmp {
            self.and(Match::is(Field::IcmpType, [r#type]));
            if let Some(code) = code {
                self.and(Match::is(Field::IcmpCode, [code]));
            }
        }
        if let Some(Icmp { r#type, code }) = self.rule.not_icmp {
            let kind = Match::is(Field::IcmpType, [r#type]);
            let mut alternatives = vec![vec![kind.clone().not()]];
            if let Some(code) = code {
                alternatives.push(vec![kind, Match::is(Field::IcmpCode, [code]).not()]);
            }
            self.either(&alternatives);
        }
    }

    /// Whether matching packets have ports; `None` if the protocol is not restricted.
    fn has_ports(&self) -> Option<bool> {
        self.protocol.map(|protocol| WITH_PORTS.contains(&protocol))
    }

    fn ports(&mut self, side: &Side, port: Field) {
        let has_ports = Match::new(Field::Protocol, Test::Within(ranges::of_bytes(&WITH_PORTS)));
        let known = self.has_ports();
        if !(side.ports.is_empty() && side.named_ports.is_empty()) {
            match known {
                Some(true) => {}
                Some(false) => return self.never(),
                None => self.and(has_ports.clone()),
            }
            let mut conditions = Vec::new();
            let ranges = ranges::of_ports(&side.ports);
            if !ranges.is_empty() {
                conditions.push(Match::new(port, Test::Within(ranges)));
            }
            conditions.extend(self.named(&side.named_ports, port));
            self.any(&conditions);
        }
        let mut excluded = Vec::new();
        let ranges = ranges::of_ports(&side.not_ports);
        if !ranges.is_empty() {
            excluded.push(Match::new(port, Test::Within(ranges)).not());
        }
        excluded.extend(self.named(&side.not_named_ports, port).into_iter().map(Match::not));
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
    fn named(&self, ids: &[SetId], port: Field) -> Vec<Match> {
        let Some(family) = self.family else { return Vec::new() };
        let there = ids.iter().filter(|id| self.sets.kind(id) == Some(SetKind::Ports));
        there.map(|id| endpoint_lookup(id, family, port)).collect()
    }

    fn addresses(&mut self, side: &Side, family: Family, address: Field, port: Field) {
        if !side.nets.is_empty() {
            let ranges = ranges::of_nets(&side.nets, family);
            if ranges.is_empty() {
                return self.never();
            }
            self.and(Match::new(address, Test::Within(ranges)));
        }
        if !side.not_nets.is_empty() {
            let ranges = ranges::of_nets(&side.not_nets, family);
            if ranges.is_empty() {
                return self.never();
            }
            self.and(Match::new(address, Test::Within(ranges)).not());
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
                            let ports = Test::Within(ranges::of_bytes(&WITH_PORTS));
                            self.and(Match::new(Field::Protocol, ports));
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
    fn address_lookups(&self, id: &SetId, family: Family, address: Field) -> Vec<Match> {
        if self.sets.kind(id) != Some(SetKind::Nets) {
            return Vec::new();
        }
        let mut lookups = vec![Match::lookup([address], names::set(id, family))];
        if self.sets.has_nets(id, family) {
            lookups.push(Match::lookup([address], names::nets(id, family)));
        }
        lookups
    }
}

/// Returns a lookup of the address, protocol and port of one end.
fn endpoint_lookup(id: &SetId, family: Family, port: Field) -> Match {
    let address = match port {
        Field::SourcePort => Field::Source(family),
        _ => Field::Destination(family),
    };
    Match::lookup([address, Field::Protocol, port], names::set(id, family))
}
