//! A value built from TLS files that is rebuilt when the files change.

use crate::{TlsError, TlsFiles};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Inode, size and modification time of a file: differs when the file was written or replaced. `None` if it is missing.
type FileStamp = Option<(u64, u64, i64, i64)>;

pub struct TlsReloader<T> {
    files: TlsFiles,
    make: fn(&TlsFiles) -> Result<T, TlsError>,
    current: Mutex<(T, Vec<FileStamp>)>,
}

impl<T: Clone> TlsReloader<T> {
    pub fn new(
        files: TlsFiles,
        make: fn(&TlsFiles) -> Result<T, TlsError>,
    ) -> Result<TlsReloader<T>, TlsError> {
        let stamps = read_stamps(&files);
        let made = make(&files)?;
        Ok(TlsReloader { files, make, current: Mutex::new((made, stamps)) })
    }

    /// Returns the value built from the current files. While the files are unusable, returns the previous value.
    pub fn get(&self) -> T {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = read_stamps(&self.files);
        if stamps != current.1 {
            current.1 = stamps;
            match (self.make)(&self.files) {
                Ok(made) => {
                    current.0 = made;
                    tracing::info!("TLS: loaded the new certificate in {}", self.files.certificate.display());
                }
                Err(error) => {
                    tracing::error!("TLS: {error}; keeping the previous certificate");
                }
            }
        }
        current.0.clone()
    }
}

impl<T> fmt::Debug for TlsReloader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsReloader").field("files", &self.files).finish_non_exhaustive()
    }
}

fn read_stamps(files: &TlsFiles) -> Vec<FileStamp> {
    let all = [Some(&files.certificate), Some(&files.key), files.ca.as_ref()];
    all.into_iter().flatten().map(|path| read_stamp(path)).collect()
}

fn read_stamp(path: &Path) -> FileStamp {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}
