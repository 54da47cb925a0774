//! Scalar types of specs, with the encodings that Calico uses.

/// Implements `Deserialize` for a scalar that is a number or a text, and its schema. `$wrong` is the error for a number
/// that is out of range.
macro_rules! number_or_text {
    ($type:ident, $number:expr, $wrong:literal, $schema:expr) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use super::NumberOrText::{self, Number, Text};
                match <NumberOrText as serde::Deserialize>::deserialize(deserializer)? {
                    Number(n) => match n.try_into() {
                        Ok(number) => Ok($number(number)),
                        Err(_) => Err(serde::de::Error::custom(format_args!($wrong, n))),
                    },
                    Text(text) => text.parse().map_err(serde::de::Error::custom),
                }
            }
        }

        inline_schema! { $type, $schema }
    };
}

/// Implements `JsonSchema` for a scalar.
macro_rules! inline_schema {
    ($type:ident, $schema:expr) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

mod as_number;
mod dscp;
mod duration;
mod float;
mod port;
mod protocol;
#[macro_use]
pub mod string_enum;

pub use as_number::ASNumber;
pub use dscp::Dscp;
pub use duration::GoDuration;
pub use float::CalicoFloat;
pub use port::Port;
pub use protocol::Protocol;
pub use string_enum::StringEnum;

/// Reason why a text cannot be parsed as a scalar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScalarError(pub String);

/// Returns whether a value is the default. For `skip_serializing_if`: Calico omits fields with zero values.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns whether a text is a number without a sign.
pub(crate) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Deserialises a value that may be a number or a string.
pub(crate) enum NumberOrText {
    Number(u64),
    Text(String),
}

impl<'de> serde::Deserialize<'de> for NumberOrText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = NumberOrText;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number or a string")
            }

            fn visit_u64<E>(self, n: u64) -> Result<NumberOrText, E> {
                Ok(NumberOrText::Number(n))
            }

            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<NumberOrText, E> {
                u64::try_from(n).map(NumberOrText::Number).map_err(|_| {
                    E::invalid_value(serde::de::Unexpected::Signed(n), &"a number that is not negative")
                })
            }

            fn visit_f64<E: serde::de::Error>(self, n: f64) -> Result<NumberOrText, E> {
                let whole = n as u64;
                if whole as f64 == n {
                    Ok(NumberOrText::Number(whole))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Float(n), &"a whole number"))
                }
            }

            fn visit_str<E>(self, text: &str) -> Result<NumberOrText, E> {
                Ok(NumberOrText::Text(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Returns the schema of a value that may be a number or a string.
pub(crate) fn int_or_string(extra: serde_json::Value) -> schemars::Schema {
    let mut schema = schemars::json_schema!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": true,
    });
    if let serde_json::Value::Object(extra) = extra {
        extra.into_iter().for_each(|(key, value)| {
            schema.insert(key, value);
        });
    }
    schema
}
