//! The next hops of nodes that are not on a connected subnet, as the kernel's routes lead to them.

use super::super::ReconcileContext;
use super::desired::RouteError;
use crate::kernel::{KernelLink, KernelRouteTarget, RouteLookupError};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::PlanUpdate;

pub type LookupResult = Result<(IpAddr, u32), RouteLookupError>;

#[derive(Debug, Default)]
pub struct NextHops {
    lookups: BTreeMap<IpAddr, LookupResult>,
    /// Whether the lookups have to be repeated.
    stale: bool,
}

impl NextHops {
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Repeats the lookups if one of them failed.
    pub fn retry(&mut self) {
        self.stale |= self.lookups.values().any(Result::is_err);
    }

    /// Requests lookups if a route gets a next hop that is not known.
    pub fn plan_changes(&mut self, update: &PlanUpdate) {
        self.stale |= match update {
            PlanUpdate::Route(_, Some(route)) => {
                route.node().is_some_and(|node| !self.lookups.contains_key(&node))
            }
            PlanUpdate::Learnt(_, Some(learnt)) => {
                let mut hops = learnt.next_hops.iter().filter(|hop| hop.tunnel.is_none());
                hops.any(|hop| !self.lookups.contains_key(&hop.address))
            }
            _ => false,
        };
    }

    pub fn take_lookups(&mut self, context: &ReconcileContext) -> Vec<IpAddr> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        let nodes: Vec<IpAddr> =
            context.plan.nodes().filter(|node| context.links.connected(*node).is_none()).collect();
        self.lookups.retain(|node, _| nodes.contains(node));
        nodes
    }

    /// Stores the result of a lookup, and returns whether it has changed.
    pub fn store(&mut self, node: IpAddr, result: LookupResult, context: &ReconcileContext) -> bool {
        // With encryption between nodes, every lookup returns the tunnel. Our routes are for packets that bypass it, so
        // keep the previous result.
        if let Ok((_, device)) = &result
            && context.links.get(*device).is_some_and(KernelLink::is_wireguard)
            && matches!(self.lookups.get(&node), Some(Ok(_)))
        {
            return false;
        }
        let is_changed = self.lookups.get(&node) != Some(&result);
        self.lookups.insert(node, result);
        is_changed
    }

    /// Returns the target of a route through a node.
    pub fn target(&self, node: IpAddr, context: &ReconcileContext) -> Result<KernelRouteTarget, RouteError> {
        if let Some(link) = context.links.connected(node)
            && !context.is_workload(&link.name)
        {
            return Ok(KernelRouteTarget::Gateway { via: node, device: link.index });
        }
        match self.lookups.get(&node) {
            Some(Ok((via, device))) => Ok(KernelRouteTarget::Gateway { via: *via, device: *device }),
            Some(Err(error)) => Err(RouteError::Unreachable { node, source: error.clone() }),
            None => Err(RouteError::NotLookedUp { node }),
        }
    }

    /// Returns the nodes whose lookup failed.
    pub fn unreachable(&self) -> impl Iterator<Item = IpAddr> {
        self.lookups.iter().filter(|(_, result)| result.is_err()).map(|(node, _)| *node)
    }
}
