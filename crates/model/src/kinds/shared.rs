//! Types and checks that several kinds share.

use crate::names;
use crate::scalar::{Protocol, is_digits};
use crate::string_enum;
use crate::validation::{FieldChecker, is_name_byte};
use regex::Regex;

/// The highest metric (least preferred route) that the kernel accepts for a route.
pub(super) const MAX_ROUTE_PRIORITY: i64 = 2_147_483_646;

string_enum! {
    /// The pools for which the component with this setting programs the routes between nodes.
    pub enum ProgramClusterRoutes { Enabled, Disabled, EnabledIPIPOnly, EnabledNoEncapOnly }
}

string_enum! {
    /// Enabled or disabled.
    pub enum EnabledSwitch { Enabled, Disabled }
}

api_types! {
    /// The source of the password of a BGP session.
    pub struct BGPPassword {
        pub secret_key_ref: Option<SecretKeyRef>,
    }

    /// A key in a Kubernetes secret.
    #[schemars(extend("required" = ["key"]))]
    pub struct SecretKeyRef {
        pub name: String,
        #[schemars(length(min = 1))]
        pub key: String = always,
        pub optional: Option<bool>,
    }
}

impl BGPPassword {
    pub(super) fn check(&self, at: &FieldChecker<'_>) {
        if let Some(secret) = &self.secret_key_ref {
            at.field("secretKeyRef").field("key").ensure(
                !secret.key.is_empty(),
                "",
                "must name a key of the secret",
            );
        }
    }
}

/// Checks the name of another object.
pub(super) fn check_name(at: &FieldChecker<'_>, name: &str) {
    at.report(name, names::check_dotted(name));
}

/// Checks the name of another object, or the empty string.
pub(super) fn check_optional_name(at: &FieldChecker<'_>, name: &str) {
    if !name.is_empty() {
        check_name(at, name);
    }
}

/// Checks that the text is one of these words, case-insensitive, or empty.
pub(super) fn check_word(at: &FieldChecker<'_>, text: &str, words: &[&str]) {
    let known = text.is_empty() || words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if !known {
        at.fail(text, format_args!("must be one of {}", words.join(", ")));
    }
}

/// Checks a BGP community: `aa:nn` with 16 bits each, or `aa:nn:mm` with 32 bits each.
pub(super) fn check_community(at: &FieldChecker<'_>, text: &str) {
    let parts: Vec<&str> = text.split(':').collect();
    let fits = parts.iter().all(|part| is_digits(part))
        && match parts.len() {
            2 => parts.iter().all(|part| part.parse::<u16>().is_ok()),
            3 => parts.iter().all(|part| part.parse::<u32>().is_ok()),
            _ => false,
        };
    at.ensure(
        fits,
        text,
        "must be a community aa:nn of two 16-bit numbers or aa:nn:mm of three 32-bit numbers, or the name of a defined one",
    );
}

/// Checks a regular expression, or the empty string.
pub(super) fn check_pattern(at: &FieldChecker<'_>, text: &str) {
    if let Err(error) = Regex::new(text) {
        at.fail(text, format!("must be a regular expression: {error}"));
    }
}

/// Checks the name of an endpoint's port.
pub(super) fn check_port_name(at: &FieldChecker<'_>, name: &str) {
    at.ensure(
        (1..=128).contains(&name.len()) && name.bytes().all(is_name_byte),
        name,
        "must be up to 128 letters, digits, '_', '.' and '-'",
    );
}

/// Checks the protocol of an endpoint's port.
pub(super) fn check_port_protocol(at: &FieldChecker<'_>, protocol: &Protocol) {
    at.ensure(protocol.has_ports(), protocol, "must be TCP, UDP or SCTP");
}

/// Checks labels that are applied to other objects.
pub(super) fn check_labels(at: &FieldChecker<'_>, labels: &std::collections::BTreeMap<String, String>) {
    for (key, value) in labels {
        at.key(key).report(key, names::check_qualified(key));
        at.key(key).report(value, names::check_label_value(value));
    }
}
