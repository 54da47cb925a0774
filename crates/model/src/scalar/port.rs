//! Ports in rules: a number, a range or a name.

use super::{ScalarError, is_digits};
use crate::schema::{forms, patterns};
use crate::validation::is_name_byte;
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    Number(u16),
    /// Inclusive; the first is below the second.
    Range(u16, u16),
    Named(String),
}

impl Port {
    /// Returns a range, or a single number if both ends are equal. Fails if the ends are not in order.
    pub fn range(first: u16, last: u16) -> Result<Port, ScalarError> {
        match first.cmp(&last) {
            std::cmp::Ordering::Less => Ok(Port::Range(first, last)),
            std::cmp::Ordering::Equal => Ok(Port::Number(first)),
            std::cmp::Ordering::Greater => Err(ScalarError(format!(
                "minimum port number ({first}) is greater than maximum port number ({last}) in port range"
            ))),
        }
    }

    /// Returns the first and last number; `None` for a name.
    pub fn bounds(&self) -> Option<(u16, u16)> {
        match self {
            Port::Number(port) => Some((*port, *port)),
            Port::Range(first, last) => Some((*first, *last)),
            Port::Named(_) => None,
        }
    }
}

impl FromStr for Port {
    type Err = ScalarError;

    fn from_str(text: &str) -> Result<Self, ScalarError> {
        if is_digits(text) {
            return parse_number(text).map(Port::Number);
        }
        if let Some((first, last)) = text.split_once(':')
            && is_digits(first)
            && is_digits(last)
        {
            return Port::range(parse_number(first)?, parse_number(last)?);
        }
        let named = (1..=128).contains(&text.len()) && text.bytes().all(is_name_byte);
        named.then(|| Port::Named(text.to_owned())).ok_or_else(|| {
            ScalarError(format!(
                "invalid port {text:?}: expected a number, a range like \"1000:2000\" or a port name"
            ))
        })
    }
}

fn parse_number(digits: &str) -> Result<u16, ScalarError> {
    digits.parse().map_err(|_| ScalarError(format!("invalid port: {digits} is not in 0..65535")))
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Number(port) => port.fmt(f),
            Port::Range(first, last) => write!(f, "{first}:{last}"),
            Port::Named(name) => name.fmt(f),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Port::Number(port) => serializer.serialize_u16(*port),
            text => serializer.collect_str(text),
        }
    }
}

number_or_text! {
    Port,
    Port::Number,
    "invalid port: {} is not in 0..65535",
    forms::port_form(&patterns::port())
}

#[cfg(test)]
mod tests {
    use super::Port;
    use serde_json::json;

    #[test]
    fn one_spelling_for_each_port() {
        for (read, written) in [
            (json!(80), json!(80)),
            (json!("80"), json!(80)),
            (json!("1000:2000"), json!("1000:2000")),
            (json!("90:90"), json!(90)),
            (json!("http-alt"), json!("http-alt")),
        ] {
            let port: Port = serde_json::from_value(read).unwrap();
            assert_eq!(serde_json::to_value(&port).unwrap(), written);
        }
        for bad in [
            json!(65536),
            json!(-1),
            json!("2:1"),
            json!("70000"),
            json!(""),
            json!("a b"),
            json!("1:"),
            json!("1:99999"),
        ] {
            assert!(serde_json::from_value::<Port>(bad.clone()).is_err(), "{bad}");
        }
    }
}
