//! The desired neighbour entries: for a workload its IPv4 addresses with its MAC, if that is known; for a tunnel the
//! addresses of the VTEPs with their MACs.

use super::super::DataplaneCore;
use crate::kernel::NeighbourKey;
use std::collections::BTreeMap;

impl DataplaneCore {
    pub(in crate::reconcile) fn wanted_neighbours(&self, device: u32) -> BTreeMap<NeighbourKey, [u8; 6]> {
        if let Some(kind) = self.tunnel_at(device) {
            let mut wanted = BTreeMap::new();
            for vtep in self.plan.vteps(kind) {
                wanted.entry(NeighbourKey { device, address: vtep.address }).or_insert(vtep.mac);
            }
            return wanted;
        }
        let workload = self.leads_to(device).filter(|_| self.settings.program_routes);
        let Some((_, workload)) = workload else { return BTreeMap::new() };
        let Some(mac) = workload.mac else { return BTreeMap::new() };
        let addresses = workload.addresses.iter().filter(|address| address.is_ipv4());
        addresses.map(|address| (NeighbourKey { device, address: *address }, mac)).collect()
    }
}
