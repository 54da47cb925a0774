//! Sets the NetworkUnavailable condition of this node's Node object in Kubernetes and removes the start-up taint.

use crate::health::POLICY_COMPONENT;
use crate::state::NodeState;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tortie_store::StoreLimits;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::{NodeCondition, OrchestratorClient};

/// Interval between checks whether the condition has to change.
const CONDITION_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout for setting the condition at shutdown, so that the daemon does not wait for an unavailable kube-apiserver.
const SHUTDOWN_CONDITION_TIMEOUT: Duration = Duration::from_secs(3);
const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

const NETWORK_UP_CONDITION: NodeCondition<'static> = NodeCondition {
    kind: NETWORK_UNAVAILABLE,
    status: false,
    reason: "CalicoIsUp",
    message: "Calico is running on this node",
};
const NETWORK_DOWN_CONDITION: NodeCondition<'static> = NodeCondition {
    kind: NETWORK_UNAVAILABLE,
    status: true,
    reason: "CalicoIsDown",
    message: "Calico is shutting down on this node",
};

/// Sets the condition when the network is available, and when it is not because policy is not in force. The scheduler
/// keeps pods away from a node while the condition is true or while the node has the start-up taint.
pub async fn follow(target: KubernetesTarget, node: String, taint: String, state: Arc<NodeState>) {
    let mut reported: Option<Option<String>> = None;
    let mut failed = false;
    loop {
        let trouble = state.troubles().remove(POLICY_COMPONENT);
        if reported.as_ref() != Some(&trouble) {
            let outcome = match &trouble {
                Some(trouble) => {
                    let message = format!("policy is not in force: {trouble}");
                    let condition = NodeCondition {
                        reason: "PolicyNotInForce",
                        message: &message,
                        ..NETWORK_DOWN_CONDITION
                    };
                    set_condition(&target, &node, condition).await
                }
                None => set_up(&target, &node, &taint).await,
            };
            match outcome {
                Ok(()) => {
                    reported = Some(trouble);
                    failed = false;
                }
                Err(error) => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!(%error, node, "cannot set the NetworkUnavailable condition; retrying");
                    }
                }
            }
        }
        tokio::time::sleep(CONDITION_CHECK_INTERVAL).await;
    }
}

/// Sets the condition at shutdown.
pub async fn set_down(target: &KubernetesTarget, node: &str) {
    match tokio::time::timeout(
        SHUTDOWN_CONDITION_TIMEOUT,
        set_condition(target, node, NETWORK_DOWN_CONDITION),
    )
    .await
    {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, node, "cannot set NetworkUnavailable at shutdown"),
        Err(_) => tracing::warn!(node, "cannot set NetworkUnavailable: kube-apiserver did not respond"),
    }
}

async fn set_up(target: &KubernetesTarget, node: &str, taint: &str) -> tortie_store::StoreResult<()> {
    set_condition(target, node, NETWORK_UP_CONDITION).await?;
    if taint.is_empty() {
        return Ok(());
    }
    OrchestratorClient::connect(target, StoreLimits::default()).await?.remove_taint(node, taint).await
}

async fn set_condition(
    target: &KubernetesTarget,
    node: &str,
    condition: NodeCondition<'_>,
) -> tortie_store::StoreResult<()> {
    let orchestrator = OrchestratorClient::connect(target, StoreLimits::default()).await?;
    // Kubernetes timestamps have whole seconds.
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    orchestrator.set_condition(node, condition, &now).await
}
