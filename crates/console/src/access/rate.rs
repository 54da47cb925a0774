//! Limits the rate of requests of all clients together with a token bucket.

use std::time::{Duration, Instant};

/// Requests that may be sent at once, and per second after that.
const BURST_REQUESTS: f64 = 400.0;
const REQUESTS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub struct RateLimit {
    available: f64,
    updated: Instant,
}

impl RateLimit {
    pub fn new(now: Instant) -> RateLimit {
        RateLimit { available: BURST_REQUESTS, updated: now }
    }

    /// Takes one request from the bucket, or returns the time until one is available.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        let elapsed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.available = (self.available + elapsed * REQUESTS_PER_SECOND).min(BURST_REQUESTS);
        if self.available < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.available) / REQUESTS_PER_SECOND));
        }
        self.available -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_burst_wait() {
        let start = Instant::now();
        let mut limit = RateLimit::new(start);
        let admitted = (0..1000).filter(|_| limit.admit(start).is_ok()).count();
        assert_eq!(admitted, BURST_REQUESTS as usize);
        let wait = limit.admit(start).unwrap_err();
        assert!(wait <= Duration::from_millis(10), "{wait:?}");
        let later = start + Duration::from_secs(1);
        assert_eq!((0..1000).filter(|_| limit.admit(later).is_ok()).count(), REQUESTS_PER_SECOND as usize);
    }
}
