//! Validation of rules.

use super::rule::{Action, EntityRule, HTTPMatch, ICMPFields, Rule};
use super::shared::{check_name, check_optional_name};
use crate::kubernetes::RuleDirection;
use crate::meta::check_annotations;
use crate::scalar::{Port, Protocol};
use crate::validation::{FieldChecker, InclusiveRange, NetworkFamily};
use ipnet::IpNet;
use std::fmt::Display;

/// The kind of resource that a rule belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleParent {
    NetworkPolicy,
    GlobalPolicy,
    /// Profiles have no CRD, so checks that Calico leaves to the CRD schema do not apply to them.
    Profile,
}

const MAX_POLICY_RULES: usize = 1024;
const MAX_NETS: usize = 256;
const MAX_PORTS: usize = 50;
const MAX_HTTP_ITEMS: usize = 20;
const MAX_HTTP_PATH_CHARS: usize = 1024;

/// Checks the rules of both directions; `at` is the position of the spec.
pub(super) fn check_rules(at: &FieldChecker<'_>, ingress: &[Rule], egress: &[Rule], owner: RuleParent) {
    for (key, rules, direction) in
        [("ingress", ingress, RuleDirection::Ingress), ("egress", egress, RuleDirection::Egress)]
    {
        at.field(key).max_items(rules, MAX_POLICY_RULES);
        for (at, rule) in at.field(key).each(rules) {
            check_rule(&at, rule);
            if owner != RuleParent::Profile {
                check_combinations(&at, rule);
                check_place(&at, rule, owner, direction);
            }
        }
    }
}

fn check_rule(at: &FieldChecker<'_>, rule: &Rule) {
    at.field("action").required_one_of(&rule.action);
    if let Some(version) = rule.ip_version {
        at.field("ipVersion").ensure(matches!(version, 4 | 6), version, "must be 4 or 6");
    }
    for (key, protocol) in [("protocol", &rule.protocol), ("notProtocol", &rule.not_protocol)] {
        if let Some(protocol) = protocol {
            at.field(key).protocol(protocol);
            check_protocol_version(&at.field(key), protocol, rule.ip_version);
        }
    }
    for (key, icmp) in [("icmp", &rule.icmp), ("notICMP", &rule.not_icmp)] {
        if let Some(icmp) = icmp {
            check_icmp(&at.field(key), icmp);
        }
    }
    if rule.icmp.is_some() && !rule.protocol.as_ref().is_some_and(Protocol::is_icmp) {
        at.field("protocol").fail(or_unset(&rule.protocol), "must be ICMP or ICMPv6 when icmp is set");
    }
    check_families(at, rule);
    for (key, entity) in [("source", &rule.source), ("destination", &rule.destination)] {
        check_entity(&at.field(key), entity, rule.protocol.as_ref());
    }
    if let Some(metadata) = &rule.metadata {
        check_annotations(&at.field("metadata").field("annotations"), &metadata.annotations);
    }
}

fn or_unset(value: &Option<impl Display>) -> String {
    value.as_ref().map_or_else(String::new, ToString::to_string)
}

fn check_protocol_version(at: &FieldChecker<'_>, protocol: &Protocol, version: Option<i64>) {
    match (protocol.number(), version) {
        (Some(Protocol::ICMP), Some(6)) => at.fail(protocol, "ICMP needs ipVersion 4"),
        (Some(Protocol::ICMPV6), Some(4)) => at.fail(protocol, "ICMPv6 needs ipVersion 6"),
        _ => (),
    }
}

fn check_icmp(at: &FieldChecker<'_>, icmp: &ICMPFields) {
    if let Some(kind) = icmp.r#type {
        at.field("type").within(kind, InclusiveRange(0, 254));
    }
    if let Some(code) = icmp.code {
        at.field("code").within(code, InclusiveRange(0, 255));
    }
}

/// Checks that all networks of a rule belong to one IP version.
fn check_families(at: &FieldChecker<'_>, rule: &Rule) {
    let mut seen = match rule.ip_version {
        Some(4) => Some((NetworkFamily::V4, "ipVersion")),
        Some(6) => Some((NetworkFamily::V6, "ipVersion")),
        _ => None,
    };
    for (key, entity) in [("source", &rule.source), ("destination", &rule.destination)] {
        let at = at.field(key);
        for (key, nets) in [("nets", &entity.nets), ("notNets", &entity.not_nets)] {
            for (at, net) in at.field(key).each(nets) {
                let Some(parsed) = at.masked_cidr(net) else { continue };
                let family = NetworkFamily::of_net(parsed);
                match seen {
                    None => seen = Some((family, "other nets")),
                    Some((expected, whose)) if expected != family => {
                        at.fail(net, format!("must be {expected} like the {whose} of the rule"));
                    }
                    Some(_) => (),
                }
            }
        }
    }
}

fn check_entity(at: &FieldChecker<'_>, entity: &EntityRule, protocol: Option<&Protocol>) {
    at.field("nets").max_items(&entity.nets, MAX_NETS);
    at.field("notNets").max_items(&entity.not_nets, MAX_NETS);
    for (at, net) in at.field("notNets").each(&entity.not_nets) {
        let everything = net.parse::<IpNet>().is_ok_and(|net| net.prefix_len() == 0);
        at.ensure(!everything, net, "excludes every address");
    }
    at.field("selector").selector(&entity.selector);
    at.field("notSelector").selector(&entity.not_selector);
    at.field("namespaceSelector").rule_namespace_selector(&entity.namespace_selector);
    for (key, ports) in [("ports", &entity.ports), ("notPorts", &entity.not_ports)] {
        check_ports(&at.field(key), ports, protocol);
    }
    if let Some(services) = &entity.services {
        let at = at.field("services");
        check_name(&at.field("name"), &services.name);
        check_optional_name(&at.field("namespace"), &services.namespace);
    }
    if let Some(accounts) = &entity.service_accounts {
        let at = at.field("serviceAccounts");
        for (at, name) in at.field("names").each(&accounts.names) {
            check_name(&at, name);
        }
        at.field("selector").selector(&accounts.selector);
    }
}

fn check_ports(at: &FieldChecker<'_>, ports: &[Port], protocol: Option<&Protocol>) {
    at.max_items(ports, MAX_PORTS);
    for (at, port) in at.each(ports) {
        at.port(port);
    }
    let numeric = ports.iter().any(|port| port.bounds().is_some());
    match protocol {
        None if numeric => {
            at.fail(list(ports), "numbers need a protocol: TCP, UDP or SCTP");
        }
        Some(protocol) if !ports.is_empty() && !protocol.has_ports() => {
            at.fail(list(ports), format!("protocol must be TCP, UDP or SCTP to match ports, not {protocol}"));
        }
        _ => (),
    }
}

fn list(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Checks for fields of a rule that must not be combined.
fn check_combinations(at: &FieldChecker<'_>, rule: &Rule) {
    for (key, icmp) in [("icmp", &rule.icmp), ("notICMP", &rule.not_icmp)] {
        if let Some(ICMPFields { r#type: None, code: Some(code) }) = icmp {
            at.field(key).field("code").fail(code, "needs type");
        }
    }
    for (key, entity) in [("source", &rule.source), ("destination", &rule.destination)] {
        check_services_alone(&at.field(key), entity);
    }
    let destination = &rule.destination;
    if let Some(services) = &destination.services
        && !(destination.ports.is_empty() && destination.not_ports.is_empty())
    {
        at.field("destination")
            .field("services")
            .fail(&services.name, "brings its own ports: ports and notPorts must not be set");
    }
    if let Some(http) = &rule.http {
        let protocol = rule.protocol.as_ref();
        let fits = protocol.is_none_or(|protocol| protocol.number() == Some(Protocol::TCP));
        at.field("protocol").ensure(fits, or_unset(&rule.protocol), "must be TCP or unset when http is set");
        at.field("action").ensure(
            rule.action == Action::Allow,
            &rule.action,
            "must be Allow when http is set",
        );
        check_http(&at.field("http"), http);
    }
}

fn check_services_alone(at: &FieldChecker<'_>, entity: &EntityRule) {
    let Some(services) = &entity.services else { return };
    let others = [
        ("nets", !entity.nets.is_empty()),
        ("notNets", !entity.not_nets.is_empty()),
        ("selector", !entity.selector.is_empty()),
        ("notSelector", !entity.not_selector.is_empty()),
        ("namespaceSelector", !entity.namespace_selector.is_empty()),
        ("serviceAccounts", entity.service_accounts.is_some()),
    ];
    let present: Vec<&str> = others.iter().filter(|(_, set)| *set).map(|(key, _)| *key).collect();
    at.field("services").ensure(
        present.is_empty(),
        &services.name,
        format!("cannot be combined with {}", present.join(", ")),
    );
}

fn check_http(at: &FieldChecker<'_>, http: &HTTPMatch) {
    let methods = at.field("methods");
    methods.max_items(&http.methods, MAX_HTTP_ITEMS);
    methods.unique(&http.methods);
    let paths = at.field("paths");
    paths.max_items(&http.paths, MAX_HTTP_ITEMS);
    for (at, path) in paths.each(&http.paths) {
        let one = path.exact.is_empty() != path.prefix.is_empty();
        at.ensure(
            one,
            format_args!("{}{}", path.exact, path.prefix),
            "must have exactly one of exact and prefix",
        );
        for (key, text) in [("exact", &path.exact), ("prefix", &path.prefix)] {
            let at = at.field(key);
            at.max_chars(text, MAX_HTTP_PATH_CHARS);
            let fits = text.is_empty() || (text.starts_with('/') && !text.contains(['?', '#', ' ']));
            at.ensure(fits, text, "must start with '/' and have no '?', '#' or space");
        }
    }
}

/// Checks the restrictions that depend on the resource and the direction of a rule.
fn check_place(at: &FieldChecker<'_>, rule: &Rule, owner: RuleParent, direction: RuleDirection) {
    let (far, near) = match direction {
        RuleDirection::Ingress => (("source", &rule.source), ("destination", &rule.destination)),
        RuleDirection::Egress => (("destination", &rule.destination), ("source", &rule.source)),
    };
    if let (key, EntityRule { services: Some(services), .. }) = near {
        let reason = match direction {
            RuleDirection::Ingress => "an ingress rule cannot have it in its destination",
            RuleDirection::Egress => "an egress rule cannot have it in its source",
        };
        at.field(key).field("services").fail(&services.name, reason);
    }
    if let (key, EntityRule { services: Some(services), .. }) = far
        && owner == RuleParent::GlobalPolicy
        && services.namespace.is_empty()
    {
        at.field(key).field("services").field("namespace").fail("", "must be set in a global policy");
    }
    if direction == RuleDirection::Egress && rule.http.is_some() {
        at.field("http").fail("http", "cannot be used in an egress rule");
    }
}
