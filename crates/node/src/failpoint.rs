//! Points in the code where a test can abort the daemon, as in a power failure, or block it while something else
//! happens. Compiled in only with the feature `failpoints`.

use tortie_dataplane::Netns;

#[cfg(feature = "failpoints")]
pub use active::hit;

/// Returns the host namespace with injected faults: the kernel rejects the objects that are listed in the file named
/// by TORTIE_FAULTS.
#[cfg(feature = "failpoints")]
pub fn with_faults(host: Netns) -> Netns {
    match std::env::var_os("TORTIE_FAULTS") {
        Some(file) => host.with_faults(tortie_dataplane::KernelFaults::listed_in(file)),
        None => host,
    }
}

#[cfg(not(feature = "failpoints"))]
pub fn with_faults(host: Netns) -> Netns {
    host
}

/// Does nothing in a build without the feature.
#[cfg(not(feature = "failpoints"))]
#[allow(clippy::unused_async)]
pub async fn hit(_name: &str) {}

#[cfg(feature = "failpoints")]
mod active {
    use std::path::PathBuf;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const FAILPOINT_POLL_INTERVAL: Duration = Duration::from_millis(5);

    /// The parsed variable TORTIE_FAILPOINT.
    struct FailpointRequest {
        name: String,
        /// The daemon creates this file when it reaches the failpoint for the first time, and continues when the file
        /// has been removed. Without a file, the daemon aborts.
        held_by: Option<PathBuf>,
    }

    static FAILPOINT_REQUEST: LazyLock<Option<FailpointRequest>> = LazyLock::new(|| {
        let text = std::env::var("TORTIE_FAILPOINT").ok()?;
        Some(match text.split_once(':') {
            Some((name, file)) => {
                FailpointRequest { name: name.to_owned(), held_by: Some(PathBuf::from(file)) }
            }
            None => FailpointRequest { name: text, held_by: None },
        })
    });
    static FAILPOINT_REACHED: AtomicBool = AtomicBool::new(false);

    /// Aborts, panics or blocks if TORTIE_FAILPOINT selects this failpoint: `NAME`, `NAME:panic` or `NAME:FILE`.
    pub async fn hit(name: &str) {
        let Some(request) = FAILPOINT_REQUEST.as_ref().filter(|request| request.name == name) else { return };
        let Some(file) = &request.held_by else {
            tracing::error!(name, "aborted by a failpoint");
            std::process::abort();
        };
        // The panic ends only the task that reaches the failpoint first, not the process.
        #[allow(clippy::panic)]
        if file.as_os_str() == "panic" {
            panic!("ended by the failpoint {name}");
        }
        if FAILPOINT_REACHED.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(name, file = %file.display(), "blocked by a failpoint until the file is removed");
        if let Err(error) = std::fs::write(file, "") {
            tracing::error!(%error, "cannot create the file of the failpoint");
        }
        while file.exists() {
            tokio::time::sleep(FAILPOINT_POLL_INTERVAL).await;
        }
    }
}
