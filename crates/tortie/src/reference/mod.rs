//! Generates the reference pages from the code: every command with its options, and every field of every resource.
//! Tests fail if a page is stale; `make docs-reference` regenerates them.
#![cfg(test)]

mod cli;
mod resources;

use std::path::Path;

/// Asserts that a page is current. `TORTIE_REFRESH=1` writes the page instead.
fn is_fresh(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("TORTIE_REFRESH").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reference/{name} is stale: run `make docs-reference`");
}
