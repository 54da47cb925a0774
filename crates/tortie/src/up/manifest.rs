//! Record of what `tortie up` created on this host.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UpManifest {
    /// Whether the datastore is the embedded one.
    pub embedded: bool,
    pub network: String,
    /// Whether the daemons are systemd services.
    #[serde(default)]
    pub systemd: bool,
    pub files: BTreeSet<PathBuf>,
}

impl UpManifest {
    /// Returns whether there is a manifest. A directory that this user cannot read is an error, not an absence.
    pub fn exists(state_dir: &Path) -> io::Result<bool> {
        build_manifest_path(state_dir).try_exists().map_err(with_path(&build_manifest_path(state_dir)))
    }

    /// Loads the manifest, or an empty one if the file does not exist.
    pub fn load(state_dir: &Path) -> io::Result<UpManifest> {
        match std::fs::read(build_manifest_path(state_dir)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UpManifest::default()),
            Err(error) => Err(with_path(&build_manifest_path(state_dir))(error)),
        }
    }

    pub fn save(&self, state_dir: &Path) -> io::Result<()> {
        let new = build_manifest_path(state_dir).with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(self)?).map_err(with_path(&new))?;
        std::fs::rename(&new, build_manifest_path(state_dir)).map_err(with_path(&new))
    }

    pub fn remove(state_dir: &Path) -> io::Result<()> {
        std::fs::remove_file(build_manifest_path(state_dir))
            .map_err(with_path(&build_manifest_path(state_dir)))
    }
}

fn build_manifest_path(state_dir: &Path) -> PathBuf {
    state_dir.join("up.json")
}

/// Returns a function for `map_err` that adds the path to the message of an I/O error and keeps its kind.
pub fn with_path(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("{path}: {error}"))
}
