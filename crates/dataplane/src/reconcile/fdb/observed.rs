//! The forwarding entries in the kernel.

use crate::kernel::FdbKey;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

#[derive(Debug, Default)]
pub struct ObservedForwarding {
    /// An entry has several nodes if another program has appended to it.
    nodes: BTreeMap<FdbKey, BTreeSet<IpAddr>>,
}

impl ObservedForwarding {
    pub fn new(entries: Vec<(FdbKey, IpAddr)>) -> ObservedForwarding {
        let mut forwarding = ObservedForwarding::default();
        entries.into_iter().for_each(|(key, node)| forwarding.set(key, node, true));
        forwarding
    }

    pub fn of_device(&self, device: u32) -> impl Iterator<Item = (FdbKey, IpAddr)> {
        let entries = self.nodes.range(FdbKey::all_of(device));
        entries.flat_map(|(key, nodes)| nodes.iter().map(|node| (*key, *node)))
    }

    pub fn contains(&self, key: &FdbKey, node: IpAddr) -> bool {
        self.nodes.get(key).is_some_and(|nodes| nodes.contains(&node))
    }

    pub fn set(&mut self, key: FdbKey, node: IpAddr, present: bool) {
        if present {
            self.nodes.entry(key).or_default().insert(node);
        } else if let Some(nodes) = self.nodes.get_mut(&key) {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.nodes.remove(&key);
            }
        }
    }

    /// Removes the entries of an interface that no longer exists.
    pub fn remove_device(&mut self, index: u32) {
        self.nodes.retain(|key, _| key.device != index);
    }
}
