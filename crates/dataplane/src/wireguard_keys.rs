//! Stores the private keys of the node's WireGuard devices: one file for each, in the format of `wg genkey`.
//!
//! The file takes precedence over the device. If it is removed while the node runs, the node generates a new key.

use crate::kernel::PrivateKey;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tortie_plan::TunnelKind;

/// Maximum number of bytes read from a file; no key is that long.
const MAX_KEY_FILE_BYTES: u64 = 128;

/// A directory for keys; without one, keys live as long as their devices.
#[derive(Clone, Debug, Default)]
pub struct WireguardKeys {
    dir: Option<PathBuf>,
}

/// An error of a file that configures a WireGuard device.
#[derive(Debug, thiserror::Error)]
pub enum WireguardFileError {
    #[error("{} has no WireGuard key in it; remove it", path.display())]
    NoKey { path: PathBuf },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} belongs to another network namespace: wireguardThreadingEnabled has no effect", path.display())]
    OtherNamespace { path: PathBuf },
}

impl WireguardKeys {
    pub fn in_dir(dir: &Path) -> WireguardKeys {
        WireguardKeys { dir: Some(dir.to_owned()) }
    }

    /// Returns whether keys are stored in files, which may be removed.
    pub(crate) fn are_kept(&self) -> bool {
        self.dir.is_some()
    }

    /// Loads the key of a tunnel; `None` if there is no file.
    pub(crate) fn load(&self, kind: TunnelKind) -> Result<Option<PrivateKey>, WireguardFileError> {
        let Some(path) = self.path(kind) else { return Ok(None) };
        match read(&path) {
            Ok(text) => text.trim().parse().map(Some).map_err(|_| WireguardFileError::NoKey { path }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(WireguardFileError::File { path, source }),
        }
    }

    pub(crate) fn save(&self, kind: TunnelKind, key: &PrivateKey) -> Result<(), WireguardFileError> {
        let Some(path) = self.path(kind) else { return Ok(()) };
        write(&path, &format!("{key}\n")).map_err(|source| WireguardFileError::File { path, source })
    }

    fn path(&self, kind: TunnelKind) -> Option<PathBuf> {
        let name = if kind.is_ipv4() { "wireguard.key" } else { "wireguard-v6.key" };
        Some(self.dir.as_ref()?.join(name))
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_KEY_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file atomically, readable only by its owner at all times.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    // A file left by an earlier attempt could be readable by other users.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Generates a key from the kernel's random source.
pub fn new_key() -> PrivateKey {
    PrivateKey::from_bytes(rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_stored_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let keys = WireguardKeys::in_dir(dir.path());
        assert_eq!(keys.load(TunnelKind::WireguardV4).unwrap(), None);
        let (one, two) = (new_key(), new_key());
        assert_ne!(one, two);
        keys.save(TunnelKind::WireguardV4, &one).unwrap();
        keys.save(TunnelKind::WireguardV6, &two).unwrap();
        assert_eq!(keys.load(TunnelKind::WireguardV4).unwrap(), Some(one));
        assert_eq!(keys.load(TunnelKind::WireguardV6).unwrap(), Some(two.clone()));
        keys.save(TunnelKind::WireguardV4, &two).unwrap();
        assert_eq!(keys.load(TunnelKind::WireguardV4).unwrap(), Some(two));
        let mode = fs::metadata(dir.path().join("wireguard.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_without_a_key_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let keys = WireguardKeys::in_dir(dir.path());
        let path = dir.path().join("wireguard.key");
        for text in ["", "secret", &"A".repeat(4096)] {
            fs::write(&path, text).unwrap();
            let error = keys.load(TunnelKind::WireguardV4).unwrap_err().to_string();
            assert!(error.contains("wireguard.key") && !error.contains("secret"), "{error}");
        }
    }
}
