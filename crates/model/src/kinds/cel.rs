//! The rules about rules that a Kubernetes API server can check by itself, in its expression language.

use serde_json::{Value, json};

pub(super) fn rule(expression: &str, message: &str) -> Value {
    json!({"rule": expression, "message": message})
}

/// The same, and which field of the object is to blame.
pub(super) fn rule_at(field: &str, expression: &str, message: &str) -> Value {
    json!({"rule": expression, "message": message, "fieldPath": format!(".{field}")})
}

/// Whether a selector has `global()` somewhere, other than in quoted text.
const HAS_GLOBAL: &str = r#"^([^'"]|'[^']*'|"[^"]*")*global\\("#;

/// A selector of endpoints, which are never global.
fn not_global(field: &str) -> Value {
    rule_at(
        field,
        &format!("!has(self.{field}) || !self.{field}.matches('{}')", HAS_GLOBAL.replace('\'', "\\'")),
        "global() can only be used in the namespaceSelector of a rule",
    )
}

pub(super) fn rules() -> Value {
    json!([
        rule_at(
            "http",
            "!has(self.http) || self.action == 'Allow'",
            "http match is only valid on Allow rules"
        ),
        rule_at(
            "protocol",
            "!has(self.http) || !has(self.protocol) || self.protocol == 'TCP' || self.protocol == 6",
            "rules with http match must have protocol TCP or unset",
        ),
        rule_at(
            "protocol",
            "!has(self.icmp) || (has(self.protocol) && (self.protocol == 'ICMP' || self.protocol == 'ICMPv6' || \
             self.protocol == 1 || self.protocol == 58))",
            "protocol must be ICMP or ICMPv6 with icmp",
        ),
        rule_at(
            "ipVersion",
            "!has(self.ipVersion) || self.ipVersion != 6 || !has(self.protocol) || \
             (self.protocol != 'ICMP' && self.protocol != 1)",
            "protocol ICMP needs ipVersion 4",
        ),
        rule_at(
            "ipVersion",
            "!has(self.ipVersion) || self.ipVersion != 4 || !has(self.protocol) || \
             (self.protocol != 'ICMPv6' && self.protocol != 58)",
            "protocol ICMPv6 needs ipVersion 6",
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

pub(super) fn icmp() -> Value {
    json!([rule_at("type", "!has(self.code) || has(self.type)", "code needs type")])
}

pub(super) fn entity() -> Value {
    json!([
        rule_at(
            "services",
            "!has(self.services) || ((!has(self.nets) || size(self.nets) == 0) && \
         (!has(self.notNets) || size(self.notNets) == 0) && (!has(self.selector) || self.selector == '') && \
         (!has(self.notSelector) || self.notSelector == '') && \
         (!has(self.namespaceSelector) || self.namespaceSelector == '') && !has(self.serviceAccounts))",
            "services cannot be combined with nets, notNets, selector, notSelector, namespaceSelector or serviceAccounts",
        ),
        not_global("selector"),
        not_global("notSelector")
    ])
}

pub(super) fn http_path() -> Value {
    json!([rule("has(self.exact) != has(self.prefix)", "exactly one of exact and prefix must be set")])
}

/// What a rule may say depends on where it stands.
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

fn staged() -> Value {
    rule_at(
        "stagedAction",
        "!has(self.stagedAction) || self.stagedAction != 'Delete' || (!has(self.order) && \
         (!has(self.ingress) || size(self.ingress) == 0) && (!has(self.egress) || size(self.egress) == 0) && \
         (!has(self.selector) || self.selector == ''))",
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
    json!([places(), vec![staged()]].concat())
}

pub(super) fn staged_global_policy() -> Value {
    json!([places(), global(), vec![staged()]].concat())
}

pub(super) fn staged_kubernetes_policy() -> Value {
    json!([rule_at(
        "stagedAction",
        "!has(self.stagedAction) || self.stagedAction != 'Delete' || \
         ((!has(self.ingress) || size(self.ingress) == 0) && (!has(self.egress) || size(self.egress) == 0) && \
         (!has(self.policyTypes) || size(self.policyTypes) == 0))",
        "nothing else may be set when stagedAction is Delete",
    )])
}

/// The tiers that always exist stay as they are; the rule stands at the top of the object, where the name is.
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
