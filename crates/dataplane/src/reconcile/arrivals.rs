//! Tracks the virtual machines that migrate to this node, and those of them that have announced that they run.

use super::DataplaneCore;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{MigrationState, PlannedWorkload, WorkloadId};

#[derive(Debug, Default)]
pub(crate) struct MigrationArrivals {
    expected: BTreeSet<WorkloadId>,
    announced: BTreeSet<WorkloadId>,
}

impl MigrationArrivals {
    /// Updates the state of one workload.
    pub fn note(&mut self, id: &WorkloadId, workload: Option<&PlannedWorkload>) {
        let migration = workload.map(|workload| workload.migration).unwrap_or_default();
        if migration == MigrationState::Arriving {
            self.expected.insert(id.clone());
            return;
        }
        self.expected.remove(id);
        if migration == MigrationState::None {
            self.announced.remove(id);
        }
    }

    /// Replaces all workloads.
    pub fn replace(&mut self, workloads: &BTreeMap<WorkloadId, PlannedWorkload>) {
        self.announced.retain(|id| workloads.contains_key(id));
        self.expected.clear();
        workloads.iter().for_each(|(id, workload)| self.note(id, Some(workload)));
    }
}

impl DataplaneCore {
    /// Returns the indexes of the interfaces on which an announcement is still expected.
    pub fn expected_arrivals(&self) -> BTreeSet<u32> {
        let silent = self.arrivals.expected.difference(&self.arrivals.announced);
        let workloads = silent.filter_map(|id| self.plan.workloads().get(id));
        workloads
            .filter_map(|workload| self.links.named(&workload.interface))
            .map(|link| link.index)
            .collect()
    }

    /// Records an announcement on an interface.
    pub fn announced_on(&mut self, index: u32) {
        let Some(link) = self.links.get(index) else { return };
        if let Some((id, _)) = self.plan.active(&link.name)
            && self.arrivals.expected.contains(id)
        {
            tracing::info!(
                workload = id.workload,
                interface = link.name,
                "a virtual machine from another node runs here now"
            );
            self.arrivals.announced.insert(id.clone());
        }
    }

    pub fn announced(&self) -> &BTreeSet<WorkloadId> {
        &self.arrivals.announced
    }
}
