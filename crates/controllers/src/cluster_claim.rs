//! The claim of a Kubernetes cluster on a datastore that is not Kubernetes.
//!
//! The controllers delete objects that their Kubernetes does not have. If two clusters shared a datastore, each would
//! delete the nodes, profiles, policies and addresses of the other. Therefore the ClusterInformation records the UID of
//! the cluster's namespace kube-system, and controllers of any other cluster do nothing.

use crate::state::{CLUSTER_COMPONENT, ControllerState};
use std::sync::Arc;
use std::time::Duration;
use tortie_http::liveness::ComponentHeartbeat;
use tortie_model::kinds::ClusterInformation;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{ResourceClient, StoreError};

/// Annotation of the ClusterInformation: UID of the namespace kube-system.
pub const CLUSTER_ANNOTATION: &str = "projectcalico.org/mirrored-kubernetes-cluster";
const CLUSTER_INFORMATION_NAME: &str = "default";
/// Interval between checks of the record, and between attempts to claim.
const CLAIM_CHECK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ClusterClaimError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "the datastore contains the objects of another Kubernetes cluster, whose namespace kube-system has the UID \
         {recorded} (here {own}); the controllers do nothing. Give each cluster its own datastore; if this cluster \
         replaces the other one, stop the controllers there and start these with --take-over {recorded}"
    )]
    Foreign { recorded: String, own: String },
}

/// Consequence of the record in the datastore for a cluster.
#[derive(Debug, PartialEq, Eq)]
enum ClaimStep {
    Held,
    Write,
    /// Another cluster holds the datastore.
    Refuse(String),
}

/// Decides whether the cluster `own` may use the datastore. `replaced` is the cluster whose claim it may overwrite.
fn next_step(recorded: Option<&str>, own: &str, replaced: Option<&str>) -> ClaimStep {
    match recorded.filter(|recorded| !recorded.is_empty()) {
        None => ClaimStep::Write,
        Some(recorded) if recorded == own => ClaimStep::Held,
        Some(recorded) if Some(recorded) == replaced => ClaimStep::Write,
        Some(recorded) => ClaimStep::Refuse(recorded.to_owned()),
    }
}

#[derive(Clone, Debug)]
pub struct ClusterClaim {
    pub orchestrator: OrchestratorClient,
    pub resources: ResourceClient,
    /// UID of the cluster that this one replaces (`--take-over`).
    pub replaced: Option<String>,
    pub state: Arc<ControllerState>,
}

impl ClusterClaim {
    /// Returns once the datastore belongs to this cluster. Until then readiness and the log report the reason.
    pub async fn wait_until_held(&self, heartbeat: &ComponentHeartbeat) {
        let mut reported = None;
        loop {
            heartbeat.beat();
            let Err(error) = self.claim().await else { break };
            let problem = error.to_string();
            if reported.as_ref() != Some(&problem) {
                tracing::error!(%error, "the controllers wait until this cluster may use the datastore");
            }
            self.state.set_problem(CLUSTER_COMPONENT, Some(problem.clone()));
            reported = Some(problem);
            tokio::time::sleep(CLAIM_CHECK_INTERVAL).await;
        }
        self.state.set_problem(CLUSTER_COMPONENT, None);
    }

    /// Returns when another cluster has taken the datastore over. Failed checks do not count.
    pub async fn wait_until_lost(&self) {
        loop {
            tokio::time::sleep(CLAIM_CHECK_INTERVAL).await;
            match self.claim().await {
                Ok(()) => {}
                Err(ClusterClaimError::Store(error)) => {
                    tracing::debug!(%error, "cannot check which cluster the datastore belongs to");
                }
                Err(error @ ClusterClaimError::Foreign { .. }) => {
                    self.state.set_problem(CLUSTER_COMPONENT, Some(error.to_string()));
                    return;
                }
            }
        }
    }

    /// Records this cluster in the datastore, unless another cluster is recorded there.
    async fn claim(&self) -> Result<(), ClusterClaimError> {
        let own = self.orchestrator.cluster_uid().await?;
        let change = |stored: Result<ClusterInformation, StoreError>| {
            let mut information = stored?;
            let annotations = &mut information.metadata.annotations;
            let recorded = annotations.get(CLUSTER_ANNOTATION).map(String::as_str);
            match next_step(recorded, &own, self.replaced.as_deref()) {
                ClaimStep::Held => Ok(None),
                ClaimStep::Refuse(recorded) => Err(ClusterClaimError::Foreign { recorded, own: own.clone() }),
                ClaimStep::Write => {
                    tracing::info!(cluster = own, "recording this cluster in the datastore");
                    annotations.insert(CLUSTER_ANNOTATION.to_owned(), own.clone());
                    Ok(Some(information))
                }
            }
        };
        self.resources.modify("", CLUSTER_INFORMATION_NAME, change).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_replaces_only_the_named_cluster() {
        for (recorded, replaced, expected) in [
            (None, None, ClaimStep::Write),
            (Some(""), None, ClaimStep::Write),
            (Some("own"), None, ClaimStep::Held),
            (Some("other"), None, ClaimStep::Refuse("other".to_owned())),
            (Some("other"), Some("other"), ClaimStep::Write),
            (Some("third"), Some("other"), ClaimStep::Refuse("third".to_owned())),
        ] {
            assert_eq!(next_step(recorded, "own", replaced), expected, "{recorded:?} {replaced:?}");
        }
    }
}
