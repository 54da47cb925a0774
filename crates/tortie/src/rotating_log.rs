//! A log file of limited size: a full file is renamed, and the oldest renamed file is removed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Number of rotated files that are kept.
const MAX_ROTATED_FILES: usize = 3;

#[derive(Debug)]
pub struct RotatingLog {
    path: PathBuf,
    file: File,
    size: u64,
    most: u64,
}

impl RotatingLog {
    /// Opens the file for appending. A file exceeds `most` bytes by at most one write.
    pub fn open(path: &Path, most: u64) -> io::Result<RotatingLog> {
        let file = File::options().create(true).append(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(RotatingLog { path: path.to_owned(), file, size, most })
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size >= self.most {
            self.rotate()?;
        }
        let written = self.file.write_all(bytes);
        self.size = match &written {
            Ok(()) => self.size + bytes.len() as u64,
            // A part of the bytes may have been written.
            Err(_) => self.file.metadata().map_or(self.size, |found| found.len()),
        };
        written
    }

    /// Rotates the files. Frees space and creates the new file first: if that fails, the existing files keep their
    /// names, except the oldest, which is removed.
    fn rotate(&mut self) -> io::Result<()> {
        remove_file(&build_numbered_path(&self.path, MAX_ROTATED_FILES))?;
        let new = build_numbered_path(&self.path, 0);
        let file = File::options().create(true).append(true).open(&new)?;
        for number in (1..MAX_ROTATED_FILES).rev() {
            let older = build_numbered_path(&self.path, number);
            if older.exists() {
                std::fs::rename(older, build_numbered_path(&self.path, number + 1))?;
            }
        }
        std::fs::rename(&self.path, build_numbered_path(&self.path, 1))?;
        std::fs::rename(new, &self.path)?;
        self.file = file;
        self.size = 0;
        Ok(())
    }

    /// Removes the file and the rotated ones.
    pub fn remove(path: &Path) -> io::Result<()> {
        for path in std::iter::once(path.to_owned())
            .chain((0..=MAX_ROTATED_FILES).map(|number| build_numbered_path(path, number)))
        {
            remove_file(&path)?;
        }
        Ok(())
    }
}

/// Removes a file if it exists.
fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn build_numbered_path(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_never_takes_more_than_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.log");
        let mut log = RotatingLog::open(&path, 100).unwrap();
        for number in 0..205 {
            log.write(format!("line {number:04}\n").as_bytes()).unwrap();
        }
        let sizes: Vec<u64> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(sizes.len(), 1 + MAX_ROTATED_FILES);
        assert!(sizes.iter().all(|size| *size <= 110), "{sizes:?}");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("line 0204\n"));
        // A new instance appends to the same file.
        let before = std::fs::metadata(&path).unwrap().len();
        RotatingLog::open(&path, 100).unwrap().write(b"again\n").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), before + 6);
        RotatingLog::remove(&path).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
