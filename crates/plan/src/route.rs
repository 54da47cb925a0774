//! Where a node sends what is addressed elsewhere.

use crate::tunnel::TunnelKind;
use ipnet::IpNet;
use std::net::IpAddr;

/// A table of the kernel's, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table(pub u32);

impl Table {
    pub const MAIN: Table = Table(254);
}

/// What a route is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    pub table: Table,
    pub destination: IpNet,
}

impl From<IpNet> for RouteKey {
    /// In the main table.
    fn from(destination: IpNet) -> RouteKey {
        RouteKey { table: Table::MAIN, destination }
    }
}

/// A route that the node itself decides on, to a block or an address of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub target: RouteTarget,
    /// 0 leaves it to the kernel.
    pub metric: u32,
    /// Which own address the host uses for what it sends this way; the kernel chooses if there is none.
    pub source: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// One of our own blocks: what is not a live workload in it goes nowhere, not to the default gateway.
    Blackhole,
    /// Look in the next table.
    Throw,
    /// To this host itself, as nothing that is still addressed to it leads on.
    Host,
    /// Directly to the node that owns it, without encapsulation, over whichever interface leads there.
    Via(IpAddr),
    /// Out of a tunnel device: to a gateway that is taken to be on its link, or without one. In a WireGuard the gateway
    /// is the peer whose endpoint has the address.
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

    /// The node that it leads to without a tunnel.
    pub fn node(&self) -> Option<IpAddr> {
        match self.target {
            RouteTarget::Via(node) => Some(node),
            RouteTarget::Blackhole | RouteTarget::Throw | RouteTarget::Host | RouteTarget::Tunnel { .. } => {
                None
            }
        }
    }
}

/// A rule of policy routing: packets without the mark are routed by the table first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoutingRule {
    pub is_ipv4: bool,
    pub priority: u32,
    pub mark: u32,
    pub table: Table,
}

/// A route that BGP brought, or one of our own that it announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// Packets are spread over all of them; none means that they go nowhere.
    pub next_hops: Vec<NextHop>,
    pub metric: u32,
}

impl Learnt {
    /// Whether it leads elsewhere, and is better than a route of this metric.
    pub fn leads_past(&self, metric: u32) -> bool {
        !self.next_hops.is_empty() && self.metric < metric
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    pub address: IpAddr,
    /// Packets to it are wrapped.
    pub tunnel: Option<TunnelKind>,
}

impl From<IpAddr> for NextHop {
    fn from(address: IpAddr) -> NextHop {
        NextHop { address, tunnel: None }
    }
}
