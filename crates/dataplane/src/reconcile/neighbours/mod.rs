//! Permanent neighbour entries of workloads and VTEPs.

mod apply;
#[cfg(test)]
mod tests;

use super::{LinkChange, OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{FailureReason, KernelFailure, KernelObject};
use crate::kernel::{KernelSnapshot, NeighbourKey};
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::PlanUpdate;

type Mac = [u8; 6];

#[derive(Debug, Default)]
pub struct NeighbourReconciler {
    /// The permanent entries in the kernel.
    observed: BTreeMap<NeighbourKey, Mac>,
    /// Entries that we have written.
    written: BTreeSet<NeighbourKey>,
    /// Interfaces whose entries have to be checked.
    unchecked: BTreeSet<u32>,
    /// Entries to be removed once no route uses them.
    surplus: Vec<NeighbourKey>,
    /// Entries that the kernel rejected.
    errors: BTreeMap<NeighbourKey, FailureReason>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeighbourOperation {
    Set { key: NeighbourKey, mac: Mac, interface: String },
    Delete(NeighbourKey),
}

impl NeighbourReconciler {
    pub fn observe(&mut self, key: NeighbourKey, mac: Option<Mac>) {
        self.unchecked.insert(key.device);
        match mac {
            Some(mac) => self.observed.insert(key, mac),
            None => self.observed.remove(&key),
        };
    }

    /// Returns the operations for missing entries, and stores our entries that are no longer needed.
    fn compare(&mut self, context: &ReconcileContext) -> Vec<NeighbourOperation> {
        let mut operations = Vec::new();
        self.surplus.clear();
        for device in std::mem::take(&mut self.unchecked) {
            self.errors.retain(|key, _| key.device != device);
            let desired = desired_entries(device, context);
            let mut ours: BTreeSet<NeighbourKey> =
                self.written.range(NeighbourKey::all_of(device)).copied().collect();
            // On a device that we created all entries are ours, including those from before a restart.
            if context.in_sync && context.vxlan_tunnel_at(device).is_some() {
                ours.extend(self.observed.range(NeighbourKey::all_of(device)).map(|(key, _)| *key));
            }
            self.surplus.extend(ours.into_iter().filter(|key| !desired.contains_key(key)));
            self.written.extend(desired.keys());
            let missing = desired.into_iter().filter(|(key, mac)| self.observed.get(key) != Some(mac));
            operations.extend(missing.map(|(key, mac)| NeighbourOperation::Set {
                key,
                mac,
                interface: context.interface_name(device),
            }));
        }
        operations
    }
}

/// Returns the desired entries: for a workload its IPv4 addresses with its MAC, if that is known; for a tunnel the
/// addresses of the VTEPs with their MACs.
fn desired_entries(device: u32, context: &ReconcileContext) -> BTreeMap<NeighbourKey, Mac> {
    let mut desired = BTreeMap::new();
    if let Some(kind) = context.vxlan_tunnel_at(device) {
        for vtep in context.plan.vteps(kind) {
            desired.entry(NeighbourKey { device, address: vtep.address }).or_insert(vtep.mac);
        }
    } else if context.settings.program_routes
        && let Some((_, workload)) = context.workload_behind(device)
        && let Some(mac) = workload.mac
    {
        let addresses = workload.addresses.iter().filter(|address| address.is_ipv4());
        desired.extend(addresses.map(|address| (NeighbourKey { device, address: *address }, mac)));
    }
    desired
}

impl Reconciler for NeighbourReconciler {
    fn resync(&mut self, snapshot: &mut KernelSnapshot, _: &ReconcileContext) {
        self.observed = std::mem::take(&mut snapshot.neighbours).into_iter().collect();
    }

    fn check_all(&mut self, context: &ReconcileContext) {
        self.unchecked.extend(context.links.iter().map(|link| link.index));
        self.unchecked.extend(self.written.iter().map(|key| key.device));
    }

    fn plan_changes(&mut self, update: &PlanUpdate, context: &ReconcileContext) {
        self.unchecked.extend(context.workload_interfaces_of(update));
        self.unchecked.extend(context.tunnel_device_of(update));
    }

    fn link_changed(&mut self, change: &LinkChange<'_>, _: &ReconcileContext) {
        self.unchecked.insert(change.index);
        if change.is_gone() {
            self.observed.retain(|key, _| key.device != change.index);
        }
    }

    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let failures = self.errors.iter().map(|(key, reason)| {
            let interface = context.interface_name(key.device);
            let object = KernelObject::Neighbour { address: key.address, interface };
            KernelFailure::new(object, context.affected_workloads(key.device), reason)
        });
        failures.collect()
    }
}

impl ReconcileOperations for NeighbourReconciler {
    type Operation = NeighbourOperation;

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<NeighbourOperation> {
        match step {
            ReconcileStep::Write => self.compare(context),
            ReconcileStep::Remove => {
                std::mem::take(&mut self.surplus).into_iter().map(NeighbourOperation::Delete).collect()
            }
        }
    }

    fn record(&mut self, operation: NeighbourOperation, result: OperationResult, _: &ReconcileContext) {
        match (operation, result) {
            (NeighbourOperation::Set { key, mac, .. }, Ok(())) => {
                self.observed.insert(key, mac);
            }
            (NeighbourOperation::Delete(key), Ok(())) => {
                self.observed.remove(&key);
                self.written.remove(&key);
            }
            (NeighbourOperation::Set { key, .. }, Err(error)) => {
                self.errors.insert(key, error.reason());
            }
            (NeighbourOperation::Delete(key), Err(error)) => {
                tracing::warn!(address = %key.address, reason = %error, "cannot remove the neighbour entry of a removed workload or node; will retry");
            }
        }
    }
}
