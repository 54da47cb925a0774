//! Computes the missing neighbour entries and our surplus ones.

use super::super::DataplaneCore;
use crate::kernel::NeighbourKey;
use std::collections::BTreeSet;

impl DataplaneCore {
    /// Returns the missing neighbour entries, and our entries that are no longer needed.
    pub fn neighbour_work(&mut self) -> (Vec<(NeighbourKey, [u8; 6])>, Vec<NeighbourKey>) {
        let (mut missing, mut unwanted) = (Vec::new(), Vec::new());
        for device in std::mem::take(&mut self.unchecked) {
            self.neighbour_errors.retain(|key, _| key.device != device);
            let wanted = self.wanted_neighbours(device);
            let is_tunnel = self.tunnel_at(device).is_some();
            let ours = self.neighbours.range(NeighbourKey::all_of(device)).copied();
            // On a device that we created all entries are ours, including those from before a restart.
            let found = self.kernel_neighbours.of(device).filter(|_| is_tunnel && self.in_sync);
            let ours: BTreeSet<NeighbourKey> = ours.chain(found).collect();
            unwanted.extend(ours.into_iter().filter(|key| !wanted.contains_key(key)));
            self.neighbours.extend(wanted.keys());
            missing.extend(
                wanted.into_iter().filter(|(key, mac)| self.kernel_neighbours.mac(key) != Some(*mac)),
            );
        }
        (missing, unwanted)
    }

    pub fn neighbour_is(&mut self, key: NeighbourKey, mac: Option<[u8; 6]>) {
        self.kernel_neighbours.set(key, mac);
        if mac.is_none() {
            self.neighbours.remove(&key);
        }
    }
}
