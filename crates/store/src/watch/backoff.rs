//! Exponential backoff with jitter.

use std::time::Duration;

const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Backoff {
    failures: u32,
    longest: Duration,
}

impl Backoff {
    /// Default maximum delay: short enough that the client notices a recovered store within seconds. The jitter spreads
    /// the retries of thousands of clients.
    pub const MAX_DELAY: Duration = Duration::from_secs(5);

    pub fn capped(longest: Duration) -> Backoff {
        Backoff { failures: 0, longest }
    }

    pub fn pause(&mut self) -> Duration {
        let full = FIRST_RETRY_DELAY.saturating_mul(1 << self.failures.min(10)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(rand::random_range(0.5..=1.0))
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::capped(Backoff::MAX_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_a_limit_and_starts_again() {
        let mut backoff = Backoff::default();
        assert!(backoff.pause() <= FIRST_RETRY_DELAY);
        let waits: Vec<Duration> = (0..40).map(|_| backoff.pause()).collect();
        assert!(waits.iter().all(|wait| *wait <= Backoff::MAX_DELAY));
        assert!(waits.last().is_some_and(|wait| *wait >= Backoff::MAX_DELAY / 2));
        backoff.reset();
        assert!(backoff.pause() <= FIRST_RETRY_DELAY);
    }
}
