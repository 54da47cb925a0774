//! Budget of bytes in flight to all clients together. When it is exhausted, the client that has read nothing for the
//! longest time is disconnected, and the others wait until bytes are released.

use super::metrics::HubMetrics;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Only clients that have read nothing for this long are disconnected.
const STALL_AGE: Duration = Duration::from_secs(10);
/// Interval at which a task that waits for budget checks for stalled clients to evict.
const BUDGET_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum number of bytes gathered for a client at once.
const MIN_SHARE_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub struct BufferBudget {
    limit: usize,
    state: Mutex<BudgetState>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct BudgetState {
    used: usize,
    /// Part of `used` held by clients that are being evicted.
    evicting_bytes: usize,
    next_id: u64,
    holders: BTreeMap<u64, BufferHolder>,
}

#[derive(Debug)]
struct BufferHolder {
    bytes: usize,
    /// Time of the client's last read.
    progress: Instant,
    /// Notified when the client is evicted.
    evicted: Arc<Notify>,
    is_evicted: bool,
}

/// A client's part of the budget during one write; released on drop.
#[derive(Debug)]
pub struct BufferShare<'a> {
    budget: &'a BufferBudget,
    metrics: &'a HubMetrics,
    id: u64,
    evicted: Arc<Notify>,
}

impl BufferBudget {
    pub fn new(limit: usize) -> BufferBudget {
        BufferBudget { limit, state: Mutex::default(), freed: Notify::new() }
    }

    /// Returns how many bytes to gather at once per client: `max_bytes`, or less if `clients` times `max_bytes` would
    /// exceed the budget.
    pub fn bytes_per_client(&self, clients: usize, max_bytes: usize) -> usize {
        (self.limit / clients.max(1)).clamp(MIN_SHARE_BYTES.min(max_bytes), max_bytes)
    }

    /// Reserves bytes if the budget allows. A client that is alone may exceed the budget, otherwise it would wait
    /// forever.
    pub fn reserve<'a>(&'a self, bytes: usize, metrics: &'a HubMetrics) -> Option<BufferShare<'a>> {
        let mut state = self.state();
        if !self.has_room(&state, bytes) {
            return None;
        }
        let id = state.next_id;
        let evicted = Arc::new(Notify::new());
        state.next_id += 1;
        state.used += bytes;
        let holder =
            BufferHolder { bytes, progress: Instant::now(), evicted: evicted.clone(), is_evicted: false };
        state.holders.insert(id, holder);
        metrics.set_buffered(state.used);
        Some(BufferShare { budget: self, metrics, id, evicted })
    }

    fn has_room(&self, state: &BudgetState, bytes: usize) -> bool {
        state.used == 0 || state.used.saturating_add(bytes) <= self.limit
    }

    /// Waits until the budget has room for `bytes`, which another client may then take first. Evicts stalled clients
    /// if that is the only way to get room.
    pub async fn make_room(&self, bytes: usize) {
        loop {
            let freed = self.freed.notified();
            if self.has_room(&self.state(), bytes) {
                return;
            }
            self.evict_slowest(bytes, Instant::now());
            let _ = timeout(BUDGET_RETRY_INTERVAL, freed).await;
        }
    }

    fn evict_slowest(&self, bytes: usize, now: Instant) {
        let mut state = self.state();
        if (state.used - state.evicting_bytes).saturating_add(bytes) <= self.limit {
            return;
        }
        let remaining = state.holders.values_mut().filter(|holder| !holder.is_evicted);
        let slowest = remaining.min_by_key(|holder| holder.progress);
        let Some(holder) = slowest.filter(|holder| now >= holder.progress + STALL_AGE) else { return };
        holder.is_evicted = true;
        holder.evicted.notify_one();
        let bytes = holder.bytes;
        state.evicting_bytes += bytes;
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BufferShare<'_> {
    /// Records that the client has read some of its data.
    pub fn record_progress(&self) {
        if let Some(holder) = self.budget.state().holders.get_mut(&self.id) {
            holder.progress = Instant::now();
        }
    }

    /// Waits until the client is evicted.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for BufferShare<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        if let Some(holder) = state.holders.remove(&self.id) {
            state.used -= holder.bytes;
            if holder.is_evicted {
                state.evicting_bytes -= holder.bytes;
            }
        }
        self.metrics.set_buffered(state.used);
        drop(state);
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_evicted(share: &BufferShare<'_>) -> bool {
        timeout(Duration::ZERO, share.evicted()).await.is_ok()
    }

    #[tokio::test]
    async fn only_the_longest_stalled_client_is_evicted() {
        let (budget, metrics) = (BufferBudget::new(100), HubMetrics::new());
        let first = budget.reserve(40, &metrics).unwrap();
        let second = budget.reserve(60, &metrics).unwrap();
        assert!(budget.reserve(1, &metrics).is_none());
        let now = Instant::now();
        budget.evict_slowest(30, now + STALL_AGE / 2);
        assert!(!is_evicted(&first).await, "the client has not stalled for long enough");
        budget.evict_slowest(30, now + STALL_AGE);
        budget.evict_slowest(30, now + STALL_AGE);
        assert!(is_evicted(&first).await);
        assert!(!is_evicted(&second).await, "the bytes of the first client are enough");
        drop(first);
        let third = budget.reserve(40, &metrics).unwrap();
        assert!(metrics.text().contains("tortie_hub_buffered_bytes 100\n"));
        drop((second, third));
        assert!(metrics.text().contains("tortie_hub_buffered_bytes 0\n"));
        assert!(budget.reserve(1000, &metrics).is_some(), "a client that is alone may exceed the limit");
    }

    #[tokio::test]
    async fn a_client_that_reads_is_never_disconnected() {
        let (budget, metrics) = (BufferBudget::new(100), HubMetrics::new());
        let reading = budget.reserve(50, &metrics).unwrap();
        let stalled = budget.reserve(50, &metrics).unwrap();
        let begin = Instant::now();
        assert!(
            timeout(Duration::from_millis(10), budget.make_room(50)).await.is_err(),
            "no client has stalled"
        );
        reading.record_progress();
        budget.evict_slowest(50, begin + STALL_AGE);
        budget.evict_slowest(100, begin + STALL_AGE);
        assert!(is_evicted(&stalled).await);
        assert!(!is_evicted(&reading).await);
        drop(stalled);
        budget.make_room(50).await;
    }

    #[test]
    fn many_clients_get_smaller_shares() {
        let budget = BufferBudget::new(256 << 20);
        let max_bytes = 256 << 10;
        let shares =
            [0, 1, 1024, 10_000, 1_000_000].map(|clients| budget.bytes_per_client(clients, max_bytes) >> 10);
        assert_eq!(shares, [256, 256, 256, 26, 16]);
        assert_eq!(budget.bytes_per_client(1_000_000, 100), 100);
    }
}
