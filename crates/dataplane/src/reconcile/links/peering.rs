//! Addresses of the host on links of workloads that are BGP peers.

use super::super::{OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use super::LinkOperation;
use crate::failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time for the BGP speaker to close a session before its local address is removed.
const BGP_CLOSE_DELAY: Duration = Duration::from_secs(5);

type InterfaceAddress = (u32, IpNet);

#[derive(Debug, Default)]
pub struct PeeringReconciler {
    /// Addresses that were desired at the last comparison.
    desired: BTreeSet<InterfaceAddress>,
    /// Times at which addresses without BGP sessions are removed.
    ends: BTreeMap<InterfaceAddress, Duration>,
    errors: BTreeMap<InterfaceAddress, FailureReason>,
}

fn list_desired_addresses(context: &ReconcileContext) -> BTreeSet<InterfaceAddress> {
    let mut desired = BTreeSet::new();
    for workload in context.plan.workloads().values() {
        if let Some(peer) = &workload.bgp_peer
            && let Some(link) = context.links.named(&workload.interface)
            && link.enabled
        {
            desired.extend(peer.addresses.iter().map(|address| (link.index, IpNet::from(*address))));
        }
    }
    desired
}

fn is_present((index, net): &InterfaceAddress, context: &ReconcileContext) -> bool {
    context.links.nets_of(*index).any(|other| other == *net)
}

impl Reconciler for PeeringReconciler {
    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let failures = self.errors.iter().map(|((device, net), reason)| {
            let interface = context.interface_name(*device);
            let object = KernelObject::Address { address: net.addr(), interface };
            KernelFailure::new(object, AffectedWorkloads::none(), reason)
        });
        failures.collect()
    }
}

impl ReconcileOperations for PeeringReconciler {
    type Operation = LinkOperation;

    /// Removes only addresses that were added for a peer, and not before the speaker had time to close the session.
    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<LinkOperation> {
        if step == ReconcileStep::Remove {
            return Vec::new();
        }
        let desired = list_desired_addresses(context);
        let mut operations = Vec::new();
        for entry in &desired {
            if !self.desired.contains(entry) || !is_present(entry, context) {
                let (index, net) = *entry;
                let interface = context.interface_name(index);
                operations.push(LinkOperation::AddAddress { index, interface, net });
            }
        }
        for entry in self.desired.difference(&desired) {
            self.ends.entry(*entry).or_insert(context.now + BGP_CLOSE_DELAY);
        }
        self.ends.retain(|entry, _| !desired.contains(entry) && is_present(entry, context));
        let ended = self.ends.iter().filter(|(_, end)| **end <= context.now);
        operations
            .extend(ended.map(|((index, net), _)| LinkOperation::RemoveAddress { index: *index, net: *net }));
        self.errors.retain(|entry, _| desired.contains(entry));
        self.desired = desired;
        operations
    }

    fn record(&mut self, operation: LinkOperation, result: OperationResult, _: &ReconcileContext) {
        let LinkOperation::AddAddress { index, net, .. } = operation else { return };
        match result {
            Ok(()) => self.errors.remove(&(index, net)),
            Err(error) => self.errors.insert((index, net), error.reason()),
        };
    }
}
