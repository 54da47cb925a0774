//! Places where a test can have the daemon killed, as if the power had gone, or held up while something else happens.

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

/// Ends or holds up the daemon here if the environment asks for it by name: `NAME`, or `NAME:FILE`.
pub async fn hit(name: &str) {
    let Some(wanted) = WANTED.as_ref().filter(|wanted| wanted.place == name) else { return };
    let Some(file) = &wanted.held_by else {
        tracing::error!(name, "killed by a failpoint");
        std::process::abort();
    };
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
