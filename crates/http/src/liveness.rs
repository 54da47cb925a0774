//! Liveness tracking. Each component of a daemon that must keep running sends heartbeats. If one sends none for too
//! long, the liveness endpoint names it and fails, so that the supervisor restarts the daemon.

use axum::http::StatusCode;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Default heartbeat timeout; longer than any operation takes on a machine that is merely busy.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Debug)]
pub struct Liveness {
    started: Instant,
    /// Time without a heartbeat after which a component counts as dead, unless the caller of `silent` passes another
    /// limit.
    limit: Duration,
    parts: Mutex<BTreeMap<&'static str, Arc<AtomicU64>>>,
}

/// Handle with which one component reports that it is alive.
#[derive(Clone, Debug)]
pub struct ComponentHeartbeat {
    started: Instant,
    /// Time of the last heartbeat, in milliseconds since `started`.
    last: Arc<AtomicU64>,
}

impl Default for Liveness {
    fn default() -> Liveness {
        Liveness::new(HEARTBEAT_TIMEOUT)
    }
}

impl Liveness {
    pub fn new(limit: Duration) -> Liveness {
        Liveness { started: Instant::now(), limit, parts: Mutex::default() }
    }

    /// Registers a component, which has to send heartbeats from now on.
    pub fn part(&self, name: &'static str) -> ComponentHeartbeat {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let heartbeat =
            ComponentHeartbeat { started: self.started, last: parts.entry(name).or_default().clone() };
        heartbeat.beat();
        heartbeat
    }

    /// Unregisters a component that has stopped on purpose.
    pub fn forget(&self, name: &str) {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub fn parts(&self) -> Vec<&'static str> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Returns the components without a recent heartbeat and the time since their last one. `limits` overrides the
    /// default limit per component.
    pub fn silent(&self, limits: &BTreeMap<String, Duration>) -> BTreeMap<&'static str, Duration> {
        let now = self.started.elapsed();
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = parts.iter().filter_map(|(name, last)| {
            let silence = now.saturating_sub(Duration::from_millis(last.load(Ordering::Relaxed)));
            let limit = limits.get(*name).copied().unwrap_or(self.limit);
            // A limit of zero disables the check of that component.
            (!limit.is_zero() && silence > limit).then_some((*name, silence))
        });
        silent.collect()
    }

    /// Renders the liveness page, one line per component. The status is 503 if any component missed its limit.
    pub fn page(&self) -> (StatusCode, String) {
        let silent = self.silent(&BTreeMap::new());
        let lines = self.parts().into_iter().map(|part| match silent.get(part) {
            Some(silence) => format!("{part}: {}\n", describe(*silence)),
            None => format!("{part}: alive\n"),
        });
        let code = if silent.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (code, lines.collect())
    }
}

/// Describes a component that has sent no heartbeat for `silence`.
pub fn describe(silence: Duration) -> String {
    format!("no sign of life for {} s", silence.as_secs())
}

impl ComponentHeartbeat {
    pub fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_component_is_named() {
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
    fn the_page_fails_while_a_component_is_silent() {
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
