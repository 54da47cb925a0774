//! The routes in the kernel: read once, then updated by events and by our own operations.

use crate::kernel::KernelRoute;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::RouteKey;

#[derive(Debug, Default)]
pub struct ObservedRoutes {
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
    pub fn remove_of(&mut self, index: u32) -> BTreeSet<RouteKey> {
        self.remove_routes(|entry| entry.target.uses(index))
    }

    /// Removes the IPv4 routes of an interface that was set down, which the kernel drops without notification, and
    /// returns their destinations.
    pub fn remove_ipv4_of(&mut self, index: u32) -> BTreeSet<RouteKey> {
        self.remove_routes(|entry| entry.destination().addr().is_ipv4() && entry.target.uses(index))
    }

    fn remove_routes(&mut self, gone: impl Fn(&KernelRoute) -> bool) -> BTreeSet<RouteKey> {
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
