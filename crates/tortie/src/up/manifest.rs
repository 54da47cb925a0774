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
    pub fn exists(state_dir: &Path) -> bool {
        path(state_dir).exists()
    }

    /// Loads the manifest, or an empty one if the file does not exist.
    pub fn load(state_dir: &Path) -> io::Result<UpManifest> {
        match std::fs::read(path(state_dir)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UpManifest::default()),
            Err(error) => Err(error),
        }
    }

    pub fn save(&self, state_dir: &Path) -> io::Result<()> {
        let new = path(state_dir).with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(new, path(state_dir))
    }

    pub fn remove(state_dir: &Path) -> io::Result<()> {
        std::fs::remove_file(path(state_dir))
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("up.json")
}
