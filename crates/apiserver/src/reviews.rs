//! A bounded cache of TokenReview and SubjectAccessReview results that expire after a few seconds.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct ReviewCache<K, V> {
    entries: Mutex<HashMap<K, (Instant, V)>>,
    lifetime: Duration,
    max_entries: usize,
}

impl<K: Eq + Hash, V: Clone> ReviewCache<K, V> {
    pub fn new(lifetime: Duration, max_entries: usize) -> ReviewCache<K, V> {
        ReviewCache { entries: Mutex::default(), lifetime, max_entries }
    }

    pub fn get(&self, key: &K, now: Instant) -> Option<V> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (created, value) = entries.get(key)?;
        (now.saturating_duration_since(*created) < self.lifetime).then(|| value.clone())
    }

    pub fn put(&self, key: K, value: V, now: Instant) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= self.max_entries {
            entries.retain(|_, (created, _)| now.saturating_duration_since(*created) < self.lifetime);
        }
        if entries.len() >= self.max_entries {
            // Clear everything: repeating the reviews costs less than tracking which entries are in use.
            entries.clear();
        }
        entries.insert(key, (now, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_reviews_expire_and_are_bounded() {
        let reviews = ReviewCache::new(Duration::from_secs(10), 3);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        reviews.put(1, "a", at(0));
        assert_eq!(reviews.get(&1, at(9)), Some("a"));
        assert_eq!(reviews.get(&1, at(10)), None);
        for key in 2..5 {
            reviews.put(key, "b", at(5));
        }
        assert_eq!(reviews.entries.lock().unwrap().len(), 1);
        assert_eq!((reviews.get(&4, at(6)), reviews.get(&2, at(6))), (Some("b"), None));
    }
}
