//! BGP autonomous system numbers.

use super::{ScalarError, is_digits};
use serde::Serialize;
use std::{fmt, str::FromStr};

/// AS number. Serialised as a number; also parsed from a string, plain or as two 16-bit halves (`1.10`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ASNumber(pub u32);

impl FromStr for ASNumber {
    type Err = ScalarError;

    fn from_str(text: &str) -> Result<Self, ScalarError> {
        let number = match text.split_once('.') {
            Some((high, low)) if is_digits(high) && is_digits(low) => high
                .parse::<u16>()
                .ok()
                .zip(low.parse::<u16>().ok())
                .map(|(high, low)| u32::from(high) << 16 | u32::from(low)),
            None if is_digits(text) => text.parse().ok(),
            _ => None,
        };
        number.map(ASNumber).ok_or_else(|| {
            ScalarError(format!(
                "{text:?} is not an AS number: expected 0..4294967295 or two 16-bit halves like 1.10"
            ))
        })
    }
}

impl fmt::Display for ASNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

number_or_text! {
    ASNumber,
    ASNumber,
    "{} is not an AS number: expected 0..4294967295",
    schemars::json_schema!({"type": "integer", "format": "int64", "minimum": 0, "maximum": 4294967295u32})
}

#[cfg(test)]
mod tests {
    use super::ASNumber;
    use serde_json::json;

    #[test]
    fn reads_numbers_and_both_text_forms() {
        for (value, number) in [
            (json!(64512), 64512),
            (json!("64512"), 64512),
            (json!("1.10"), 65546),
            (json!(4294967295u32), u32::MAX),
        ] {
            let read: ASNumber = serde_json::from_value(value).unwrap();
            assert_eq!(read, ASNumber(number));
            assert_eq!(serde_json::to_value(read).unwrap(), json!(number));
        }
        for bad in [
            json!(4294967296u64),
            json!(-1),
            json!("65536.1"),
            json!("1.2.3"),
            json!("+1"),
            json!(""),
            json!(1.5),
        ] {
            assert!(serde_json::from_value::<ASNumber>(bad.clone()).is_err(), "{bad}");
        }
    }
}
