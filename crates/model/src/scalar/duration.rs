//! Durations in Go's text form: `1m30s`, `250ms`, `0s`.

use super::ScalarError;
use crate::schema::forms;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{fmt, str::FromStr};

/// Signed nanoseconds, as in Go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration {
    nanos: i64,
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

impl GoDuration {
    pub const fn from_nanos(nanos: i64) -> GoDuration {
        GoDuration { nanos }
    }

    pub const fn from_secs(secs: u32) -> GoDuration {
        GoDuration { nanos: secs as i64 * SECOND as i64 }
    }

    pub const fn as_nanos(self) -> i64 {
        self.nanos
    }

    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Converts to a standard duration; returns `None` if negative.
    pub fn to_std(self) -> Option<std::time::Duration> {
        u64::try_from(self.nanos).ok().map(std::time::Duration::from_nanos)
    }
}

fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

/// Returns the nanoseconds of one number with its unit; fractions of a nanosecond are truncated.
fn component(whole: &str, fraction: &str, scale: u64) -> Option<u64> {
    let nanos = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(scale)? };
    let mut place = scale as f64;
    let mut part = 0.0;
    for digit in fraction.bytes() {
        place /= 10.0;
        part += f64::from(digit - b'0') * place;
    }
    nanos.checked_add(part as u64)
}

fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0u64;
    while !rest.is_empty() {
        let (whole, after) = split_digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => split_digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (name, after) = after.split_at(end);
        total = total.checked_add(component(whole, fraction, unit(name)?)?)?;
        rest = after;
    }
    let total = i128::from(total);
    i64::try_from(if negative { -total } else { total }).ok()
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

impl FromStr for GoDuration {
    type Err = ScalarError;

    fn from_str(text: &str) -> Result<Self, ScalarError> {
        parse(text).map(GoDuration::from_nanos).ok_or_else(|| {
            ScalarError(format!("invalid duration {text:?}: expected numbers with units, like 1m30s"))
        })
    }
}

/// Prints a multiple of `scale` nanoseconds with up to `digits` decimals, without trailing zeros.
fn decimal(f: &mut fmt::Formatter<'_>, nanos: u64, scale: u64, digits: usize, name: &str) -> fmt::Result {
    let whole = nanos / scale;
    let part = nanos % scale;
    if part == 0 {
        return write!(f, "{whole}{name}");
    }
    let part = format!("{part:0digits$}");
    write!(f, "{whole}.{}{name}", part.trim_end_matches('0'))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nanos = self.nanos.unsigned_abs();
        match nanos {
            0 => f.write_str("0s"),
            1..MICROSECOND => write!(f, "{nanos}ns"),
            MICROSECOND..MILLISECOND => decimal(f, nanos, MICROSECOND, 3, "\u{b5}s"),
            MILLISECOND..SECOND => decimal(f, nanos, MILLISECOND, 6, "ms"),
            _ => {
                let hours = nanos / HOUR;
                let minutes = nanos % HOUR / MINUTE;
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                decimal(f, nanos % MINUTE, SECOND, 9, "s")
            }
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(GoDuration::default()) } else { text.parse().map_err(D::Error::custom) }
    }
}

inline_schema! {
    GoDuration,
    schemars::json_schema!({"type": "string", "x-kubernetes-validations": [forms::rule(
        "self == '' || duration(self) == duration(self)",
        "must be a span of time such as 1m30s",
    )]})
}

#[cfg(test)]
mod tests {
    use super::GoDuration;
    use proptest::prelude::*;

    #[test]
    fn reads_and_prints_like_go() {
        for (text, nanos, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("90s", 90_000_000_000, "1m30s"),
            ("15m", 900_000_000_000, "15m0s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("1.001s", 1_001_000_000, "1.001s"),
            ("1500us", 1_500_000, "1.5ms"),
            ("1\u{3bc}s", 1_000, "1\u{b5}s"),
            ("7ns", 7, "7ns"),
            ("-1m", -60_000_000_000, "-1m0s"),
            ("+5s", 5_000_000_000, "5s"),
            ("2562047h47m16.854775807s", i64::MAX, "2562047h47m16.854775807s"),
            ("-2562047h47m16.854775808s", i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let duration: GoDuration = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(duration.as_nanos(), nanos, "{text}");
            assert_eq!(duration.to_string(), printed);
        }
        for bad in ["", "5", "s", "1", "1.5", "1d", "1s ", "-", "+", ".s", "1 s", "--1s", "9999999h", "1sm"] {
            assert!(bad.parse::<GoDuration>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanos: i64) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9.nuµmsh]{0,24}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
