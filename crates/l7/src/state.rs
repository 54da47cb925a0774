//! The replica that checks use, and the state of the connection that keeps it current.

use crate::replica::{Replica, ReplicaChange, ReplicaError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Value of `lost_at` while the connection exists.
const CONNECTED: u64 = u64::MAX;

#[derive(Debug)]
pub struct PolicyState {
    /// `None` until the node has sent everything once. A check holds the read lock for microseconds; a change holds the
    /// write lock for at most about a millisecond.
    replica: RwLock<Option<Replica>>,
    started: Instant,
    /// Time at which the connection was lost, in milliseconds since `started`.
    lost_at: AtomicU64,
    /// Age of the loss beyond which the replica is not used any more.
    stale_after: Option<Duration>,
}

/// The replica, or the reason why checks must not use it.
#[derive(Clone, Copy)]
pub enum ReplicaAccess<'s> {
    InSync(&'s Replica),
    /// The node has not sent everything yet.
    NotSynced,
    /// The connection has been lost for longer than `--stale-after`.
    Stale,
}

impl PolicyState {
    pub fn new(stale_after: Option<Duration>) -> PolicyState {
        PolicyState {
            replica: RwLock::new(None),
            started: Instant::now(),
            lost_at: AtomicU64::new(0),
            stale_after,
        }
    }

    /// Calls a function with the current replica. Changes wait until it returns.
    pub fn with_replica<R>(&self, read: impl FnOnce(ReplicaAccess<'_>) -> R) -> R {
        let guard = self.read();
        match guard.as_ref() {
            None => read(ReplicaAccess::NotSynced),
            Some(_) if self.is_stale() => read(ReplicaAccess::Stale),
            Some(replica) => read(ReplicaAccess::InSync(replica)),
        }
    }

    /// Returns whether checks get verdicts from policy.
    pub fn is_in_sync(&self) -> bool {
        self.with_replica(|access| matches!(access, ReplicaAccess::InSync(_)))
    }

    pub fn is_connected(&self) -> bool {
        self.lost_at.load(Ordering::Relaxed) == CONNECTED
    }

    /// Replaces the replica with one that is complete. Objects that only the old one has are gone.
    pub fn activate(&self, mut replica: Replica) {
        let mut guard = self.write();
        if let Some(previous) = guard.as_mut() {
            replica.inherit_counters(previous);
        }
        let previous = guard.replace(replica);
        self.lost_at.store(CONNECTED, Ordering::Relaxed);
        drop(guard);
        // The old replica is freed without the lock.
        drop(previous);
    }

    /// Applies a change to the replica in use.
    pub fn apply(&self, change: ReplicaChange) -> Result<(), ReplicaError> {
        match self.write().as_mut() {
            Some(replica) => replica.apply(change),
            None => Ok(()),
        }
    }

    /// Records that the connection is lost. A repeated loss does not restart `--stale-after`.
    pub fn mark_lost(&self) {
        let now = self.now();
        let _ = self.lost_at.compare_exchange(CONNECTED, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_stale(&self) -> bool {
        let Some(limit) = self.stale_after else { return false };
        match self.lost_at.load(Ordering::Relaxed) {
            CONNECTED => false,
            lost_at => Duration::from_millis(self.now().saturating_sub(lost_at)) > limit,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(CONNECTED - 1)
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Replica>> {
        self.replica.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Replica>> {
        self.replica.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_keeps_the_last_state() {
        let state = PolicyState::new(None);
        assert!(!state.is_in_sync() && !state.is_connected());
        state.activate(Replica::new(1 << 20));
        assert!(state.is_in_sync() && state.is_connected());
        state.mark_lost();
        assert!(state.is_in_sync() && !state.is_connected());
    }

    #[test]
    fn a_stale_replica_is_not_used() {
        let state = PolicyState::new(Some(Duration::ZERO));
        state.activate(Replica::new(1 << 20));
        assert!(state.is_in_sync());
        state.mark_lost();
        std::thread::sleep(Duration::from_millis(5));
        assert!(!state.is_in_sync());
        state.mark_lost();
        state.activate(Replica::new(1 << 20));
        assert!(state.is_in_sync());
    }
}
