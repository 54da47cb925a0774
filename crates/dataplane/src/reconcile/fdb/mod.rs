//! Forwarding entries of VXLAN devices, which map the MAC of every VTEP to its node.

mod apply;
#[cfg(test)]
pub mod tests;

use super::{LinkChange, OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
use crate::kernel::{FdbKey, KernelSnapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::PlanUpdate;

#[derive(Debug, Default)]
pub struct FdbReconciler {
    /// The entries in the kernel. A MAC has several nodes if another program has appended to its entry.
    observed: BTreeSet<(FdbKey, IpAddr)>,
    /// Interfaces whose entries have to be checked.
    unchecked: BTreeSet<u32>,
    /// Entries to be removed once no route uses them.
    surplus: Vec<(FdbKey, IpAddr)>,
    /// Entries that the kernel rejected.
    errors: BTreeMap<FdbKey, FailureReason>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FdbOperation {
    Set { key: FdbKey, node: IpAddr, interface: String },
    Delete { key: FdbKey, node: IpAddr },
}

impl FdbReconciler {
    pub fn observe(&mut self, key: FdbKey, node: IpAddr, present: bool) {
        self.unchecked.insert(key.device);
        if present {
            self.observed.insert((key, node));
        } else {
            self.observed.remove(&(key, node));
        }
    }

    /// Returns the operations for missing entries, and stores the surplus entries. All entries on our own devices are
    /// considered ours.
    fn compare(&mut self, context: &ReconcileContext) -> Vec<FdbOperation> {
        let mut operations = Vec::new();
        self.surplus.clear();
        for device in std::mem::take(&mut self.unchecked) {
            self.errors.retain(|key, _| key.device != device);
            if context.vxlan_tunnel_at(device).is_none() {
                continue;
            }
            let desired = desired_entries(device, context);
            if context.in_sync {
                let observed = self.observed.iter().filter(|(key, _)| key.device == device);
                self.surplus.extend(observed.filter(|(key, node)| desired.get(key) != Some(node)));
            }
            let missing = desired.into_iter().filter(|entry| !self.observed.contains(entry));
            operations.extend(missing.map(|(key, node)| FdbOperation::Set {
                key,
                node,
                interface: context.interface_name(device),
            }));
        }
        operations
    }
}

/// Returns the desired entries. If several nodes claim one MAC, it belongs to the first by name.
fn desired_entries(device: u32, context: &ReconcileContext) -> BTreeMap<FdbKey, IpAddr> {
    let mut desired = BTreeMap::new();
    let tunnel = context.vxlan_tunnel_at(device);
    for vtep in tunnel.into_iter().flat_map(|kind| context.plan.vteps(kind)) {
        desired.entry(FdbKey { device, mac: vtep.mac }).or_insert(vtep.node);
    }
    desired
}

impl Reconciler for FdbReconciler {
    fn resync(&mut self, snapshot: &mut KernelSnapshot, _: &ReconcileContext) {
        self.observed = std::mem::take(&mut snapshot.fdb).into_iter().collect();
    }

    fn check_all(&mut self, context: &ReconcileContext) {
        self.unchecked.extend(context.links.iter().map(|link| link.index));
    }

    fn plan_changes(&mut self, update: &PlanUpdate, context: &ReconcileContext) {
        self.unchecked.extend(context.tunnel_device_of(update));
    }

    fn link_changed(&mut self, change: &LinkChange<'_>, _: &ReconcileContext) {
        self.unchecked.insert(change.index);
        if change.is_gone() {
            self.observed.retain(|(key, _)| key.device != change.index);
        }
    }

    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let failures = self.errors.iter().map(|(key, reason)| {
            let interface = context.interface_name(key.device);
            let object = KernelObject::ForwardingEntry { mac: key.mac, interface };
            KernelFailure::new(object, AffectedWorkloads::none(), reason)
        });
        failures.collect()
    }
}

impl ReconcileOperations for FdbReconciler {
    type Operation = FdbOperation;

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<FdbOperation> {
        match step {
            ReconcileStep::Write => self.compare(context),
            ReconcileStep::Remove => {
                let surplus = std::mem::take(&mut self.surplus).into_iter();
                surplus.map(|(key, node)| FdbOperation::Delete { key, node }).collect()
            }
        }
    }

    fn record(&mut self, operation: FdbOperation, result: OperationResult, _: &ReconcileContext) {
        match (operation, result) {
            (FdbOperation::Set { key, node, .. }, Ok(())) => {
                self.observed.insert((key, node));
            }
            (FdbOperation::Delete { key, node }, Ok(())) => {
                self.observed.remove(&(key, node));
            }
            (FdbOperation::Set { key, .. }, Err(error)) => {
                self.errors.insert(key, error.reason());
            }
            (FdbOperation::Delete { node, .. }, Err(error)) => {
                tracing::warn!(%node, reason = %error, "cannot remove the forwarding entry of a removed node; will retry");
            }
        }
    }
}
