//! Reads the passwords of BGP sessions. Outside Kubernetes a Secret is a directory with one file per key, as if it
//! were mounted.

use std::path::PathBuf;
use tortie_plan::bgp::{BgpConfig, PasswordReference};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("secret {name}/{key} not found; its password is expected in {}", path.display())]
pub struct MissingSecret {
    name: String,
    key: String,
    path: PathBuf,
}

pub struct SecretDirectory {
    dir: PathBuf,
}

impl SecretDirectory {
    pub fn new(dir: PathBuf) -> SecretDirectory {
        SecretDirectory { dir }
    }

    /// Reads a password. The session stays down until its secret exists.
    pub fn read(&self, secret: &PasswordReference) -> Result<String, MissingSecret> {
        let path = self.dir.join(&secret.name).join(&secret.key);
        let is_plain = [&secret.name, &secret.key].into_iter().all(|part| is_plain_name(part));
        let text = if is_plain { std::fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let password = text.trim_end_matches('\n');
        if password.is_empty() {
            return Err(MissingSecret { name: secret.name.clone(), key: secret.key.clone(), path });
        }
        Ok(password.to_owned())
    }
}

/// Returns whether a name cannot lead out of its directory.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != ".."
}

/// Returns whether any session has a password.
pub fn has_passwords(bgp: &BgpConfig) -> bool {
    bgp.sessions.values().any(|session| session.password.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_stays_inside_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bgp")).unwrap();
        std::fs::write(dir.path().join("bgp/tor"), "hunter2\n").unwrap();
        std::fs::write(dir.path().join("outside"), "x").unwrap();
        let secrets = SecretDirectory::new(dir.path().join("bgp/.."));
        let read =
            |name: &str, key: &str| secrets.read(&PasswordReference { name: name.into(), key: key.into() });
        assert_eq!(read("bgp", "tor"), Ok("hunter2".to_owned()));
        for (name, key) in [("bgp", "none"), ("", "outside"), ("..", "outside"), ("bgp", "../outside")] {
            let error = read(name, key).unwrap_err().to_string();
            assert!(error.starts_with(&format!("secret {name}/{key} not found")), "{error}");
        }
    }
}
