//! The time within which a request must be complete so that its reply arrives before the client gives up.

use std::time::Duration;
use tonic::codegen::http::HeaderMap;

/// Header in which clients, such as Envoy, state how long they wait for a reply.
const TIMEOUT_HEADER: &str = "grpc-timeout";
/// Maximum number of digits in it.
const MAX_TIMEOUT_DIGITS: usize = 8;

/// Returns the time after which a request is answered even if it is not complete: three quarters of the time for which
/// its client waits, or `None` if the client does not state it.
pub fn read_reply_deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT_HEADER)?.to_str().ok()?;
    Some(parse_timeout(text)? / 4 * 3)
}

/// Parses a timeout of gRPC: digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty()
        || digits.len() > MAX_TIMEOUT_DIGITS
        || !digits.bytes().all(|byte| byte.is_ascii_digit())
    {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::codegen::http::HeaderValue;

    #[test]
    fn deadlines_are_below_the_timeout_of_clients() {
        for (text, expected) in [
            ("200m", Some(Duration::from_millis(150))),
            ("2S", Some(Duration::from_millis(1500))),
            ("1M", Some(Duration::from_secs(45))),
            ("1H", Some(Duration::from_secs(2700))),
            ("4000u", Some(Duration::from_millis(3))),
            ("4n", Some(Duration::from_nanos(3))),
            ("0m", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 2700))),
            ("", None),
            ("m", None),
            ("200", None),
            ("-1S", None),
            ("+1S", None),
            ("1s", None),
            ("999999999S", None),
            ("1é", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(TIMEOUT_HEADER, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            assert_eq!(read_reply_deadline(&headers), expected, "{text:?}");
        }
        assert_eq!(read_reply_deadline(&HeaderMap::new()), None);
    }
}
