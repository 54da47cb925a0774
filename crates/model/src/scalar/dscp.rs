//! Differentiated services code points: a number or a well-known name.

use super::{ScalarError, int_or_string};
use crate::schema::patterns;
use serde::{Serialize, Serializer};
use serde_json::json;
use std::{fmt, str::FromStr};

/// A code point. Kept as written, so that a name stays a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dscp {
    Value(u8),
    Name(String),
}

impl Dscp {
    /// Returns the six bits for the packet header; `None` for an unknown value or name.
    pub fn value(&self) -> Option<u8> {
        match self {
            Dscp::Value(value) => (*value <= 63).then_some(*value),
            Dscp::Name(name) => match name.as_bytes() {
                b"DF" => Some(0),
                b"EF" => Some(46),
                [b'A', b'F', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => {
                    Some((class - b'0') * 8 + (drop - b'0') * 2)
                }
                [b'C', b'S', class @ b'0'..=b'6'] => Some((class - b'0') * 8),
                _ => None,
            },
        }
    }
}

impl FromStr for Dscp {
    type Err = ScalarError;

    /// Accepts any word; validation rejects unknown code points.
    fn from_str(text: &str) -> Result<Self, ScalarError> {
        Ok(text.parse().map_or_else(|_| Dscp::Name(text.to_owned()), Dscp::Value))
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dscp::Value(value) => value.fmt(f),
            Dscp::Name(name) => name.fmt(f),
        }
    }
}

impl Serialize for Dscp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Dscp::Value(value) => serializer.serialize_u8(*value),
            Dscp::Name(name) => serializer.serialize_str(name),
        }
    }
}

number_or_text! {
    Dscp,
    Dscp::Value,
    "{} is not a DSCP: 0..63",
    int_or_string(json!({"pattern": patterns::whole(patterns::DSCP), "minimum": 0, "maximum": 63}))
}

#[cfg(test)]
mod tests {
    use super::Dscp;
    use serde_json::json;

    #[test]
    fn names_have_the_values_of_the_standard() {
        for (text, value) in [("EF", 46), ("DF", 0), ("AF11", 10), ("AF43", 38), ("CS6", 48), ("63", 63)] {
            assert_eq!(text.parse::<Dscp>().unwrap().value(), Some(value), "{text}");
        }
        for text in ["64", "AF44", "AF51", "CS7", "ef", ""] {
            assert_eq!(text.parse::<Dscp>().unwrap().value(), None, "{text}");
        }
        let named: Dscp = serde_json::from_value(json!("AF21")).unwrap();
        assert_eq!(serde_json::to_value(&named).unwrap(), json!("AF21"));
        let number: Dscp = serde_json::from_value(json!(20)).unwrap();
        assert_eq!(serde_json::to_value(&number).unwrap(), json!(20));
    }
}
