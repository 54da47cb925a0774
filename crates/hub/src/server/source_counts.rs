//! Counts connections by source address, with a limit in total and per source.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub struct SourceCounts {
    max_total: usize,
    max_per_source: usize,
    state: Mutex<SourceCountsState>,
}

#[derive(Debug, Default)]
struct SourceCountsState {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// One counted connection; released on drop.
#[derive(Debug)]
pub struct SourceSlot {
    counts: Arc<SourceCounts>,
    source: IpAddr,
}

impl SourceCounts {
    pub fn new(max_total: usize, max_per_source: usize) -> Arc<SourceCounts> {
        Arc::new(SourceCounts { max_total, max_per_source, state: Mutex::default() })
    }

    /// Counts a connection, unless it would exceed the limit of its source or the total limit.
    pub fn count(self: &Arc<SourceCounts>, source: IpAddr) -> Option<SourceSlot> {
        let mut state = self.state();
        let of_source = state.by_source.get(&source).copied().unwrap_or_default();
        if of_source >= self.max_per_source || state.total >= self.max_total {
            return None;
        }
        state.by_source.insert(source, of_source + 1);
        state.total += 1;
        drop(state);
        Some(SourceSlot { counts: self.clone(), source })
    }

    fn state(&self) -> MutexGuard<'_, SourceCountsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SourceSlot {
    fn drop(&mut self) {
        let mut state = self.counts.state();
        state.total = state.total.saturating_sub(1);
        if let Some(count) = state.by_source.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                state.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_leaves_room_for_others() {
        let counts = SourceCounts::new(5, 3);
        let [one, two]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let mut held: Vec<SourceSlot> = (0..3).map(|_| counts.count(one).unwrap()).collect();
        assert!(counts.count(one).is_none());
        held.extend((0..2).map(|_| counts.count(two).unwrap()));
        assert!(counts.count(two).is_none(), "five in all");
        held.remove(0);
        assert!(counts.count(one).is_some());
        drop(held);
        assert!(counts.state().by_source.is_empty() && counts.state().total == 0);
    }
}
