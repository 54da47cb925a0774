//! Waiting for what must come to be. Tests run on busy machines: a test waits for a condition and never asserts a time.

use std::time::{Duration, Instant};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

pub fn eventually(what: &str, so: impl FnMut() -> bool) {
    eventually_showing(what, so, String::new);
}

/// `picture` is for whoever looks at the failure.
pub fn eventually_showing(what: &str, mut so: impl FnMut() -> bool, picture: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{}", picture());
        std::thread::sleep(PAUSE);
    }
}

/// The same for tests that must let other tasks run meanwhile.
pub async fn eventually_async(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
