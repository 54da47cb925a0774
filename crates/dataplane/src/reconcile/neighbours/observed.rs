//! The permanent neighbour entries in the kernel.

use crate::kernel::NeighbourKey;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct ObservedNeighbours {
    macs: BTreeMap<NeighbourKey, [u8; 6]>,
}

impl ObservedNeighbours {
    pub fn new(entries: Vec<(NeighbourKey, [u8; 6])>) -> ObservedNeighbours {
        ObservedNeighbours { macs: entries.into_iter().collect() }
    }

    pub fn mac(&self, key: &NeighbourKey) -> Option<[u8; 6]> {
        self.macs.get(key).copied()
    }

    pub fn of(&self, device: u32) -> impl Iterator<Item = NeighbourKey> {
        self.macs.range(NeighbourKey::all_of(device)).map(|(key, _)| *key)
    }

    pub fn set(&mut self, key: NeighbourKey, mac: Option<[u8; 6]>) {
        match mac {
            Some(mac) => self.macs.insert(key, mac),
            None => self.macs.remove(&key),
        };
    }

    /// Removes the entries of an interface that no longer exists.
    pub fn drop_of(&mut self, index: u32) {
        self.macs.retain(|key, _| key.device != index);
    }
}
