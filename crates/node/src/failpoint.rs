//! Places where a test can have the daemon killed, as if the power had gone, or held up while something else happens.
//! Only builds for tests have them (feature `failpoints`).

use tortie_dataplane::Netns;

#[cfg(feature = "failpoints")]
pub use wanted::hit;

/// The host as a test wants it: its kernel refuses the objects that the file in TORTIE_FAULTS names.
#[cfg(feature = "failpoints")]
pub fn with_faults(host: Netns) -> Netns {
    match std::env::var_os("TORTIE_FAULTS") {
        Some(file) => host.with_faults(tortie_dataplane::Faults::listed_in(file)),
        None => host,
    }
}

#[cfg(not(feature = "failpoints"))]
pub fn with_faults(host: Netns) -> Netns {
    host
}

/// Nothing happens here in a build for users.
#[cfg(not(feature = "failpoints"))]
#[allow(clippy::unused_async)]
pub async fn hit(_name: &str) {}

#[cfg(feature = "failpoints")]
mod wanted {
    use std::path::PathBuf;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const PAUSE: Duration = Duration::from_millis(5);

    /// What the variable TORTIE_FAILPOINT asks for.
    struct Wanted {
        place: String,
        /// The daemon makes this file when it is there, once, and goes on when it is gone. Without it, the daemon dies.
        held_by: Option<PathBuf>,
    }

    static WANTED: LazyLock<Option<Wanted>> = LazyLock::new(|| {
        let text = std::env::var("TORTIE_FAILPOINT").ok()?;
        Some(match text.split_once(':') {
            Some((place, file)) => Wanted { place: place.to_owned(), held_by: Some(PathBuf::from(file)) },
            None => Wanted { place: text, held_by: None },
        })
    });
    static HELD: AtomicBool = AtomicBool::new(false);

    /// Ends or holds up the daemon here if the environment asks for it by name: `NAME`, `NAME:panic` or `NAME:FILE`.
    pub async fn hit(name: &str) {
        let Some(wanted) = WANTED.as_ref().filter(|wanted| wanted.place == name) else { return };
        let Some(file) = &wanted.held_by else {
            tracing::error!(name, "killed by a failpoint");
            std::process::abort();
        };
        // Of the task that comes here first, not of the process.
        #[allow(clippy::panic)]
        if file.as_os_str() == "panic" {
            panic!("ended by the failpoint {name}");
        }
        if HELD.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(name, file = %file.display(), "held up by a failpoint");
        if let Err(error) = std::fs::write(file, "") {
            tracing::error!(%error, "the failpoint's file cannot be made");
        }
        while file.exists() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
