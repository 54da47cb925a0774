//! Routes and policy routing rules of a node.

use crate::tunnel::TunnelKind;
use ipnet::IpNet;
use std::net::IpAddr;

/// A kernel routing table, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoutingTable(pub u32);

impl RoutingTable {
    pub const MAIN: RoutingTable = RoutingTable(254);
}

/// Identifies a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    pub table: RoutingTable,
    pub destination: IpNet,
}

impl From<IpNet> for RouteKey {
    /// Returns the key of a route in the main table.
    fn from(destination: IpNet) -> RouteKey {
        RouteKey { table: RoutingTable::MAIN, destination }
    }
}

/// A route that the node itself computes, to a block or an address of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    pub target: RouteTarget,
    /// 0 leaves the metric to the kernel.
    pub metric: u32,
    /// Source address of packets that the host sends along this route; the kernel chooses if `None`.
    pub source: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteTarget {
    /// For a local block: packets to addresses without a live workload are dropped instead of sent to the default
    /// gateway.
    Blackhole,
    /// Continue the lookup in the next table.
    Throw,
    /// To this host itself: packets that are still addressed there after DNAT are not forwarded.
    Host,
    /// Directly to the node that owns the destination, without encapsulation, over whichever interface leads there.
    Via(IpAddr),
    /// Out of a tunnel device: to a gateway that is assumed to be on its link, or without one. For WireGuard the
    /// gateway is the endpoint address of the peer.
    Tunnel { tunnel: TunnelKind, gateway: Option<IpAddr> },
}

impl Route {
    pub const BLACKHOLE: Route = Route::to(RouteTarget::Blackhole);

    pub const fn to(target: RouteTarget) -> Route {
        Route { target, metric: 0, source: None }
    }

    pub const fn via(node: IpAddr) -> Route {
        Route::to(RouteTarget::Via(node))
    }

    pub const fn through(tunnel: TunnelKind, gateway: Option<IpAddr>) -> Route {
        Route::to(RouteTarget::Tunnel { tunnel, gateway })
    }

    /// Returns the node that the route leads to without a tunnel.
    pub fn node(&self) -> Option<IpAddr> {
        match self.target {
            RouteTarget::Via(node) => Some(node),
            RouteTarget::Blackhole | RouteTarget::Throw | RouteTarget::Host | RouteTarget::Tunnel { .. } => {
                None
            }
        }
    }
}

/// A policy routing rule: packets without the mark are looked up in the table first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoutingRule {
    pub is_ipv4: bool,
    pub priority: u32,
    pub mark: u32,
    pub table: RoutingTable,
}

/// A route learned over BGP, or a local one that BGP advertises.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LearntRouteEntry {
    /// Packets are balanced over all next hops; an empty list drops them.
    pub next_hops: Vec<LearntNextHop>,
    pub metric: u32,
}

impl LearntRouteEntry {
    /// Returns whether the route has a next hop and a smaller metric than this one.
    pub fn leads_past(&self, metric: u32) -> bool {
        !self.next_hops.is_empty() && self.metric < metric
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LearntNextHop {
    pub address: IpAddr,
    /// Packets to it are encapsulated in this tunnel.
    pub tunnel: Option<TunnelKind>,
}

impl From<IpAddr> for LearntNextHop {
    fn from(address: IpAddr) -> LearntNextHop {
        LearntNextHop { address, tunnel: None }
    }
}
