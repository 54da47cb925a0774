//! Finds pools whose addresses on other nodes this node has no route to, because no component writes the routes.

use super::{RouteCompute, RouteOrigin, RoutedPool};
use crate::pools::PoolEncapsulation;
use std::fmt;
use tortie_plan::TunnelKind;
use tortie_plan::bgp::BgpConfig;

/// A pool with blocks on other nodes to which neither this node nor BGP writes routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnroutedPool {
    pub name: String,
    pub bgp: MissingBgpRoutes,
    encapsulation: PoolEncapsulation,
}

/// Why BGP provides no routes to the blocks of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingBgpRoutes {
    /// The node does not run BGP.
    Disabled,
    /// The node runs BGP, but the mesh is disabled and no BGPPeer applies to the node.
    NoSessions,
    /// The settings leave the routes of this pool to another component.
    NotInstalled,
}

impl fmt::Display for UnroutedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bgp = match self.bgp {
            MissingBgpRoutes::Disabled => "BGP is disabled on this node",
            MissingBgpRoutes::NoSessions => "BGP has no peers",
            MissingBgpRoutes::NotInstalled => "programClusterRoutes of BGPConfiguration excludes the pool",
        };
        let (encapsulation, setting) = match self.encapsulation {
            PoolEncapsulation::None => ("has no encapsulation", "programClusterRoutes"),
            PoolEncapsulation::Ipip(_) => ("uses IPIP", "programClusterRoutes or ipipEnabled"),
            PoolEncapsulation::Vxlan(_) => ("uses VXLAN", "vxlanEnabled"),
        };
        write!(
            f,
            "pods on other nodes are unreachable: the pool {encapsulation}, {setting} of FelixConfiguration excludes \
             its routes, and {bgp}"
        )
    }
}

impl UnroutedPool {
    /// Returns the settings of which one has to be changed.
    pub fn advice(&self) -> &'static str {
        match self.encapsulation {
            PoolEncapsulation::None => {
                "set vxlanMode or ipipMode of the pool, or programClusterRoutes: Enabled in FelixConfiguration if all \
                 nodes share a link, or enable BGP (CALICO_NETWORKING_BACKEND, nodeToNodeMeshEnabled, BGPPeer)"
            }
            PoolEncapsulation::Ipip(_) => {
                "set programClusterRoutes: Enabled in FelixConfiguration and remove ipipEnabled: false"
            }
            PoolEncapsulation::Vxlan(_) => "remove vxlanEnabled: false from FelixConfiguration",
        }
    }
}

impl RouteCompute {
    /// Returns the pools with blocks of other nodes to which no component writes routes. `bgp` is `None` if the node
    /// does not run BGP. A node without blocks, as one that only enforces policy, reports nothing. Nodes that are not in
    /// the datastore do not count: their blocks are about to be released.
    pub fn unrouted_pools(&self, bgp: Option<&BgpConfig>) -> Vec<UnroutedPool> {
        let mut unrouted = Vec::new();
        for (name, pool) in &self.pools {
            if self.programs(pool.encapsulation) {
                continue;
            }
            let Some(missing) = missing_bgp_routes(bgp, pool) else { continue };
            if self.has_own_block(pool.cidr.addr().is_ipv4()) && self.has_plain_remote_block(pool) {
                let encapsulation = pool.encapsulation;
                unrouted.push(UnroutedPool { name: name.clone(), bgp: missing, encapsulation });
            }
        }
        unrouted
    }

    /// Returns whether this node has a block of the family.
    fn has_own_block(&self, is_ipv4: bool) -> bool {
        let origins = self.of_node.get(&self.host).into_iter().flatten();
        origins
            .filter_map(|origin| match origin {
                RouteOrigin::Block(cidr) if cidr.addr().is_ipv4() == is_ipv4 => self.blocks.get(cidr),
                _ => None,
            })
            .any(|block| block.owner.as_ref() == Some(&self.host))
    }

    /// Returns whether another node has a block of the pool that no WireGuard route leads to.
    fn has_plain_remote_block(&self, pool: &RoutedPool) -> bool {
        let wireguard = self.wireguard.get(&TunnelKind::wireguard(pool.cidr.addr().is_ipv4()));
        let blocks = self.blocks.range(pool.cidr..).take_while(|(cidr, _)| pool.cidr.contains(*cidr));
        blocks.filter_map(|(cidr, block)| Some((cidr, block.owner.as_deref()?))).any(|(cidr, owner)| {
            owner != self.host
                && self.nodes.contains_key(owner)
                && self.pool_of(*cidr) == Some(pool)
                && !wireguard.is_some_and(|encryption| encryption.peers.contains_key(owner))
        })
    }
}

fn missing_bgp_routes(bgp: Option<&BgpConfig>, pool: &RoutedPool) -> Option<MissingBgpRoutes> {
    let Some(bgp) = bgp else { return Some(MissingBgpRoutes::Disabled) };
    if !bgp.install.wants(&pool.cidr) {
        return Some(MissingBgpRoutes::NotInstalled);
    }
    bgp.sessions.is_empty().then_some(MissingBgpRoutes::NoSessions)
}
