//! The routes in the kernel: read once, then updated by events and by our own operations.

use super::super::DataplaneCore;
use super::diff::RouteOwnership;
use super::{NEW_ROUTE_GRACE_PERIOD, PROTOCOL_BIRD, PROTOCOL_BOOT, PROTOCOL_KERNEL, PROTOCOL_OURS};
use crate::kernel::KernelRoute;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use tortie_plan::{RouteKey, RoutingTable};

#[derive(Debug, Default)]
pub(crate) struct ObservedRoutes {
    routes: BTreeMap<RouteKey, Vec<KernelRoute>>,
}

impl ObservedRoutes {
    pub fn replace(&mut self, routes: Vec<KernelRoute>) {
        self.routes.clear();
        for entry in routes {
            self.routes.entry(entry.key).or_default().push(entry);
        }
    }

    /// Removes the routes through an interface that no longer exists, and returns their destinations.
    pub fn drop_of(&mut self, index: u32) -> BTreeSet<RouteKey> {
        self.drop_routes(|entry| entry.target.uses(index))
    }

    /// Removes the IPv4 routes of an interface that was set down, which the kernel drops without notification, and
    /// returns their destinations.
    pub fn drop_ipv4_of(&mut self, index: u32) -> BTreeSet<RouteKey> {
        self.drop_routes(|entry| entry.destination().addr().is_ipv4() && entry.target.uses(index))
    }

    fn drop_routes(&mut self, gone: impl Fn(&KernelRoute) -> bool) -> BTreeSet<RouteKey> {
        let mut touched = BTreeSet::new();
        self.routes.retain(|key, entries| {
            let before = entries.len();
            entries.retain(|entry| !gone(entry));
            if entries.len() != before {
                touched.insert(*key);
            }
            !entries.is_empty()
        });
        touched
    }

    pub fn destinations(&self) -> impl Iterator<Item = RouteKey> {
        self.routes.keys().copied()
    }

    pub fn at(&self, key: &RouteKey) -> &[KernelRoute] {
        self.routes.get(key).map_or(&[], Vec::as_slice)
    }

    pub fn all(&self) -> impl Iterator<Item = &KernelRoute> {
        self.routes.values().flatten()
    }

    pub fn set(&mut self, entry: KernelRoute) {
        let entries = self.routes.entry(entry.key).or_default();
        // A new route with the same key replaces the old one. IPv6 allows several with the same key on different
        // interfaces.
        let v6 = entry.destination().addr().is_ipv6();
        entries
            .retain(|old| !(old.same_place(&entry) && (!v6 || old.target.device() == entry.target.device())));
        entries.push(entry);
    }

    pub fn remove(&mut self, entry: &KernelRoute) {
        let Some(entries) = self.routes.get_mut(&entry.key) else { return };
        entries.retain(|old| {
            !(old.same_place(entry)
                && old.protocol == entry.protocol
                && old.target.device() == entry.target.device())
        });
        if entries.is_empty() {
            self.routes.remove(&entry.key);
        }
    }
}

impl DataplaneCore {
    /// Replaces the known routes.
    pub fn resync_routes(&mut self, routes: Vec<KernelRoute>) {
        self.dirty.extend(self.routes.destinations());
        self.routes.replace(routes);
        self.everything_dirty();
        self.lookups_stale = true;
    }

    pub(in crate::reconcile) fn ownership(&self, entry: &KernelRoute, now: Duration) -> RouteOwnership {
        const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
        if !self.settings.program_routes || entry.destination().network() == IpAddr::V6(LINK_LOCAL) {
            return RouteOwnership::Foreign;
        }
        if entry.key.table != RoutingTable::MAIN {
            let ours = entry.protocol == self.own_protocol();
            return if ours { RouteOwnership::Ours } else { RouteOwnership::Foreign };
        }
        let of_bgp = entry.protocol == PROTOCOL_BIRD;
        if entry.protocol == self.own_protocol() || (of_bgp && self.plan.is_learnt_complete()) {
            return RouteOwnership::Ours;
        }
        let link = entry.target.device().and_then(|device| self.links.get(device));
        // Only BGP and we have routes through a device that we created. Until the BGP peers have sent their routes, a
        // route of the previous speaker is the only one to its destination.
        let is_only_way = of_bgp && self.plan.speaks_bgp() && self.plan.route(&entry.key).is_none();
        let through_tunnel = link.is_some_and(|link| self.tunnel_at(link.index).is_some());
        if through_tunnel && entry.protocol != PROTOCOL_KERNEL && !is_only_way {
            return RouteOwnership::Ours;
        }
        let Some(link) = link.filter(|link| self.is_workload(&link.name)) else {
            // BIRD leaves its routes behind when it stops, and so do we when our protocol number changes.
            let predecessor = [PROTOCOL_BIRD, PROTOCOL_OURS].contains(&entry.protocol);
            return if predecessor { RouteOwnership::Predecessor } else { RouteOwnership::Foreign };
        };
        let known = [self.settings.device_route_protocol, PROTOCOL_BOOT, PROTOCOL_OURS];
        if !self.settings.remove_external_routes && !known.contains(&entry.protocol) {
            return RouteOwnership::Foreign;
        }
        let age = now.saturating_sub(self.first_seen.get(&link.index).copied().unwrap_or(now));
        if age >= NEW_ROUTE_GRACE_PERIOD || self.settled.contains(&link.index) {
            RouteOwnership::Ours
        } else {
            RouteOwnership::InGrace
        }
    }
}
