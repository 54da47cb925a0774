//! The desired forwarding entries of a tunnel device: they map the MAC of every VTEP to its node.

use super::super::DataplaneCore;
use crate::kernel::FdbKey;
use std::collections::BTreeMap;
use std::net::IpAddr;

impl DataplaneCore {
    /// Returns the desired entries. If several nodes claim one MAC, it belongs to the first by name.
    pub(in crate::reconcile) fn wanted_forwarding(&self, device: u32) -> BTreeMap<FdbKey, IpAddr> {
        let mut wanted = BTreeMap::new();
        for vtep in self.tunnel_at(device).into_iter().flat_map(|kind| self.plan.vteps(kind)) {
            wanted.entry(FdbKey { device, mac: vtep.mac }).or_insert(vtep.node);
        }
        wanted
    }
}
