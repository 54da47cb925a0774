//! The access log: one line per decision with the deciding rule, at a limited rate.

use crate::check::CheckCode;
use crate::metrics::L7Metrics;
use crate::proto::v3::attribute_context::HttpRequest;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of lines per interval; further ones are counted.
const MAX_LINES_PER_INTERVAL: u32 = 100;
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of a field that the client chooses.
const MAX_FIELD_CHARS: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogLevel {
    Off,
    #[default]
    Denied,
    All,
}

#[derive(Debug)]
pub struct AccessLog {
    level: AccessLogLevel,
    interval: Mutex<LogInterval>,
}

#[derive(Debug)]
struct LogInterval {
    began: Instant,
    lines: u32,
    suppressed: u64,
}

/// One decision.
pub struct AccessRecord<'a> {
    pub code: CheckCode,
    /// The deciding rule, or another reason.
    pub cause: &'a str,
    pub source: Option<IpAddr>,
    pub port: Option<u16>,
    pub principal: &'a str,
    pub http: Option<&'a HttpRequest>,
}

impl AccessLog {
    pub fn new(level: AccessLogLevel) -> AccessLog {
        let interval = LogInterval { began: Instant::now(), lines: 0, suppressed: 0 };
        AccessLog { level, interval: Mutex::new(interval) }
    }

    pub fn wants(&self, allowed: bool) -> bool {
        match self.level {
            AccessLogLevel::Off => false,
            AccessLogLevel::Denied => !allowed,
            AccessLogLevel::All => true,
        }
    }

    pub fn write(&self, record: &AccessRecord<'_>, metrics: &L7Metrics) {
        let admission = self.interval.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        let Some(suppressed) = admission else {
            metrics.suppressed_log_lines.inc();
            return;
        };
        if suppressed > 0 {
            tracing::warn!(suppressed, "decisions were not logged: there were more than the log admits");
        }
        let verdict = record.code.name();
        let rule = record.cause;
        let port = record.port.unwrap_or_default();
        let source = record.source.map(|source| source.to_string()).unwrap_or_default();
        let principal = truncate(record.principal);
        match record.http {
            // Debug formatting escapes control characters.
            Some(http) => {
                let path = truncate(http.path.split('?').next().unwrap_or_default());
                let (method, host, id) = (truncate(&http.method), truncate(&http.host), truncate(&http.id));
                tracing::info!(target: "tortie_l7::access", verdict, rule, source, port, ?principal, ?method, ?path, ?host, ?id, "request");
            }
            None => {
                tracing::info!(target: "tortie_l7::access", verdict, rule, source, port, ?principal, "connection");
            }
        }
    }
}

impl LogInterval {
    /// Returns the number of lines that were suppressed before, or `None` if this line must be suppressed.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.began) >= LOG_INTERVAL {
            self.began = now;
            self.lines = 0;
        }
        if self.lines >= MAX_LINES_PER_INTERVAL {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

fn truncate(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_FIELD_CHARS).map_or(text.len(), |(end, _)| end);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_counted() {
        let start = Instant::now();
        let mut interval = LogInterval { began: start, lines: 0, suppressed: 0 };
        for _ in 0..MAX_LINES_PER_INTERVAL {
            assert_eq!(interval.admit(start), Some(0));
        }
        assert_eq!(interval.admit(start), None);
        assert_eq!(interval.admit(start + LOG_INTERVAL / 2), None);
        assert_eq!(interval.admit(start + LOG_INTERVAL), Some(2));
        assert_eq!(interval.admit(start + LOG_INTERVAL), Some(0));
    }

    #[test]
    fn long_fields_are_cut_between_characters() {
        assert_eq!(truncate("abc"), "abc");
        assert_eq!(truncate(&"é".repeat(300)), "é".repeat(MAX_FIELD_CHARS));
    }

    #[test]
    fn levels_select_verdicts() {
        let wants = |level| [true, false].map(|allowed| AccessLog::new(level).wants(allowed));
        assert_eq!(wants(AccessLogLevel::Off), [false, false]);
        assert_eq!(wants(AccessLogLevel::Denied), [false, true]);
        assert_eq!(wants(AccessLogLevel::All), [true, true]);
    }
}
