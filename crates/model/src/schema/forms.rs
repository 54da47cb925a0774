//! Schemas of strings and lists of strings with a syntax, for fields whose Rust type is a plain string.

use super::patterns::{self, GlobalTerm, optional, whole};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

pub(crate) const MAX_SELECTOR_CHARS: usize = 1024;
const MAX_NAME_CHARS: usize = 253;
/// Length of the longest network without host bits: all groups of an IPv6 address and the prefix length.
pub(crate) const MAX_NETWORK_CHARS: usize = 43;
/// Maximum number of networks that a rule lists.
const MAX_RULE_NETWORKS: usize = 256;

/// Builds a CEL validation rule.
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

/// Returns the schema keywords that restrict a string to a selector.
pub(crate) fn selector_keywords() -> Map<String, Value> {
    selector_form(GlobalTerm::Nowhere).as_object().cloned().unwrap_or_default()
}

pub(crate) fn selector(_: &mut SchemaGenerator) -> Schema {
    selector_form(GlobalTerm::Nowhere)
}

/// Returns the schema of the namespace selector of a rule, which may be `global()`.
pub(crate) fn rule_namespace_selector(_: &mut SchemaGenerator) -> Schema {
    selector_form(GlobalTerm::Alone)
}

/// Returns the schema of the name of another object.
pub(crate) fn name(_: &mut SchemaGenerator) -> Schema {
    let mut schema = text(&whole(&patterns::dotted_name()));
    schema.insert("maxLength".to_owned(), json!(MAX_NAME_CHARS));
    schema
}

/// Returns the schema of the name of another object, or the empty string.
pub(crate) fn optional_name(_: &mut SchemaGenerator) -> Schema {
    let mut schema = text(&optional(&patterns::dotted_name()));
    schema.insert("maxLength".to_owned(), json!(MAX_NAME_CHARS));
    schema
}

pub(crate) fn names(generator: &mut SchemaGenerator) -> Schema {
    list(name(generator))
}

/// Returns the schema of the name of a tier, or the empty string.
pub(crate) fn optional_tier(_: &mut SchemaGenerator) -> Schema {
    text(&optional(&patterns::label(63)))
}

/// Returns the schema of a network without host bits. The rule parses the network only once, because Kubernetes estimates
/// the CEL cost for the longest possible list. It need not check syntax, which `pattern` already restricts.
fn masked(pattern: &str) -> Schema {
    json_schema!({"type": "string", "maxLength": MAX_NETWORK_CHARS, "pattern": pattern,
        "x-kubernetes-validations": [rule("[cidr(self)].all(c, c == c.masked())", "must have no bits set behind its prefix")]})
}

pub(crate) fn masked_network(_: &mut SchemaGenerator) -> Schema {
    masked(&whole(&patterns::network()))
}

/// Returns the schema of a network without host bits, or the empty string.
pub(crate) fn optional_masked_network(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": MAX_NETWORK_CHARS, "pattern": optional(&patterns::network()),
    "x-kubernetes-validations": [rule(
        "self == '' || [cidr(self)].all(c, c == c.masked())",
        "must have no bits set behind its prefix",
    )]})
}

/// Returns the schema of the networks that a rule matches.
pub(crate) fn rule_networks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": MAX_RULE_NETWORKS, "items": masked(&whole(&patterns::network()))})
}

/// Returns the schema of the networks that a rule excludes, which must not be all addresses of a family.
pub(crate) fn excluded_rule_networks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": MAX_RULE_NETWORKS, "items": masked(&whole(&patterns::part_network()))})
}

/// Returns the schema of an address, or a network without host bits.
pub(crate) fn masked_network_or_address(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": MAX_NETWORK_CHARS, "pattern": whole(&patterns::network_or_address()),
    "x-kubernetes-validations": [rule(
        "!self.contains('/') || [cidr(self)].all(c, c == c.masked())",
        "must be an address or have no bits set behind its prefix",
    )]})
}

/// Returns the schema of a network in Kubernetes' NetworkPolicy syntax; an admission policy checks its host bits.
pub(crate) fn network(_: &mut SchemaGenerator) -> Schema {
    text(&whole(&patterns::network()))
}

pub(crate) fn networks(generator: &mut SchemaGenerator) -> Schema {
    list(network(generator))
}

/// Returns the schema of a list of addresses and networks, with or without host bits.
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

/// Returns the schema of the address of a BGP peer with an optional port, or the empty string.
pub(crate) fn optional_peer_address(_: &mut SchemaGenerator) -> Schema {
    let mut schema = text(&optional(&patterns::peer_address()));
    schema.insert("maxLength".to_owned(), json!(64));
    schema
}

/// Returns the schema of an interface name, or the empty string.
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

/// Returns the schema of a list of communities, or names of communities defined elsewhere.
pub(crate) fn communities_or_names(_: &mut SchemaGenerator) -> Schema {
    let pattern = whole(&format!("{}|{}", patterns::community(), patterns::dotted_name()));
    json_schema!({"type": "array", "minItems": 1, "maxItems": 50, "items": text(&pattern)})
}

/// Returns the schema of the path of a URL, or the empty string.
pub(crate) fn optional_url_path(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 1024, "pattern": optional(patterns::URL_PATH)})
}

/// Returns the schema of the protocol of an endpoint's port.
pub(crate) fn port_protocol(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true,
        "enum": ["TCP", "UDP", "SCTP", 6, 17, 132, "6", "17", "132"]})
}

pub(crate) fn endpoint_port_name(_: &mut SchemaGenerator) -> Schema {
    text(&whole(patterns::ENDPOINT_PORT_NAME))
}

/// Returns the schema of a port number or name.
pub(crate) fn single_port(_: &mut SchemaGenerator) -> Schema {
    port_form(&patterns::single_port())
}

/// Returns the schema of a port: an integer, or a string that matches the pattern.
pub(crate) fn port_form(pattern: &str) -> Schema {
    crate::scalar::int_or_string(
        json!({"pattern": whole(pattern), "maxLength": 15, "minimum": 1, "maximum": 65535}),
    )
}

/// Returns a rule that checks the order of a port range. Only for short lists: Kubernetes estimates the CEL
/// cost of each port as a string of any length.
pub(crate) fn port_range_rule() -> Value {
    json!([rule(
        "type(self) == int || !self.contains(':') || int(self.split(':')[0]) <= int(self.split(':')[1])",
        "a range of ports must not end before it begins",
    )])
}

/// Returns the schema of a label key.
pub(crate) fn label_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": whole(&patterns::qualified_name()),
        "allOf": [{"pattern": patterns::QUALIFIED_LENGTHS}]})
}

pub(crate) fn label_values(_: &mut SchemaGenerator) -> Schema {
    list(text(&patterns::label_value()))
}

/// Returns the schema of labels; an admission policy checks their keys.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "additionalProperties": text(&patterns::label_value())})
}

const DURATION_MESSAGE: &str = "must be a span of time that is not negative, such as 1m30s";

/// Returns the rule for a non-negative duration, or the empty string.
pub(crate) fn optional_span() -> Value {
    json!([rule("self == '' || duration(self) >= duration('0s')", DURATION_MESSAGE)])
}

/// Returns the schema of a non-negative duration, or `Auto`.
pub(crate) fn span_or_auto(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "x-kubernetes-validations":
        [rule("self == 'Auto' || duration(self) >= duration('0s')", DURATION_MESSAGE)]})
}

/// Returns the rule for a regular expression, or the empty string. `matches` fails for any other text, and a
/// rule that fails rejects the object.
pub(crate) fn regex_rule() -> Value {
    json!([rule("'x'.matches(self) || !'x'.matches(self)", "must be a regular expression")])
}

/// Returns the schema of a regular expression, or the empty string.
pub(crate) fn regex(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 1024, "x-kubernetes-validations": regex_rule()})
}
