//! Publishes in the Node object which configured modes of the network are not in force on this node, so that
//! `tortie analyze` can report them without contacting the node.

use crate::state::NodeState;
use std::sync::Arc;
use std::time::Duration;
use tortie_model::kinds::{NetworkWarning, NodeSpec};
use tortie_store::{ResourceClient, StoreError};

/// Time for which a change has to last before it is published, and delay after a failed write. Tunnels and blocks of a
/// starting cluster appear one after the other.
const PUBLISH_DELAY: Duration = Duration::from_secs(2);

/// Keeps the warnings in the Node object equal to those of the node. Never returns.
pub async fn publish(state: Arc<NodeState>, resources: ResourceClient, name: String) {
    let mut warnings = state.network_warnings();
    let mut in_sync = state.in_sync();
    // The senders are dropped only when the node stops.
    let _ = in_sync.wait_for(|in_sync| *in_sync).await;
    let mut is_logged = false;
    loop {
        tokio::time::sleep(PUBLISH_DELAY).await;
        let all: Vec<NetworkWarning> = warnings.borrow_and_update().values().flatten().cloned().collect();
        if let Err(error) = write(&resources, &name, &all).await {
            // Log only the first of consecutive failures.
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(%error, "cannot publish the warnings of the network in the Node object; retrying");
            }
            continue;
        }
        is_logged = false;
        if warnings.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn write(
    resources: &ResourceClient,
    name: &str,
    warnings: &[NetworkWarning],
) -> Result<(), StoreError> {
    let mut node = match resources.get_as::<NodeSpec>("", name).await {
        Ok(node) => node,
        // The Node object was deleted: the node is leaving the cluster.
        Err(StoreError::DoesNotExist { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    if node.network_warnings() == warnings {
        return Ok(());
    }
    node.set_network_warnings(warnings);
    resources.update(node.into()).await?;
    Ok(())
}
