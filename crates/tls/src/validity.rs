//! Validity period and issuer of X.509 certificates.

use crate::names::{parts, value};
use time::{Date, Month, OffsetDateTime, Time};

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Validity period in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidityPeriod {
    pub from: i64,
    pub until: i64,
}

/// Returns the validity period, or `None` if the bytes are not a certificate.
pub fn validity(certificate: &[u8]) -> Option<ValidityPeriod> {
    let mut period = parts(certificate)?.validity;
    Some(ValidityPeriod { from: parse_time(&mut period)?, until: parse_time(&mut period)? })
}

/// Returns whether the issuer name of `certificate` is the subject name of `authority`. Does not verify signatures.
pub fn names_as_issuer(certificate: &[u8], authority: &[u8]) -> bool {
    match (parts(certificate), parts(authority)) {
        (Some(certificate), Some(authority)) => certificate.issuer == authority.subject,
        _ => false,
    }
}

fn parse_time(bytes: &mut &[u8]) -> Option<i64> {
    let (tag, text) = value(bytes)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let text = match tag {
        // RFC 5280, 4.1.2.5.1: two-digit years from 50 on belong to the 20th century.
        UTC_TIME if text.get(..2)? >= "50" => format!("19{text}"),
        UTC_TIME => format!("20{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let month = Month::try_from(parse_two_digits(&text, 4)?).ok()?;
    let year: u16 = text.get(..4)?.parse().ok()?;
    let date = Date::from_calendar_date(i32::from(year), month, parse_two_digits(&text, 6)?).ok()?;
    let [hour, minute, second] = [8, 10, 12].map(|at| parse_two_digits(&text, at));
    let time = Time::from_hms(hour?, minute?, second?).ok()?;
    (text.len() == 14).then(|| OffsetDateTime::new_utc(date, time).unix_timestamp())
}

fn parse_two_digits(text: &str, at: usize) -> Option<u8> {
    text.get(at..at + 2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn both_forms_of_time_are_read() {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2026, 3, 1);
        params.not_after = date_time_ymd(2050, 12, 31);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let when = validity(made.der()).unwrap();
        let seconds = |year, month, day| date_time_ymd(year, month, day).unix_timestamp();
        assert_eq!(when, ValidityPeriod { from: seconds(2026, 3, 1), until: seconds(2050, 12, 31) });
        assert!(names_as_issuer(made.der(), made.der()));
        assert!(!names_as_issuer(made.der(), b"nothing"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_calmly(bytes: Vec<u8>) {
            let _ = validity(&bytes);
            let _ = parse_time(&mut bytes.as_slice());
        }
    }
}
