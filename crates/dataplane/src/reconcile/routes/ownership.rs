//! Determines which routes may be replaced or removed.

use super::super::{LinkChange, ReconcileContext};
use super::{PROTOCOL_BIRD, PROTOCOL_BOOT, PROTOCOL_KERNEL, PROTOCOL_OURS, RouteReconciler};
use crate::kernel::KernelRoute;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use tortie_plan::RoutingTable;

/// How long a route on a new workload interface is kept until the workload is in the plan.
const NEW_ROUTE_GRACE_PERIOD: Duration = Duration::from_secs(10);
const LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));

/// Whether an undesired route may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteOwnership {
    Foreign,
    /// Left by the program that did our work before: our route may replace it, but it is not removed otherwise.
    Predecessor,
    Ours,
    /// Ours, but the workload that it belongs to may not have been reported yet.
    InGrace,
}

/// The times since which interfaces exist.
#[derive(Debug, Default)]
pub struct InterfaceAges {
    first_seen: BTreeMap<u32, Duration>,
    /// Workload interfaces that have had routes from us: the grace period no longer applies.
    settled: BTreeSet<u32>,
}

impl InterfaceAges {
    /// Ends the grace period of an interface that now has a desired route.
    pub fn end_grace_period(&mut self, device: u32) {
        self.settled.insert(device);
    }

    pub fn resync(&mut self, context: &ReconcileContext) {
        self.first_seen.retain(|index, _| context.links.get(*index).is_some());
        self.settled.retain(|index| context.links.get(*index).is_some());
        for link in context.links.iter() {
            self.first_seen.entry(link.index).or_insert(context.now);
        }
    }

    pub fn link_changed(&mut self, change: &LinkChange<'_>, context: &ReconcileContext) {
        if change.is_gone() {
            self.first_seen.remove(&change.index);
            self.settled.remove(&change.index);
        } else {
            self.first_seen.entry(change.index).or_insert(context.now);
        }
    }

    fn is_in_grace(&self, index: u32, now: Duration) -> bool {
        let age = now.saturating_sub(self.first_seen.get(&index).copied().unwrap_or(now));
        age < NEW_ROUTE_GRACE_PERIOD && !self.settled.contains(&index)
    }
}

impl RouteReconciler {
    /// Returns whether a route is ours, now or when its grace period is over.
    pub fn is_ours(&self, entry: &KernelRoute, context: &ReconcileContext) -> bool {
        matches!(self.ownership(entry, context), RouteOwnership::Ours | RouteOwnership::InGrace)
    }

    pub fn ownership(&self, entry: &KernelRoute, context: &ReconcileContext) -> RouteOwnership {
        let settings = &context.settings;
        if !settings.program_routes || entry.destination().network() == LINK_LOCAL {
            return RouteOwnership::Foreign;
        }
        if entry.key.table != RoutingTable::MAIN {
            let is_ours = entry.protocol == context.own_protocol();
            return if is_ours { RouteOwnership::Ours } else { RouteOwnership::Foreign };
        }
        let is_of_bgp = entry.protocol == PROTOCOL_BIRD;
        if entry.protocol == context.own_protocol() || (is_of_bgp && context.plan.is_learnt_complete()) {
            return RouteOwnership::Ours;
        }
        let link = entry.target.device().and_then(|device| context.links.get(device));
        // Only BGP and we have routes through a device that we created. Until the BGP peers have sent their routes, a
        // route of the previous speaker is the only one to its destination.
        let is_only_way = is_of_bgp && context.plan.speaks_bgp() && context.plan.route(&entry.key).is_none();
        let is_tunnelled = link.is_some_and(|link| context.vxlan_tunnel_at(link.index).is_some());
        if is_tunnelled && entry.protocol != PROTOCOL_KERNEL && !is_only_way {
            return RouteOwnership::Ours;
        }
        let Some(link) = link.filter(|link| context.is_workload(&link.name)) else {
            // BIRD leaves its routes behind when it stops, and so do we when our protocol number changes.
            let is_predecessor = [PROTOCOL_BIRD, PROTOCOL_OURS].contains(&entry.protocol);
            return if is_predecessor { RouteOwnership::Predecessor } else { RouteOwnership::Foreign };
        };
        let known = [settings.device_route_protocol, PROTOCOL_BOOT, PROTOCOL_OURS];
        if !settings.remove_external_routes && !known.contains(&entry.protocol) {
            return RouteOwnership::Foreign;
        }
        if self.ages.is_in_grace(link.index, context.now) {
            RouteOwnership::InGrace
        } else {
            RouteOwnership::Ours
        }
    }
}
