//! Reads the passwords of BGP sessions: from a directory in which a Secret is a directory with one file per key, as if
//! it were mounted, else from Secrets in Kubernetes. A session whose password cannot be read stays down.

mod cluster;

use crate::startup::EnvironmentVariables;
use cluster::ClusterSecrets;
use std::collections::BTreeSet;
use std::path::PathBuf;
use tortie_plan::bgp::{BgpConfig, PasswordReference};
use tortie_store::config::KubernetesTarget;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    #[error("secret {name}/{key} not found; its password is expected in {}", path.display())]
    MissingFile { name: String, key: String, path: PathBuf },
    #[error(
        "secret {name}/{key} not found; its password is expected in the namespace {namespace} of Kubernetes, or in {}",
        path.display()
    )]
    Missing { name: String, key: String, namespace: String, path: PathBuf },
    #[error("secret {name}/{key} is not known yet: Kubernetes has not sent it")]
    NotRead { name: String, key: String },
    #[error(
        "secret {name}/{key} cannot be read: {reason}; the node needs the rights to get and to watch Secret({namespace}/{name})"
    )]
    Refused { name: String, key: String, namespace: String, reason: String },
    #[error("secret {name}/{key} cannot be read: {reason}")]
    Unavailable { name: String, key: String, reason: String },
    #[error("secret {name}/{key} is not read: the node reads at most {limit} secrets")]
    TooMany { name: String, key: String, limit: usize },
}

/// The passwords that sessions refer to. A directory takes precedence over a Secret of the same name.
pub struct PasswordReader {
    dir: PathBuf,
    cluster: Option<ClusterSecrets>,
}

impl PasswordReader {
    pub fn new(
        dir: PathBuf,
        kubernetes: Option<&KubernetesTarget>,
        variables: &EnvironmentVariables,
    ) -> PasswordReader {
        let namespace = variables.given("NAMESPACE").or_else(|| variables.given("POD_NAMESPACE"));
        let namespace = namespace.unwrap_or(cluster::DEFAULT_SECRET_NAMESPACE);
        let cluster = kubernetes.map(|target| ClusterSecrets::new(target.clone(), namespace.to_owned()));
        PasswordReader { dir, cluster }
    }

    /// Follows the Secrets that sessions refer to, and no others. Needs a Tokio runtime.
    pub fn follow(&mut self, bgp: &BgpConfig) {
        let references = bgp.sessions.values().filter_map(|session| session.password.as_ref());
        let names: BTreeSet<&str> = references
            .map(|reference| reference.name.as_str())
            .filter(|name| self.may_be_in_cluster(name))
            .collect();
        if let Some(cluster) = &mut self.cluster {
            cluster.follow(&names);
        }
    }

    /// Returns why a password is not known although its Secret may exist: kube-apiserver has not responded yet.
    pub fn find_pending(&self, bgp: &BgpConfig) -> Option<PasswordError> {
        let references = bgp.sessions.values().filter_map(|session| session.password.as_ref());
        let mut errors = references.filter_map(|reference| self.read(reference).err());
        errors
            .find(|error| matches!(error, PasswordError::NotRead { .. } | PasswordError::Unavailable { .. }))
    }

    /// Returns whether a secret is looked for in Kubernetes: it has no directory.
    fn may_be_in_cluster(&self, name: &str) -> bool {
        is_object_name(name) && !self.dir.join(name).is_dir()
    }

    /// Returns a password. The session stays down until its secret exists.
    pub fn read(&self, reference: &PasswordReference) -> Result<String, PasswordError> {
        let PasswordReference { name, key } = reference;
        let path = self.dir.join(name).join(key);
        let is_plain = [name, key].into_iter().all(|part| is_plain_name(part));
        let text = if is_plain { std::fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        match (trimmed(&text), &self.cluster) {
            (Some(password), _) => Ok(password),
            (None, Some(cluster)) if self.may_be_in_cluster(name) => cluster.read(reference, path),
            (None, _) => Err(PasswordError::MissingFile { name: name.clone(), key: key.clone(), path }),
        }
    }
}

/// Returns whether Kubernetes accepts the name for a Secret, so that it can be part of the path of a request.
fn is_object_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) && name.bytes().all(is_allowed)
}

/// Returns a password without the line break at its end, unless it is empty.
fn trimmed(text: &str) -> Option<String> {
    let password = text.trim_end_matches('\n');
    (!password.is_empty()).then(|| password.to_owned())
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

    fn reference(name: &str, key: &str) -> PasswordReference {
        PasswordReference { name: name.into(), key: key.into() }
    }

    #[test]
    fn a_secret_stays_inside_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bgp")).unwrap();
        std::fs::write(dir.path().join("bgp/tor"), "hunter2\n").unwrap();
        std::fs::write(dir.path().join("outside"), "x").unwrap();
        for kubernetes in [None, Some(&KubernetesTarget::default())] {
            let dir = dir.path().join("bgp/..");
            let secrets = PasswordReader::new(dir, kubernetes, &EnvironmentVariables::default());
            assert_eq!(secrets.read(&reference("bgp", "tor")), Ok("hunter2".to_owned()));
            for (name, key) in [("bgp", "none"), ("", "outside"), ("..", "outside"), ("bgp", "../outside")] {
                let error = secrets.read(&reference(name, key)).unwrap_err().to_string();
                assert!(error.starts_with(&format!("secret {name}/{key} not found")), "{error}");
            }
        }
    }

    #[test]
    fn only_object_names_become_part_of_requests() {
        for name in ["bgp-secrets", "bgp.example", "7"] {
            assert!(is_object_name(name), "{name}");
        }
        for name in ["", "..", ".hidden", "a/b", "a?watch=1", "a%2fb", "Upper", "a b"] {
            assert!(!is_object_name(name), "{name}");
        }
    }
}
