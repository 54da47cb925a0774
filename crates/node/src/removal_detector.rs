//! Decides at shutdown whether the daemon is being restarted or Tortie is being removed from the cluster.
//!
//! Kubernetes does not report to a pod why it is terminated. If its DaemonSet still exists, a new pod will replace it.
//! Deleting an installation also deletes the permission to read the DaemonSet. Therefore the daemon watches its own
//! service account: if kube-apiserver rejects the request for the DaemonSet and the service account was deleted, this
//! is a removal. In all other cases the daemon keeps the network of the host.

use crate::startup::EnvironmentVariables;
use std::time::Duration;
use tokio::sync::watch;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{StoreError, StoreLimits};

const ACCOUNT_WATCH_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Timeout of the request at shutdown, and of the wait for the deletion of the service account.
const REMOVAL_CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// The DaemonSet and the service account of the daemon's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DaemonSetMembership {
    namespace: String,
    daemon_set: String,
    account: String,
}

#[derive(Debug)]
pub struct RemovalDetector {
    membership: DaemonSetMembership,
    target: KubernetesTarget,
    account_gone: watch::Sender<bool>,
}

/// The state of the DaemonSet according to kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DaemonSetState {
    Stays,
    Deleted,
    /// kube-apiserver rejected the request for lack of permission.
    Refused,
    Unknown,
}

impl RemovalDetector {
    /// Returns `None` for a daemon that does not belong to a DaemonSet.
    pub fn new(
        variables: &EnvironmentVariables,
        target: Option<&KubernetesTarget>,
    ) -> Option<RemovalDetector> {
        let membership = DaemonSetMembership {
            namespace: variables.given("POD_NAMESPACE")?.to_owned(),
            daemon_set: variables.given("TORTIE_DAEMONSET")?.to_owned(),
            account: variables.given("TORTIE_SERVICE_ACCOUNT")?.to_owned(),
        };
        Some(RemovalDetector { membership, target: target?.clone(), account_gone: watch::channel(false).0 })
    }

    /// Watches for the deletion of the service account. Never returns.
    pub fn watch_account(&self) -> impl Future<Output = ()> + Send + use<> {
        let membership = self.membership.clone();
        let target = self.target.clone();
        let account_gone = self.account_gone.clone();
        async move {
            while let Err(error) = await_account_deletion(&target, &membership).await {
                tracing::debug!(%error, "cannot watch the service account of the node; retrying");
                tokio::time::sleep(ACCOUNT_WATCH_RETRY_DELAY).await;
            }
            account_gone.send_replace(true);
            std::future::pending().await
        }
    }

    /// Returns whether this shutdown is a removal from the cluster.
    pub async fn is_removed(&self) -> bool {
        let request =
            tokio::time::timeout(REMOVAL_CHECK_TIMEOUT, daemon_set_stays(&self.target, &self.membership));
        let daemon_set = match request.await {
            Ok(Ok(true)) => DaemonSetState::Stays,
            Ok(Ok(false)) => DaemonSetState::Deleted,
            Ok(Err(StoreError::Unauthorized(_))) => DaemonSetState::Refused,
            Ok(Err(_)) | Err(_) => DaemonSetState::Unknown,
        };
        let is_removal = match daemon_set {
            DaemonSetState::Stays | DaemonSetState::Unknown => false,
            DaemonSetState::Deleted => true,
            DaemonSetState::Refused => self.is_account_gone().await,
        };
        tracing::info!(?daemon_set, is_removal, "checked whether this is a restart or a removal");
        is_removal
    }

    /// Returns whether the service account is deleted. Waits a short time for its deletion.
    async fn is_account_gone(&self) -> bool {
        let mut account_gone = self.account_gone.subscribe();
        let gone = tokio::time::timeout(REMOVAL_CHECK_TIMEOUT, account_gone.wait_for(|gone| *gone)).await;
        gone.is_ok_and(|gone| gone.is_ok())
    }
}

async fn await_account_deletion(
    target: &KubernetesTarget,
    pod: &DaemonSetMembership,
) -> tortie_store::StoreResult<()> {
    let orchestrator = OrchestratorClient::connect(target, StoreLimits::default()).await?;
    orchestrator.service_account_gone(&pod.namespace, &pod.account).await
}

async fn daemon_set_stays(
    target: &KubernetesTarget,
    pod: &DaemonSetMembership,
) -> tortie_store::StoreResult<bool> {
    let orchestrator = OrchestratorClient::connect(target, StoreLimits::default()).await?;
    orchestrator.daemon_set_stays(&pod.namespace, &pod.daemon_set).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_of_a_daemon_set_detect_removals() {
        let variables = |names: &[&str]| {
            EnvironmentVariables(names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect())
        };
        let all = ["POD_NAMESPACE", "TORTIE_DAEMONSET", "TORTIE_SERVICE_ACCOUNT"];
        let target = KubernetesTarget::default();
        assert!(RemovalDetector::new(&variables(&all), Some(&target)).is_some());
        assert!(RemovalDetector::new(&variables(&all), None).is_none());
        for missing in 0..all.len() {
            let mut some = all.to_vec();
            some.remove(missing);
            assert!(RemovalDetector::new(&variables(&some), Some(&target)).is_none(), "{some:?}");
        }
    }
}
