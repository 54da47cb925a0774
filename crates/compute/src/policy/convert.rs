//! Converts rules of the API to rules that a node enforces: selectors, named ports and services become sets.

use super::archive::RuleArchive;
use super::ids::RulesId;
use super::matcher::SelectorMatcher;
use super::service_endpoints::ServiceReference;
use super::sets::{NeededSet, NeededSetContents, SetTable};
use crate::conversion_error::{ConversionError, ConversionReason};
use crate::parameters::HttpRulesWithoutProxy;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_model::kinds::{self, EntityRule, ICMPFields};
use tortie_model::scalar::{Port, Protocol};
use tortie_model::selector::rewrite::{EntityMatch, EntitySelectors, entity_match};
use tortie_model::selector::{Selector, named_port_id, service_id, service_ip_id};
use tortie_plan::evaluate::Packet;
use tortie_plan::{
    HttpMatch, HttpPathMatch, IcmpMatch, IpVersion, PeerMatch, PlannedRule, PolicyDirection, PortInterval,
    RuleAction, RuleIndex, RuleSide, SetId, SetKind,
};

/// Problem of a rule with HTTP conditions on a node where proxies cannot receive policy.
const HTTP_NEEDS_PROXY: &str = "http: the rule matches only on workloads with a proxy, and proxies of this node \
                                receive no policy because policySyncPathPrefix is not set";

/// Rules that a node enforces, and the sets they need.
#[derive(Debug)]
pub(super) struct ConvertedRules {
    pub ingress: Vec<PlannedRule>,
    pub egress: Vec<PlannedRule>,
    pub needs: Box<[Arc<NeededSet>]>,
    /// Criteria that cannot be expressed, and how they are treated.
    pub problems: Vec<String>,
}

/// Converts rules of the archive.
#[derive(Clone, Copy)]
pub(super) struct RuleConverter<'a> {
    pub archive: &'a RuleArchive,
    /// The sets that already exist, and the selectors that they are of.
    pub sets: &'a SetTable,
    pub matcher: &'a SelectorMatcher,
    pub http: HttpRulesWithoutProxy,
    /// Whether rules contain the conditions that proxies compare with authenticated peers.
    pub peers: bool,
}

impl RuleConverter<'_> {
    /// Converts the rules of a policy. `namespace` is empty for global policies and profiles. If there are no rules
    /// or they cannot be read, everything is denied.
    pub fn rules(self, id: Option<RulesId>, namespace: &str) -> ConvertedRules {
        let Some(id) = id else { return ConvertedRules::denying() };
        let (ingress, egress) = match self.archive.read(id) {
            Ok(rules) => rules,
            Err(error) => {
                return ConvertedRules { problems: vec![error.to_string()], ..ConvertedRules::denying() };
            }
        };
        let mut conversion = RuleConversion {
            namespace,
            converter: self,
            needs: Vec::new(),
            broken: Vec::new(),
            problems: Vec::new(),
        };
        let ingress = conversion.rules(PolicyDirection::Ingress, &ingress);
        let egress = conversion.rules(PolicyDirection::Egress, &egress);
        ConvertedRules { ingress, egress, needs: conversion.needs.into(), problems: conversion.problems }
    }
}

impl ConvertedRules {
    pub fn denying() -> ConvertedRules {
        let rules = vec![PlannedRule::new(RuleAction::Deny)];
        ConvertedRules { ingress: rules.clone(), egress: rules, needs: Box::default(), problems: Vec::new() }
    }

    /// Returns all problems in one text.
    pub fn problem(&self) -> Option<String> {
        (!self.problems.is_empty()).then(|| self.problems.join("; "))
    }
}

/// Converts the rules of one policy or profile and collects the sets they need.
struct RuleConversion<'a> {
    namespace: &'a str,
    converter: RuleConverter<'a>,
    needs: Vec<Arc<NeededSet>>,
    /// Reasons why criteria of the current rule cannot be expressed.
    broken: Vec<ConversionError>,
    problems: Vec<String>,
}

impl RuleConversion<'_> {
    fn rules(&mut self, direction: PolicyDirection, rules: &[kinds::Rule]) -> Vec<PlannedRule> {
        let positions = rules.iter().enumerate();
        positions.map(|(position, rule)| self.closed_rule(direction, RuleIndex::at(position), rule)).collect()
    }

    /// Converts a rule. A rule with a criterion that cannot be expressed fails closed, without affecting other rules:
    /// a rule that denies ignores the criterion, any other rule matches nothing.
    fn closed_rule(
        &mut self,
        direction: PolicyDirection,
        index: RuleIndex,
        rule: &kinds::Rule,
    ) -> PlannedRule {
        let needed = self.needs.len();
        let converted = self.rule(rule);
        let broken = std::mem::take(&mut self.broken);
        if broken.is_empty() {
            if converted.needs_proxy() && !self.converter.peers {
                self.problems.push(format!("{direction} rule {index}: {HTTP_NEEDS_PROXY}"));
            }
            return converted;
        }
        let (converted, instead) = match converted.action {
            RuleAction::Deny => (converted, "it denies regardless of the value"),
            action => {
                self.needs.truncate(needed);
                (PlannedRule::never(action), "it matches nothing")
            }
        };
        let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
        self.problems.push(format!("{direction} rule {index}: {}; {instead}", broken.join(", ")));
        converted
    }

    fn or_broken<T: Default>(&mut self, converted: Result<T, ConversionError>) -> T {
        converted.unwrap_or_else(|error| {
            self.broken.push(error);
            T::default()
        })
    }

    /// Converts a rule, leaving out broken criteria.
    fn rule(&mut self, rule: &kinds::Rule) -> PlannedRule {
        let action = match &rule.action {
            kinds::Action::Allow => RuleAction::Allow,
            kinds::Action::Deny => RuleAction::Deny,
            kinds::Action::Log => RuleAction::Log,
            kinds::Action::Pass => RuleAction::Pass,
            kinds::Action::Unknown(text) => {
                self.broken.push(ConversionError::new("action", text, ConversionReason::Unknown));
                RuleAction::Deny
            }
        };
        let http = rule.http.as_ref().map(|http| Box::new(self.http_match(http, action)));
        let protocol = self.or_broken(convert_protocol(&rule.protocol));
        // Requests arrive over TCP. Without this, a rule without protocol would open all others at a workload with a
        // proxy, which never sees them.
        let needs_tcp = protocol.is_none() && http.as_ref().is_some_and(|http| !http.matches_without_proxy);
        PlannedRule {
            action,
            ip_version: self.or_broken(convert_ip_version(rule)),
            protocol: if needs_tcp { Some(Packet::TCP) } else { protocol },
            not_protocol: self.or_broken(convert_protocol(&rule.not_protocol)),
            icmp: self.or_broken(convert_icmp(&rule.icmp)),
            not_icmp: self.or_broken(convert_icmp(&rule.not_icmp)),
            source: self.side(&rule.source, rule, RuleEnd::Source, action),
            destination: self.side(&rule.destination, rule, RuleEnd::Destination, action),
            http,
            annotations: rule.metadata.as_ref().map(|m| m.annotations.clone()).unwrap_or_default(),
        }
    }

    /// Converts conditions on requests. A rule that denies applies to whole connections where no proxy checks them:
    /// it must not deny less than its author wrote.
    fn http_match(&self, http: &kinds::HTTPMatch, action: RuleAction) -> HttpMatch {
        HttpMatch {
            methods: http.methods.clone(),
            paths: http.paths.iter().map(convert_http_path).collect(),
            matches_without_proxy: self.converter.http == HttpRulesWithoutProxy::Allow
                || action == RuleAction::Deny,
        }
    }

    /// Parses nets. If some are invalid, the others are used only if leaving some out cannot allow more traffic: a
    /// rule that does not deny may match less, one that denies may match more.
    fn nets(&mut self, texts: &[String], may_leave_out: bool) -> Vec<IpNet> {
        let mut nets = Vec::with_capacity(texts.len());
        let mut wrong = Vec::new();
        for text in texts {
            match parse_net(text) {
                Some(net) => nets.push(net),
                None => wrong.push(ConversionError::new("nets", text, ConversionReason::NotCidr)),
            }
        }
        if wrong.is_empty() {
            return nets;
        }
        if may_leave_out && !nets.is_empty() {
            self.problems.extend(wrong.into_iter().map(|wrong| format!("{wrong}; the other nets are used")));
            return nets;
        }
        self.broken.append(&mut wrong);
        Vec::new()
    }

    fn side(
        &mut self,
        entity: &EntityRule,
        rule: &kinds::Rule,
        end: RuleEnd,
        action: RuleAction,
    ) -> RuleSide {
        let nets = self.nets(&entity.nets, action != RuleAction::Deny);
        let not_nets = self.nets(&entity.not_nets, action == RuleAction::Deny);
        let mut side = RuleSide { nets, not_nets, ..RuleSide::default() };
        let found = self.selectors(entity);
        // A rule that denies ignores selectors that cannot be parsed, also at proxies.
        side.peer = found.as_ref().ok().and_then(|_| self.peer_match(entity));
        let found = self.or_broken(found);
        if found.selector.as_ref().is_some_and(Selector::selects_nodes) {
            // A proxy knows the labels of workloads, not those of nodes.
            side.peer = None;
        }
        (side.ports, side.named_ports) = self.ports(&entity.ports, rule, found.selector.as_ref());
        (side.not_ports, side.not_named_ports) = self.ports(&entity.not_ports, rule, found.selector.as_ref());
        // A set of named ports contains only endpoints that the selector matches, so the selector's own set is not
        // needed.
        let implied = side.ports.is_empty() && !side.named_ports.is_empty();
        if let Some(selector) = found.selector.filter(|_| !implied) {
            side.sets.push(self.nets_of(selector));
        }
        if let Some(selector) = found.not_selector {
            side.not_sets.push(self.nets_of(selector));
        }
        if let Some(service) = &entity.services {
            let namespace = match service.namespace.as_str() {
                "" => self.namespace,
                namespace => namespace,
            };
            let reference = ServiceReference::new(namespace, &service.name);
            match end {
                RuleEnd::Source => {
                    let id = service_ip_id(namespace, &service.name);
                    let of = NeededSetContents::Service { service: reference, kind: SetKind::Nets };
                    side.sets.push(self.need(&id, of));
                }
                RuleEnd::Destination => {
                    let id = service_id(namespace, &service.name);
                    let of = NeededSetContents::Service { service: reference, kind: SetKind::Ports };
                    side.service = Some(self.need(&id, of));
                }
            }
        }
        side
    }

    /// Returns the conditions that a proxy compares with the authenticated peer, if the rule has any.
    fn peer_match(&self, entity: &EntityRule) -> Option<Box<PeerMatch>> {
        let accounts = entity.service_accounts.as_ref();
        let peer = PeerMatch {
            selector: entity.selector.clone(),
            not_selector: entity.not_selector.clone(),
            namespace_selector: entity.namespace_selector.clone(),
            service_accounts: accounts.map(|accounts| accounts.names.clone()).unwrap_or_default(),
            service_account_selector: accounts.map(|accounts| accounts.selector.clone()).unwrap_or_default(),
        };
        (self.converter.peers && peer != PeerMatch::default()).then(|| Box::new(peer))
    }

    fn selectors(&self, entity: &EntityRule) -> Result<EntityMatch, ConversionError> {
        let accounts = entity.service_accounts.as_ref();
        let selectors = EntitySelectors {
            selector: &entity.selector,
            not_selector: &entity.not_selector,
            namespace_selector: &entity.namespace_selector,
            service_account_names: accounts.map_or(&[], |accounts| &accounts.names),
            service_account_selector: accounts.map_or("", |accounts| &accounts.selector),
        };
        entity_match(&selectors, self.namespace)
            .map_err(|error| ConversionError::new("selector", &entity.selector, error.into()))
    }

    fn ports(
        &mut self,
        ports: &[Port],
        rule: &kinds::Rule,
        selector: Option<&Selector>,
    ) -> (Vec<PortInterval>, Vec<SetId>) {
        let mut ranges = Vec::new();
        let mut sets = Vec::new();
        let of_nodes = selector.is_some_and(Selector::selects_nodes);
        if let Some(named) = ports.iter().find(|port| of_nodes && matches!(port, Port::Named(_))) {
            self.broken.push(ConversionError::new("ports", named, ConversionReason::NamedPortOfNode));
            return (ranges, sets);
        }
        for port in ports {
            match port {
                Port::Named(name) => sets.push(self.named_port(name, rule.protocol.as_ref(), selector)),
                Port::Number(first) | Port::Range(first, _) => {
                    let last = port.bounds().map_or(*first, |(_, last)| last);
                    ranges.push(PortInterval { first: *first, last });
                }
            }
        }
        (ranges, sets)
    }

    fn named_port(&mut self, name: &str, protocol: Option<&Protocol>, selector: Option<&Selector>) -> SetId {
        let (protocol, text) = match protocol.and_then(Protocol::number) {
            Some(Protocol::TCP) => (Some(Protocol::TCP), "tcp"),
            Some(Protocol::UDP) => (Some(Protocol::UDP), "udp"),
            Some(Protocol::SCTP) => (Some(Protocol::SCTP), "sctp"),
            _ => (None, "any"),
        };
        let selector = selector.cloned().unwrap_or_else(Selector::all);
        let id = named_port_id(&selector, text, name);
        self.need(&id, NeededSetContents::Ports { selector, protocol, name: name.to_owned() })
    }

    fn nets_of(&mut self, selector: Selector) -> SetId {
        if let Some(need) = self.converter.sets.find_by_selector(self.converter.matcher, &selector) {
            let id = need.id.clone();
            self.needs.push(need);
            return id;
        }
        let id = selector.id();
        if selector.selects_nodes() {
            return self.need(&id, NeededSetContents::Nodes(selector));
        }
        self.need(&id, NeededSetContents::Nets(selector))
    }

    fn need(&mut self, id: &str, contents: NeededSetContents) -> SetId {
        let id = SetId::new(id);
        self.needs.push(Arc::new(NeededSet { id: id.clone(), contents }));
        id
    }
}

enum RuleEnd {
    Source,
    Destination,
}

/// Returns the given version, else the one that the name of the protocol implies; a protocol number implies none.
fn convert_ip_version(rule: &kinds::Rule) -> Result<Option<IpVersion>, ConversionError> {
    match (rule.ip_version, &rule.protocol) {
        (Some(4), _) => Ok(Some(IpVersion::V4)),
        (Some(6), _) => Ok(Some(IpVersion::V6)),
        (Some(other), _) => Err(ConversionError::new("ipVersion", other, ConversionReason::NotIpVersion)),
        (None, Some(Protocol::Name(name))) if name == "ICMP" => Ok(Some(IpVersion::V4)),
        (None, Some(Protocol::Name(name))) if name == "ICMPv6" => Ok(Some(IpVersion::V6)),
        (None, _) => Ok(None),
    }
}

fn convert_protocol(protocol: &Option<Protocol>) -> Result<Option<u8>, ConversionError> {
    let Some(protocol) = protocol else { return Ok(None) };
    let number = protocol.number();
    let number =
        number.ok_or_else(|| ConversionError::new("protocol", protocol, ConversionReason::Unknown))?;
    Ok(Some(number))
}

/// Converts ICMP fields. Without a type they do not restrict the rule.
fn convert_icmp(fields: &Option<ICMPFields>) -> Result<Option<IcmpMatch>, ConversionError> {
    let Some(ICMPFields { r#type: Some(kind), code }) = fields else { return Ok(None) };
    Ok(Some(IcmpMatch { r#type: convert_icmp_byte(*kind)?, code: code.map(convert_icmp_byte).transpose()? }))
}

fn convert_icmp_byte(value: i64) -> Result<u8, ConversionError> {
    u8::try_from(value).map_err(|_| ConversionError::new("icmp", value, ConversionReason::NotIcmp))
}

/// Parses a net, or an address as a net of full prefix length.
pub(super) fn parse_net(text: &str) -> Option<IpNet> {
    let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().map(IpNet::from).ok())?;
    Some(net.trunc())
}

fn convert_http_path(path: &kinds::HTTPPath) -> HttpPathMatch {
    match path.exact.as_str() {
        "" => HttpPathMatch::Prefix(path.prefix.clone()),
        exact => HttpPathMatch::Exact(exact.to_owned()),
    }
}
