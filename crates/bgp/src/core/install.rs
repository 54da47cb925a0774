//! The routes to install into the kernel, as a stream of changes.

use super::{FamilyTable, RoutingTables, SpeakerCore, find_origin};
use crate::family::{BgpFamily, PerFamily, Prefix};
use crate::id::PeerId;
use crate::rib::attrs::RouteAttrs;
use crate::rib::journal::JournalPosition;
use crate::rib::table::RouteDestination;
use ipnet::IpNet;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rustbgpd_wire::{Ipv4Prefix, Ipv6Prefix};

/// The new state of a route. A later change replaces an earlier one for the same prefix.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteChange {
    Set(BestRoute),
    Gone(IpNet),
    /// All routes known after the start have been reported: any other BGP route in the kernel is obsolete.
    Complete,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BestRoute {
    pub prefix: IpNet,
    /// Whether the route originates here and therefore has no next hops.
    pub local: bool,
    /// The next hops, which share the traffic if there are several.
    pub next_hops: SmallVec<[RouteNextHop; 1]>,
    /// The attributes of the best path.
    pub attrs: Arc<RouteAttrs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteNextHop {
    pub address: IpAddr,
    pub link_local: Option<Ipv6Addr>,
}

impl SpeakerCore {
    /// Returns whether [`SpeakerCore::changes`] would return any changes.
    pub fn has_changes(&self) -> bool {
        !self.restart.defers_installing()
            && (!self.installed_all() || (self.restart.local_complete && !self.completed))
    }

    /// Returns how many changes have been recorded. Repeated changes of one prefix count separately.
    pub fn changes_recorded(&self) -> u64 {
        self.rib.v4.install.end() + self.rib.v6.install.end()
    }

    /// Returns how many of the recorded changes have been taken.
    pub fn changes_taken(&self) -> u64 {
        self.installed.v4 + self.installed.v6
    }

    fn installed_all(&self) -> bool {
        self.installed.v4 >= self.rib.v4.install.end() && self.installed.v6 >= self.rib.v6.install.end()
    }

    /// Returns up to `limit` changes that have not been taken yet; none while we wait for peers after a restart.
    pub fn changes(&mut self, limit: usize) -> Vec<RouteChange> {
        let mut changes = Vec::new();
        if self.restart.defers_installing() {
            return changes;
        }
        self.installed.v4 = self.read::<Ipv4Prefix>(self.installed.v4, limit, &mut changes);
        let limit = limit.saturating_sub(changes.len());
        self.installed.v6 = self.read::<Ipv6Prefix>(self.installed.v6, limit, &mut changes);
        if self.installed_all()
            && self.restart.local_complete
            && !std::mem::replace(&mut self.completed, true)
        {
            changes.push(RouteChange::Complete);
        }
        changes
    }

    fn read<P: Prefix>(
        &self,
        mut from: JournalPosition,
        limit: usize,
        changes: &mut Vec<RouteChange>,
    ) -> JournalPosition
    where
        RoutingTables: FamilyTable<P>,
    {
        if limit == 0 {
            return from;
        }
        let table = self.rib.table();
        let mut ids = Vec::new();
        table.read_install(&mut from, limit, &mut ids);
        for id in ids {
            let Some(destination) = table.get(id) else { continue };
            changes.push(match self.best_route(destination) {
                Some(route) => RouteChange::Set(route),
                None => RouteChange::Gone(destination.prefix.net()),
            });
        }
        from
    }

    pub(super) fn best_route<P: Prefix>(&self, destination: &RouteDestination<P>) -> Option<BestRoute> {
        let best = destination.best()?;
        let paths = destination.multipath();
        let mut next_hops = SmallVec::new();
        for path in paths {
            let Some(address) = path.attrs.next_hop else { continue };
            let next_hop = RouteNextHop { address, link_local: path.attrs.link_local };
            // The next hop of the best path comes first. There are few, so a linear search is cheap.
            if next_hops.len() < self.config.multipath && !next_hops.contains(&next_hop) {
                next_hops.push(next_hop);
            }
        }
        Some(BestRoute {
            prefix: destination.prefix.net(),
            local: best.peer == PeerId::LOCAL,
            next_hops,
            attrs: best.attrs.clone(),
        })
    }

    /// Replaces the set of unreachable next hops. Paths with one of them are not used.
    pub fn set_unreachable(&mut self, next_hops: &HashSet<IpAddr>) {
        let origins = &self.origins;
        self.rib.v4.set_unreachable(next_hops.clone(), |peer| find_origin(origins, peer));
        self.rib.v6.set_unreachable(next_hops.clone(), |peer| find_origin(origins, peer));
    }

    /// Returns the start position of the reader that feeds the kernel.
    pub(super) fn install_start() -> PerFamily<JournalPosition> {
        PerFamily { v4: 1, v6: 1 }
    }

    /// Reports all multipath routes again, after the maximum number of next hops has changed.
    pub(super) fn install_again(&mut self) {
        self.rib.v4.install_shared();
        self.rib.v6.install_shared();
    }

    /// Returns the best route to a prefix.
    pub fn route(&self, net: IpNet) -> Option<BestRoute> {
        match BgpFamily::of(net.addr()) {
            BgpFamily::V4 => Ipv4Prefix::from_net(net)
                .and_then(|prefix| self.rib.v4.find(prefix))
                .and_then(|destination| self.best_route(destination)),
            BgpFamily::V6 => Ipv6Prefix::from_net(net)
                .and_then(|prefix| self.rib.v6.find(prefix))
                .and_then(|destination| self.best_route(destination)),
        }
    }
}
