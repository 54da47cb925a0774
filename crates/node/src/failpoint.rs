//! Places where a test can have the daemon killed, as if the power had gone.

/// Ends the process here if the environment asks for it by name.
pub fn hit(name: &str) {
    if std::env::var("TORTIE_FAILPOINT").is_ok_and(|wanted| wanted == name) {
        tracing::error!(name, "killed by a failpoint");
        std::process::abort();
    }
}
