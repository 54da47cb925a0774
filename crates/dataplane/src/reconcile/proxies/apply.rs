//! Writes proxy entries and announces them on their links, and removes surplus ones.

use super::desired::{ProxyFamily, changed};
use crate::announce;
use crate::engine::DataplaneEngine;
use crate::failure::KernelObject;
use crate::kernel::{NeighbourKey, RejectionKind};
use crate::sysctl::{self, SysctlSetting};

impl DataplaneEngine {
    /// Adds and removes proxy entries. Runs after the routes: an announced address must already be reachable.
    pub(crate) async fn apply_proxies(&mut self) {
        let work = self.core.proxy_work();
        let mut refused = Vec::new();
        for entry in work.unwanted {
            match self.kernel.delete_proxy(entry).await {
                Ok(()) => self.core.proxy_is(entry, false),
                Err(refusal) if refusal.kind == RejectionKind::Missing => self.core.proxy_is(entry, false),
                Err(refusal) => refused.push((self.proxy(entry.key), refusal.reason)),
            }
        }
        for (device, family) in work.released {
            if self.core.proxies_released(device, family) {
                self.restore_proxy_settings(device, family).await;
            }
        }
        for (device, family, settings) in work.settings {
            match sysctl::write(&self.host, settings).await {
                Ok(()) => self.core.proxies_prepared(device, family),
                Err(error) => refused.push(error.into()),
            }
            // One of the values is read with the link.
            self.links.insert(device);
        }
        let mut new = Vec::new();
        for entry in work.missing {
            match self.kernel.add_proxy(entry, &self.core.name(entry.key.device)).await {
                Ok(()) => {
                    self.core.proxy_is(entry, true);
                    new.push(entry.key);
                }
                Err(refusal) => refused.push((self.proxy(entry.key), refusal.reason)),
            }
        }
        self.core.proxies_refused(refused);
        self.announce(new).await;
    }

    /// Resets the settings to those of a new interface: their previous values are not known after a restart.
    async fn restore_proxy_settings(&mut self, device: u32, family: ProxyFamily) {
        let interface = self.core.name(device);
        let mut settings = Vec::new();
        let untouched = changed("default", family).into_iter().zip(changed("lo", family));
        for (key, (default, lo)) in changed(&interface, family).into_iter().zip(untouched) {
            let value = match sysctl::read(&self.host, &default).await {
                Ok(Some(value)) => Some(value),
                // Not every namespace has its own defaults; these settings of `lo` are not usually changed.
                _ => sysctl::read(&self.host, &lo).await.ok().flatten(),
            };
            settings.extend(value.map(|value| SysctlSetting::lenient(key, value)));
        }
        if let Err(error) = sysctl::write(&self.host, settings).await {
            tracing::warn!(%error, interface, "cannot reset the proxy ARP/NDP settings of an interface");
        }
        // One of the values is read with the link.
        self.links.insert(device);
    }

    pub(crate) async fn announce_again(&mut self) {
        self.announce(self.core.proxied()).await;
    }

    /// Announces addresses, so that hosts with another MAC for one update their cache.
    async fn announce(&mut self, keys: Vec<NeighbourKey>) {
        if keys.is_empty() {
            return;
        }
        let addresses = keys.into_iter().map(|key| (self.core.name(key.device), key.address)).collect();
        if let Err(error) = announce::send(&self.host, addresses).await {
            tracing::warn!(%error, "cannot send gratuitous ARP/NA for proxied addresses; ARP and ND requests are still answered");
        }
    }

    fn proxy(&self, key: NeighbourKey) -> KernelObject {
        KernelObject::Proxy { address: key.address, interface: self.core.name(key.device) }
    }
}
