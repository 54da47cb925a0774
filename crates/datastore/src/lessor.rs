//! Tracks the expiry of leases. Only the durations are durable: after a restart every lease has its full time to live
//! again, as after a leader change in etcd.

use super::batch::LeaseChange;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The limits of etcd, in seconds.
pub const MIN_TTL_SECONDS: i64 = 2;
pub const MAX_TTL_SECONDS: i64 = 9_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseEntry {
    ttl: i64,
    expiry: Instant,
}

#[derive(Default)]
pub struct Lessor {
    leases: Mutex<LeaseSet>,
}

#[derive(Default)]
struct LeaseSet {
    by_id: HashMap<i64, LeaseEntry>,
    by_expiry: BTreeSet<(Instant, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    pub granted: i64,
    pub remaining: i64,
}

impl Lessor {
    pub fn new(leases: impl IntoIterator<Item = (i64, i64)>, now: Instant) -> Lessor {
        let lessor = Lessor::default();
        for (id, ttl) in leases {
            lessor.apply(LeaseChange::Granted { id, ttl }, now);
        }
        lessor
    }

    pub fn apply(&self, change: LeaseChange, now: Instant) {
        let mut leases = self.lock();
        match change {
            LeaseChange::Granted { id, ttl } => leases.set(id, ttl, now),
            LeaseChange::Revoked { id } => leases.remove(id),
        }
    }

    /// Restarts the time to live of a lease; `None` if the lease does not exist or has expired.
    pub fn renew(&self, id: i64, now: Instant) -> Option<i64> {
        let mut leases = self.lock();
        let lease = *leases.by_id.get(&id)?;
        if lease.expiry <= now {
            return None;
        }
        leases.set(id, lease.ttl, now);
        Some(lease.ttl)
    }

    pub fn time_to_live(&self, id: i64, now: Instant) -> Option<TimeToLive> {
        let leases = self.lock();
        let lease = leases.by_id.get(&id)?;
        let remaining = lease.expiry.saturating_duration_since(now).as_secs() as i64;
        Some(TimeToLive { granted: lease.ttl, remaining })
    }

    /// Returns the IDs of all leases, the next to expire first.
    pub fn ids(&self) -> Vec<i64> {
        self.lock().by_expiry.iter().map(|(_, id)| *id).collect()
    }

    pub fn expired(&self, now: Instant) -> Vec<i64> {
        self.lock().by_expiry.iter().take_while(|(expiry, _)| *expiry <= now).map(|(_, id)| *id).collect()
    }

    fn lock(&self) -> MutexGuard<'_, LeaseSet> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseSet {
    fn set(&mut self, id: i64, ttl: i64, now: Instant) {
        self.remove(id);
        // If the clock cannot represent the expiry, the lease lasts 2^32 - 1 seconds.
        let expiry = u64::try_from(ttl)
            .ok()
            .and_then(|seconds| now.checked_add(Duration::from_secs(seconds)))
            .unwrap_or_else(|| now + Duration::from_secs(u32::MAX.into()));
        self.by_id.insert(id, LeaseEntry { ttl, expiry });
        self.by_expiry.insert((expiry, id));
    }

    fn remove(&mut self, id: i64) {
        if let Some(lease) = self.by_id.remove(&id) {
            self.by_expiry.remove(&(lease.expiry, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_lease_does_not_expire() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let lessor = Lessor::new([(7, 10), (8, 3)], start);
        assert_eq!(lessor.ids(), [8, 7]);
        assert_eq!(lessor.time_to_live(7, at(4)), Some(TimeToLive { granted: 10, remaining: 6 }));
        assert_eq!(lessor.renew(8, at(2)), Some(3));
        assert!(lessor.expired(at(4)).is_empty());
        assert_eq!(lessor.expired(at(5)), [8]);
        assert_eq!(lessor.renew(8, at(5)), None);
        lessor.apply(LeaseChange::Revoked { id: 8 }, at(5));
        assert_eq!(lessor.ids(), [7]);
        assert_eq!(lessor.time_to_live(8, at(5)), None);
    }

    #[test]
    fn the_longest_lease_does_not_overflow_the_clock() {
        let now = Instant::now();
        let lessor = Lessor::new([(1, MAX_TTL_SECONDS), (2, i64::MAX)], now);
        assert!(lessor.expired(now).is_empty());
    }
}
