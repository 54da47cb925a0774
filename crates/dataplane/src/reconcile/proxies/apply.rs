//! Writes proxy entries, has the links told of them, and removes those that are not wanted any more.

use super::desired::{Family, changed};
use crate::announce;
use crate::engine::Engine;
use crate::failure::KernelObject;
use crate::kernel::{NeighbourKey, RefusalKind};
use crate::sysctl::{self, Setting};

impl Engine {
    /// After the routes: whoever is told that an address is here can reach it.
    pub(crate) async fn apply_proxies(&mut self) {
        let work = self.core.proxy_work();
        let mut refused = Vec::new();
        for entry in work.unwanted {
            match self.kernel.delete_proxy(entry).await {
                Ok(()) => self.core.proxy_is(entry, false),
                Err(refusal) if refusal.kind == RefusalKind::Missing => self.core.proxy_is(entry, false),
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
            // The value of one of them comes with the interface.
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

    /// As if the interface were new: what it had before us nobody remembers after a restart.
    async fn restore_proxy_settings(&mut self, device: u32, family: Family) {
        let interface = self.core.name(device);
        let mut settings = Vec::new();
        let untouched = changed("default", family).into_iter().zip(changed("lo", family));
        for (key, (default, lo)) in changed(&interface, family).into_iter().zip(untouched) {
            let value = match sysctl::read(&self.host, &default).await {
                Ok(Some(value)) => Some(value),
                // Not every namespace has defaults of its own; nobody changes these of `lo`.
                _ => sysctl::read(&self.host, &lo).await.ok().flatten(),
            };
            settings.extend(value.map(|value| Setting::lenient(key, value)));
        }
        if let Err(error) = sysctl::write(&self.host, settings).await {
            tracing::warn!(%error, interface, "the settings for answering for others stay as they are");
        }
        // The value of one of them comes with the interface.
        self.links.insert(device);
    }

    pub(crate) async fn announce_again(&mut self) {
        self.announce(self.core.proxied()).await;
    }

    /// Who remembers another place of an address forgets it.
    async fn announce(&mut self, keys: Vec<NeighbourKey>) {
        if keys.is_empty() {
            return;
        }
        let addresses = keys.into_iter().map(|key| (self.core.name(key.device), key.address)).collect();
        if let Err(error) = announce::send(&self.host, addresses).await {
            tracing::warn!(%error, "links are not told which addresses are answered for; who asks is answered");
        }
    }

    fn proxy(&self, key: NeighbourKey) -> KernelObject {
        KernelObject::Proxy { address: key.address, interface: self.core.name(key.device) }
    }
}
