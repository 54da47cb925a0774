//! Failures of the plan's links and routes, by object.

use super::DataplaneCore;
use crate::failure::{AffectedWorkloads, KernelFailure, KernelObject};
use crate::kernel::{FdbKey, NeighbourKey};
use std::collections::BTreeSet;
use tortie_plan::{RouteKey, WorkloadId};

impl DataplaneCore {
    /// Records that a route could not be programmed; it is retried at the next tick.
    pub fn failed(&mut self, key: RouteKey, reason: String) {
        if self.plan.claimants(&key).next().is_some() {
            self.workload_failures.insert(key);
        }
        self.failures.insert(key, reason);
    }

    pub(super) fn succeeded(&mut self, key: &RouteKey) {
        self.failures.remove(key);
        self.workload_failures.remove(key);
    }

    /// Returns the failure of a route that belongs to no workload. Failures of workload routes are reported by
    /// [`DataplaneCore::workload_failures`] until they are resolved.
    pub fn route_failure(&self, key: RouteKey, reason: String) -> Option<KernelFailure> {
        let object = KernelObject::Route { key };
        let of_workload = self.workload_failures.contains(&key);
        (!of_workload).then(|| KernelFailure { object, concerns: AffectedWorkloads::nobody(), reason })
    }

    pub fn neighbour_failed(&mut self, key: NeighbourKey, reason: String) {
        self.neighbour_errors.insert(key, reason);
    }

    pub fn forwarding_failed(&mut self, key: FdbKey, reason: String) {
        self.forwarding_errors.insert(key, reason);
    }

    /// Returns the failures of the plan's tunnels, including those of earlier attempts.
    pub fn tunnel_failures(&self) -> Vec<KernelFailure> {
        let devices = self.tunnel_errors.iter().filter(|(kind, _)| self.plan.tunnel(**kind).is_some());
        let devices =
            devices.map(|(kind, error)| (KernelObject::interface(self.device_name(*kind)), &error.reason));
        let wireguards = self.wireguards.iter().filter_map(|(kind, device)| {
            self.plan.tunnel(*kind)?;
            Some((KernelObject::interface(self.device_name(*kind)), device.error.as_ref()?))
        });
        let rules = self.rule_errors.iter().filter(|(rule, _)| self.plan.routing_rules().contains(rule));
        let rules =
            rules.map(|(rule, reason)| (KernelObject::RoutingRule { priority: rule.priority }, reason));
        let entries = self.forwarding_errors.iter().map(|(key, reason)| {
            let interface = self.name(key.device);
            (KernelObject::ForwardingEntry { mac: key.mac, interface }, reason)
        });
        let peering = self.peering_errors.iter().map(|((device, net), reason)| {
            let interface = self.name(*device);
            (KernelObject::Address { address: net.addr(), interface }, reason)
        });
        let failures = devices.chain(wireguards).chain(entries).chain(rules).chain(peering);
        let failure = |(object, reason): (KernelObject, &String)| KernelFailure {
            object,
            concerns: AffectedWorkloads::nobody(),
            reason: reason.clone(),
        };
        failures.map(failure).collect()
    }

    /// Returns all failures that concern workloads of the plan, including those of earlier attempts.
    pub fn workload_failures(&self) -> impl Iterator<Item = KernelFailure> {
        let kernel = self.route_failures().chain(self.neighbour_failures()).chain(self.conf_failures());
        kernel.chain(self.shaping_failures()).chain(self.withheld())
    }

    fn route_failures(&self) -> impl Iterator<Item = KernelFailure> {
        self.workload_failures.iter().filter_map(|key| {
            let reason = self.failures.get(key)?.clone();
            let concerns = self.plan.claimants(key).cloned().collect();
            Some(KernelFailure { object: KernelObject::Route { key: *key }, concerns, reason })
        })
    }

    fn neighbour_failures(&self) -> impl Iterator<Item = KernelFailure> {
        self.neighbour_errors.iter().map(|(key, reason)| {
            let object = KernelObject::Neighbour { address: key.address, interface: self.name(key.device) };
            KernelFailure { object, concerns: self.behind(key.device), reason: reason.clone() }
        })
    }

    fn conf_failures(&self) -> impl Iterator<Item = KernelFailure> {
        self.conf_errors.iter().map(|(index, (object, reason))| KernelFailure {
            object: object.clone(),
            concerns: self.behind(*index),
            reason: reason.clone(),
        })
    }

    /// Returns the failures of bandwidth limits. IFB devices are named after the interface that they serve.
    fn shaping_failures(&self) -> impl Iterator<Item = KernelFailure> {
        let shaped = self.shaped().filter_map(|(link, _)| {
            let own = [link.name.clone(), super::shaping::device_of(&link.name)];
            let reason = own.iter().find_map(|name| self.shaping.errors.get(name))?;
            let object = KernelObject::TrafficControl { interface: link.name.clone() };
            Some(KernelFailure { object, concerns: self.behind(link.index), reason: reason.clone() })
        });
        // Skip the search if there are no errors.
        Some(shaped).filter(|_| !self.shaping.errors.is_empty()).into_iter().flatten()
    }

    /// Returns the workloads that claim an interface.
    fn behind(&self, index: u32) -> AffectedWorkloads {
        let claimants = self.links.get(index).map(|link| self.plan.at_interface(&link.name));
        let claimants: BTreeSet<WorkloadId> = claimants.into_iter().flatten().cloned().collect();
        AffectedWorkloads::Workloads(claimants)
    }
}
