//! The values that a parameter accepts, as data, so that one declaration both validates objects and generates
//! the schema.

use crate::FieldChecker;
use crate::kinds::shared::{check_pattern, check_word};
use crate::names;
use crate::scalar::{Dscp, GoDuration, Port};
use crate::schema::forms;
use crate::schema::patterns::{self, optional, whole};
use crate::validation::{InclusiveRange, NetworkFamily};
use regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The accepted values of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AcceptedValues {
    /// Any value of its type.
    Any,
    /// One of these, case-insensitive.
    OneOf(&'static [&'static str]),
    /// One of these, case-sensitive.
    Exactly(&'static [&'static str]),
    /// A number within inclusive bounds.
    Within(i64, i64),
    /// A mask with at least two bits set.
    Mask,
    /// A text that matches this pattern.
    Form(&'static str),
    /// A regular expression.
    Regex,
    Address(NetworkFamily),
    Selector,
    /// The name of a network interface.
    Interface,
    /// Networks, of one family if specified.
    Networks(Option<NetworkFamily>),
    /// An OpenStack region: a DNS label that leaves room for a prefix.
    Region,
}

const VALIDATIONS_KEYWORD: &str = "x-kubernetes-validations";
const MAX_REGION_CHARS: usize = 46;
const MAX_PORT_RANGES: usize = 7;

/// A type that parameters can have.
pub(super) trait ParameterType {
    /// Adds the constraints of the type to a field's schema.
    fn describe(_schema: &mut Map<String, Value>) {}

    /// Returns whether the field is omitted from the JSON.
    fn is_unset(&self) -> bool;

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>);

    /// Returns the value in the syntax of environment variables; empty if unset.
    fn text(&self) -> String;
}

/// A text that is serialised even if it is empty.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct WrittenText(pub String);

impl AcceptedValues {
    /// Adds the accepted values to the schema of a field, or of each element of a list, as far as a schema
    /// can express them.
    pub(super) fn describe(&self, schema: &mut Map<String, Value>) {
        if let Some(Value::Object(items)) = schema.get_mut("items") {
            return self.describe(items);
        }
        let mut insert = |keyword: &str, value: Value| {
            schema.insert(keyword.to_owned(), value);
        };
        match self {
            AcceptedValues::OneOf(words) => {
                insert("pattern", json!(format!("^(?i)({})?$", words.join("|"))));
            }
            AcceptedValues::Exactly(words) => {
                insert("enum", json!(words));
            }
            AcceptedValues::Within(min, max) => {
                insert("minimum", json!(min));
                insert("maximum", json!(max));
            }
            AcceptedValues::Mask => {
                insert("minimum", json!(0));
                insert("maximum", json!(u32::MAX));
                let single: Vec<String> = (0..32).map(|bit| (1u64 << bit).to_string()).collect();
                let rule = format!("!(self in [0, {}])", single.join(", "));
                insert(VALIDATIONS_KEYWORD, json!([forms::rule(&rule, "must have at least two bits set")]));
            }
            AcceptedValues::Form(pattern) => {
                insert("pattern", json!(pattern));
            }
            AcceptedValues::Selector => {
                forms::selector_keywords().into_iter().for_each(|(keyword, value)| insert(&keyword, value));
            }
            AcceptedValues::Regex => insert(VALIDATIONS_KEYWORD, forms::regex_rule()),
            AcceptedValues::Interface => insert("pattern", json!(optional(patterns::INTERFACE))),
            AcceptedValues::Networks(None) => {
                insert("pattern", json!(whole(&patterns::network_or_address())))
            }
            AcceptedValues::Networks(Some(NetworkFamily::V4)) => {
                insert("pattern", json!(whole(&patterns::ipv4_network_or_address())));
            }
            AcceptedValues::Networks(Some(NetworkFamily::V6)) => {
                insert("pattern", json!(whole(&patterns::ipv6_network_or_address())));
            }
            AcceptedValues::Region => insert("pattern", json!(optional(&patterns::label(MAX_REGION_CHARS)))),
            // CEL rules of the whole spec check addresses.
            AcceptedValues::Any | AcceptedValues::Address(_) => {}
        }
    }

    fn check_text(&self, text: &str, at: &FieldChecker<'_>) {
        match self {
            AcceptedValues::OneOf(words) => check_word(at, text, words),
            AcceptedValues::Exactly(words) => {
                at.ensure(words.contains(&text), text, format!("must be one of {}", words.join(", ")));
            }
            AcceptedValues::Form(pattern) => {
                let fits = Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text));
                at.ensure(fits, text, format!("must be of the form {pattern}"));
            }
            AcceptedValues::Regex => check_pattern(at, text),
            AcceptedValues::Address(family) => {
                at.ip_of(text, *family);
            }
            AcceptedValues::Selector => at.selector(text),
            AcceptedValues::Interface => at.interface(text),
            AcceptedValues::Region => {
                let fits = text.len() <= MAX_REGION_CHARS && names::is_label(text);
                at.ensure(fits, text, "must be up to 46 lower case letters, digits and inner '-'");
            }
            AcceptedValues::Any
            | AcceptedValues::Within(..)
            | AcceptedValues::Mask
            | AcceptedValues::Networks(_) => {}
        }
    }
}

impl ParameterType for String {
    fn is_unset(&self) -> bool {
        self.is_empty()
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        if !self.is_empty() {
            accepts.check_text(self, at);
        }
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl ParameterType for Option<String> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        if let Some(text) = self {
            text.check(accepts, at);
        }
    }

    fn text(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl ParameterType for WrittenText {
    fn is_unset(&self) -> bool {
        false
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        self.0.check(accepts, at);
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

impl ParameterType for Option<bool> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, _: &FieldChecker<'_>) {}

    fn text(&self) -> String {
        self.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl ParameterType for Option<i64> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        match (self, accepts) {
            (Some(number), AcceptedValues::Within(min, max)) => {
                at.within(*number, InclusiveRange(*min, *max))
            }
            (Some(number), AcceptedValues::Mask) => {
                let bits = u32::try_from(*number).map(u32::count_ones);
                at.ensure(
                    bits.is_ok_and(|bits| bits >= 2),
                    format_args!("{number:#x}"),
                    "must be a 32-bit mask with at least two bits set",
                );
            }
            _ => {}
        }
    }

    fn text(&self) -> String {
        self.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl ParameterType for Option<GoDuration> {
    fn describe(schema: &mut Map<String, Value>) {
        schema.insert(VALIDATIONS_KEYWORD.to_owned(), forms::optional_span());
    }

    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        if let Some(span) = self {
            at.ensure(!span.is_negative(), span, "must not be negative");
        }
    }

    fn text(&self) -> String {
        self.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl ParameterType for Option<Port> {
    fn describe(schema: &mut Map<String, Value>) {
        schema.insert("pattern".to_owned(), json!(whole(&patterns::port_numbers())));
        schema.insert(VALIDATIONS_KEYWORD.to_owned(), forms::port_range_rule());
    }

    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        if let Some(port) = self {
            check_numeric(at, port);
        }
    }

    fn text(&self) -> String {
        self.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl ParameterType for Option<Dscp> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        if let Some(dscp) = self {
            at.ensure(
                dscp.value().is_some(),
                dscp,
                "must be a number between 0 and 63 or the name of a code point",
            );
        }
    }

    fn text(&self) -> String {
        self.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl ParameterType for Option<Vec<Port>> {
    fn describe(schema: &mut Map<String, Value>) {
        schema.insert("maxItems".to_owned(), json!(MAX_PORT_RANGES));
        if let Some(Value::Object(items)) = schema.get_mut("items") {
            <Option<Port> as ParameterType>::describe(items);
        }
    }

    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        let ports = self.as_deref().unwrap_or_default();
        at.max_items(ports, MAX_PORT_RANGES);
        for (at, port) in at.each(ports) {
            check_numeric(&at, port);
        }
    }

    fn text(&self) -> String {
        self.as_deref().map(|list| listed(list, ToString::to_string)).unwrap_or_default()
    }
}

impl ParameterType for Option<Vec<String>> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        for (at, text) in at.each(self.as_deref().unwrap_or_default()) {
            let AcceptedValues::Networks(family) = accepts else {
                accepts.check_text(text, &at);
                continue;
            };
            if let (Some(net), Some(family)) = (at.cidr(text), family) {
                at.ensure(
                    NetworkFamily::of_net(net) == *family,
                    text,
                    format!("must be an {family} network"),
                );
            }
        }
    }

    fn text(&self) -> String {
        self.as_deref().map(|list| listed(list, ToString::to_string)).unwrap_or_default()
    }
}

impl ParameterType for Option<BTreeMap<String, String>> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, _: &AcceptedValues, _: &FieldChecker<'_>) {}

    fn text(&self) -> String {
        let pairs: Vec<String> = self.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(",")
    }
}

fn check_numeric(at: &FieldChecker<'_>, port: &Port) {
    match port.bounds() {
        Some(_) => at.port(port),
        None => at.fail(port, "must be a port or a range of ports, not a name"),
    }
}

/// Joins the elements of a list. An empty list becomes `none`, because an empty text would mean that the list
/// is unset.
pub(super) fn listed<T>(list: &[T], text: impl Fn(&T) -> String) -> String {
    match list.is_empty() {
        true => "none".to_owned(),
        false => list.iter().map(text).collect::<Vec<_>>().join(","),
    }
}
