//! Rate-limited log warnings about clients: the first of a kind is logged immediately, then one line per minute with
//! the number of suppressed ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WARNING_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct ClientWarnings(Mutex<HashMap<&'static str, WarningState>>);

#[derive(Debug)]
struct WarningState {
    logged: Instant,
    suppressed: u64,
}

impl ClientWarnings {
    /// Logs a problem with a client. `kind` must be one of a small, fixed set of messages.
    pub fn warn(&self, kind: &'static str, source: IpAddr, reason: &dyn std::fmt::Display) {
        match self.count(kind, Instant::now()) {
            Some(0) => tracing::warn!(%source, %reason, "{kind}"),
            Some(suppressed) => {
                tracing::warn!(%source, %reason, "{kind}, as did {suppressed} others in the last minute")
            }
            None => tracing::debug!(%source, %reason, "{kind}"),
        }
    }

    /// Counts an occurrence. Returns how many were suppressed before it if it is to be logged.
    fn count(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kinds.get_mut(kind) {
            Some(kind) if now < kind.logged + WARNING_INTERVAL => {
                kind.suppressed += 1;
                None
            }
            Some(kind) => {
                kind.logged = now;
                Some(std::mem::take(&mut kind.suppressed))
            }
            None => {
                kinds.insert(kind, WarningState { logged: now, suppressed: 0 });
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_a_minute() {
        let warnings = ClientWarnings::default();
        let start = Instant::now();
        assert_eq!(warnings.count("a", start), Some(0));
        for _ in 0..1000 {
            assert_eq!(warnings.count("a", start), None);
        }
        assert_eq!(warnings.count("b", start), Some(0));
        assert_eq!(warnings.count("a", start + WARNING_INTERVAL), Some(1000));
        assert_eq!(warnings.count("a", start + WARNING_INTERVAL), None);
    }
}
