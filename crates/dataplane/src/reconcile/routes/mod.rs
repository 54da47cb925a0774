//! Routes of workloads, of the blocks of other nodes, and of BGP.

mod apply;
mod desired;
mod diff;
mod next_hops;
mod observed;
mod ownership;
#[cfg(test)]
mod tests;

use super::plan_index::PlanIndex;
use super::{LinkChange, OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
use crate::kernel::{KernelRoute, KernelRouteTarget, KernelSnapshot};
use desired::RouteError;
use diff::{RouteChange, difference};
use ipnet::IpNet;
use next_hops::{LookupResult, NextHops};
use observed::ObservedRoutes;
use ownership::InterfaceAges;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{PlanUpdate, PlannedWorkload, RouteKey};

pub const PROTOCOL_KERNEL: u8 = 2;
pub const PROTOCOL_BOOT: u8 = 3;
pub const PROTOCOL_BIRD: u8 = 12;
pub const PROTOCOL_OURS: u8 = 80;

#[derive(Debug, Default)]
pub struct RouteReconciler {
    observed: ObservedRoutes,
    /// Whether the routes have to be read again.
    stale: bool,
    next_hops: NextHops,
    ages: InterfaceAges,
    /// Destinations to check in the next run.
    dirty: BTreeSet<RouteKey>,
    /// Destinations to check again at the next tick.
    retries: BTreeSet<RouteKey>,
    failures: BTreeMap<RouteKey, FailureReason>,
    /// The keys in `failures` that are addresses of workloads.
    workload_failures: BTreeSet<RouteKey>,
    /// The failures of the last run.
    new_failures: Vec<(RouteKey, FailureReason)>,
    /// Addresses that workloads have lost since the last run.
    lost_addresses: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteOperation {
    /// Deletes connection tracking entries: before the routes change, those of addresses that now belong to another
    /// workload, and afterwards, those of addresses that belong to no workload.
    EndFlows {
        moving: BTreeSet<IpAddr>,
        leaving: BTreeSet<IpAddr>,
    },
    Change(RouteChange),
}

impl RouteReconciler {
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    pub fn observed(&self) -> &ObservedRoutes {
        &self.observed
    }

    pub fn next_hops(&self) -> &NextHops {
        &self.next_hops
    }

    /// Stores the kernel's next hop towards a node.
    pub fn set_next_hop(&mut self, node: IpAddr, result: LookupResult, context: &ReconcileContext) {
        if self.next_hops.store(node, result, context) {
            self.dirty.extend(context.plan.destinations_by(node));
        }
    }

    /// Returns the reason why the route to a destination could not be written.
    pub fn failure(&self, key: &RouteKey) -> Option<&FailureReason> {
        self.failures.get(key)
    }

    /// Returns the failures of the last run for routes that belong to no workload. Those of workloads are reported by
    /// [`Reconciler::failures`] until they are resolved.
    pub fn new_node_failures(&self) -> impl Iterator<Item = KernelFailure> {
        let failures = self.new_failures.iter().filter(|(key, _)| !self.workload_failures.contains(key));
        failures.map(|(key, reason)| KernelFailure {
            object: KernelObject::Route { key: *key },
            concerns: AffectedWorkloads::none(),
            reason: reason.clone(),
        })
    }

    /// Schedules a check of destinations.
    pub fn check(&mut self, destinations: impl IntoIterator<Item = RouteKey>) {
        self.dirty.extend(destinations);
    }

    /// Schedules a check of the destinations of an old plan, and records the addresses that workloads have lost.
    pub fn plan_replaced(&mut self, old: &PlanIndex, context: &ReconcileContext) {
        self.dirty.extend(old.destinations());
        for (id, workload) in old.workloads() {
            self.lost_addresses.extend(lost_addresses(workload, context.plan.workloads().get(id)));
        }
    }

    pub fn replace_observed(&mut self, routes: Vec<KernelRoute>) {
        self.dirty.extend(self.observed.destinations());
        self.observed.replace(routes);
        self.stale = false;
    }

    pub fn route_changed(&mut self, entry: KernelRoute, present: bool, context: &ReconcileContext) {
        // A route of another program may change how nodes are reached.
        if !self.is_ours(&entry, context) {
            self.next_hops.invalidate();
        }
        self.dirty.insert(entry.key);
        if present {
            self.observed.set(entry);
        } else {
            self.observed.remove(&entry);
        }
    }

    pub fn address_changed(&mut self, device: u32, net: IpNet, present: bool, context: &ReconcileContext) {
        if context.links.get(device).is_none_or(|link| !context.is_workload(&link.name)) {
            self.next_hops.invalidate();
            self.check_next_hops(context);
        }
        // An interface that loses its last IPv4 address also loses its IPv4 routes, without notification.
        self.stale |= !present && net.addr().is_ipv4();
    }

    /// Records that an interface was set down, regardless of its current state: the kernel has deleted its IPv4 routes.
    pub fn link_was_down(&mut self, index: u32, context: &ReconcileContext) {
        self.dirty.extend(self.observed.remove_ipv4_of(index));
        // The event may be older than the moment at which we set a new device up, and routes written since then still
        // exist. Read the routes from the kernel instead of assuming that they were deleted.
        self.stale |= context.is_tunnel(index);
    }

    fn check_next_hops(&mut self, context: &ReconcileContext) {
        let nodes = context.plan.nodes();
        self.dirty.extend(nodes.flat_map(|node| context.plan.destinations_by(node)));
    }

    /// Returns the nodes for which the kernel's route has to be looked up, and resets the request for it.
    pub fn take_lookups(&mut self, context: &ReconcileContext) -> Vec<IpAddr> {
        self.next_hops.take_lookups(context)
    }

    /// Returns whether a default route uses an interface.
    pub fn has_default_through(&self, index: u32) -> bool {
        let defaults = [IpNet::V4(Default::default()), IpNet::V6(Default::default())];
        let entries = defaults.into_iter().flat_map(|net| self.observed.at(&net.into()));
        entries.into_iter().any(|entry| entry.target.device() == Some(index))
    }

    /// Records that a route could not be programmed; it is retried at the next tick.
    fn fail(&mut self, key: RouteKey, reason: FailureReason, context: &ReconcileContext) {
        if context.plan.claimants(&key).next().is_some() {
            self.workload_failures.insert(key);
        }
        self.new_failures.push((key, reason.clone()));
        self.failures.insert(key, reason);
    }

    /// Returns the changes of the routes to one destination.
    fn compare(&mut self, key: RouteKey, context: &ReconcileContext) -> Vec<RouteChange> {
        self.failures.remove(&key);
        self.workload_failures.remove(&key);
        let mut error = None;
        let desired = self.desired_route(&key, context).unwrap_or_else(|reason| {
            error = Some(reason);
            None
        });
        if let Some(KernelRouteTarget::Device(device)) = desired.as_ref().map(|entry| &entry.target) {
            self.ages.end_grace_period(*device);
        }
        // Keep the existing route while the desired one cannot be written.
        let may_remove = context.in_sync && error.is_none();
        let observed = self.observed.at(&key);
        let difference =
            difference(desired.as_ref(), observed, may_remove, |entry| self.ownership(entry, context));
        if difference.later {
            self.retries.insert(key);
        }
        if let Some(obstacle) = difference.obstacle {
            let device = obstacle.target.device();
            error = Some(RouteError::Obstructed {
                protocol: obstacle.protocol,
                metric: obstacle.metric,
                interface: device.map_or_else(|| "none".into(), |device| context.interface_name(device)),
            });
        }
        if let Some(error) = error {
            self.fail(key, FailureReason::from_error(&error), context);
        }
        difference.changes
    }

    /// Returns the operation that ends the flows of addresses that workloads have lost or that these changes move to
    /// another interface.
    fn end_flows(&mut self, changes: &[RouteChange], context: &ReconcileContext) -> Option<RouteOperation> {
        let lost = std::mem::take(&mut self.lost_addresses);
        let (mut moving, leaving): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
            lost.into_iter().partition(|address| context.plan.at_address(*address).next().is_some());
        moving.extend(changes.iter().filter_map(|change| moved_address(change, context)));
        let is_needed = !moving.is_empty() || !leaving.is_empty();
        is_needed.then_some(RouteOperation::EndFlows { moving, leaving })
    }
}

/// Returns the addresses that a workload no longer has on its interface.
fn lost_addresses(old: &PlannedWorkload, new: Option<&PlannedWorkload>) -> BTreeSet<IpAddr> {
    let mut lost: BTreeSet<IpAddr> = old.routed().collect();
    if let Some(new) = new.filter(|new| new.interface == old.interface) {
        new.routed().for_each(|address| {
            lost.remove(&address);
        });
    }
    lost
}

/// Returns the address that a change moves to another interface, if it was on a workload interface.
fn moved_address(change: &RouteChange, context: &ReconcileContext) -> Option<IpAddr> {
    let RouteChange::Replace { old, new } = change else { return None };
    let device = old.target.device()?;
    let was_workload = context.links.get(device).is_some_and(|link| context.is_workload(&link.name));
    old.single_address().filter(|_| was_workload && new.target.device() != Some(device))
}

impl Reconciler for RouteReconciler {
    fn resync(&mut self, snapshot: &mut KernelSnapshot, context: &ReconcileContext) {
        self.replace_observed(std::mem::take(&mut snapshot.routes));
        self.ages.resync(context);
    }

    fn check_all(&mut self, context: &ReconcileContext) {
        self.dirty.extend(context.plan.destinations());
        self.dirty.extend(self.observed.destinations());
        self.next_hops.invalidate();
    }

    fn plan_changes(&mut self, update: &PlanUpdate, context: &ReconcileContext) {
        self.next_hops.plan_changes(update);
        match update {
            PlanUpdate::LearntComplete => self.dirty.extend(self.observed.destinations()),
            PlanUpdate::Workload(id, new) => {
                if let Some(old) = context.plan.workloads().get(id) {
                    self.lost_addresses.extend(lost_addresses(old, new.as_ref()));
                }
            }
            _ => {}
        }
    }

    fn link_changed(&mut self, change: &LinkChange<'_>, context: &ReconcileContext) {
        self.ages.link_changed(change, context);
        if change.is_gone() {
            self.dirty.extend(self.observed.remove_of(change.index));
        }
        let mtu = change.new.map(|link| link.mtu);
        if change.old.map(|link| link.mtu) != mtu {
            // Routes through a tunnel have the MTU of the tunnel.
            let tunnel = change.new.and_then(|link| context.tunnel_called(&link.name));
            self.dirty.extend(tunnel.into_iter().flat_map(|kind| context.plan.destinations_through(kind)));
        }
        if change.keeps_name_and_state() {
            return;
        }
        for link in [change.old, change.new] {
            match link.and_then(|link| context.plan.active(&link.name)) {
                Some((_, workload)) => {
                    self.dirty.extend(workload.routed().map(|address| RouteKey::from(IpNet::from(address))));
                }
                None => self.next_hops.invalidate(),
            }
            let tunnel = link.and_then(|link| context.tunnel_called(&link.name));
            self.dirty.extend(tunnel.into_iter().flat_map(|kind| context.plan.destinations_through(kind)));
        }
        if self.next_hops.is_stale() {
            self.check_next_hops(context);
        }
    }

    fn tick(&mut self, _: &ReconcileContext) {
        self.dirty.append(&mut self.retries);
        self.dirty.extend(self.failures.keys());
        self.next_hops.retry();
    }

    /// Returns the failures of workload routes.
    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let failures = self.workload_failures.iter().filter_map(|key| {
            Some(KernelFailure {
                object: KernelObject::Route { key: *key },
                concerns: context.plan.claimants(key).cloned().collect(),
                reason: self.failures.get(key)?.clone(),
            })
        });
        failures.collect()
    }
}

impl ReconcileOperations for RouteReconciler {
    type Operation = RouteOperation;

    fn begin(&mut self, _: ReconcileStep) {
        self.new_failures.clear();
    }

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<RouteOperation> {
        if step == ReconcileStep::Remove {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for key in std::mem::take(&mut self.dirty) {
            changes.extend(self.compare(key, context));
        }
        let end_flows = self.end_flows(&changes, context);
        end_flows.into_iter().chain(changes.into_iter().map(RouteOperation::Change)).collect()
    }

    fn record(&mut self, operation: RouteOperation, result: OperationResult, context: &ReconcileContext) {
        let RouteOperation::Change(change) = operation else { return };
        if let Err(error) = result {
            // If the route exists, the known state of the kernel was wrong.
            self.stale |= error.is_exists();
            return self.fail(change.route().key, error.reason(), context);
        }
        match change {
            RouteChange::Add(entry) => self.observed.set(entry),
            RouteChange::Replace { old, new } => {
                self.observed.remove(&old);
                self.observed.set(new);
            }
            RouteChange::Delete(entry) => self.observed.remove(&entry),
        }
    }
}
