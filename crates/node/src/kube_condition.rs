//! What Kubernetes is told of the node: whether its network is there.

use crate::health::POLICY;
use crate::state::State;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tortie_store::Limits;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::{Condition, Orchestrator};

/// Between two looks at what there is to say.
const PAUSE: Duration = Duration::from_secs(5);
/// The end of the daemon does not wait for a server that is away.
const PATIENCE: Duration = Duration::from_secs(3);
const KIND: &str = "NetworkUnavailable";

const UP: Condition<'static> =
    Condition { kind: KIND, status: false, reason: "CalicoIsUp", message: "Calico is running on this node" };
const DOWN: Condition<'static> = Condition {
    kind: KIND,
    status: true,
    reason: "CalicoIsDown",
    message: "Calico is shutting down on this node",
};

/// Says that the network is there, and when it is not because policy is not in force. As long as Kubernetes believes a node
/// to have no network, or it has the taint of those that start, the scheduler keeps pods away from it.
pub async fn follow(target: KubernetesTarget, node: String, taint: String, state: Arc<State>) {
    let mut said: Option<Option<String>> = None;
    let mut failed = false;
    loop {
        let trouble = state.troubles().remove(POLICY);
        if said.as_ref() != Some(&trouble) {
            let message = trouble.as_ref().map(|trouble| format!("policy is not in force: {trouble}"));
            let outcome = match &message {
                Some(message) => {
                    let reason = "PolicyNotInForce";
                    say(&target, &node, Condition { kind: KIND, status: true, reason, message }).await
                }
                None => say_ready(&target, &node, &taint).await,
            };
            match outcome {
                Ok(()) => (said, failed) = (Some(trouble), false),
                Err(error) => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!(%error, node, "Kubernetes is not told yet how the network is; trying again");
                    }
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

pub async fn say_down(target: &KubernetesTarget, node: &str) {
    match tokio::time::timeout(PATIENCE, say(target, node, DOWN)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, node, "Kubernetes is not told that the network stops"),
        Err(_) => tracing::warn!(node, "Kubernetes does not answer; it is not told that the network stops"),
    }
}

async fn say_ready(target: &KubernetesTarget, node: &str, taint: &str) -> tortie_store::Result<()> {
    say(target, node, UP).await?;
    match taint {
        "" => Ok(()),
        key => Orchestrator::connect(target, Limits::default()).await?.remove_taint(node, key).await,
    }
}

async fn say(target: &KubernetesTarget, node: &str, condition: Condition<'_>) -> tortie_store::Result<()> {
    let orchestrator = Orchestrator::connect(target, Limits::default()).await?;
    // Kubernetes knows whole seconds.
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    orchestrator.set_condition(node, condition, &now).await
}
