//! Reads and writes small JSON files.

use crate::error::{LabError, LabResult};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Creates a file that must not exist: of several concurrent callers exactly one succeeds. Returns false if the file
/// exists.
pub fn create<T: Serialize>(path: &Path, value: &T) -> LabResult<bool> {
    let text = to_json(path, value)?;
    match fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map(|()| true).map_err(LabError::file(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(LabError::file(path)(error)),
    }
}

pub fn replace<T: Serialize>(path: &Path, value: &T) -> LabResult<()> {
    let new = path.with_extension("new");
    fs::write(&new, to_json(path, value)?).map_err(LabError::file(&new))?;
    fs::rename(&new, path).map_err(LabError::file(path))
}

/// Reads a file. Returns `None` if it does not exist.
pub fn read<T: DeserializeOwned>(path: &Path) -> LabResult<Option<T>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LabError::file(path)(error)),
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| LabError::Io { what: path.display().to_string(), source: error.into() })
}

fn to_json<T: Serialize>(path: &Path, value: &T) -> LabResult<String> {
    serde_json::to_string_pretty(value)
        .map_err(|error| LabError::Io { what: path.display().to_string(), source: error.into() })
}
