//! Configures the keys and peers of WireGuard devices.

use super::super::{KernelHandle, KernelObservation, OperationResult, PerformOperation};
use super::{WireguardAction, WireguardOperation, WireguardReconciler};
use crate::kernel::{PrivateKey, WireguardChange};
use crate::wireguard_keys::{WireguardFileError, WireguardKeys, new_key};
use std::path::Path;
use tortie_plan::TunnelKind;

impl PerformOperation for WireguardReconciler {
    async fn perform(
        operation: &WireguardOperation,
        kernel: &mut KernelHandle,
        observed: &mut Vec<KernelObservation>,
    ) -> OperationResult {
        let tunnel = operation.tunnel;
        match &operation.action {
            WireguardAction::Read => read(operation, kernel, observed).await,
            WireguardAction::LoadKey { known, on_device } => {
                let key = load_key(&kernel.wireguard_keys, tunnel, known.as_ref(), on_device.as_ref())?;
                observed.push(KernelObservation::WireguardKey { tunnel, key });
                Ok(())
            }
            WireguardAction::Change(change) => {
                let changed = apply_change(&operation.device, change, kernel).await;
                // Read the device even after an error: the actual state of the kernel counts.
                read(operation, kernel, observed).await?;
                changed
            }
            WireguardAction::SetThreaded { index, threaded } => {
                Ok(set_threaded(&operation.device, *index, *threaded)?)
            }
        }
    }
}

async fn read(
    operation: &WireguardOperation,
    kernel: &mut KernelHandle,
    observed: &mut Vec<KernelObservation>,
) -> OperationResult {
    let state = kernel.wireguard().await?.read(&operation.device).await?;
    observed.push(KernelObservation::Wireguard { tunnel: operation.tunnel, state });
    Ok(())
}

async fn apply_change(device: &str, change: &WireguardChange, kernel: &mut KernelHandle) -> OperationResult {
    Ok(kernel.wireguard().await?.change(device, change).await?)
}

/// Determines the private key: that of the file, that of the device if there is no file yet, or a new one. If the file
/// is removed later, a new key is generated too.
fn load_key(
    keys: &WireguardKeys,
    tunnel: TunnelKind,
    known: Option<&PrivateKey>,
    on_device: Option<&PrivateKey>,
) -> Result<PrivateKey, WireguardFileError> {
    if let Some(known) = known.filter(|_| !keys.are_kept()) {
        return Ok(known.clone());
    }
    let key = match keys.load(tunnel)? {
        Some(key) => key,
        None => {
            let key = on_device.filter(|_| known.is_none()).cloned().unwrap_or_else(new_key);
            keys.save(tunnel, &key)?;
            key
        }
    };
    if known.is_some_and(|known| *known != key) {
        tracing::info!(tunnel = tunnel.name(), "the private key of the WireGuard device changes");
    }
    Ok(key)
}

/// Enables or disables threaded NAPI. The kernel offers this only in sysfs, which shows the network namespace that it
/// was mounted in.
fn set_threaded(device: &str, index: Option<u32>, threaded: bool) -> Result<(), WireguardFileError> {
    let dir = Path::new("/sys/class/net").join(device);
    let found_index =
        std::fs::read_to_string(dir.join("ifindex")).ok().and_then(|text| text.trim().parse().ok());
    if found_index.is_none() || found_index != index {
        return Err(WireguardFileError::OtherNamespace { path: dir });
    }
    let path = dir.join("threaded");
    let value = if threaded { "1" } else { "0" };
    std::fs::write(&path, value).map_err(|source| WireguardFileError::File { path, source })
}
