//! CEL validation rules with which kube-apiserver checks policies and their rules.

use crate::schema::{forms, patterns};
use serde_json::{Value, json};

pub(super) fn rule(expression: &str, message: &str) -> Value {
    forms::rule(expression, message)
}

/// Returns an expression that is true if the field is present and not empty.
pub(super) fn is_set(field: &str) -> String {
    format!("(has(self.{field}) && size(self.{field}) > 0)")
}

/// Builds a validation rule whose errors refer to `field`.
pub(super) fn rule_at(field: &str, expression: &str, message: &str) -> Value {
    json!({"rule": expression, "message": message, "fieldPath": format!(".{field}")})
}

/// Matches a selector that contains `global()` outside of quoted text.
const HAS_GLOBAL: &str = r#"^([^'"]|'[^']*'|"[^"]*")*global\\("#;

/// Returns a rule that rejects `global()` in a selector of endpoints. The pattern of the field rejects it as
/// well, but without this message.
fn not_global(field: &str) -> Value {
    rule_at(
        field,
        &format!("!has(self.{field}) || !self.{field}.matches('{}')", HAS_GLOBAL.replace('\'', "\\'")),
        "global() can only be used in the namespaceSelector of a rule",
    )
}

/// Returns an expression that is true if the field is this protocol, given as a name or a number.
fn is_protocol(field: &str, name: &str, number: u8) -> String {
    format!("(self.{field} == '{name}' || self.{field} == {number} || self.{field} == '{number}')")
}

/// Returns a rule that requires the IP version that matches the ICMP protocol.
fn icmp_version(field: &str, name: &str, number: u8, other: u8) -> Value {
    let needed = 10 - other;
    rule_at(
        "ipVersion",
        &format!(
            "!has(self.ipVersion) || self.ipVersion != {other} || !has(self.{field}) || !{}",
            is_protocol(field, name, number)
        ),
        &format!("{field} {name} needs ipVersion {needed}"),
    )
}

const RULE_ENDS: [&str; 2] = ["source", "destination"];
const PORT_LISTS: [&str; 2] = ["ports", "notPorts"];
const NET_LISTS: [&str; 2] = ["nets", "notNets"];

/// Returns an expression that is true if every port list of both ends is absent or satisfies `fits`.
fn all_ports(fits: impl Fn(&str) -> String) -> String {
    let ends = RULE_ENDS.map(|end| {
        let lists = PORT_LISTS
            .map(|list| format!("(!has(self.{end}.{list}) || {})", fits(&format!("self.{end}.{list}"))));
        format!("(!has(self.{end}) || ({}))", lists.join(" && "))
    });
    ends.join(" && ")
}

pub(super) fn rules() -> Value {
    let tcp = is_protocol("protocol", "TCP", 6);
    let carries_ports = [&tcp, &is_protocol("protocol", "UDP", 17), &is_protocol("protocol", "SCTP", 132)]
        .map(String::as_str)
        .join(" || ");
    let is_icmp =
        format!("({} || {})", is_protocol("protocol", "ICMP", 1), is_protocol("protocol", "ICMPv6", 58));
    json!([
        rule_at(
            "http",
            "!has(self.http) || self.action == 'Allow'",
            "http match is only valid on Allow rules"
        ),
        rule_at(
            "protocol",
            &format!("!has(self.http) || !has(self.protocol) || {tcp}"),
            "rules with http match must have protocol TCP or unset",
        ),
        rule_at(
            "protocol",
            &format!("!has(self.icmp) || (has(self.protocol) && {is_icmp})"),
            "protocol must be ICMP or ICMPv6 with icmp",
        ),
        icmp_version("protocol", "ICMP", 1, 6),
        icmp_version("notProtocol", "ICMP", 1, 6),
        icmp_version("protocol", "ICMPv6", 58, 4),
        icmp_version("notProtocol", "ICMPv6", 58, 4),
        rule_at(
            "protocol",
            &format!(
                "has(self.protocol) || ({})",
                all_ports(|list| format!("{list}.all(p, type(p) == string)"))
            ),
            "numbers of ports need a protocol: TCP, UDP or SCTP",
        ),
        rule_at(
            "protocol",
            &format!(
                "!has(self.protocol) || {carries_ports} || ({})",
                all_ports(|list| format!("size({list}) == 0"))
            ),
            "protocol must be TCP, UDP or SCTP to match ports",
        ),
        rule_at(
            "destination",
            "!has(self.destination) || !has(self.destination.services) || \
             ((!has(self.destination.ports) || size(self.destination.ports) == 0) && \
             (!has(self.destination.notPorts) || size(self.destination.notPorts) == 0))",
            "services brings its own ports: ports and notPorts must not be set",
        ),
    ])
}

/// Returns alternative schemas for a rule, which must match one of each group. They examine lists of strings,
/// for which the estimated cost of a CEL expression would exceed the limit of Kubernetes.
pub(super) fn rule_choices() -> Value {
    let mut v4 = match_both_ends(NET_LISTS, "^[^:]*$");
    v4["ipVersion"] = json!({"maximum": 5});
    let mut v6 = match_both_ends(NET_LISTS, ":");
    v6["ipVersion"] = json!({"minimum": 5});
    let named_ports = match_both_ends(PORT_LISTS, &patterns::port_name());
    json!([
        {"anyOf": [{"properties": v4}, {"properties": v6}]},
        {"anyOf": [{"required": ["protocol"]}, {"properties": named_ports}]},
    ])
}

/// Returns schemas for both ends of a rule in which the elements of these lists match the pattern.
fn match_both_ends(lists: [&str; 2], pattern: &str) -> Value {
    let items = json!({"items": {"pattern": pattern}});
    let end = json!({"properties": {lists[0]: items, lists[1]: items}});
    json!({RULE_ENDS[0]: end, RULE_ENDS[1]: end})
}

/// Returns alternative schemas for a label requirement: the operator determines which values are allowed.
pub(super) fn label_requirement_choices() -> Value {
    json!([
        {"required": ["values"], "properties": {"operator": {"enum": ["In", "NotIn"]}, "values": {"minItems": 1}}},
        {"properties": {"operator": {"enum": ["Exists", "DoesNotExist"]}, "values": {"maxItems": 0}}},
    ])
}

pub(super) fn kubernetes_port() -> Value {
    json!([rule_at(
        "endPort",
        "!has(self.endPort) || (has(self.port) && int(self.port) <= self.endPort)",
        "endPort needs a port that is a number and not above it",
    )])
}

pub(super) fn kubernetes_peer() -> Value {
    json!([
        rule(
            "has(self.podSelector) || has(self.namespaceSelector) || has(self.ipBlock)",
            "must have podSelector, namespaceSelector or ipBlock",
        ),
        rule_at(
            "ipBlock",
            "!has(self.ipBlock) || !(has(self.podSelector) || has(self.namespaceSelector))",
            "ipBlock cannot be combined with podSelector or namespaceSelector",
        ),
    ])
}

pub(super) fn icmp() -> Value {
    json!([rule_at("type", "!has(self.code) || has(self.type)", "code needs type")])
}

pub(super) fn entity() -> Value {
    json!([rule_at(
        "services",
        "!has(self.services) || ((!has(self.nets) || size(self.nets) == 0) && \
         (!has(self.notNets) || size(self.notNets) == 0) && (!has(self.selector) || self.selector == '') && \
         (!has(self.notSelector) || self.notSelector == '') && \
         (!has(self.namespaceSelector) || self.namespaceSelector == '') && !has(self.serviceAccounts))",
        "services cannot be combined with nets, notNets, selector, notSelector, namespaceSelector or serviceAccounts",
    )])
}

pub(super) fn http_path() -> Value {
    json!([rule(
        &format!("{} != {}", is_set("exact"), is_set("prefix")),
        "exactly one of exact and prefix must be set"
    )])
}

/// Returns the rules that depend on the direction in which a policy rule is used.
fn places() -> Vec<Value> {
    vec![
        not_global("selector"),
        not_global("serviceAccountSelector"),
        rule_at(
            "egress",
            "!has(self.egress) || self.egress.all(r, !has(r.http))",
            "http cannot be used in egress rules",
        ),
        rule_at(
            "egress",
            "!has(self.egress) || self.egress.all(r, !has(r.source) || !has(r.source.services))",
            "egress rules cannot have services in their source",
        ),
        rule_at(
            "ingress",
            "!has(self.ingress) || self.ingress.all(r, !has(r.destination) || !has(r.destination.services))",
            "ingress rules cannot have services in their destination",
        ),
    ]
}

fn global() -> Vec<Value> {
    vec![
        not_global("namespaceSelector"),
        rule_at(
            "egress",
            "!has(self.egress) || self.egress.all(r, !has(r.destination) || !has(r.destination.services) || \
             (has(r.destination.services.__namespace__) && r.destination.services.__namespace__ != ''))",
            "services need a namespace in a global policy",
        ),
        rule_at(
            "ingress",
            "!has(self.ingress) || self.ingress.all(r, !has(r.source) || !has(r.source.services) || \
             (has(r.source.services.__namespace__) && r.source.services.__namespace__ != ''))",
            "services need a namespace in a global policy",
        ),
        rule_at(
            "preDNAT",
            "!(has(self.doNotTrack) && self.doNotTrack && has(self.preDNAT) && self.preDNAT)",
            "preDNAT and doNotTrack cannot both be true",
        ),
        rule_at(
            "applyOnForward",
            "!(has(self.preDNAT) && self.preDNAT) || (has(self.applyOnForward) && self.applyOnForward)",
            "preDNAT needs applyOnForward",
        ),
        rule_at(
            "applyOnForward",
            "!(has(self.doNotTrack) && self.doNotTrack) || (has(self.applyOnForward) && self.applyOnForward)",
            "doNotTrack needs applyOnForward",
        ),
        rule_at(
            "egress",
            "!(has(self.preDNAT) && self.preDNAT) || ((!has(self.egress) || size(self.egress) == 0) && \
             (!has(self.types) || !('Egress' in self.types)))",
            "preDNAT policies cannot have egress rules or type Egress",
        ),
    ]
}

/// Fields of a staged policy besides the tier: lists, texts and flags.
const STAGED_LISTS: [&str; 4] = ["ingress", "egress", "types", "performanceHints"];
const STAGED_TEXTS: [&str; 2] = ["selector", "serviceAccountSelector"];
const STAGED_GLOBAL_FLAGS: [&str; 3] = ["doNotTrack", "preDNAT", "applyOnForward"];

fn staged(texts: &[&str], flags: &[&str]) -> Value {
    let sized = STAGED_LISTS.iter().chain(texts);
    let mut absent: Vec<String> =
        sized.map(|field| format!("(!has(self.{field}) || size(self.{field}) == 0)")).collect();
    absent.extend(flags.iter().map(|field| format!("(!has(self.{field}) || !self.{field})")));
    rule_at(
        "stagedAction",
        &format!(
            "!has(self.stagedAction) || self.stagedAction != 'Delete' || (!has(self.order) && {})",
            absent.join(" && ")
        ),
        "nothing but the tier may be set when stagedAction is Delete",
    )
}

pub(super) fn policy() -> Value {
    json!(places())
}

pub(super) fn global_policy() -> Value {
    json!([places(), global()].concat())
}

pub(super) fn staged_policy() -> Value {
    json!([places(), vec![staged(&STAGED_TEXTS, &[])]].concat())
}

pub(super) fn staged_global_policy() -> Value {
    let texts = [STAGED_TEXTS.as_slice(), &["namespaceSelector"]].concat();
    json!([places(), global(), vec![staged(&texts, &STAGED_GLOBAL_FLAGS)]].concat())
}

pub(super) fn staged_kubernetes_policy() -> Value {
    json!([rule_at(
        "stagedAction",
        "!has(self.stagedAction) || self.stagedAction != 'Delete' || \
         ((!has(self.ingress) || size(self.ingress) == 0) && (!has(self.egress) || size(self.egress) == 0) && \
         (!has(self.policyTypes) || size(self.policyTypes) == 0) && (!has(self.podSelector) || \
         ((!has(self.podSelector.matchLabels) || size(self.podSelector.matchLabels) == 0) && \
         (!has(self.podSelector.matchExpressions) || size(self.podSelector.matchExpressions) == 0))))",
        "nothing else may be set when stagedAction is Delete",
    )])
}

/// Returns a rule that protects the settings of a built-in tier. It belongs to the root of the object,
/// because it refers to the name.
pub(super) fn tier(name: &str, order: f64, action: &str) -> Value {
    rule_at(
        "spec",
        &format!(
            "self.metadata.name != '{name}' || (has(self.spec.order) && self.spec.order == {order:.1} && \
             has(self.spec.defaultAction) && self.spec.defaultAction == '{action}')"
        ),
        &format!("tier {name} must have order {order} and default action {action}"),
    )
}
