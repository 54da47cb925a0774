//! Limits how often the clients of a workload may begin streams. Each stream costs the node a complete transfer of the
//! policy, and may change whether the workload has a proxy, which the kernel has to follow.

use std::time::{Duration, Instant};

/// Number of streams that may begin at once. A client that restarts in a loop begins fewer.
pub const MAX_STREAM_BURST: u32 = 16;
/// Interval in which one more stream may begin. Clients wait about as long before they try again.
const STREAM_REFILL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct StreamBudget {
    available: u32,
    /// When the last stream became available.
    refilled: Instant,
}

impl StreamBudget {
    pub fn new(now: Instant) -> StreamBudget {
        StreamBudget { available: MAX_STREAM_BURST, refilled: now }
    }

    /// Returns whether a stream may begin now, and takes it from the budget.
    pub fn take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.refilled);
        let earned = u32::try_from(elapsed.as_secs() / STREAM_REFILL_INTERVAL.as_secs()).unwrap_or(u32::MAX);
        self.available = self.available.saturating_add(earned).min(MAX_STREAM_BURST);
        self.refilled = match self.available {
            MAX_STREAM_BURST => now,
            _ => self.refilled + STREAM_REFILL_INTERVAL * earned,
        };
        let may_begin = self.available > 0;
        self.available = self.available.saturating_sub(1);
        may_begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_beyond_the_budget_are_refused() {
        let start = Instant::now();
        let mut budget = StreamBudget::new(start);
        for _ in 0..MAX_STREAM_BURST {
            assert!(budget.take(start));
        }
        assert!(!budget.take(start));
        let later = start + STREAM_REFILL_INTERVAL * 2 + STREAM_REFILL_INTERVAL / 2;
        assert_eq!([budget.take(later), budget.take(later), budget.take(later)], [true, true, false]);
        // The half interval is not lost.
        assert!(budget.take(start + STREAM_REFILL_INTERVAL * 3));
        let much_later = start + STREAM_REFILL_INTERVAL * 1000;
        let begun = (0..100).filter(|_| budget.take(much_later)).count();
        assert_eq!(begun, MAX_STREAM_BURST as usize);
    }
}
