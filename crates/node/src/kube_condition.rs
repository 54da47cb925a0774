//! What Kubernetes is told of the node: whether its network is there.

use jiff::Timestamp;
use std::time::Duration;
use tortie_store::Limits;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::{Condition, Orchestrator};

const RETRY: Duration = Duration::from_secs(5);
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

/// Says that the network is there, as soon as somebody listens, and returns only when it is said. Until then the
/// scheduler keeps pods away from a node that was said to have none, or that has the taint of those that start.
pub async fn say_up(target: KubernetesTarget, node: String, taint: String) {
    let mut told = false;
    while let Err(error) = say_ready(&target, &node, &taint).await {
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(%error, node, "Kubernetes is not told yet that the network is there; trying again");
        }
        tokio::time::sleep(RETRY).await;
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
