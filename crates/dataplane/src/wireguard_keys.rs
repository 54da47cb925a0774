//! Where the private keys of the node's WireGuard devices are kept: a file for each, as `wg genkey` writes it.
//!
//! The file decides. Where it is taken away while the node runs, the node makes a new key.

use crate::kernel::PrivateKey;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tortie_plan::TunnelKind;

/// More than any key: what is larger is something else.
const LONGEST: u64 = 128;

/// A directory for keys; without one they live as long as the devices.
#[derive(Clone, Debug, Default)]
pub struct WireguardKeys {
    dir: Option<PathBuf>,
}

impl WireguardKeys {
    pub fn in_dir(dir: &Path) -> WireguardKeys {
        WireguardKeys { dir: Some(dir.to_owned()) }
    }

    /// Whether a key that was there can be gone.
    pub(crate) fn are_kept(&self) -> bool {
        self.dir.is_some()
    }

    /// None if there is none.
    pub(crate) fn load(&self, kind: TunnelKind) -> Result<Option<PrivateKey>, String> {
        let Some(path) = self.path(kind) else { return Ok(None) };
        match read(&path) {
            Ok(text) => {
                let key = text.trim().parse().map(Some);
                key.map_err(|_| format!("{} has no WireGuard key in it; remove it", path.display()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    pub(crate) fn save(&self, kind: TunnelKind, key: &PrivateKey) -> Result<(), String> {
        let Some(path) = self.path(kind) else { return Ok(()) };
        write(&path, &format!("{key}\n")).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn path(&self, kind: TunnelKind) -> Option<PathBuf> {
        let name = if kind.is_ipv4() { "wireguard.key" } else { "wireguard-v6.key" };
        Some(self.dir.as_ref()?.join(name))
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Nobody else can ever read it, and it is there as a whole or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    // One that an earlier attempt left could be readable by others.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// From the kernel's random source.
pub(crate) fn new_key() -> PrivateKey {
    PrivateKey::from_bytes(rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_read_as_it_was_written_and_nobody_else_can() {
        let dir = tempfile::tempdir().unwrap();
        let keys = WireguardKeys::in_dir(dir.path());
        assert_eq!(keys.load(TunnelKind::WireguardV4), Ok(None));
        let (one, two) = (new_key(), new_key());
        assert_ne!(one, two);
        keys.save(TunnelKind::WireguardV4, &one).unwrap();
        keys.save(TunnelKind::WireguardV6, &two).unwrap();
        assert_eq!(keys.load(TunnelKind::WireguardV4), Ok(Some(one)));
        assert_eq!(keys.load(TunnelKind::WireguardV6), Ok(Some(two.clone())));
        keys.save(TunnelKind::WireguardV4, &two).unwrap();
        assert_eq!(keys.load(TunnelKind::WireguardV4), Ok(Some(two)));
        let mode = fs::metadata(dir.path().join("wireguard.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_with_something_else_in_it_is_named_and_not_taken_for_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let keys = WireguardKeys::in_dir(dir.path());
        let path = dir.path().join("wireguard.key");
        for text in ["", "secret", &"A".repeat(4096)] {
            fs::write(&path, text).unwrap();
            let error = keys.load(TunnelKind::WireguardV4).unwrap_err();
            assert!(error.contains("wireguard.key") && !error.contains("secret"), "{error}");
        }
    }
}
