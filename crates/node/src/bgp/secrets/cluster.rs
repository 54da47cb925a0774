//! Follows Secrets in Kubernetes, each with a separate watch, so that the node needs no right to list Secrets.
//!
//! Passwords that were read stay valid while kube-apiserver is unavailable: an outage resets no session.

use super::{PasswordError, trimmed};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tortie_plan::bgp::PasswordReference;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{Backoff, StoreError, StoreLimits, StoreResult};

/// Namespace of the Secrets if no variable names it, as in Calico.
pub const DEFAULT_SECRET_NAMESPACE: &str = "kube-system";
/// Maximum number of Secrets that a node follows; each is a connection to kube-apiserver.
const MAX_FOLLOWED_SECRETS: usize = 64;
/// First and longest delay before a Secret that could not be read is requested again. All nodes retry a Secret that they
/// may not read, each time with a new connection.
const MIN_SECRET_RETRY_DELAY: Duration = Duration::from_secs(2);
const MAX_SECRET_RETRY_DELAY: Duration = Duration::from_secs(30);

/// The content of a Secret, as far as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SecretContent {
    NotRead,
    /// kube-apiserver rejected the request.
    Refused(String),
    /// kube-apiserver has not responded since the node follows the Secret.
    Unavailable(String),
    /// The data; empty if the Secret does not exist.
    Read(BTreeMap<String, String>),
}

struct FollowedSecret {
    content: watch::Receiver<SecretContent>,
    task: AbortHandle,
}

pub struct ClusterSecrets {
    target: KubernetesTarget,
    namespace: String,
    followed: BTreeMap<String, FollowedSecret>,
    /// Dropping it aborts the tasks.
    tasks: JoinSet<()>,
}

impl ClusterSecrets {
    pub fn new(target: KubernetesTarget, namespace: String) -> ClusterSecrets {
        ClusterSecrets { target, namespace, followed: BTreeMap::new(), tasks: JoinSet::new() }
    }

    /// Starts and ends watches, so that exactly these Secrets are followed, up to the limit.
    pub fn follow(&mut self, names: &BTreeSet<&str>) {
        self.followed.retain(|name, secret| {
            let is_named = names.contains(name.as_str());
            if !is_named {
                secret.task.abort();
            }
            is_named
        });
        while self.tasks.try_join_next().is_some() {}
        for name in names {
            if self.followed.len() >= MAX_FOLLOWED_SECRETS || self.followed.contains_key(*name) {
                continue;
            }
            let (sender, content) = watch::channel(SecretContent::NotRead);
            let following =
                follow_secret(self.target.clone(), self.namespace.clone(), (*name).to_owned(), sender);
            let task = self.tasks.spawn(following);
            self.followed.insert((*name).to_owned(), FollowedSecret { content, task });
        }
    }

    /// Returns a password; `path` is the file that would take precedence.
    pub fn read(&self, reference: &PasswordReference, path: PathBuf) -> Result<String, PasswordError> {
        let PasswordReference { name, key } = reference.clone();
        let namespace = self.namespace.clone();
        let Some(secret) = self.followed.get(&name) else {
            return Err(PasswordError::TooMany { name, key, limit: MAX_FOLLOWED_SECRETS });
        };
        match &*secret.content.borrow() {
            SecretContent::NotRead => Err(PasswordError::NotRead { name, key }),
            SecretContent::Refused(reason) => {
                Err(PasswordError::Refused { name, key, namespace, reason: reason.clone() })
            }
            SecretContent::Unavailable(reason) => {
                Err(PasswordError::Unavailable { name, key, reason: reason.clone() })
            }
            SecretContent::Read(data) => data
                .get(&key)
                .and_then(|text| trimmed(text))
                .ok_or(PasswordError::Missing { name, key, namespace, path }),
        }
    }
}

/// Follows a Secret until the task is aborted.
async fn follow_secret(
    target: KubernetesTarget,
    namespace: String,
    name: String,
    content: watch::Sender<SecretContent>,
) {
    let mut backoff = Backoff::capped(MAX_SECRET_RETRY_DELAY);
    loop {
        let mut was_read = false;
        let changed = |data| {
            was_read = true;
            content.send_replace(SecretContent::Read(data));
        };
        let Err(error) = follow_once(&target, &namespace, &name, changed).await;
        if was_read {
            backoff.reset();
        }
        tracing::debug!(%error, "the watch of a secret ended; retrying");
        content.send_if_modified(|content| {
            if matches!(content, SecretContent::Read(_)) {
                return false;
            }
            let reason = error.to_string();
            *content = match error {
                StoreError::Unauthorized(_) => SecretContent::Refused(reason),
                _ => SecretContent::Unavailable(reason),
            };
            true
        });
        tokio::time::sleep(choose_retry_delay(&mut backoff)).await;
    }
}

fn choose_retry_delay(backoff: &mut Backoff) -> Duration {
    backoff.pause().max(MIN_SECRET_RETRY_DELAY)
}

async fn follow_once(
    target: &KubernetesTarget,
    namespace: &str,
    name: &str,
    mut changed: impl FnMut(BTreeMap<String, String>),
) -> StoreResult<Infallible> {
    let client = OrchestratorClient::connect(target, StoreLimits::default()).await?;
    client.follow_secret(namespace, name, |secret| changed(secret.data)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_become_rare_while_a_secret_is_refused() {
        let mut backoff = Backoff::capped(MAX_SECRET_RETRY_DELAY);
        let delays: Vec<Duration> = (0..20).map(|_| choose_retry_delay(&mut backoff)).collect();
        assert_eq!(delays[0], MIN_SECRET_RETRY_DELAY);
        assert!(delays.iter().all(|delay| *delay <= MAX_SECRET_RETRY_DELAY), "{delays:?}");
        assert!(delays[19] >= MAX_SECRET_RETRY_DELAY / 2, "{delays:?}");
    }

    #[tokio::test]
    async fn a_node_follows_a_bounded_number_of_secrets() {
        let target =
            KubernetesTarget { endpoint: "http://127.0.0.1:9".to_owned(), ..KubernetesTarget::default() };
        let mut secrets = ClusterSecrets::new(target, "kube-system".to_owned());
        let names: Vec<String> = (0..=MAX_FOLLOWED_SECRETS).map(|number| format!("s{number:03}")).collect();
        let read = |secrets: &ClusterSecrets, name: &str| {
            let reference = PasswordReference { name: name.to_owned(), key: "key".to_owned() };
            secrets.read(&reference, PathBuf::new()).unwrap_err()
        };
        secrets.follow(&names.iter().map(String::as_str).collect());
        assert_eq!(secrets.followed.len(), MAX_FOLLOWED_SECRETS);
        let [first, last] = [&names[0], &names[MAX_FOLLOWED_SECRETS]];
        assert!(!matches!(read(&secrets, first), PasswordError::TooMany { .. }));
        let error = read(&secrets, last).to_string();
        assert_eq!(error, "secret s064/key is not read: the node reads at most 64 secrets");

        // One that is no longer named makes room.
        secrets.follow(&names[1..].iter().map(String::as_str).collect());
        assert!(!matches!(read(&secrets, last), PasswordError::TooMany { .. }));
        assert!(matches!(read(&secrets, first), PasswordError::TooMany { .. }));
    }
}
