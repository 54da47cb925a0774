//! The sysctls of workload interfaces. Their current values are part of the link (`kernel::LinkSettings`).

mod apply;
mod desired;
#[cfg(test)]
mod tests;

use super::{LinkChange, OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{FailureReason, KernelFailure, KernelObject};
use crate::kernel::KernelSnapshot;
use crate::sysctl::SysctlSetting;
use desired::{SysctlInputs, missing_settings};
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::PlanUpdate;

#[derive(Debug, Default)]
pub struct SysctlReconciler {
    /// The `rp_filter` value for workload interfaces.
    rp_filter: i32,
    /// Interfaces whose settings have to be checked.
    unchecked: BTreeSet<u32>,
    /// Interfaces on which all settings whose values the kernel does not report were written.
    prepared: BTreeSet<u32>,
    /// Settings that could not be applied, by interface.
    errors: BTreeMap<u32, (KernelObject, FailureReason)>,
}

/// The settings to write on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysctlOperation {
    pub index: u32,
    pub settings: Vec<SysctlSetting>,
}

impl SysctlReconciler {
    pub fn new(rp_filter: i32) -> SysctlReconciler {
        SysctlReconciler { rp_filter, ..SysctlReconciler::default() }
    }

    /// Returns the setting of an interface that could not be applied, and the reason.
    pub fn error(&self, index: u32) -> Option<&(KernelObject, FailureReason)> {
        self.errors.get(&index)
    }
}

impl Reconciler for SysctlReconciler {
    fn resync(&mut self, _: &mut KernelSnapshot, context: &ReconcileContext) {
        self.errors.retain(|index, _| context.links.get(*index).is_some());
        // Write these settings again, because the kernel does not report their values.
        self.prepared.clear();
    }

    fn check_all(&mut self, context: &ReconcileContext) {
        self.unchecked.extend(context.links.iter().map(|link| link.index));
    }

    fn plan_changes(&mut self, update: &PlanUpdate, context: &ReconcileContext) {
        self.unchecked.extend(context.workload_interfaces_of(update));
    }

    fn link_changed(&mut self, change: &LinkChange<'_>, _: &ReconcileContext) {
        self.unchecked.insert(change.index);
        if change.is_gone() {
            self.errors.remove(&change.index);
        }
        if !change.keeps_name_and_state() {
            self.prepared.remove(&change.index);
        }
    }

    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let failures = self.errors.iter().map(|(index, (object, reason))| {
            KernelFailure::new(object.clone(), context.affected_workloads(*index), reason)
        });
        failures.collect()
    }
}

impl ReconcileOperations for SysctlReconciler {
    type Operation = SysctlOperation;

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<SysctlOperation> {
        let unchecked = std::mem::take(&mut self.unchecked);
        if step == ReconcileStep::Remove || !context.settings.program_routes {
            return Vec::new();
        }
        let metadata = context.settings.policy.metadata;
        let mut operations = Vec::new();
        for (link, workload) in unchecked.into_iter().filter_map(|index| context.workload_behind(index)) {
            let inputs = SysctlInputs {
                rp_filter: if workload.may_spoof { 0 } else { self.rp_filter },
                ipv6: context.settings.ipv6,
                loopback: metadata.is_some_and(|metadata| metadata.address.is_loopback()),
                is_first: !self.prepared.contains(&link.index),
            };
            let settings = missing_settings(&link.name, &link.conf, workload, inputs);
            if !settings.is_empty() {
                operations.push(SysctlOperation { index: link.index, settings });
            }
        }
        operations
    }

    fn record(&mut self, operation: SysctlOperation, result: OperationResult, context: &ReconcileContext) {
        let index = operation.index;
        // The values of the interface were read after the operation, which schedules a check that is not needed. A
        // failed setting is retried at the next tick.
        self.unchecked.remove(&index);
        match result {
            Ok(()) => {
                self.prepared.insert(index);
                self.errors.remove(&index);
            }
            Err(error) => {
                let interface = KernelObject::interface(context.interface_name(index));
                self.errors.insert(index, error.into_parts(interface));
            }
        }
    }
}
