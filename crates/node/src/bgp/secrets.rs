//! Reads the passwords of BGP sessions. Outside Kubernetes a Secret is a directory with one file per key, as if it
//! were mounted.

use std::path::PathBuf;
use tortie_plan::bgp::PasswordReference;

pub struct SecretDirectory {
    dir: PathBuf,
}

impl SecretDirectory {
    pub fn new(dir: PathBuf) -> SecretDirectory {
        SecretDirectory { dir }
    }

    /// Reads a password. The error names the missing secret. The session stays down until it exists.
    pub fn read(&self, secret: &PasswordReference) -> Result<String, String> {
        let path = self.dir.join(&secret.name).join(&secret.key);
        self.find(secret).ok_or_else(|| {
            let PasswordReference { name, key } = secret;
            format!("secret {name}/{key} not found; its password is expected in {}", path.display())
        })
    }

    fn find(&self, secret: &PasswordReference) -> Option<String> {
        let plain = |part: &str| !part.is_empty() && !part.contains('/') && part != "..";
        if !plain(&secret.name) || !plain(&secret.key) {
            return None;
        }
        let text = std::fs::read_to_string(self.dir.join(&secret.name).join(&secret.key)).ok()?;
        Some(text.trim_end_matches('\n').to_owned()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_a_file_and_stays_inside_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bgp")).unwrap();
        std::fs::write(dir.path().join("bgp/tor"), "hunter2\n").unwrap();
        std::fs::write(dir.path().join("outside"), "x").unwrap();
        let secrets = SecretDirectory::new(dir.path().join("bgp/.."));
        let read =
            |name: &str, key: &str| secrets.read(&PasswordReference { name: name.into(), key: key.into() });
        assert_eq!(read("bgp", "tor"), Ok("hunter2".to_owned()));
        for (name, key) in [("bgp", "none"), ("", "outside"), ("..", "outside"), ("bgp", "../outside")] {
            let error = read(name, key).unwrap_err();
            assert!(error.starts_with(&format!("secret {name}/{key} not found")), "{error}");
        }
    }
}
