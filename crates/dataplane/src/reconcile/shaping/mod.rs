//! Bandwidth limits of workloads. Packets to a workload pass a token bucket at the host end of its interface; packets
//! from it are redirected through an `ifb` device and pass a bucket there.

mod apply;
mod desired;
#[cfg(test)]
mod tests;

use super::{LinkChange, OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{FailureReason, KernelFailure, KernelObject};
use crate::kernel::{KernelSnapshot, QdiscState, TokenBucket};
use desired::{ifb_name, is_shaped, is_shaping_device, shaped_workloads, token_bucket};
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::PlanUpdate;

/// Limit of steps: an interface needs a device, its bucket and a redirection, and possibly removals before them.
const MAX_SHAPING_STEPS: usize = 8;

#[derive(Debug, Default)]
pub struct ShapingReconciler {
    observed: QdiscState,
    /// Whether the queueing disciplines have to be read again.
    stale: bool,
    /// The buckets as they were written, because the kernel does not report all their parameters.
    written: BTreeMap<u32, TokenBucket>,
    /// Whether the kernel may differ from the desired state.
    dirty: bool,
    /// Number of rounds of the current run, and its failed interfaces.
    rounds: usize,
    failed: BTreeMap<String, FailureReason>,
    /// Interfaces with failed operations in the last run.
    errors: BTreeMap<String, FailureReason>,
}

/// A change of traffic control for one interface, given by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapingOperation {
    pub interface: String,
    pub change: ShapingChange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShapingChange {
    SetBucket { device: u32, bucket: TokenBucket },
    DeleteBucket { device: u32 },
    CreateDevice { name: String, mtu: u32 },
    SetUp { device: u32 },
    Redirect { device: u32, to: u32 },
    DeleteRedirection { device: u32 },
    DeleteDevice { device: u32 },
}

/// The desired objects, by which surplus ones are recognised.
#[derive(Default)]
struct DesiredShaping {
    buckets: BTreeMap<u32, TokenBucket>,
    devices: BTreeSet<String>,
    redirected: BTreeSet<u32>,
}

impl ShapingReconciler {
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    pub fn replace_observed(&mut self, qdiscs: QdiscState) {
        self.stale = false;
        self.written.retain(|device, _| qdiscs.buckets.contains_key(device));
        if self.observed != qdiscs {
            self.observed = qdiscs;
            self.dirty = true;
        }
    }

    /// Returns whether an interface has this bucket.
    fn has_bucket(&self, device: u32, bucket: &TokenBucket) -> bool {
        let observed = self.observed.buckets.get(&device).is_some_and(|observed| observed.is_like(bucket));
        observed && self.written.get(&device).is_none_or(|written| written == bucket)
    }

    /// Returns the next operation for each interface; the kernel is read again after each round. Nothing is removed
    /// before the first plan, and nothing from interfaces that are not ours.
    fn next_operations(&self, context: &ReconcileContext) -> Vec<ShapingOperation> {
        let mut operations = Vec::new();
        let mut desired = DesiredShaping::default();
        for (link, workload) in shaped_workloads(context) {
            if let Some(bandwidth) = &workload.qos.ingress.bandwidth {
                desired.buckets.insert(link.index, token_bucket(bandwidth, link.mtu));
            }
            let Some(bandwidth) = &workload.qos.egress.bandwidth else { continue };
            let name = ifb_name(&link.name);
            desired.redirected.insert(link.index);
            desired.devices.insert(name.clone());
            let change = match context.links.named(&name) {
                None => Some(ShapingChange::CreateDevice { name, mtu: link.mtu }),
                Some(device) if !device.enabled => Some(ShapingChange::SetUp { device: device.index }),
                Some(device) => {
                    let bucket = token_bucket(bandwidth, link.mtu);
                    desired.buckets.insert(device.index, bucket);
                    // Not before the bucket exists: until then, redirected packets would exceed the limit.
                    let is_ready = self.has_bucket(device.index, &bucket);
                    is_ready.then(|| self.redirect(link.index, device.index)).flatten()
                }
            };
            let interface = link.name.clone();
            operations.extend(change.map(|change| ShapingOperation { interface, change }));
        }
        for (device, bucket) in &desired.buckets {
            if !self.has_bucket(*device, bucket) {
                let change = ShapingChange::SetBucket { device: *device, bucket: *bucket };
                operations.push(ShapingOperation { interface: context.interface_name(*device), change });
            }
        }
        if context.in_sync {
            operations.extend(self.surplus(&desired, context));
        }
        operations
    }

    /// Returns the next change that makes packets of an interface pass a device.
    fn redirect(&self, device: u32, to: u32) -> Option<ShapingChange> {
        match self.observed.redirected.get(&device) {
            None => Some(ShapingChange::Redirect { device, to }),
            Some(Some(target)) if *target == to => None,
            // A redirection without a target, or to another device.
            Some(_) => Some(ShapingChange::DeleteRedirection { device }),
        }
    }

    fn surplus(&self, desired: &DesiredShaping, context: &ReconcileContext) -> Vec<ShapingOperation> {
        let ours: BTreeSet<u32> =
            context.links.iter().filter(|link| is_shaping_device(link)).map(|link| link.index).collect();
        let mut changes = Vec::new();
        for (device, target) in &self.observed.redirected {
            if !desired.redirected.contains(device) && target.is_some_and(|target| ours.contains(&target)) {
                changes.push((*device, ShapingChange::DeleteRedirection { device: *device }));
            }
        }
        for device in self.observed.buckets.keys() {
            if !desired.buckets.contains_key(device) && !ours.contains(device) {
                changes.push((*device, ShapingChange::DeleteBucket { device: *device }));
            }
        }
        // Not before the last redirection to it is removed.
        let in_use: BTreeSet<u32> = self.observed.redirected.values().copied().flatten().collect();
        for device in ours.difference(&in_use) {
            if !desired.devices.contains(&context.interface_name(*device)) {
                changes.push((*device, ShapingChange::DeleteDevice { device: *device }));
            }
        }
        let operations = changes
            .into_iter()
            .map(|(device, change)| ShapingOperation { interface: context.interface_name(device), change });
        operations.collect()
    }
}

impl Reconciler for ShapingReconciler {
    fn resync(&mut self, snapshot: &mut KernelSnapshot, _: &ReconcileContext) {
        self.replace_observed(std::mem::take(&mut snapshot.qdiscs));
    }

    fn check_all(&mut self, _: &ReconcileContext) {
        self.dirty = true;
    }

    fn plan_changes(&mut self, update: &PlanUpdate, context: &ReconcileContext) {
        if let PlanUpdate::Workload(id, new) = update {
            self.dirty |= context.plan.workloads().get(id).into_iter().chain(new).any(is_shaped);
        }
    }

    fn link_changed(&mut self, change: &LinkChange<'_>, context: &ReconcileContext) {
        self.dirty |= change.states().any(|link| {
            is_shaping_device(link)
                || context.plan.active(&link.name).is_some_and(|(_, workload)| is_shaped(workload))
        });
    }

    /// Returns the failures of bandwidth limits. IFB devices are named after the interface that they serve.
    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        if self.errors.is_empty() {
            return Vec::new();
        }
        let failures = shaped_workloads(context).filter_map(|(link, _)| {
            let error = self.errors.get(&link.name).or_else(|| self.errors.get(&ifb_name(&link.name)))?;
            Some(KernelFailure {
                object: KernelObject::TrafficControl { interface: link.name.clone() },
                concerns: context.affected_workloads(link.index),
                reason: error.clone(),
            })
        });
        failures.collect()
    }
}

impl ReconcileOperations for ShapingReconciler {
    type Operation = ShapingOperation;

    /// One round more, which finds nothing to do.
    const MAX_ROUNDS: usize = MAX_SHAPING_STEPS + 1;

    fn begin(&mut self, _: ReconcileStep) {
        self.rounds = 0;
        self.failed.clear();
    }

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<ShapingOperation> {
        if step == ReconcileStep::Remove || !self.dirty {
            return Vec::new();
        }
        // The result of the previous round must be known.
        let may_continue = self.rounds == 0 || self.rounds < MAX_SHAPING_STEPS && !self.stale;
        let mut operations = if may_continue { self.next_operations(context) } else { Vec::new() };
        operations.retain(|operation| !self.failed.contains_key(&operation.interface));
        if operations.is_empty() {
            // Failed interfaces are retried at the next tick.
            self.errors = std::mem::take(&mut self.failed);
            self.dirty = false;
        } else {
            self.rounds += 1;
            self.stale = true;
        }
        operations
    }

    fn record(&mut self, operation: ShapingOperation, result: OperationResult, _: &ReconcileContext) {
        match (operation.change, result) {
            (ShapingChange::SetBucket { device, bucket }, Ok(())) => {
                self.written.insert(device, bucket);
            }
            (_, Ok(())) => {}
            (_, Err(error)) => {
                self.failed.insert(operation.interface, error.reason());
            }
        }
    }
}
