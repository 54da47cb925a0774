//! Writes small files that other programs read.

use std::io;
use std::path::Path;

/// Replaces a file atomically, so that readers see either the old or the new text. Does not write if the text is
/// unchanged.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}
