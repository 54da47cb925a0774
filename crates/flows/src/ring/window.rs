//! Time windows of requests.

use super::{FlowRing, sample::BucketNumber};
use std::ops::Range;

/// Start times in seconds as requests carry them: above zero absolute, below zero relative to now. Zero means the oldest
/// time as the beginning and now as the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeWindow {
    pub gte: i64,
    pub lt: i64,
}

impl TimeWindow {
    /// Returns the buckets of the ring whose start is in the window.
    pub fn buckets(&self, ring: &FlowRing, now: i64) -> Range<BucketNumber> {
        let begin = match self.gte {
            0 => ring.oldest(),
            gte => ring.first_bucket_from(resolve_time(gte, now)).max(ring.oldest()),
        };
        let end = match self.lt {
            0 => ring.first_bucket_from(now.saturating_add(1)),
            lt => ring.first_bucket_from(resolve_time(lt, now)),
        };
        begin..end.min(ring.current() + 2).max(begin)
    }
}

/// Returns the absolute time of a time that is relative to now if it is negative.
pub fn resolve_time(time: i64, now: i64) -> i64 {
    if time < 0 { now.saturating_add(time) } else { time }
}

impl FlowRing {
    /// Returns the first bucket that starts at `seconds` or later.
    pub fn first_bucket_from(&self, seconds: i64) -> BucketNumber {
        self.bucket_at(seconds.max(0).saturating_add(self.window() - 1))
    }

    /// Returns the first bucket of a stream. Zero starts with the next bucket that will be complete, so that the stream
    /// contains nothing historical.
    pub fn stream_start(&self, gte: i64, now: i64) -> BucketNumber {
        match gte {
            0 => self.complete_end(),
            gte => self.first_bucket_from(resolve_time(gte, now)).max(self.oldest()),
        }
    }
}
