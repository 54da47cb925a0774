//! The neighbour entries of a workload: its IPv4 addresses at its MAC, where that is known.

use super::super::Core;
use crate::kernel::NeighbourKey;
use std::collections::BTreeMap;

impl Core {
    pub(in crate::reconcile) fn wanted_neighbours(&self, device: u32) -> BTreeMap<NeighbourKey, [u8; 6]> {
        let workload = self.leads_to(device).filter(|_| self.settings.program_routes);
        let Some((_, workload)) = workload else { return BTreeMap::new() };
        let Some(mac) = workload.mac else { return BTreeMap::new() };
        let addresses = workload.addresses.iter().filter(|address| address.is_ipv4());
        addresses.map(|address| (NeighbourKey { device, address: *address }, mac)).collect()
    }
}
