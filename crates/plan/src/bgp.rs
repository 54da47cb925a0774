//! The BGP sessions of a node, what it advertises and which routes it installs.

use crate::tunnel::TunnelKind;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// A metric becomes a LOCAL_PREF by subtraction from this, so that the smaller metric is the better route.
pub const LOCAL_PREF_OF_METRIC_0: u32 = 2_147_483_647;

/// All of a node's BGP. It is replaced as a whole; the speaker finds out which sessions differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bgp {
    pub as_number: u32,
    /// From the node's IPv4 address; a node without one must be given one.
    pub router_id: Option<Ipv4Addr>,
    pub listen_port: u16,
    /// Listen on these addresses alone; on all if there are none.
    pub listen: Vec<IpAddr>,
    /// By the name that the reference gives them: `Mesh_10_0_0_7`, `Global_...`, `Node_...`.
    pub sessions: BTreeMap<String, Session>,
    /// The filters that sessions name.
    pub filters: BTreeMap<String, Arc<Filter>>,
    pub export: Export,
    pub install: Install,
    /// Whose addresses BIRD shall not look at; in them `*` stands for any text.
    pub ignored_interfaces: Vec<String>,
}

impl Session {
    /// Whether routes of others are announced with this node as the next hop.
    pub fn takes_over(&self, own_as: u32) -> bool {
        match self.next_hop {
            NextHopMode::Auto => self.local_as.unwrap_or(own_as) != self.remote_as,
            NextHopMode::Own => true,
            NextHopMode::Keep => false,
        }
    }
}

impl Bgp {
    /// The peers that are reached through a gateway alone, and which.
    pub fn gateways(&self) -> BTreeMap<IpNet, IpAddr> {
        let behind = |session: &Session| Some((IpNet::from(session.peer), session.reachable_by?));
        let behind = self.sessions.values().filter_map(behind);
        behind.filter(|(net, gateway)| net.addr().is_ipv4() == gateway.is_ipv4()).collect()
    }
}

/// One session. It carries the family of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub kind: SessionKind,
    pub peer: IpAddr,
    pub port: u16,
    pub remote_as: u32,
    /// Shown to this peer instead of the node's own.
    pub local_as: Option<u32>,
    pub source: Option<IpAddr>,
    pub passive: bool,
    pub password: Option<Secret>,
    /// Seconds.
    pub restart_time: Option<u16>,
    pub keepalive: Option<u16>,
    /// The hops the peer may be away; no check if not given.
    pub ttl_security: Option<u8>,
    pub next_hop: NextHopMode,
    /// The peer is a client of ours in this cluster of reflectors.
    pub reflect: Option<Ipv4Addr>,
    pub allow_own_as: u32,
    /// In the order in which they are asked.
    pub filters: Vec<String>,
    /// A gateway through which alone the peer is reached.
    pub reachable_by: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionKind {
    Mesh,
    Global,
    Node,
    /// With a workload of this node.
    LocalWorkload,
}

/// Which next hop is advertised to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NextHopMode {
    /// The rule of BGP: this node for external peers and for routes that originate here, unchanged otherwise.
    #[default]
    Auto,
    /// Always this node.
    Own,
    /// Unchanged, also for external peers.
    Keep,
}

/// Where a password is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Secret {
    pub name: String,
    pub key: String,
}

/// A BGPFilter: the first rule that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub import_v4: Vec<FilterRule>,
    pub export_v4: Vec<FilterRule>,
    pub import_v6: Vec<FilterRule>,
    pub export_v6: Vec<FilterRule>,
}

/// All that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterRule {
    pub prefix: Option<PrefixMatch>,
    /// Only routes learnt over BGP.
    pub learnt: bool,
    /// In which `*` stands for any text.
    pub interface: Option<String>,
    /// Some(true): only on sessions within our AS; Some(false): only on those with others.
    pub internal: Option<bool>,
    pub community: Option<Community>,
    pub as_path_prefix: Vec<u32>,
    pub priority: Option<u32>,
    pub accept: bool,
    pub operations: Vec<Operation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    pub net: IpNet,
    pub operator: PrefixOperator,
    /// Shortest and longest; instead of the net's own.
    pub length: Option<(u8, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixOperator {
    /// Equal to the prefix or more specific.
    In,
    NotIn,
    Equal,
    NotEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Community {
    Standard(u16, u16),
    Large(u32, u32, u32),
}

impl Community {
    /// The two halves of a standard community as they stand in a message.
    pub fn standard(high: u16, low: u16) -> u32 {
        u32::from(high) << 16 | u32::from(low)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    AddCommunity(Community),
    PrependPath(Vec<u32>),
    SetPriority(u32),
}

/// What is advertised, unless a filter says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Blocks of this node, of which the whole is announced instead of its parts. `false`: being given up, not announced.
    pub blocks: BTreeMap<IpNet, bool>,
    /// Inside one of these a route is announced.
    pub pools: Vec<IpNet>,
    /// Inside one of these nothing is.
    pub silent_pools: Vec<IpNet>,
    /// Ranges of services that this node announces.
    pub service_ranges: Vec<IpNet>,
    /// Single addresses of services that this node announces.
    pub service_addresses: BTreeSet<IpAddr>,
    /// As a reflector: routes inside these are passed on.
    pub reflected: Vec<IpNet>,
    /// Where services have their addresses. Only a node that announces one of its own accord has endpoints for it, so
    /// other nodes' routes inside these are not announced with this node as the next hop.
    pub services: Vec<IpNet>,
    /// Communities that routes inside a net carry.
    pub communities: Vec<(IpNet, Vec<Community>)>,
    pub priority_v4: u32,
    pub priority_v6: u32,
    /// Of workloads that have just come from another node.
    pub elevated_v4: u32,
    pub elevated_v6: u32,
}

impl Export {
    /// Every route of a service that originates here. None of them is for the kernel: who has the address is not a matter
    /// of routes.
    pub fn service_routes(&self) -> impl Iterator<Item = IpNet> {
        let single = self.service_addresses.iter().map(|address| IpNet::from(*address));
        self.service_ranges.iter().copied().chain(single)
    }
}

/// Which routes that BGP knows go into the kernel: all but those of pools whose routes somebody else writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Install {
    /// Ranges of services: never.
    pub never: Vec<IpNet>,
    /// Who writes the routes of a pool, and how; the longest that contains a route counts.
    pub pools: Vec<(IpNet, PoolRoutes)>,
    /// The network of this node, if it is known: next hops in it are reached without a tunnel where a pool says so.
    pub own_subnet: Option<IpNet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolRoutes {
    /// Not BGP.
    OfOthers,
    /// BGP, without encapsulation.
    Plain,
    /// BGP, through the IPIP tunnel.
    Ipip,
    /// BGP, through the IPIP tunnel where the next hop is in another network.
    IpipAcrossSubnets,
}

impl Install {
    pub fn wants(&self, net: &IpNet) -> bool {
        let never = self.never.iter().any(|never| never.contains(net));
        !never && self.of(net) != PoolRoutes::OfOthers
    }

    /// The tunnel through which the kernel shall send what is for `net` to a next hop.
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
    fn a_tunnel_is_for_the_routes_of_its_pool_and_for_next_hops_elsewhere() {
        let net = |text: &str| -> IpNet { text.parse().unwrap() };
        let install = Install {
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
