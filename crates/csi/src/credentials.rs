//! The credential files of pods for the node: `<prefix>/creds/<volume id>.json`, in Calico's format. Files are replaced
//! atomically.

use crate::error::VolumeError;
use crate::volume::{PodIdentity, is_plain};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MAX_CREDENTIAL_BYTES: u64 = 4 << 10;
/// Maximum number of entries of the directory that are read.
const MAX_DIRECTORY_ENTRIES: usize = 16 << 10;
const SUFFIX: &str = ".json";
const MAX_UID_BYTES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PodCredentials {
    #[serde(rename = "UID")]
    pub uid: String,
    pub workload: String,
    pub namespace: String,
    #[serde(default)]
    pub service_account: String,
}

impl From<&PodIdentity> for PodCredentials {
    fn from(pod: &PodIdentity) -> PodCredentials {
        PodCredentials {
            uid: pod.uid.clone(),
            workload: pod.name.clone(),
            namespace: pod.namespace.clone(),
            service_account: pod.service_account.clone(),
        }
    }
}

/// The directory of the files.
#[derive(Clone, Debug)]
pub struct CredentialStore {
    dir: PathBuf,
}

impl CredentialStore {
    pub fn new(dir: PathBuf) -> CredentialStore {
        CredentialStore { dir }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Reads the credentials of a volume. Returns `None` if the file is missing or malformed.
    pub fn read(&self, volume_id: &str) -> Result<Option<PodCredentials>, VolumeError> {
        let path = self.file(volume_id);
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(&path)?.take(MAX_CREDENTIAL_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            // A file that this driver has not written is replaced.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(VolumeError::io("read", &path)(error)),
        }
    }

    pub fn write(&self, volume_id: &str, credentials: &PodCredentials) -> Result<(), VolumeError> {
        let path = self.file(volume_id);
        // The node ignores names with a dot in front.
        let new = self.dir.join(format!(".{volume_id}.new"));
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(credentials)?;
            let mut options = OpenOptions::new();
            let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            fs::rename(&new, &path)
        };
        write().map_err(VolumeError::io("write", &path))
    }

    pub fn remove(&self, volume_id: &str) -> Result<(), VolumeError> {
        let path = self.file(volume_id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(VolumeError::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Returns the ids of all volumes with credentials.
    pub fn list(&self) -> Result<Vec<String>, VolumeError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(VolumeError::io("read", &self.dir))?,
        };
        let names = entries.take(MAX_DIRECTORY_ENTRIES).flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let id = name.strip_suffix(SUFFIX)?;
            (!id.starts_with('.')).then(|| id.to_owned())
        });
        Ok(names.collect())
    }

    /// Returns whether a volume of this pod has credentials.
    pub fn has_pod(&self, uid: &str) -> Result<bool, VolumeError> {
        for id in self.list()? {
            if self.read(&id)?.is_some_and(|credentials| credentials.uid == uid) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn file(&self, volume_id: &str) -> PathBuf {
        self.dir.join(format!("{volume_id}{SUFFIX}"))
    }
}

impl PodCredentials {
    /// Returns whether the UID can be the name of a directory.
    pub fn has_plain_uid(&self) -> bool {
        is_plain(&self.uid, MAX_UID_BYTES)
    }
}
