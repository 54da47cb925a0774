//! Small files that other software reads.

use std::io;
use std::path::Path;

/// Replaces a file as a whole; readers see the old or the new text. Nothing is written if nothing changes.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}
