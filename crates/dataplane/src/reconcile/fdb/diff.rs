//! Computes the missing and the surplus forwarding entries.

use super::super::DataplaneCore;
use crate::kernel::FdbKey;
use std::net::IpAddr;

type FdbEntries = Vec<(FdbKey, IpAddr)>;

impl DataplaneCore {
    /// Returns the missing and the surplus entries. All entries on our own devices are considered ours.
    pub fn forwarding_work(&mut self) -> (FdbEntries, FdbEntries) {
        let (mut missing, mut unwanted) = (Vec::new(), Vec::new());
        for device in std::mem::take(&mut self.unchecked_forwarding) {
            self.forwarding_errors.retain(|key, _| key.device != device);
            if self.tunnel_at(device).is_none() {
                continue;
            }
            let wanted = self.wanted_forwarding(device);
            if self.in_sync {
                let there = self.forwarding.of(device);
                unwanted.extend(there.filter(|(key, node)| wanted.get(key) != Some(node)));
            }
            missing.extend(wanted.into_iter().filter(|(key, node)| !self.forwarding.has(key, *node)));
        }
        (missing, unwanted)
    }

    pub fn forwarding_is(&mut self, key: FdbKey, node: IpAddr, present: bool) {
        self.forwarding.set(key, node, present);
    }
}
