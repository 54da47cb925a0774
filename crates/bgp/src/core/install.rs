//! The routes traffic shall take, as a stream of changes for whoever writes them to the kernel.

use super::{Core, FamilyTable, Rib, origin_of};
use crate::family::{Family, PerFamily, Prefix};
use crate::id::PeerId;
use crate::rib::attrs::Attrs;
use crate::rib::journal::Position;
use crate::rib::table::Destination;
use ipnet::IpNet;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rustbgpd_wire::{Ipv4Prefix, Ipv6Prefix};

/// What a route is now. A later change replaces an earlier one for the same prefix.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteChange {
    Set(BestRoute),
    Gone(IpNet),
    /// Everything that is known after a start has been said: what else the kernel holds of ours is old.
    Complete,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BestRoute {
    pub prefix: IpNet,
    /// Originated here: there are no next hops.
    pub local: bool,
    /// Where traffic goes; several share it.
    pub next_hops: SmallVec<[NextHop; 1]>,
    /// Of the best path.
    pub attrs: Arc<Attrs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop {
    pub address: IpAddr,
    pub link_local: Option<Ipv6Addr>,
}

impl Core {
    /// Whether [`Core::changes`] has something to say.
    pub fn has_changes(&self) -> bool {
        !self.restart.defers_installing()
            && (!self.installed_all() || (self.restart.local_complete && !self.completed))
    }

    /// How many changes there have been. Those of one prefix count each.
    pub fn changes_recorded(&self) -> u64 {
        self.rib.v4.install.end() + self.rib.v6.install.end()
    }

    /// How many of them have been taken.
    pub fn changes_taken(&self) -> u64 {
        self.installed.v4 + self.installed.v6
    }

    fn installed_all(&self) -> bool {
        self.installed.v4 >= self.rib.v4.install.end() && self.installed.v6 >= self.rib.v6.install.end()
    }

    /// Up to `limit` changes that have not been taken yet. Nothing while we wait for peers after a restart.
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

    fn read<P: Prefix>(&self, mut from: Position, limit: usize, changes: &mut Vec<RouteChange>) -> Position
    where
        Rib: FamilyTable<P>,
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

    pub(super) fn best_route<P: Prefix>(&self, destination: &Destination<P>) -> Option<BestRoute> {
        let best = destination.best()?;
        let paths = destination.multipath();
        let mut next_hops = SmallVec::new();
        for path in paths {
            let Some(address) = path.attrs.next_hop else { continue };
            let next_hop = NextHop { address, link_local: path.attrs.link_local };
            // The best path's own comes first; few others are as good.
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

    /// From now on these next hops, and no others, cannot be reached: paths with them are not used.
    pub fn set_unreachable(&mut self, next_hops: &HashSet<IpAddr>) {
        let origins = &self.origins;
        self.rib.v4.set_unreachable(next_hops.clone(), |peer| origin_of(origins, peer));
        self.rib.v6.set_unreachable(next_hops.clone(), |peer| origin_of(origins, peer));
    }

    /// Where the kernel's reader begins.
    pub(super) fn install_start() -> PerFamily<Position> {
        PerFamily { v4: 1, v6: 1 }
    }

    /// How many next hops a route may have has changed: those with several are said again.
    pub(super) fn install_again(&mut self) {
        self.rib.v4.install_shared();
        self.rib.v6.install_shared();
    }

    /// The best route to a prefix.
    pub fn route(&self, net: IpNet) -> Option<BestRoute> {
        match Family::of(net.addr()) {
            Family::V4 => Ipv4Prefix::from_net(net)
                .and_then(|prefix| self.rib.v4.find(prefix))
                .and_then(|destination| self.best_route(destination)),
            Family::V6 => Ipv6Prefix::from_net(net)
                .and_then(|prefix| self.rib.v6.find(prefix))
                .and_then(|destination| self.best_route(destination)),
        }
    }
}
