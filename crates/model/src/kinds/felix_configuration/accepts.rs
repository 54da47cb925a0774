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

/// The type of a parameter's field.
pub(super) trait ParameterType {
    /// Adds the constraints of the type to a field's schema.
    fn describe(_schema: &mut Map<String, Value>) {}

    /// Returns whether the field is omitted from the JSON.
    fn is_unset(&self) -> bool;

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>);

    /// Returns the value in the syntax of environment variables; empty if unset.
    fn text(&self) -> String;
}

/// The value of a parameter that may be unset.
pub(super) trait ParameterValue {
    /// Adds the constraints of the type to a field's schema.
    fn describe(_schema: &mut Map<String, Value>) {}

    fn check(&self, _accepts: &AcceptedValues, _at: &FieldChecker<'_>) {}

    /// Returns the value in the syntax of environment variables.
    fn text(&self) -> String;
}

impl<T: ParameterValue> ParameterType for Option<T> {
    fn describe(schema: &mut Map<String, Value>) {
        T::describe(schema);
    }

    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        if let Some(value) = self {
            value.check(accepts, at);
        }
    }

    fn text(&self) -> String {
        self.as_ref().map(T::text).unwrap_or_default()
    }
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
        let keywords = match self {
            AcceptedValues::OneOf(words) => json!({"pattern": format!("^(?i)({})?$", words.join("|"))}),
            AcceptedValues::Exactly(words) => json!({"enum": words}),
            AcceptedValues::Within(min, max) => json!({"minimum": min, "maximum": max}),
            AcceptedValues::Mask => {
                let single: Vec<String> = (0..32).map(|bit| (1u64 << bit).to_string()).collect();
                let rule = format!("!(self in [0, {}])", single.join(", "));
                let rules = [forms::rule(&rule, "must have at least two bits set")];
                json!({"minimum": 0, "maximum": u32::MAX, VALIDATIONS_KEYWORD: rules})
            }
            AcceptedValues::Form(pattern) => json!({"pattern": pattern}),
            AcceptedValues::Selector => json!(forms::selector_keywords()),
            AcceptedValues::Regex => json!({VALIDATIONS_KEYWORD: forms::regex_rule()}),
            AcceptedValues::Interface => json!({"pattern": optional(patterns::INTERFACE)}),
            AcceptedValues::Networks(family) => {
                let pattern = match family {
                    None => patterns::network_or_address(),
                    Some(NetworkFamily::V4) => patterns::ipv4_network_or_address(),
                    Some(NetworkFamily::V6) => patterns::ipv6_network_or_address(),
                };
                json!({"pattern": whole(&pattern)})
            }
            AcceptedValues::Region => json!({"pattern": optional(&patterns::label(MAX_REGION_CHARS))}),
            // CEL rules of the whole spec check addresses.
            AcceptedValues::Any | AcceptedValues::Address(_) => return,
        };
        if let Value::Object(keywords) = keywords {
            schema.extend(keywords);
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

impl ParameterValue for String {
    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        if !self.is_empty() {
            accepts.check_text(self, at);
        }
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl ParameterType for String {
    fn is_unset(&self) -> bool {
        self.is_empty()
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        ParameterValue::check(self, accepts, at);
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl ParameterType for WrittenText {
    fn is_unset(&self) -> bool {
        false
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        ParameterValue::check(&self.0, accepts, at);
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

impl ParameterValue for bool {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl ParameterValue for i64 {
    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        match accepts {
            AcceptedValues::Within(min, max) => at.within(*self, InclusiveRange(*min, *max)),
            AcceptedValues::Mask => {
                let bits = u32::try_from(*self).map(u32::count_ones);
                at.ensure(
                    bits.is_ok_and(|bits| bits >= 2),
                    format_args!("{self:#x}"),
                    "must be a 32-bit mask with at least two bits set",
                );
            }
            _ => {}
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl ParameterValue for GoDuration {
    fn describe(schema: &mut Map<String, Value>) {
        schema.insert(VALIDATIONS_KEYWORD.to_owned(), forms::optional_span());
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        at.ensure(!self.is_negative(), self, "must not be negative");
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl ParameterValue for Port {
    fn describe(schema: &mut Map<String, Value>) {
        schema.insert("pattern".to_owned(), json!(whole(&patterns::port_numbers())));
        schema.insert(VALIDATIONS_KEYWORD.to_owned(), forms::port_range_rule());
    }

    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        match self.bounds() {
            Some(_) => at.port(self),
            None => at.fail(self, "must be a port or a range of ports, not a name"),
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl ParameterValue for Dscp {
    fn check(&self, _: &AcceptedValues, at: &FieldChecker<'_>) {
        at.ensure(
            self.value().is_some(),
            self,
            "must be a number between 0 and 63 or the name of a code point",
        );
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl ParameterValue for Vec<Port> {
    fn describe(schema: &mut Map<String, Value>) {
        schema.insert("maxItems".to_owned(), json!(MAX_PORT_RANGES));
        if let Some(Value::Object(items)) = schema.get_mut("items") {
            Port::describe(items);
        }
    }

    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        at.max_items(self, MAX_PORT_RANGES);
        at.each(self).for_each(|(at, port)| port.check(accepts, &at));
    }

    fn text(&self) -> String {
        listed(self, Port::text)
    }
}

impl ParameterValue for Vec<String> {
    fn check(&self, accepts: &AcceptedValues, at: &FieldChecker<'_>) {
        for (at, text) in at.each(self) {
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
        listed(self, String::clone)
    }
}

impl ParameterValue for BTreeMap<String, String> {
    fn text(&self) -> String {
        let pairs: Vec<String> = self.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(",")
    }
}

/// Joins the elements of a list. An empty list becomes `none`, because an empty text would mean that the list
/// is unset.
pub(super) fn listed<T>(list: &[T], text: impl Fn(&T) -> String) -> String {
    if list.is_empty() {
        return "none".to_owned();
    }
    list.iter().map(text).collect::<Vec<_>>().join(",")
}
