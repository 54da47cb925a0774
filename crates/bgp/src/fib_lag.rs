//! Measures how long route changes have been waiting to be written to the kernel.

use std::collections::VecDeque;
use std::time::Instant;

/// Maximum number of marks. Beyond it the newest mark absorbs later changes and keeps its own, older time.
const MAX_MARKS: usize = 1024;

/// Marks that record how many changes existed at which time.
#[derive(Debug, Default)]
pub struct FibLag {
    marks: VecDeque<(u64, Instant)>,
}

impl FibLag {
    /// Records that `total` changes exist now.
    pub fn recorded(&mut self, total: u64, now: Instant) {
        let full = self.marks.len() >= MAX_MARKS;
        match self.marks.back_mut() {
            Some((known, _)) if *known >= total => {}
            Some((known, _)) if full => *known = total,
            _ => self.marks.push_back((total, now)),
        }
    }

    /// Returns since when the oldest pending change has been waiting, given that `taken` changes were consumed.
    pub fn oldest(&mut self, taken: u64) -> Option<Instant> {
        while self.marks.front().is_some_and(|(total, _)| *total <= taken) {
            self.marks.pop_front();
        }
        self.marks.front().map(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_oldest_that_was_not_taken_counts() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut lag = FibLag::default();
        assert_eq!(lag.oldest(0), None);
        lag.recorded(10, at(1));
        lag.recorded(10, at(2));
        lag.recorded(15, at(3));
        assert_eq!(lag.oldest(0), Some(at(1)));
        assert_eq!(lag.oldest(9), Some(at(1)));
        assert_eq!(lag.oldest(10), Some(at(3)));
        assert_eq!(lag.oldest(15), None);
    }

    #[test]
    fn marks_are_few() {
        let start = Instant::now();
        let mut lag = FibLag::default();
        for number in 1..=10 * MAX_MARKS as u64 {
            lag.recorded(number, start + Duration::from_millis(number));
        }
        assert_eq!(lag.marks.len(), MAX_MARKS);
        let latest = lag.oldest(10 * MAX_MARKS as u64 - 1).unwrap();
        assert_eq!(latest, start + Duration::from_millis(MAX_MARKS as u64), "as old as the oldest of them");
    }
}
