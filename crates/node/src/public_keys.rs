//! Publishes the public keys of the node's WireGuard devices in the status of its Node object. Other nodes encrypt
//! the traffic to nodes whose key they know.
//!
//! A key is published when the device has it, and removed when the device is gone.

use crate::state::NodeState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tortie_model::kinds::NodeSpec;
use tortie_plan::TunnelKind;
use tortie_store::{ResourceClient, StoreError};

/// Delay after a failed write.
const PUBLISH_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Component name of the warning on the health page.
const PUBLIC_KEYS_COMPONENT: &str = "public keys";

/// Keeps the public keys in the Node object equal to those of the devices. Never returns. `changed` signals that
/// another client may have changed the object.
pub async fn publish(
    state: Arc<NodeState>,
    resources: ResourceClient,
    name: String,
    mut changed: watch::Receiver<()>,
) {
    let mut keys = state.public_keys();
    let mut is_logged = false;
    loop {
        changed.mark_unchanged();
        let known = keys.borrow_and_update().clone();
        let outcome = match known {
            Some(keys) => write(&resources, &name, &keys).await,
            None => Ok(()),
        };
        let trouble = outcome.err().map(|error| error.to_string());
        state.set_warning(PUBLIC_KEYS_COMPONENT, trouble.clone());
        let news = async {
            let ended = tokio::select! {
                changed = keys.changed() => changed.is_err(),
                changed = changed.changed() => changed.is_err(),
            };
            if ended {
                // The senders are dropped only when the node stops.
                std::future::pending::<()>().await;
            }
        };
        match trouble {
            Some(trouble) => {
                // Log only the first of consecutive failures.
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(trouble, "cannot publish the public keys of WireGuard; retrying");
                }
                drop(tokio::time::timeout(PUBLISH_RETRY_DELAY, news).await);
            }
            None => {
                is_logged = false;
                news.await;
            }
        }
    }
}

async fn write(
    resources: &ResourceClient,
    name: &str,
    keys: &BTreeMap<TunnelKind, String>,
) -> Result<(), StoreError> {
    let mut node = match resources.get_as::<NodeSpec>("", name).await {
        Ok(node) => node,
        // The Node object was deleted. `changed` signals when it exists again.
        Err(StoreError::DoesNotExist { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let v4 = keys.get(&TunnelKind::WireguardV4).cloned().unwrap_or_default();
    let v6 = keys.get(&TunnelKind::WireguardV6).cloned().unwrap_or_default();
    let status = &mut node.status;
    if status.wireguard_public_key == v4 && status.wireguard_public_key_v6 == v6 {
        return Ok(());
    }
    status.wireguard_public_key = v4;
    status.wireguard_public_key_v6 = v6;
    resources.update(node.into()).await?;
    tracing::info!("published the public keys of WireGuard");
    Ok(())
}
