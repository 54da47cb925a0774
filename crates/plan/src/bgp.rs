//! BGP configuration of a node: its sessions, the routes it advertises and the routes it installs in the kernel.

use crate::tunnel::TunnelKind;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// LOCAL_PREF of a route with metric 0. The LOCAL_PREF of a route is this value minus its metric, so that the smaller
/// metric is preferred.
pub const LOCAL_PREF_OF_METRIC_0: u32 = 2_147_483_647;

/// The BGP configuration of a node. It is always replaced as a whole; the BGP speaker works out which sessions
/// changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BgpConfig {
    pub as_number: u32,
    /// Derived from the node's IPv4 address; a node without one needs an explicit router ID.
    pub router_id: Option<Ipv4Addr>,
    pub listen_port: u16,
    /// Addresses to listen on; empty means all.
    pub listen: Vec<IpAddr>,
    /// Sessions by the names that Calico gives them: `Mesh_10_0_0_7`, `Global_...`, `Node_...`.
    pub sessions: BTreeMap<String, BgpSession>,
    /// Filters by the names that the sessions reference.
    pub filters: BTreeMap<String, Arc<BgpFilter>>,
    pub export: BgpExport,
    pub install: BgpInstall,
    /// Interfaces whose addresses BIRD ignores; `*` in a name matches any text.
    pub ignored_interfaces: Vec<String>,
    pub log_severity: BgpLogSeverity,
}

/// Least severity of log lines about BGP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BgpLogSeverity {
    Debug,
    /// The default of Calico: the severity of the node.
    #[default]
    Info,
    Warning,
    Error,
}

impl BgpSession {
    /// Returns whether routes of other nodes are advertised to the peer with this node as the next hop.
    pub fn takes_over(&self, own_as: u32) -> bool {
        match self.next_hop {
            AdvertisedNextHop::Auto => self.local_as.unwrap_or(own_as) != self.remote_as,
            AdvertisedNextHop::Own => true,
            AdvertisedNextHop::Keep => false,
        }
    }
}

impl BgpConfig {
    /// Returns the peers that are reachable only through a gateway, with that gateway.
    pub fn gateways(&self) -> BTreeMap<IpNet, IpAddr> {
        let gateways = self
            .sessions
            .values()
            .filter_map(|session| Some((IpNet::from(session.peer), session.reachable_by?)));
        gateways.filter(|(net, gateway)| net.addr().is_ipv4() == gateway.is_ipv4()).collect()
    }
}

/// One session. It carries the routes of its peer's address family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BgpSession {
    pub kind: BgpSessionKind,
    pub peer: IpAddr,
    pub port: u16,
    pub remote_as: u32,
    /// AS number presented to this peer instead of the node's own.
    pub local_as: Option<u32>,
    pub source: Option<IpAddr>,
    pub passive: bool,
    pub password: Option<PasswordReference>,
    /// In seconds.
    pub restart_time: Option<u16>,
    pub keepalive: Option<u16>,
    /// Maximum number of hops to the peer (TTL security); no check if `None`.
    pub ttl_security: Option<u8>,
    pub next_hop: AdvertisedNextHop,
    /// Cluster ID for which the peer is a route reflector client of this node.
    pub reflect: Option<Ipv4Addr>,
    pub allow_own_as: u32,
    /// Names of the filters in the order of evaluation.
    pub filters: Vec<String>,
    /// The only gateway through which the peer is reachable.
    pub reachable_by: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BgpSessionKind {
    Mesh,
    Global,
    Node,
    /// A session with a workload of this node.
    LocalWorkload,
}

/// The next hop that is advertised to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdvertisedNextHop {
    /// The default of BGP: this node for external peers and for routes that originate here, unchanged otherwise.
    #[default]
    Auto,
    /// Always this node.
    Own,
    /// Unchanged, also for external peers.
    Keep,
}

/// Reference to the key of a Secret that holds a password.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PasswordReference {
    pub name: String,
    pub key: String,
}

/// A BGPFilter: the first matching rule decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BgpFilter {
    pub import_v4: Vec<BgpFilterRule>,
    pub export_v4: Vec<BgpFilterRule>,
    pub import_v6: Vec<BgpFilterRule>,
    pub export_v6: Vec<BgpFilterRule>,
}

/// A rule of a BGP filter. It matches if all given conditions match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BgpFilterRule {
    pub prefix: Option<FilterPrefix>,
    /// Matches only routes learned over BGP.
    pub learnt: bool,
    /// Interface name; `*` in it matches any text.
    pub interface: Option<String>,
    /// `Some(true)` matches only iBGP sessions, `Some(false)` only eBGP sessions.
    pub internal: Option<bool>,
    pub community: Option<BgpCommunity>,
    pub as_path_prefix: Vec<u32>,
    pub priority: Option<u32>,
    pub accept: bool,
    pub operations: Vec<FilterOperation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterPrefix {
    pub net: IpNet,
    pub operator: FilterPrefixOperator,
    /// Shortest and longest matching prefix length; if `None`, those implied by `net` and `operator`.
    pub length: Option<(u8, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterPrefixOperator {
    /// Equal to the prefix or more specific.
    In,
    NotIn,
    Equal,
    NotEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BgpCommunity {
    Standard(u16, u16),
    Large(u32, u32, u32),
}

impl BgpCommunity {
    /// Returns the 32-bit encoding of a standard community.
    pub fn standard(high: u16, low: u16) -> u32 {
        u32::from(high) << 16 | u32::from(low)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FilterOperation {
    AddCommunity(BgpCommunity),
    PrependPath(Vec<u32>),
    SetPriority(u32),
}

/// The routes that the node advertises, unless a filter decides otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BgpExport {
    /// Blocks of this node, advertised as aggregates instead of their individual routes. `false` marks a block that
    /// is being released and is not advertised.
    pub blocks: BTreeMap<IpNet, bool>,
    /// Routes inside these pools are advertised.
    pub pools: Vec<IpNet>,
    /// Routes inside these pools are not advertised.
    pub silent_pools: Vec<IpNet>,
    /// Service ranges that this node advertises.
    pub service_ranges: Vec<IpNet>,
    /// Single service addresses that this node advertises.
    pub service_addresses: BTreeSet<IpAddr>,
    /// Routes inside these prefixes are passed on if the node is a route reflector.
    pub reflected: Vec<IpNet>,
    /// All service ranges. Only a node that originates a service route has endpoints for the service, so other nodes'
    /// routes inside these ranges are not advertised with this node as the next hop.
    pub services: Vec<IpNet>,
    /// Communities that are attached to routes inside a prefix.
    pub communities: Vec<(IpNet, Vec<BgpCommunity>)>,
    pub priority_v4: u32,
    pub priority_v6: u32,
    /// Priority of routes to workloads that have just migrated from another node.
    pub elevated_v4: u32,
    pub elevated_v6: u32,
}

impl BgpExport {
    /// Returns every service route that originates here. None of them goes into the kernel, which does not resolve
    /// service addresses by routing.
    pub fn service_routes(&self) -> impl Iterator<Item = IpNet> {
        let single = self.service_addresses.iter().map(|address| IpNet::from(*address));
        self.service_ranges.iter().copied().chain(single)
    }
}

/// Selects the BGP routes that go into the kernel: all except those of pools whose routes another component writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BgpInstall {
    /// Service ranges, whose routes are never installed.
    pub never: Vec<IpNet>,
    /// How the routes of each pool are installed; the longest matching pool applies.
    pub pools: Vec<(IpNet, PoolRoutes)>,
    /// The subnet of this node, if known. Next hops in it are reached without a tunnel if the pool uses
    /// [`PoolRoutes::IpipAcrossSubnets`].
    pub own_subnet: Option<IpNet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolRoutes {
    /// Another component writes the routes, not BGP.
    OfOthers,
    /// BGP, without encapsulation.
    Plain,
    /// BGP, through the IPIP tunnel.
    Ipip,
    /// BGP, through the IPIP tunnel where the next hop is in another network.
    IpipAcrossSubnets,
}

impl BgpInstall {
    pub fn wants(&self, net: &IpNet) -> bool {
        let never = self.never.iter().any(|never| never.contains(net));
        !never && self.of(net) != PoolRoutes::OfOthers
    }

    /// Returns the tunnel through which the kernel sends packets for `net` to a next hop.
    pub fn tunnel(&self, net: &IpNet, next_hop: IpAddr) -> Option<TunnelKind> {
        let wrapped = match self.of(net) {
            PoolRoutes::OfOthers | PoolRoutes::Plain => false,
            PoolRoutes::Ipip => true,
            PoolRoutes::IpipAcrossSubnets => !self.own_subnet.is_some_and(|own| own.contains(&next_hop)),
        };
        (wrapped && next_hop.is_ipv4()).then_some(TunnelKind::Ipip)
    }

    fn of(&self, net: &IpNet) -> PoolRoutes {
        let pool = self.pools.iter().filter(|(pool, _)| pool.contains(net));
        pool.max_by_key(|(pool, _)| pool.prefix_len()).map_or(PoolRoutes::Plain, |(_, routes)| *routes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_carry_pool_routes_to_remote_next_hops() {
        let net = |text: &str| -> IpNet { text.parse().unwrap() };
        let install = BgpInstall {
            never: vec![net("10.96.0.0/12")],
            pools: vec![
                (net("10.1.0.0/16"), PoolRoutes::Ipip),
                (net("10.2.0.0/16"), PoolRoutes::IpipAcrossSubnets),
                (net("10.3.0.0/16"), PoolRoutes::OfOthers),
                (net("10.3.4.0/24"), PoolRoutes::Plain),
            ],
            own_subnet: Some(net("192.168.7.0/24")),
        };
        let wrapped = |route: &str, hop: &str| install.tunnel(&net(route), hop.parse().unwrap()).is_some();
        assert!(wrapped("10.1.0.0/26", "192.168.7.2"));
        assert!(!wrapped("10.2.0.0/26", "192.168.7.2"));
        assert!(wrapped("10.2.0.0/26", "192.168.8.2"));
        assert!(!wrapped("10.3.4.0/26", "192.168.8.2"));
        assert!(!wrapped("172.16.0.0/16", "192.168.8.2"));
        assert!(!wrapped("10.1.0.0/26", "fd00::1"));
        assert!(install.wants(&net("10.3.4.0/26")) && !install.wants(&net("10.3.5.0/26")));
        assert!(!install.wants(&net("10.96.1.1/32")) && install.wants(&net("172.16.0.0/16")));
    }
}
