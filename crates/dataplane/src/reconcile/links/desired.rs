//! Which interfaces lead to workloads of the plan.

use super::super::Core;
use crate::kernel::Link;
use tortie_plan::Workload;

impl Core {
    /// Whether an interface leads to a workload: one of the plan has it, or its name is one that only they have.
    pub(in crate::reconcile) fn is_workload(&self, interface: &str) -> bool {
        self.settings.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
            || self.plan.active(interface).is_some()
    }

    /// The workload that an interface leads to, if it can.
    pub(in crate::reconcile) fn leads_to(&self, index: u32) -> Option<(&Link, &Workload)> {
        let link = self.links.get(index).filter(|link| link.is_up())?;
        self.plan.active(&link.name).map(|(_, workload)| (link, workload))
    }

    pub fn name(&self, device: u32) -> String {
        self.links.get(device).map_or_else(|| format!("#{device}"), |link| link.name.clone())
    }
}
