//! Tracks the virtual machines that migrate to this node, and those of them that have announced that they run.

use super::ReconcileContext;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::{MigrationState, PlannedWorkload, WorkloadId};

#[derive(Debug, Default)]
pub struct MigrationArrivals {
    expected: BTreeSet<WorkloadId>,
    announced: BTreeSet<WorkloadId>,
}

impl MigrationArrivals {
    /// Updates the state of one workload.
    pub fn update(&mut self, id: &WorkloadId, workload: Option<&PlannedWorkload>) {
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
        workloads.iter().for_each(|(id, workload)| self.update(id, Some(workload)));
    }

    /// Returns the indexes of the interfaces on which an announcement is still expected.
    pub fn expected_interfaces(&self, context: &ReconcileContext) -> BTreeSet<u32> {
        let silent = self.expected.difference(&self.announced);
        let workloads = silent.filter_map(|id| context.plan.workloads().get(id));
        workloads
            .filter_map(|workload| context.links.named(&workload.interface))
            .map(|link| link.index)
            .collect()
    }

    /// Records an announcement on an interface.
    pub fn announced_on(&mut self, index: u32, context: &ReconcileContext) {
        let Some(link) = context.links.get(index) else { return };
        if let Some((id, _)) = context.plan.active(&link.name)
            && self.expected.contains(id)
        {
            tracing::info!(
                workload = id.workload,
                interface = link.name,
                "a virtual machine from another node runs here now"
            );
            self.announced.insert(id.clone());
        }
    }

    pub fn announced(&self) -> &BTreeSet<WorkloadId> {
        &self.announced
    }
}
