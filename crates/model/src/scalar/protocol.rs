//! IP protocols: a number or one of a few names.

use super::{ScalarError, int_or_string};
use crate::schema::patterns;
use serde::{Serialize, Serializer};
use serde_json::json;
use std::{fmt, str::FromStr};

/// A protocol. Kept as written: `TCP` stays `TCP`, 6 stays 6. Names are case-sensitive; validation rejects
/// unknown ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Number(u8),
    Name(String),
}

impl Protocol {
    /// The names that rules accept.
    pub const NAMES: &'static [(&'static str, u8)] =
        &[("TCP", 6), ("UDP", 17), ("ICMP", 1), ("ICMPv6", 58), ("SCTP", 132), ("UDPLite", 136)];

    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
    pub const SCTP: u8 = 132;

    /// Returns the protocol number of the IP header; `None` for an unknown name.
    pub fn number(&self) -> Option<u8> {
        match self {
            Protocol::Number(number) => Some(*number),
            Protocol::Name(name) => {
                Self::NAMES.iter().find(|(known, _)| known == name).map(|(_, number)| *number)
            }
        }
    }

    /// Returns whether the protocol has ports that a rule can match.
    pub fn has_ports(&self) -> bool {
        matches!(self.number(), Some(Self::TCP | Self::UDP | Self::SCTP))
    }

    pub fn is_icmp(&self) -> bool {
        matches!(self.number(), Some(Self::ICMP | Self::ICMPV6))
    }

    /// Parses user input in which names may have any case.
    pub fn from_any_case(text: &str) -> Protocol {
        if let Ok(number) = text.parse() {
            return Protocol::Number(number);
        }
        let name = Self::NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(text))
            .map_or(text, |(known, _)| known);
        Protocol::Name(name.to_owned())
    }
}

/// The empty name: no protocol was specified.
impl Default for Protocol {
    fn default() -> Self {
        Protocol::Name(String::new())
    }
}

impl From<&str> for Protocol {
    fn from(text: &str) -> Protocol {
        text.parse().map_or_else(|_| Protocol::Name(text.to_owned()), Protocol::Number)
    }
}

impl FromStr for Protocol {
    type Err = ScalarError;

    fn from_str(text: &str) -> Result<Self, ScalarError> {
        Ok(Protocol::from(text))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Number(number) => number.fmt(f),
            Protocol::Name(name) => name.fmt(f),
        }
    }
}

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Protocol::Number(number) => serializer.serialize_u8(*number),
            Protocol::Name(name) => serializer.serialize_str(name),
        }
    }
}

number_or_text! {
    Protocol,
    Protocol::Number,
    "{} is not an IP protocol: expected 1..255 or a name",
    int_or_string(json!({
        "pattern": patterns::whole(&patterns::protocol()), "minimum": 1, "maximum": 255,
    }))
}

#[cfg(test)]
mod tests {
    use super::Protocol;
    use serde_json::json;

    #[test]
    fn kept_as_written() {
        for (value, number) in [(json!("TCP"), Some(6)), (json!(17), Some(17)), (json!("tcp"), None)] {
            let read: Protocol = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(read.number(), number);
            assert_eq!(serde_json::to_value(&read).unwrap(), value);
        }
        assert_eq!(serde_json::from_value::<Protocol>(json!("132")).unwrap(), Protocol::Number(132));
        assert!(serde_json::from_value::<Protocol>(json!(256)).is_err());
        assert_eq!(Protocol::from_any_case("udplite"), Protocol::Name("UDPLite".into()));
        assert!(Protocol::from("SCTP").has_ports() && !Protocol::from("UDPLite").has_ports());
    }
}
