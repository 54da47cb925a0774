//! What of the plan's links and routes is not in the kernel, by object.

use super::Core;
use crate::failure::{Concerns, Failure, KernelObject};
use crate::kernel::NeighbourKey;
use ipnet::IpNet;
use std::collections::BTreeSet;
use tortie_plan::WorkloadId;

impl Core {
    /// A route could not be programmed; it is tried again at the next tick.
    pub fn failed(&mut self, destination: IpNet, reason: String) {
        if self.plan.claimants(&destination).next().is_some() {
            self.workload_failures.insert(destination);
        }
        self.failures.insert(destination, reason);
    }

    pub(super) fn succeeded(&mut self, destination: &IpNet) {
        self.failures.remove(destination);
        self.workload_failures.remove(destination);
    }

    /// The failure of a route that is no workload's. Those of workloads stand until they are mended: see
    /// [`Core::workload_failures`].
    pub fn route_failure(&self, destination: IpNet, reason: String) -> Option<Failure> {
        let object = KernelObject::Route { destination };
        let of_workload = self.workload_failures.contains(&destination);
        (!of_workload).then(|| Failure { object, concerns: Concerns::nobody(), reason })
    }

    pub fn neighbour_failed(&mut self, key: NeighbourKey, reason: String) {
        self.neighbour_errors.insert(key, reason);
    }

    /// Everything that workloads of the plan should have in the kernel and do not have, also from earlier attempts.
    pub fn workload_failures(&self) -> impl Iterator<Item = Failure> {
        self.route_failures().chain(self.neighbour_failures()).chain(self.conf_failures())
    }

    fn route_failures(&self) -> impl Iterator<Item = Failure> {
        self.workload_failures.iter().filter_map(|destination| {
            let reason = self.failures.get(destination)?.clone();
            let concerns = self.plan.claimants(destination).cloned().collect();
            Some(Failure { object: KernelObject::Route { destination: *destination }, concerns, reason })
        })
    }

    fn neighbour_failures(&self) -> impl Iterator<Item = Failure> {
        self.neighbour_errors.iter().map(|(key, reason)| {
            let object = KernelObject::Neighbour { address: key.address, interface: self.name(key.device) };
            Failure { object, concerns: self.behind(key.device), reason: reason.clone() }
        })
    }

    fn conf_failures(&self) -> impl Iterator<Item = Failure> {
        self.conf_errors.iter().map(|(index, (object, reason))| Failure {
            object: object.clone(),
            concerns: self.behind(*index),
            reason: reason.clone(),
        })
    }

    /// The workloads that claim an interface.
    fn behind(&self, index: u32) -> Concerns {
        let claimants = self.links.get(index).map(|link| self.plan.at_interface(&link.name));
        let claimants: BTreeSet<WorkloadId> = claimants.into_iter().flatten().cloned().collect();
        Concerns::Workloads(claimants)
    }
}
