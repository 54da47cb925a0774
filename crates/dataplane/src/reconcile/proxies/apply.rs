//! Writes proxy entries, has the links told of them, and removes those that are not wanted any more.

use crate::announce;
use crate::engine::Engine;
use crate::failure::KernelObject;
use crate::kernel::{NeighbourKey, RefusalKind};
use crate::sysctl;

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
        for (device, settings) in work.settings {
            match sysctl::write(&self.host, settings).await {
                Ok(()) => self.core.proxies_prepared(device),
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
