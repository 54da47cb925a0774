//! One daemon per directory: the second is shown who is there, and leaves everything as it is.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Held until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{dir} is in use by another node daemon ({holder}); stop that one, or use another directory")]
    Held { dir: String, holder: String },
    #[error("{path}: {error}")]
    Io { path: String, error: io::Error },
}

impl DirLock {
    /// Locks a directory that exists.
    pub fn acquire(dir: &Path) -> Result<DirLock, LockError> {
        let path = dir.join("lock");
        let failed = |error| LockError::Io { path: path.display().to_string(), error };
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(LockError::Held { dir: dir.display().to_string(), holder: holder(file) });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The one before may have removed the file after we opened it: then nobody else sees our lock.
            let there = std::fs::metadata(&path).map(|there| there.ino()).ok();
            if there != Some(file.metadata().map_err(failed)?.ino()) {
                continue;
            }
            let text = format!("process {}, since {:.0}\n", std::process::id(), jiff::Timestamp::now());
            file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(failed)?;
            return Ok(DirLock { _file: file, path });
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // One that stays locks nothing.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Who it says it is.
fn holder(file: File) -> String {
    let mut text = String::new();
    // A holder that cannot be read is one all the same.
    let _ = file.take(4096).read_to_string(&mut text);
    match text.trim() {
        "" => "it has not said who it is".to_owned(),
        holder => holder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_learns_who_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        let error = DirLock::acquire(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}, since 2", std::process::id())), "{error}");
        drop(first);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        DirLock::acquire(dir.path()).unwrap();
    }
}
