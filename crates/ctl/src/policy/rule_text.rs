//! Describes rules, and why they do not match, in text.

use super::endpoint_lookup::TrafficParty;
use super::traffic::protocol_name;
use std::fmt::Display;
use tortie_model::kinds::{EntityRule, HTTPMatch, ICMPFields, Rule};
use tortie_model::scalar::Protocol;
use tortie_plan::evaluate::{Packet, PacketEnd, RuleCriterion};
use tortie_plan::{IcmpMatch, IpVersion, PortInterval};

/// Maximum number of list elements to print.
const MAX_SHOWN_ITEMS: usize = 4;

/// Describes a rule as its author wrote it.
pub fn describe_rule(rule: &Rule) -> String {
    let mut words = vec![rule.action.to_string()];
    words.extend(rule.ip_version.map(|version| format!("IPv{version}")));
    words.extend(rule.protocol.as_ref().map(Protocol::to_string));
    words.extend(rule.not_protocol.as_ref().map(|protocol| format!("all but {protocol}")));
    words.extend(rule.icmp.as_ref().and_then(format_icmp_fields));
    words.extend(rule.not_icmp.as_ref().and_then(format_icmp_fields).map(|icmp| format!("not {icmp}")));
    for (direction, side) in [("from", &rule.source), ("to", &rule.destination)] {
        let criteria = describe_side(side);
        if !criteria.is_empty() {
            words.push(format!("{direction} {}", criteria.join(" and ")));
        }
    }
    words.extend(rule.http.as_ref().map(describe_http));
    if words.len() == 1 {
        words.push("everything".to_owned());
    }
    words.join(" ")
}

fn describe_http(http: &HTTPMatch) -> String {
    let mut text = "for HTTP".to_owned();
    if !http.methods.is_empty() {
        text = format!("{text} {}", list(&http.methods));
    }
    let paths = http.paths.iter().map(|path| match path.exact.as_str() {
        "" => format!("prefix {}", path.prefix),
        exact => exact.to_owned(),
    });
    let paths: Vec<String> = paths.collect();
    if !paths.is_empty() {
        text = format!("{text} on {}", list(&paths));
    }
    text
}

fn format_icmp_fields(icmp: &ICMPFields) -> Option<String> {
    match (icmp.r#type?, icmp.code) {
        (kind, None) => Some(format!("type {kind}")),
        (kind, Some(code)) => Some(format!("type {kind} code {code}")),
    }
}

fn describe_side(side: &EntityRule) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(describe_selectors(side));
    if !side.nets.is_empty() {
        words.push(list(&side.nets));
    }
    words.extend(side.services.as_ref().map(|service| format!("service {}", service_name(service))));
    if !side.ports.is_empty() {
        words.push(format!("port {}", list(&side.ports)));
    }
    if !side.not_nets.is_empty() {
        words.push(format!("not {}", list(&side.not_nets)));
    }
    if !side.not_selector.is_empty() {
        words.push(format!("not [{}]", side.not_selector));
    }
    if !side.not_ports.is_empty() {
        words.push(format!("not port {}", list(&side.not_ports)));
    }
    words
}

fn service_name(service: &tortie_model::kinds::ServiceMatch) -> String {
    match service.namespace.as_str() {
        "" => service.name.clone(),
        namespace => format!("{namespace}/{}", service.name),
    }
}

/// Describes the endpoints that one side of a rule selects.
fn describe_selectors(side: &EntityRule) -> Option<String> {
    let mut words = Vec::new();
    if !side.selector.is_empty() {
        words.push(format!("[{}]", side.selector));
    }
    if !side.namespace_selector.is_empty() {
        words.push(format!("namespaces [{}]", side.namespace_selector));
    }
    if let Some(accounts) = &side.service_accounts {
        if !accounts.names.is_empty() {
            words.push(format!("service account {}", list(&accounts.names)));
        }
        if !accounts.selector.is_empty() {
            words.push(format!("service accounts [{}]", accounts.selector));
        }
    }
    (!words.is_empty()).then(|| words.join(" in "))
}

pub fn list<T: Display>(items: &[T]) -> String {
    list_up_to(MAX_SHOWN_ITEMS, items)
}

/// Lists the first items and counts the others.
pub fn list_up_to<T: Display>(max: usize, items: &[T]) -> String {
    let shown: Vec<String> = items.iter().take(max).map(T::to_string).collect();
    match items.len().saturating_sub(max) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A rule as its author wrote it, if known, and the namespace of its policy, if namespaced.
#[derive(Clone, Copy, Debug, Default)]
pub struct WrittenRule<'a> {
    pub rule: Option<&'a Rule>,
    pub namespace: &'a str,
}

impl<'a> WrittenRule<'a> {
    fn side(&self, end: PacketEnd) -> Option<&'a EntityRule> {
        self.rule.map(|rule| match end {
            PacketEnd::Source => &rule.source,
            PacketEnd::Destination => &rule.destination,
        })
    }

    /// Returns the only namespace in which the selector of one side matches, if it is restricted to one.
    pub fn confined(&self, end: PacketEnd) -> Option<&'a str> {
        let everywhere = self.side(end).is_none_or(|side| !side.namespace_selector.is_empty());
        (!everywhere && !self.namespace.is_empty()).then_some(self.namespace)
    }
}

/// The sender, the receiver and the packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketScene<'a> {
    pub from: &'a TrafficParty,
    pub to: &'a TrafficParty,
    pub packet: &'a Packet,
}

impl<'a> PacketScene<'a> {
    pub fn party(&self, end: PacketEnd) -> &'a TrafficParty {
        match end {
            PacketEnd::Source => self.from,
            PacketEnd::Destination => self.to,
        }
    }

    fn address(&self, end: PacketEnd) -> std::net::IpAddr {
        match end {
            PacketEnd::Source => self.packet.source,
            PacketEnd::Destination => self.packet.destination,
        }
    }

    fn port(&self, end: PacketEnd) -> u16 {
        match end {
            PacketEnd::Source => self.packet.source_port,
            PacketEnd::Destination => self.packet.destination_port,
        }
    }

    /// Describes why a rule does not match.
    pub fn miss(&self, criterion: &RuleCriterion<'_>, written: WrittenRule<'_>) -> String {
        let family = match self.packet.version() {
            IpVersion::V4 => "IPv4",
            IpVersion::V6 => "IPv6",
        };
        match *criterion {
            RuleCriterion::IpVersion(IpVersion::V4) => "it is for IPv4 alone".to_owned(),
            RuleCriterion::IpVersion(IpVersion::V6) => "it is for IPv6 alone".to_owned(),
            RuleCriterion::Protocol(protocol) => format!("it is for {} alone", protocol_name(protocol)),
            RuleCriterion::NotProtocol(protocol) => format!("it leaves out {}", protocol_name(protocol)),
            RuleCriterion::Icmp(icmp) => format!("it is for ICMP {} alone", format_icmp_type(icmp)),
            RuleCriterion::NotIcmp(icmp) if self.packet.icmp.is_some() => {
                format!("it leaves out ICMP {}", format_icmp_type(icmp))
            }
            RuleCriterion::NotIcmp(_) => "it is for ICMP alone".to_owned(),
            RuleCriterion::Nets(end, nets) => format!("{} is not in {}", self.whose_address(end), list(nets)),
            RuleCriterion::NotNets(end, nets) => {
                let within: Vec<_> = nets.iter().filter(|net| net.contains(&self.address(end))).collect();
                format!("{} is in {}, which it leaves out", self.whose_address(end), list(&within))
            }
            RuleCriterion::Family(end, _) => {
                format!("its {} nets have no {family} among them", end_name(end))
            }
            RuleCriterion::Set(end, _) => {
                let wanted = written.side(end).and_then(describe_selectors);
                let wanted = wanted.unwrap_or_else(|| "its selector".to_owned());
                let within = written.confined(end).map(|namespace| format!(" in namespace {namespace}"));
                let within = within.unwrap_or_default();
                format!("{} is not selected by {wanted}{within}{}", self.describe_end(end), self.labels(end))
            }
            RuleCriterion::NotSet(end, _) => {
                let wanted = written.side(end).map(|side| side.not_selector.as_str()).unwrap_or_default();
                format!(
                    "{} is selected by [{wanted}], which it leaves out{}",
                    self.describe_end(end),
                    self.labels(end)
                )
            }
            RuleCriterion::Ports(end, ranges, _) => {
                let wanted = written.side(end).map(|side| list(&side.ports));
                let wanted = wanted.unwrap_or_else(|| format_ranges(ranges));
                if self.packet.has_ports() {
                    format!("{} port {} is not {wanted}", end_name(end), self.port(end))
                } else {
                    format!("it is for {} port {wanted}", end_name(end))
                }
            }
            RuleCriterion::NotPorts(end, _, _) => {
                format!("it leaves out {} port {}", end_name(end), self.port(end))
            }
            RuleCriterion::Service(end, _) => {
                let service = written.side(end).and_then(|side| side.services.as_ref()).map(service_name);
                format!(
                    "{} is no endpoint of service {}",
                    self.describe_end(end),
                    service.unwrap_or_default()
                )
            }
            RuleCriterion::Http => {
                "with its http conditions it matches only on workloads with a proxy".to_owned()
            }
            RuleCriterion::HttpRequest(_) => "the request has none of its methods and paths".to_owned(),
            RuleCriterion::HttpConnection => "its http conditions need an HTTP request".to_owned(),
            RuleCriterion::Peer(end, _) => {
                format!("the identity of the {} does not meet its selectors", end_name(end))
            }
        }
    }

    fn describe_end(&self, end: PacketEnd) -> String {
        format!("{} {}", end_name(end), self.party(end).name)
    }

    fn whose_address(&self, end: PacketEnd) -> String {
        let address = self.address(end).to_string();
        let name = &self.party(end).name;
        if *name == address {
            format!("{} {address}", end_name(end))
        } else {
            format!("{} {name} ({address})", end_name(end))
        }
    }

    fn labels(&self, end: PacketEnd) -> String {
        match self.party(end).labels.as_slice() {
            [] => String::new(),
            labels => format!(" (labels: {})", labels.join(", ")),
        }
    }
}

pub fn end_name(end: PacketEnd) -> &'static str {
    match end {
        PacketEnd::Source => "source",
        PacketEnd::Destination => "destination",
    }
}

fn format_icmp_type(icmp: IcmpMatch) -> String {
    match icmp.code {
        Some(code) => format!("type {} code {code}", icmp.r#type),
        None => format!("type {}", icmp.r#type),
    }
}

fn format_ranges(ranges: &[PortInterval]) -> String {
    let mut texts = Vec::new();
    for PortInterval { first, last } in ranges {
        texts.push(if first == last { first.to_string() } else { format!("{first}:{last}") });
    }
    list(&texts)
}
