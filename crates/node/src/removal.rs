//! Decides at shutdown whether the daemon is being restarted or Tortie is being removed from the cluster.
//!
//! A pod does not learn why it is terminated. If its DaemonSet still exists, a new pod will take over. Deleting an
//! installation also deletes the permission to read the DaemonSet. Therefore the daemon watches its own service
//! account: if kube-apiserver rejects the request and the service account is known to be deleted, this is a removal.
//! In all other cases the network stays.

use crate::startup::EnvironmentVariables;
use std::time::Duration;
use tokio::sync::watch;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{StoreError, StoreLimits};

const ACCOUNT_WATCH_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Timeout for the request at shutdown, and for the deletion of the service account to be reported.
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
    /// Returns None for a daemon that does not belong to a DaemonSet.
    pub fn of(
        variables: &EnvironmentVariables,
        target: Option<&KubernetesTarget>,
    ) -> Option<RemovalDetector> {
        let given = |name: &str| Some(variables.get(name).to_owned()).filter(|value| !value.is_empty());
        let membership = DaemonSetMembership {
            namespace: given("POD_NAMESPACE")?,
            daemon_set: given("TORTIE_DAEMONSET")?,
            account: given("TORTIE_SERVICE_ACCOUNT")?,
        };
        Some(RemovalDetector { membership, target: target?.clone(), account_gone: watch::channel(false).0 })
    }

    /// Watches for the deletion of the service account. Never returns.
    pub fn follow(&self) -> impl Future<Output = ()> + Send + use<> {
        let RemovalDetector { membership, target, account_gone } = self;
        let (membership, target, account_gone) = (membership.clone(), target.clone(), account_gone.clone());
        async move {
            while let Err(error) = gone(&target, &membership).await {
                tracing::debug!(%error, "cannot watch the service account of the node; retrying");
                tokio::time::sleep(ACCOUNT_WATCH_RETRY_DELAY).await;
            }
            account_gone.send_replace(true);
            std::future::pending().await
        }
    }

    /// Returns whether this shutdown is a removal from the cluster.
    pub async fn is_for_good(&self) -> bool {
        let asked = tokio::time::timeout(REMOVAL_CHECK_TIMEOUT, stays(&self.target, &self.membership));
        let answer = match asked.await {
            Ok(Ok(true)) => DaemonSetState::Stays,
            Ok(Ok(false)) => DaemonSetState::Deleted,
            Ok(Err(StoreError::Unauthorized(_))) => DaemonSetState::Refused,
            Ok(Err(_)) | Err(_) => DaemonSetState::Unknown,
        };
        let mut account_gone = self.account_gone.subscribe();
        let account_gone = async {
            let heard = tokio::time::timeout(REMOVAL_CHECK_TIMEOUT, account_gone.wait_for(|gone| *gone));
            heard.await.is_ok_and(|heard| heard.is_ok())
        };
        let for_good = match answer {
            DaemonSetState::Stays | DaemonSetState::Unknown => false,
            DaemonSetState::Deleted => true,
            DaemonSetState::Refused => account_gone.await,
        };
        tracing::info!(?answer, for_good, "checked whether this is a restart or a removal");
        for_good
    }
}

async fn gone(target: &KubernetesTarget, of: &DaemonSetMembership) -> tortie_store::StoreResult<()> {
    let orchestrator = OrchestratorClient::connect(target, StoreLimits::default()).await?;
    orchestrator.service_account_gone(&of.namespace, &of.account).await
}

async fn stays(target: &KubernetesTarget, of: &DaemonSetMembership) -> tortie_store::StoreResult<bool> {
    let orchestrator = OrchestratorClient::connect(target, StoreLimits::default()).await?;
    orchestrator.daemon_set_stays(&of.namespace, &of.daemon_set).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pod_of_a_daemon_set_asks() {
        let variables = |names: &[&str]| {
            EnvironmentVariables(names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect())
        };
        let all = ["POD_NAMESPACE", "TORTIE_DAEMONSET", "TORTIE_SERVICE_ACCOUNT"];
        let target = KubernetesTarget::default();
        assert!(RemovalDetector::of(&variables(&all), Some(&target)).is_some());
        assert!(RemovalDetector::of(&variables(&all), None).is_none());
        for missing in 0..all.len() {
            let mut some = all.to_vec();
            some.remove(missing);
            assert!(RemovalDetector::of(&variables(&some), Some(&target)).is_none(), "{some:?}");
        }
    }
}
