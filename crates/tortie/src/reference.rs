//! Pages of the reference that are made from the code: every command with its options, and every field of every resource.
//! Tests say when a page is stale; `make docs-reference` writes them anew.
#![cfg(test)]

mod cli;
mod resources;

use std::path::Path;

/// `TORTIE_REFRESH=1` writes the page instead.
fn is_fresh(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("TORTIE_REFRESH").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reference/{name} is stale: run `make docs-reference`");
}
