//! Schemas of texts and lists of texts that have a form: for the fields whose type is no more than a string.

use super::patterns::{self, GlobalTerm, optional, whole};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

pub(crate) const MAX_SELECTOR_CHARS: usize = 1024;
const MAX_NAME_CHARS: usize = 253;
/// Of a network without host bits: all groups of an IPv6 address, and its bits.
pub(crate) const MAX_NETWORK_CHARS: usize = 43;
/// Of networks that a rule lists.
const MAX_RULE_NETWORKS: usize = 256;

/// A rule in the expression language of Kubernetes.
pub(crate) fn rule(expression: &str, message: &str) -> Value {
    json!({"rule": expression, "message": message})
}

fn text(pattern: &str) -> Schema {
    json_schema!({"type": "string", "pattern": pattern})
}

fn list(items: Schema) -> Schema {
    json_schema!({"type": "array", "items": items})
}

fn selector_form(global: GlobalTerm) -> Schema {
    let [sequence, beginning, nesting] = patterns::selector(global);
    json_schema!({"type": "string", "maxLength": MAX_SELECTOR_CHARS, "pattern": sequence,
        "allOf": [{"pattern": beginning}, {"pattern": nesting}]})
}

/// What makes the schema of a text that of a selector.
pub(crate) fn selector_keywords() -> Map<String, Value> {
    selector_form(GlobalTerm::Nowhere).as_object().cloned().unwrap_or_default()
}

pub(crate) fn selector(_: &mut SchemaGenerator) -> Schema {
    selector_form(GlobalTerm::Nowhere)
}

/// The selector of namespaces in a rule, which may be `global()`.
pub(crate) fn rule_namespace_selector(_: &mut SchemaGenerator) -> Schema {
    selector_form(GlobalTerm::Alone)
}

/// The name of another object.
pub(crate) fn name(_: &mut SchemaGenerator) -> Schema {
    let mut schema = text(&whole(&patterns::dotted_name()));
    schema.insert("maxLength".to_owned(), json!(MAX_NAME_CHARS));
    schema
}

/// The name of another object, or nothing.
pub(crate) fn optional_name(_: &mut SchemaGenerator) -> Schema {
    let mut schema = text(&optional(&patterns::dotted_name()));
    schema.insert("maxLength".to_owned(), json!(MAX_NAME_CHARS));
    schema
}

pub(crate) fn names(generator: &mut SchemaGenerator) -> Schema {
    list(name(generator))
}

/// The name of a tier, or nothing.
pub(crate) fn optional_tier(_: &mut SchemaGenerator) -> Schema {
    text(&optional(&patterns::label(63)))
}

/// A network without host bits. Parsed once, since Kubernetes counts what the longest lists would cost. What `pattern` forbids, the rule need not look at.
fn masked(pattern: &str) -> Schema {
    json_schema!({"type": "string", "maxLength": MAX_NETWORK_CHARS, "pattern": pattern,
        "x-kubernetes-validations": [rule("[cidr(self)].all(c, c == c.masked())", "must have no bits set behind its prefix")]})
}

pub(crate) fn masked_network(_: &mut SchemaGenerator) -> Schema {
    masked(&whole(&patterns::network()))
}

/// A network without host bits, or nothing.
pub(crate) fn optional_masked_network(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": MAX_NETWORK_CHARS, "pattern": optional(&patterns::network()),
    "x-kubernetes-validations": [rule(
        "self == '' || [cidr(self)].all(c, c == c.masked())",
        "must have no bits set behind its prefix",
    )]})
}

/// What a rule is about.
pub(crate) fn rule_networks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": MAX_RULE_NETWORKS, "items": masked(&whole(&patterns::network()))})
}

/// What a rule is not about; never everything.
pub(crate) fn excluded_rule_networks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": MAX_RULE_NETWORKS, "items": masked(&whole(&patterns::part_network()))})
}

/// An address, or a network without host bits.
pub(crate) fn masked_network_or_address(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": MAX_NETWORK_CHARS, "pattern": whole(&patterns::network_or_address()),
    "x-kubernetes-validations": [rule(
        "!self.contains('/') || [cidr(self)].all(c, c == c.masked())",
        "must be an address or have no bits set behind its prefix",
    )]})
}

/// A network as others print it, whose host bits an admission policy checks.
pub(crate) fn network(_: &mut SchemaGenerator) -> Schema {
    text(&whole(&patterns::network()))
}

pub(crate) fn networks(generator: &mut SchemaGenerator) -> Schema {
    list(network(generator))
}

/// Networks, host bits or not, and addresses.
pub(crate) fn networks_or_addresses(_: &mut SchemaGenerator) -> Schema {
    list(text(&whole(&patterns::network_or_address())))
}

pub(crate) fn optional_network_or_address(_: &mut SchemaGenerator) -> Schema {
    text(&optional(&patterns::network_or_address()))
}

pub(crate) fn addresses(_: &mut SchemaGenerator) -> Schema {
    list(text(&whole(&patterns::address())))
}

pub(crate) fn optional_address(_: &mut SchemaGenerator) -> Schema {
    let mut schema = text(&optional(&patterns::address()));
    schema.insert("maxLength".to_owned(), json!(64));
    schema
}

pub(crate) fn optional_ipv4(_: &mut SchemaGenerator) -> Schema {
    text(&optional(&patterns::ipv4()))
}

pub(crate) fn optional_ipv6(_: &mut SchemaGenerator) -> Schema {
    text(&optional(&patterns::ipv6()))
}

/// An address of a BGP peer with or without a port, or nothing.
pub(crate) fn optional_peer_address(_: &mut SchemaGenerator) -> Schema {
    let mut schema = text(&optional(&patterns::peer_address()));
    schema.insert("maxLength".to_owned(), json!(64));
    schema
}

/// An interface by its name, or nothing.
pub(crate) fn optional_interface(_: &mut SchemaGenerator) -> Schema {
    text(&optional(patterns::INTERFACE))
}

pub(crate) fn interface_globs(_: &mut SchemaGenerator) -> Schema {
    list(text(&whole(patterns::INTERFACE_GLOB)))
}

pub(crate) fn community(_: &mut SchemaGenerator) -> Schema {
    text(&whole(&patterns::community()))
}

pub(crate) fn communities(generator: &mut SchemaGenerator) -> Schema {
    list(community(generator))
}

/// Communities, or names that others define.
pub(crate) fn communities_or_names(_: &mut SchemaGenerator) -> Schema {
    let pattern = whole(&format!("{}|{}", patterns::community(), patterns::dotted_name()));
    json_schema!({"type": "array", "minItems": 1, "maxItems": 50, "items": text(&pattern)})
}

/// The path of a URL, or nothing.
pub(crate) fn optional_url_path(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 1024, "pattern": optional(patterns::URL_PATH)})
}

/// The protocol of a port that an endpoint has.
pub(crate) fn port_protocol(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true,
        "enum": ["TCP", "UDP", "SCTP", 6, 17, 132, "6", "17", "132"]})
}

pub(crate) fn endpoint_port_name(_: &mut SchemaGenerator) -> Schema {
    text(&whole(patterns::ENDPOINT_PORT_NAME))
}

/// A number or a name of a port.
pub(crate) fn single_port(_: &mut SchemaGenerator) -> Schema {
    port_form(&patterns::single_port())
}

/// A port of this form: a number if it is none.
pub(crate) fn port_form(pattern: &str) -> Schema {
    crate::scalar::int_or_string(
        json!({"pattern": whole(pattern), "maxLength": 15, "minimum": 1, "maximum": 65535}),
    )
}

/// For ports of which there are few: Kubernetes counts them as texts of any length.
pub(crate) fn port_range_rule() -> Value {
    json!([rule(
        "type(self) == int || !self.contains(':') || int(self.split(':')[0]) <= int(self.split(':')[1])",
        "a range of ports must not end before it begins",
    )])
}

/// The key of a label.
pub(crate) fn label_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": whole(&patterns::qualified_name()),
        "allOf": [{"pattern": patterns::QUALIFIED_LENGTHS}]})
}

pub(crate) fn label_values(_: &mut SchemaGenerator) -> Schema {
    list(text(&patterns::label_value()))
}

/// Labels; their keys are for an admission policy to check.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "additionalProperties": text(&patterns::label_value())})
}

const SPAN_MESSAGE: &str = "must be a span of time that is not negative, such as 1m30s";

/// A span of time that is not negative, or nothing.
pub(crate) fn optional_span() -> Value {
    json!([rule("self == '' || duration(self) >= duration('0s')", SPAN_MESSAGE)])
}

/// A span of time that is not negative, or `Auto`.
pub(crate) fn span_or_auto(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "x-kubernetes-validations":
        [rule("self == 'Auto' || duration(self) >= duration('0s')", SPAN_MESSAGE)]})
}

/// A regular expression, or nothing. The function fails for any other text, and one that fails refuses the object.
pub(crate) fn regex_rule() -> Value {
    json!([rule("'x'.matches(self) || !'x'.matches(self)", "must be a regular expression")])
}

/// A regular expression, or nothing.
pub(crate) fn regex(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 1024, "x-kubernetes-validations": regex_rule()})
}
