//! The log of the latest changes as encoded frames, bounded by number and by size.

use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeLogLimits {
    pub frames: usize,
    pub bytes: usize,
}

impl Default for ChangeLogLimits {
    /// Half an hour of history at ten frames per second.
    fn default() -> ChangeLogLimits {
        ChangeLogLimits { frames: 20_000, bytes: 64 << 20 }
    }
}

#[derive(Debug)]
pub struct ChangeLog {
    limits: ChangeLogLimits,
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl ChangeLog {
    pub fn new(limits: ChangeLogLimits) -> ChangeLog {
        ChangeLog { limits, frames: VecDeque::new(), bytes: 0 }
    }

    /// Appends a frame and drops the oldest ones that exceed the limits.
    pub fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
        while self.frames.len() > self.limits.frames || self.bytes > self.limits.bytes {
            let Some(oldest) = self.frames.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }

    /// Returns the last `count` frames, oldest first, cut off at about `budget` bytes but with at least one frame.
    /// Returns `None` if the log holds fewer than `count`.
    pub fn last(&self, count: usize, budget: usize) -> Option<Vec<Bytes>> {
        let from = self.frames.len().checked_sub(count)?;
        let mut taken = Vec::new();
        let mut bytes = 0;
        for frame in self.frames.range(from..) {
            bytes += frame.len();
            if bytes > budget && !taken.is_empty() {
                break;
            }
            taken.push(frame.clone());
        }
        Some(taken)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
