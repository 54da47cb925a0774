//! A bounded cache of TokenReview and SubjectAccessReview results that expire after a few seconds.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct ReviewCache<K, V> {
    known: Mutex<HashMap<K, (Instant, V)>>,
    lifetime: Duration,
    at_most: usize,
}

impl<K: Eq + Hash, V: Clone> ReviewCache<K, V> {
    pub fn new(lifetime: Duration, at_most: usize) -> ReviewCache<K, V> {
        ReviewCache { known: Mutex::default(), lifetime, at_most }
    }

    pub fn get(&self, key: &K, now: Instant) -> Option<V> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, value) = known.get(key)?;
        (now.saturating_duration_since(*since) < self.lifetime).then(|| value.clone())
    }

    pub fn put(&self, key: K, value: V, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.at_most {
            known.retain(|_, (since, _)| now.saturating_duration_since(*since) < self.lifetime);
        }
        if known.len() >= self.at_most {
            // Clear everything: repeating the reviews costs less than tracking which entries matter.
            known.clear();
        }
        known.insert(key, (now, value));
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
        assert_eq!(reviews.known.lock().unwrap().len(), 1);
        assert_eq!((reviews.get(&4, at(6)), reviews.get(&2, at(6))), (Some("b"), None));
    }
}
