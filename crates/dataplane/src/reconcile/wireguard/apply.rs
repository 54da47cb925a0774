//! Configures the keys and peers of WireGuard devices.

use crate::engine::DataplaneEngine;
use crate::kernel::{WireguardChange, WireguardClient};
use crate::wireguard_keys::new_key;
use std::path::Path;
use tortie_plan::TunnelKind;

const WIREGUARD_KINDS: [TunnelKind; 2] = [TunnelKind::WireguardV4, TunnelKind::WireguardV6];

impl DataplaneEngine {
    /// Configures keys, ports and peers, before routes lead through the devices.
    pub(crate) async fn apply_wireguard(&mut self) {
        for kind in WIREGUARD_KINDS {
            let Some(device) = self.core.wireguard_device(kind) else {
                self.core.wireguard(kind).forget();
                continue;
            };
            let outcome = self.tell(kind, &device).await;
            self.core.wireguard(kind).error = outcome.err();
        }
    }

    async fn tell(&mut self, kind: TunnelKind, device: &str) -> Result<(), String> {
        self.read_wireguard(kind, device).await?;
        self.look_after_key(kind)?;
        if let Some(change) = self.core.missing_of_wireguard(kind) {
            self.change_wireguard(kind, device, &change).await?;
        }
        let threaded = self.core.wanted_threaded(kind);
        if self.core.wireguard(kind).threaded != threaded {
            set_threaded(device, self.core.index_of(device), threaded)?;
            self.core.wireguard(kind).threaded = threaded;
        }
        Ok(())
    }

    /// Removes peers that no longer exist, and allowed IPs that peers no longer have.
    pub(crate) async fn narrow_wireguard(&mut self) {
        for kind in WIREGUARD_KINDS {
            let Some(device) = self.core.wireguard_device(kind) else { continue };
            let Some(change) = self.core.unwanted_of_wireguard(kind) else { continue };
            if let Err(reason) = self.change_wireguard(kind, &device, &change).await {
                tracing::warn!(device, reason, "cannot remove WireGuard peers of removed nodes; will retry");
            }
        }
    }

    async fn change_wireguard(
        &mut self,
        kind: TunnelKind,
        device: &str,
        change: &WireguardChange,
    ) -> Result<(), String> {
        self.core.wireguard(kind).state = None;
        let outcome = match self.wireguard().await {
            Ok(wireguard) => wireguard.change(device, change).await.map_err(|refusal| refusal.reason),
            Err(reason) => Err(reason),
        };
        // Read the device even after an error: the actual state of the kernel counts.
        self.read_wireguard(kind, device).await?;
        outcome
    }

    async fn read_wireguard(&mut self, kind: TunnelKind, device: &str) -> Result<(), String> {
        if self.core.wireguard(kind).state.is_none() {
            let state = self.wireguard().await?.read(device).await.map_err(|refusal| refusal.reason)?;
            self.core.wireguard(kind).state = Some(state);
        }
        Ok(())
    }

    async fn wireguard(&mut self) -> Result<&WireguardClient, String> {
        if self.wireguard.is_none() {
            let opened = WireguardClient::open(&self.host).await.map_err(|error| error.to_string())?;
            self.wireguard = Some(opened);
        }
        self.wireguard.as_ref().ok_or_else(|| "no connection to WireGuard".to_owned())
    }

    /// Determines the private key: that of the file, that of the device if there is no file yet, or a new one. If the
    /// file is removed later, a new key is generated too.
    fn look_after_key(&mut self, kind: TunnelKind) -> Result<(), String> {
        let device = self.core.wireguard(kind);
        let known = device.key.clone();
        if known.is_some() && !(self.stale.keys.remove(&kind) && self.keys.are_kept()) {
            return Ok(());
        }
        let key = match self.keys.load(kind)? {
            Some(key) => key,
            None => {
                let on_device = device.state.as_ref().and_then(|state| state.private_key.clone());
                let key = on_device.filter(|_| known.is_none()).unwrap_or_else(new_key);
                self.keys.save(kind, &key)?;
                key
            }
        };
        if known.as_ref().is_some_and(|known| *known != key) {
            tracing::info!(tunnel = kind.name(), "the private key of the WireGuard device changes");
        }
        device.key = Some(key);
        Ok(())
    }
}

/// Enables or disables threaded NAPI. The kernel offers this only in sysfs, which shows the network namespace that it
/// was mounted in.
fn set_threaded(device: &str, index: Option<u32>, threaded: bool) -> Result<(), String> {
    let dir = Path::new("/sys/class/net").join(device);
    let shown = std::fs::read_to_string(dir.join("ifindex")).ok().and_then(|text| text.trim().parse().ok());
    if shown.is_none() || shown != index {
        return Err(format!(
            "{} belongs to another network namespace: wireguardThreadingEnabled has no effect",
            dir.display()
        ));
    }
    let file = dir.join("threaded");
    std::fs::write(&file, if threaded { "1" } else { "0" })
        .map_err(|error| format!("{}: {error}", file.display()))
}
