//! A token bucket. The caller passes the time.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct RateLimiter {
    interval: Duration,
    burst: u32,
    tokens: u32,
    /// Time up to which tokens were added.
    refilled: Instant,
}

impl RateLimiter {
    /// Returns a full bucket. Rate and burst are at least one.
    pub fn new(per_second: u32, burst: u32, now: Instant) -> RateLimiter {
        let burst = burst.max(1);
        RateLimiter {
            interval: Duration::from_secs(1) / per_second.max(1),
            burst,
            tokens: burst,
            refilled: now,
        }
    }

    /// Takes a token. Returns false if the bucket is empty.
    pub fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        if self.tokens == 0 {
            return false;
        }
        self.tokens -= 1;
        true
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled);
        let earned = elapsed.as_nanos() / self.interval.as_nanos().max(1);
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        if earned >= self.burst - self.tokens {
            self.tokens = self.burst;
            self.refilled = now;
        } else {
            self.tokens += earned;
            self.refilled += self.interval * earned;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_bounded_and_refill() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(10, 3, start);
        let taken = |limiter: &mut RateLimiter, after: u64| {
            let now = start + Duration::from_millis(after);
            (0..100).filter(|_| limiter.take(now)).count()
        };
        assert_eq!(taken(&mut limiter, 0), 3);
        assert_eq!(taken(&mut limiter, 99), 0);
        assert_eq!(taken(&mut limiter, 100), 1);
        assert_eq!(taken(&mut limiter, 350), 2, "half an interval is kept");
        assert_eq!(taken(&mut limiter, 400), 1);
        assert_eq!(taken(&mut limiter, 60_000), 3, "no more than the burst");
    }
}
