//! Signs of life: each part of a daemon that must never stop gives one again and again. A part that is silent for too
//! long is named, and the daemon is no longer alive: whoever supervises it starts it again.

use axum::http::StatusCode;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than anything takes on a machine that is merely busy.
const SILENCE: Duration = Duration::from_secs(90);

#[derive(Debug)]
pub struct Liveness {
    started: Instant,
    /// How long a part may be silent unless somebody has set another limit for it.
    limit: Duration,
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
        Liveness::new(SILENCE)
    }
}

impl Liveness {
    pub fn new(limit: Duration) -> Liveness {
        Liveness { started: Instant::now(), limit, parts: Mutex::default() }
    }

    /// From now on this part is expected to beat.
    pub fn part(&self, name: &'static str) -> Heartbeat {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let heartbeat = Heartbeat { started: self.started, last: parts.entry(name).or_default().clone() };
        heartbeat.beat();
        heartbeat
    }

    /// This part is not at work any more, and need not be.
    pub fn forget(&self, name: &str) {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
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
        let limit = |name: &str| limits.get(name).copied().unwrap_or(self.limit);
        let parts = parts.iter().map(|(name, last)| (*name, silence(last)));
        // As everywhere, a limit of zero means that there is none.
        parts.filter(|(name, silence)| !limit(name).is_zero() && *silence > limit(name)).collect()
    }

    /// A line for each part, and an error if one is silent.
    pub fn page(&self) -> (StatusCode, String) {
        let silent = self.silent(&BTreeMap::new());
        let line = |part: &'static str| match silent.get(part) {
            Some(silence) => format!("{part}: {}\n", describe(*silence)),
            None => format!("{part}: alive\n"),
        };
        let code = if silent.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (code, self.parts().into_iter().map(line).collect())
    }
}

/// What is said of a part that has been silent for too long.
pub fn describe(silence: Duration) -> String {
    format!("no sign of life for {} s", silence.as_secs())
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

    #[test]
    fn the_page_is_an_error_as_long_as_a_part_is_silent() {
        let liveness = Liveness::new(Duration::from_millis(200));
        let (leader, election) = (liveness.part("leader"), liveness.part("election"));
        assert_eq!(liveness.page(), (StatusCode::OK, "election: alive\nleader: alive\n".to_owned()));
        std::thread::sleep(Duration::from_millis(300));
        election.beat();
        let (code, page) = liveness.page();
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert!(page.contains("leader: no sign of life for 0 s"), "{page}");
        leader.beat();
        assert!(liveness.page().1.contains("leader: alive"));
        liveness.forget("leader");
        leader.beat();
        assert_eq!(liveness.parts(), ["election"], "a part that is not expected any more");
    }
}
