//! Proxied addresses: the host answers ARP and ND requests for them on its links, so that hosts on the same subnet
//! reach workloads without a route.

mod apply;
mod desired;
#[cfg(test)]
mod tests;

pub use apply::announce;

use super::{LinkChange, OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
use crate::kernel::{KernelSnapshot, NeighbourKey, ProxyEntry};
use crate::sysctl::SysctlSetting;
use desired::{ProxyFamily, desired_proxies, needed_settings};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct ProxyReconciler {
    observed: BTreeSet<ProxyEntry>,
    /// Whether the entries have to be read again: the kernel sends no notifications about them.
    stale: bool,
    /// Interfaces that have the settings whose values the kernel does not report.
    prepared: BTreeSet<ProxyInterface>,
    /// Objects that the kernel rejected at the last attempt.
    errors: Vec<(KernelObject, FailureReason)>,
}

/// An interface that answers requests of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyInterface {
    pub device: u32,
    pub family: ProxyFamily,
}

impl From<&NeighbourKey> for ProxyInterface {
    fn from(key: &NeighbourKey) -> ProxyInterface {
        let family = if key.address.is_ipv4() { ProxyFamily::V4 } else { ProxyFamily::V6 };
        ProxyInterface { device: key.device, family }
    }
}

/// A change of proxy entries. `name` is the name of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyOperation {
    Delete {
        entry: ProxyEntry,
        name: String,
    },
    /// Resets the settings of an interface that has no entry left, if all its entries could be deleted.
    ResetSettings {
        interface: ProxyInterface,
        name: String,
    },
    WriteSettings {
        interface: ProxyInterface,
        settings: Vec<SysctlSetting>,
    },
    Add {
        entry: ProxyEntry,
        name: String,
    },
}

impl ProxyReconciler {
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    pub fn replace_observed(&mut self, proxies: Vec<ProxyEntry>) {
        self.observed = proxies.into_iter().collect();
        self.stale = false;
    }

    pub fn invalidate_if_used(&mut self, context: &ReconcileContext) {
        self.stale |= self.is_used(context);
    }

    /// Returns whether proxy entries exist or are desired.
    fn is_used(&self, context: &ReconcileContext) -> bool {
        !context.plan.proxied().is_empty() || !self.observed.is_empty()
    }

    /// Returns the addresses that are answered, by interface.
    pub fn answered(&self, context: &ReconcileContext) -> Vec<NeighbourKey> {
        let desired = desired_proxies(context);
        self.observed.iter().map(|entry| entry.key).filter(|key| desired.contains(key)).collect()
    }
}

impl Reconciler for ProxyReconciler {
    fn resync(&mut self, snapshot: &mut KernelSnapshot, _: &ReconcileContext) {
        self.replace_observed(std::mem::take(&mut snapshot.proxies));
        // Write the settings that cannot be read back again.
        self.prepared.clear();
    }

    fn link_changed(&mut self, change: &LinkChange<'_>, _: &ReconcileContext) {
        if change.is_gone() {
            self.prepared.retain(|interface| interface.device != change.index);
        }
    }

    fn tick(&mut self, context: &ReconcileContext) {
        self.invalidate_if_used(context);
    }

    fn failures(&self, _: &ReconcileContext) -> Vec<KernelFailure> {
        let failures = self
            .errors
            .iter()
            .map(|(object, reason)| KernelFailure::new(object.clone(), AffectedWorkloads::none(), reason));
        failures.collect()
    }
}

impl ReconcileOperations for ProxyReconciler {
    type Operation = ProxyOperation;

    fn begin(&mut self, _: ReconcileStep) {
        self.errors.clear();
    }

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<ProxyOperation> {
        if step == ReconcileStep::Remove || !self.is_used(context) {
            return Vec::new();
        }
        let desired = desired_proxies(context);
        let protocol = context.own_protocol();
        let may_remove = context.in_sync && context.settings.program_routes;
        let mut operations = Vec::new();
        let mut kept: BTreeSet<NeighbourKey> = self.observed.iter().map(|entry| entry.key).collect();
        let mut emptied = BTreeSet::new();
        for entry in &self.observed {
            if may_remove && entry.protocol == protocol && !desired.contains(&entry.key) {
                kept.remove(&entry.key);
                emptied.insert(ProxyInterface::from(&entry.key));
                let name = context.interface_name(entry.key.device);
                operations.push(ProxyOperation::Delete { entry: *entry, name });
            }
        }
        for key in kept.iter().chain(&desired) {
            emptied.remove(&ProxyInterface::from(key));
        }
        operations.extend(emptied.into_iter().map(|interface| ProxyOperation::ResetSettings {
            interface,
            name: context.interface_name(interface.device),
        }));
        let answering: BTreeSet<ProxyInterface> = desired.iter().map(ProxyInterface::from).collect();
        for interface in answering {
            let Some(link) = context.links.get(interface.device) else { continue };
            let is_first = !self.prepared.contains(&interface);
            let settings = needed_settings(link, interface.family, is_first);
            if !settings.is_empty() {
                operations.push(ProxyOperation::WriteSettings { interface, settings });
            }
        }
        operations.extend(desired.difference(&kept).map(|key| ProxyOperation::Add {
            entry: ProxyEntry { key: *key, protocol },
            name: context.interface_name(key.device),
        }));
        operations
    }

    fn record(&mut self, operation: ProxyOperation, result: OperationResult, _: &ReconcileContext) {
        match (operation, result) {
            (ProxyOperation::Delete { entry, .. }, Ok(())) => {
                self.observed.remove(&entry);
            }
            (ProxyOperation::Add { entry, .. }, Ok(())) => {
                self.observed.insert(entry);
            }
            (ProxyOperation::ResetSettings { interface, .. }, _) => {
                self.prepared.remove(&interface);
            }
            (ProxyOperation::WriteSettings { interface, .. }, Ok(())) => {
                self.prepared.insert(interface);
            }
            (ProxyOperation::WriteSettings { .. }, Err(error)) => {
                self.errors.push(error.into_parts(KernelObject::KernelState("state of the kernel")));
            }
            (
                ProxyOperation::Delete { entry, name: interface }
                | ProxyOperation::Add { entry, name: interface },
                Err(error),
            ) => {
                let object = KernelObject::Proxy { address: entry.key.address, interface };
                self.errors.push(error.into_parts(object));
            }
        }
    }
}
