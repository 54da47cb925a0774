//! Places where a test can have the daemon killed, as if the power had gone.

use std::sync::LazyLock;

static WANTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("TORTIE_FAILPOINT").ok());

/// Ends the process here if the environment asks for it by name.
pub fn hit(name: &str) {
    if WANTED.as_deref() == Some(name) {
        tracing::error!(name, "killed by a failpoint");
        std::process::abort();
    }
}
