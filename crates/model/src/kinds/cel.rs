//! The rules about rules that a Kubernetes API server can check by itself, in its expression language.

use serde_json::{Value, json};

fn rule(expression: &str, message: &str) -> Value {
    json!({"rule": expression, "message": message})
}

pub(super) fn rules() -> Value {
    json!([
        rule("!has(self.http) || self.action == 'Allow'", "http match is only valid on Allow rules"),
        rule(
            "!has(self.http) || !has(self.protocol) || self.protocol == 'TCP' || self.protocol == 6",
            "rules with http match must have protocol TCP or unset",
        ),
        rule(
            "!has(self.icmp) || (has(self.protocol) && (self.protocol == 'ICMP' || self.protocol == 'ICMPv6' || \
             self.protocol == 1 || self.protocol == 58))",
            "protocol must be ICMP or ICMPv6 with icmp",
        ),
        rule(
            "!has(self.ipVersion) || self.ipVersion != 6 || !has(self.protocol) || \
             (self.protocol != 'ICMP' && self.protocol != 1)",
            "protocol ICMP needs ipVersion 4",
        ),
        rule(
            "!has(self.ipVersion) || self.ipVersion != 4 || !has(self.protocol) || \
             (self.protocol != 'ICMPv6' && self.protocol != 58)",
            "protocol ICMPv6 needs ipVersion 6",
        ),
        rule(
            "!has(self.destination) || !has(self.destination.services) || \
             ((!has(self.destination.ports) || size(self.destination.ports) == 0) && \
             (!has(self.destination.notPorts) || size(self.destination.notPorts) == 0))",
            "services brings its own ports: ports and notPorts must not be set",
        ),
    ])
}

pub(super) fn icmp() -> Value {
    json!([rule("!has(self.code) || has(self.type)", "code needs type")])
}

pub(super) fn entity() -> Value {
    json!([rule(
        "!has(self.services) || ((!has(self.nets) || size(self.nets) == 0) && \
         (!has(self.notNets) || size(self.notNets) == 0) && (!has(self.selector) || self.selector == '') && \
         (!has(self.notSelector) || self.notSelector == '') && \
         (!has(self.namespaceSelector) || self.namespaceSelector == '') && !has(self.serviceAccounts))",
        "services cannot be combined with nets, notNets, selector, notSelector, namespaceSelector or serviceAccounts",
    )])
}

pub(super) fn http_path() -> Value {
    json!([rule("has(self.exact) != has(self.prefix)", "exactly one of exact and prefix must be set")])
}

/// Rules of the spec of a global policy about its flags.
pub(super) fn global_policy() -> Value {
    json!([
        rule(
            "!(has(self.doNotTrack) && self.doNotTrack && has(self.preDNAT) && self.preDNAT)",
            "preDNAT and doNotTrack cannot both be true",
        ),
        rule(
            "!(has(self.preDNAT) && self.preDNAT) || (has(self.applyOnForward) && self.applyOnForward)",
            "preDNAT needs applyOnForward",
        ),
        rule(
            "!(has(self.doNotTrack) && self.doNotTrack) || (has(self.applyOnForward) && self.applyOnForward)",
            "doNotTrack needs applyOnForward",
        ),
        rule(
            "!(has(self.preDNAT) && self.preDNAT) || ((!has(self.egress) || size(self.egress) == 0) && \
             (!has(self.types) || !('Egress' in self.types)))",
            "preDNAT policies cannot have egress rules or type Egress",
        ),
    ])
}

/// The rules of global policies and, for staged ones, what `Delete` leaves empty.
pub(super) fn staged_global_policy() -> Value {
    let mut rules = global_policy();
    if let (Value::Array(rules), Value::Array(staged)) = (&mut rules, staged_policy()) {
        rules.extend(staged);
    }
    rules
}

pub(super) fn staged_policy() -> Value {
    json!([rule(
        "!has(self.stagedAction) || self.stagedAction != 'Delete' || (!has(self.order) && \
         (!has(self.ingress) || size(self.ingress) == 0) && (!has(self.egress) || size(self.egress) == 0) && \
         (!has(self.selector) || self.selector == ''))",
        "nothing but the tier may be set when stagedAction is Delete",
    )])
}

pub(super) fn staged_kubernetes_policy() -> Value {
    json!([rule(
        "!has(self.stagedAction) || self.stagedAction != 'Delete' || \
         ((!has(self.ingress) || size(self.ingress) == 0) && (!has(self.egress) || size(self.egress) == 0) && \
         (!has(self.policyTypes) || size(self.policyTypes) == 0))",
        "nothing else may be set when stagedAction is Delete",
    )])
}
