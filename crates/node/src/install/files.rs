//! Files that others read at any time: each is whole or not there, and all of them are noted, to be removed again.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const NAME: &str = "cni-installation.json";

/// What was written where, in this order.
#[derive(Debug)]
pub struct Manifest {
    path: PathBuf,
    files: Vec<PathBuf>,
}

impl Manifest {
    pub fn load(state_dir: &Path) -> Result<Manifest, String> {
        let path = state_dir.join(NAME);
        let files = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| about(&path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(about(&path, &error)),
        };
        Ok(Manifest { path, files })
    }

    /// Replaces a file, unless it has these contents and this mode already.
    pub fn write(&mut self, path: &Path, contents: &[u8], mode: u32) -> Result<(), String> {
        let is_mode = |meta: fs::Metadata| meta.permissions().mode() & 0o777 == mode;
        if fs::metadata(path).is_ok_and(is_mode) && fs::read(path).is_ok_and(|old| old == contents) {
            return Ok(());
        }
        self.note(path)?;
        let write = |new: &Path| {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(new)?;
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all(contents)?;
            file.sync_all()
        };
        replace(path, write)
    }

    /// Removes everything, the last first; what is gone already is no failure.
    pub fn remove(mut self) -> Result<Vec<PathBuf>, String> {
        let mut removed = Vec::new();
        let mut failures = Vec::new();
        for path in std::mem::take(&mut self.files).into_iter().rev() {
            match remove(&path) {
                Ok(()) => removed.push(path),
                Err(reason) => {
                    failures.push(reason);
                    self.files.insert(0, path);
                }
            }
        }
        match failures.is_empty() {
            true => remove(&self.path).map(|()| removed),
            false => {
                failures.extend(self.save().err());
                Err(failures.join("; "))
            }
        }
    }

    /// A file that is written again keeps its place.
    fn note(&mut self, path: &Path) -> Result<(), String> {
        if self.files.iter().any(|known| known == path) {
            return Ok(());
        }
        self.files.push(path.to_owned());
        self.save()
    }

    fn save(&self) -> Result<(), String> {
        let text = serde_json::to_vec(&self.files).map_err(|error| about(&self.path, &error))?;
        replace(&self.path, |new| fs::write(new, &text))
    }
}

/// What is not there need not be removed.
pub fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(about(path, &error)),
        _ => Ok(()),
    }
}

/// Makes the new file beside the old one and puts it in its place in one step.
fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), String> {
    let mut new = path.as_os_str().to_owned();
    new.push(".tmp");
    let new = PathBuf::from(new);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|error| about(dir, &error))?;
    }
    let written = write(&new).and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        // Half of it is of no use to anybody.
        let _ = fs::remove_file(&new);
        about(path, &error)
    })
}

fn about(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}
