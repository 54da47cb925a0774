//! Limits of memory and CPU time for one request and for all requests together.

use super::rejection::RequestRejection;
use std::cell::Cell;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum size of a response; larger results must be read in pages.
pub const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Maximum size of the response to a write, which is built while all other writes wait.
pub const MAX_WRITE_RESPONSE_BYTES: usize = 16 << 20;
/// Responses up to this size are not counted: there are never more of them than streams.
pub const SMALL_RESPONSE_BYTES: usize = 64 << 10;
/// Maximum number of key versions that a read may examine.
pub const MAX_READ_WORK: usize = 4_000_000;
/// The same for the comparisons, reads and deletes of a write, while all other writes wait.
pub const MAX_WRITE_WORK: usize = 200_000;

/// Maximum size of previous values that the changes of one group of writes hold for watchers; beyond it watchers read
/// them from disk.
pub const MAX_HELD_BYTES: usize = 8 << 20;
/// Maximum number of leases: each is held in memory.
pub const MAX_LEASES: u64 = 200_000;

const BUDGET_UNIT_BYTES: usize = 1024;

/// Remaining work that a request may do.
pub type WorkBudget = Cell<usize>;

/// Counts the size of one response while it is collected. Beyond the limit it only counts.
#[derive(Debug)]
pub struct ResponseAllowance {
    limit: usize,
    used: usize,
}

impl ResponseAllowance {
    pub fn new(limit: usize) -> ResponseAllowance {
        ResponseAllowance { limit, used: 0 }
    }

    /// Counts the bytes and returns whether they are still within the limit.
    pub fn take(&mut self, bytes: usize) -> bool {
        self.used = self.used.saturating_add(bytes);
        self.used <= self.limit
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns whether the size exceeds the limit of any response, so that counting further is useless.
    pub fn is_hopeless(&self) -> bool {
        self.used > self.limit.max(MAX_RESPONSE_BYTES)
    }

    pub fn check(&self) -> Result<(), RequestRejection> {
        if self.used > self.limit { Err(RequestRejection::ANSWER_TOO_LARGE) } else { Ok(()) }
    }
}

/// The memory budget of large responses, from their collection until they have been sent.
#[derive(Clone)]
pub struct ResponseBudget {
    units: Arc<Semaphore>,
}

/// A part of the budget, released when it is dropped.
pub type BudgetShare = Arc<OwnedSemaphorePermit>;

impl Default for ResponseBudget {
    fn default() -> ResponseBudget {
        ResponseBudget { units: Arc::new(Semaphore::new(count_units(MAX_RESPONSE_BYTES) as usize)) }
    }
}

impl ResponseBudget {
    /// Takes the whole available budget for a response of unknown size. The unused part is released as soon as the
    /// response is collected; a concurrent request first counts its size and then waits for that much.
    pub fn at_once(&self) -> (Option<OwnedSemaphorePermit>, usize) {
        let available = self.units.available_permits();
        match self.units.clone().try_acquire_many_owned(available as u32) {
            Ok(permit) if available > 0 => (Some(permit), available * BUDGET_UNIT_BYTES),
            _ => (None, 0),
        }
    }

    /// Returns a share for a response that already exists; `None` if it is small or if no budget is left, because it
    /// cannot be undone.
    pub fn share(&self, bytes: usize) -> Option<BudgetShare> {
        let is_large = bytes > SMALL_RESPONSE_BYTES;
        is_large
            .then(|| self.units.clone().try_acquire_many_owned(count_units(bytes)).ok())
            .flatten()
            .map(Arc::new)
    }

    /// Waits until this much of the budget is available.
    pub async fn wait_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, RequestRejection> {
        let units = count_units(bytes.min(MAX_RESPONSE_BYTES));
        self.units.clone().acquire_many_owned(units).await.map_err(|_| RequestRejection::STOPPED)
    }

    /// Releases the part of the permit that a response of this size does not need; small ones need none.
    pub fn shrink(permit: Option<OwnedSemaphorePermit>, bytes: usize) -> Option<BudgetShare> {
        let mut permit = permit.filter(|_| bytes > SMALL_RESPONSE_BYTES)?;
        let excess = permit.num_permits().saturating_sub(count_units(bytes) as usize);
        drop(permit.split(excess));
        Some(Arc::new(permit))
    }
}

fn count_units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BUDGET_UNIT_BYTES)).unwrap_or(u32::MAX)
}
