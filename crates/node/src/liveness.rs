//! Signs of life: each part of the daemon that must never stop gives one again and again. A part that is silent for too
//! long is named, and the node is no longer alive: whoever supervises it starts it again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than anything takes on a machine that is merely busy.
const SILENCE: Duration = Duration::from_secs(90);

#[derive(Debug)]
pub struct Liveness {
    started: Instant,
    parts: Mutex<BTreeMap<&'static str, Arc<AtomicU64>>>,
}

/// One part's way to say that it lives.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    started: Instant,
    /// Milliseconds since the start.
    last: Arc<AtomicU64>,
}

impl Default for Liveness {
    fn default() -> Liveness {
        Liveness { started: Instant::now(), parts: Mutex::default() }
    }
}

impl Liveness {
    /// From now on this part is expected to beat.
    pub fn part(&self, name: &'static str) -> Heartbeat {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let heartbeat = Heartbeat { started: self.started, last: parts.entry(name).or_default().clone() };
        heartbeat.beat();
        heartbeat
    }

    pub fn parts(&self) -> Vec<&'static str> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// The parts that have been silent for too long, and for how long. `limits` are those that somebody has set.
    pub fn silent(&self, limits: &BTreeMap<String, Duration>) -> BTreeMap<&'static str, Duration> {
        let now = self.started.elapsed();
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let silence =
            |last: &AtomicU64| now.saturating_sub(Duration::from_millis(last.load(Ordering::Relaxed)));
        let limit = |name: &str| limits.get(name).copied().unwrap_or(SILENCE);
        let parts = parts.iter().map(|(name, last)| (*name, silence(last)));
        // As everywhere, a limit of zero means that there is none.
        parts.filter(|(name, silence)| !limit(name).is_zero() && *silence > limit(name)).collect()
    }
}

impl Heartbeat {
    pub fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_silent_for_too_long_is_named() {
        let liveness = Liveness::default();
        let (engine, _bgp) = (liveness.part("engine"), liveness.part("bgp"));
        assert!(liveness.silent(&BTreeMap::new()).is_empty());
        std::thread::sleep(Duration::from_millis(20));
        engine.beat();
        let limits = |millis| BTreeMap::from([("bgp".to_owned(), Duration::from_millis(millis))]);
        assert_eq!(liveness.silent(&limits(10)).into_keys().collect::<Vec<_>>(), ["bgp"]);
        assert!(liveness.silent(&limits(0)).is_empty(), "no limit");
    }
}
