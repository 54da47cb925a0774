//! What one request, and all requests together, may take of memory and of processor time.

use super::refusal::Refusal;
use std::cell::Cell;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest answer; more is read in pages.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The largest answer to a request that writes, which is made while all other writes wait.
pub const MAX_WRITE_ANSWER_BYTES: usize = 16 << 20;
/// Answers up to this size are not counted: there are never more of them than streams.
pub const SMALL_ANSWER_BYTES: usize = 64 << 10;
/// Versions of keys that a request may look at.
pub const READ_WORK: usize = 4_000_000;
/// The same for what a request that writes compares, reads and deletes, while all other writes wait.
pub const WRITE_WORK: usize = 200_000;

/// Old values that the changes of one group of writes keep for watchers; beyond that, watchers read them from disk.
pub const MAX_HELD_BYTES: usize = 8 << 20;
/// Leases at a time: each is kept in memory, whatever holds it.
pub const MAX_LEASES: u64 = 200_000;

const UNIT: usize = 1024;

/// How much more work a request may do.
pub type Work = Cell<usize>;

/// What one answer takes, counted while it is gathered. Beyond the limit it is only counted.
#[derive(Debug)]
pub struct Allowance {
    limit: usize,
    used: usize,
}

impl Allowance {
    pub fn new(limit: usize) -> Allowance {
        Allowance { limit, used: 0 }
    }

    /// Whether so many more bytes may be kept.
    pub fn take(&mut self, bytes: usize) -> bool {
        self.used = self.used.saturating_add(bytes);
        self.used <= self.limit
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Whether it is beyond what any answer may take, so that counting on is of no use.
    pub fn is_hopeless(&self) -> bool {
        self.used > self.limit.max(MAX_ANSWER_BYTES)
    }

    pub fn check(&self) -> Result<(), Refusal> {
        if self.used > self.limit { Err(Refusal::ANSWER_TOO_LARGE) } else { Ok(()) }
    }
}

/// The memory that large answers may take together, from when they are gathered until they have been sent.
#[derive(Clone)]
pub struct AnswerBudget {
    units: Arc<Semaphore>,
}

/// A part of the budget, given back when it is dropped.
pub type Share = Arc<OwnedSemaphorePermit>;

impl Default for AnswerBudget {
    fn default() -> AnswerBudget {
        AnswerBudget { units: Arc::new(Semaphore::new(units(MAX_ANSWER_BYTES) as usize)) }
    }
}

impl AnswerBudget {
    /// All that is there at once, for an answer of unknown size: what it does not need is given back as soon as it is
    /// gathered, and one that comes meanwhile counts first and waits for what it needs.
    pub fn at_once(&self) -> (Option<OwnedSemaphorePermit>, usize) {
        let available = self.units.available_permits();
        match self.units.clone().try_acquire_many_owned(available as u32) {
            Ok(permit) if available > 0 => (Some(permit), available * UNIT),
            _ => (None, 0),
        }
    }

    /// For an answer that is there already; nothing if it is small, or if there is nothing left, as it cannot be undone.
    pub fn share(&self, bytes: usize) -> Option<Share> {
        let is_large = bytes > SMALL_ANSWER_BYTES;
        is_large.then(|| self.units.clone().try_acquire_many_owned(units(bytes)).ok()).flatten().map(Arc::new)
    }

    /// Waits for its turn.
    pub async fn wait_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let units = units(bytes.min(MAX_ANSWER_BYTES));
        self.units.clone().acquire_many_owned(units).await.map_err(|_| Refusal::STOPPED)
    }

    /// Gives back what an answer of so many bytes does not need; small ones need nothing.
    pub fn shrink(permit: Option<OwnedSemaphorePermit>, bytes: usize) -> Option<Share> {
        let mut permit = permit.filter(|_| bytes > SMALL_ANSWER_BYTES)?;
        let excess = permit.num_permits().saturating_sub(units(bytes) as usize);
        drop(permit.split(excess));
        Some(Arc::new(permit))
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}
