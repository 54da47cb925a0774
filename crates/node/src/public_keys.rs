//! The public keys of the node's WireGuard devices, in its Node: other nodes encrypt for whom they have a key of.
//!
//! A key is published when the device has it, and taken back when the device is gone.

use crate::state::State;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tortie_model::kinds::NodeSpec;
use tortie_plan::TunnelKind;
use tortie_store::{Error, Resources};

/// After a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The part of the node that has trouble with them.
const WARNING: &str = "public keys";

/// Keeps the Node as the devices are, for as long as the node runs. `changed` says when others may have changed it.
pub async fn publish(
    state: Arc<State>,
    resources: Resources,
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
        state.set_warning(WARNING, trouble.clone());
        let news = async {
            let ended = tokio::select! {
                changed = keys.changed() => changed.is_err(),
                changed = changed.changed() => changed.is_err(),
            };
            if ended {
                // With those who would tell the node ends too.
                std::future::pending::<()>().await;
            }
        };
        match trouble {
            Some(trouble) => {
                // Once for all attempts that fail.
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(trouble, "the node's public keys are not published; will try again");
                }
                drop(tokio::time::timeout(RETRY, news).await);
            }
            None => {
                is_logged = false;
                news.await;
            }
        }
    }
}

async fn write(resources: &Resources, name: &str, keys: &BTreeMap<TunnelKind, String>) -> Result<(), Error> {
    let mut node = match resources.get_as::<NodeSpec>("", name).await {
        Ok(node) => node,
        // It has gone; when it comes back we hear of it.
        Err(Error::DoesNotExist { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let key = |kind| keys.get(&kind).cloned().unwrap_or_default();
    let (v4, v6) = (key(TunnelKind::WireguardV4), key(TunnelKind::WireguardV6));
    let status = &mut node.status;
    if status.wireguard_public_key == v4 && status.wireguard_public_key_v6 == v6 {
        return Ok(());
    }
    status.wireguard_public_key = v4;
    status.wireguard_public_key_v6 = v6;
    resources.update(node.into()).await?;
    tracing::info!("the node's public keys are published");
    Ok(())
}
