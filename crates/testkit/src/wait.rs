//! Waits for conditions. Tests run on busy machines: a test waits for a condition and never asserts a duration.

use std::time::{Duration, Instant};

/// Time limit for a condition to become true.
pub const CONDITION_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub fn eventually(what: &str, so: impl FnMut() -> bool) {
    eventually_showing(what, so, String::new);
}

/// Waits like [`eventually`]. `picture` renders the state for the failure message.
pub fn eventually_showing(what: &str, mut so: impl FnMut() -> bool, picture: impl Fn() -> String) {
    let deadline = Instant::now() + CONDITION_TIMEOUT;
    while !so() {
        assert!(Instant::now() < deadline, "not within {CONDITION_TIMEOUT:?}: {what}\n{}", picture());
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits like [`eventually`], in tests whose other tasks must run in the meantime.
pub async fn eventually_async(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + CONDITION_TIMEOUT;
    while !so().await {
        assert!(Instant::now() < deadline, "not within {CONDITION_TIMEOUT:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
