//! Waits for conditions. Tests run on busy machines: a test waits for a condition and never asserts a duration.

use std::time::{Duration, Instant};

/// Time limit for a condition to become true.
pub const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

pub fn eventually(what: &str, so: impl FnMut() -> bool) {
    eventually_showing(what, so, String::new);
}

/// Waits like [`eventually`]. `picture` renders the state for the failure message.
pub fn eventually_showing(what: &str, mut so: impl FnMut() -> bool, picture: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{}", picture());
        std::thread::sleep(PAUSE);
    }
}

/// Waits like [`eventually`], in tests whose other tasks must run in the meantime.
pub async fn eventually_async(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
