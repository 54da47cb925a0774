//! Derives routes from a block, a workload, a peer or a node.

use super::{RouteCompute, RouteOrigin, RoutedPool};
use crate::pools::{EncapsulationScope, PoolEncapsulation};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_plan::{Route, RouteKey, RouteTarget, TunnelKind};

impl RouteCompute {
    pub(super) fn derive_routes(&self, source: &RouteOrigin) -> BTreeMap<RouteKey, Route> {
        let mut wanted = BTreeMap::new();
        match source {
            RouteOrigin::Block(cidr) if !self.policy.by_workload => {
                let Some(block) = self.blocks.get(cidr) else { return wanted };
                let Some(pool) = self.pool_of(*cidr) else { return wanted };
                wanted.extend(block.owner.iter().filter_map(|owner| self.open_route(owner, pool, *cidr)));
                wanted.extend(block.owner.iter().filter_map(|owner| self.encrypted_route(owner, *cidr)));
                for (address, node) in &block.borrowed {
                    let address = IpNet::from(*address);
                    wanted.extend(self.open_route(node, pool, address));
                    wanted.extend(self.encrypted_route(node, address));
                }
            }
            RouteOrigin::Workload(name) if self.policy.by_workload => {
                let Some((node, addresses)) = self.remote.get(name) else { return wanted };
                for net in addresses.iter().copied().map(IpNet::from) {
                    let Some(pool) = self.pool_of(net) else { continue };
                    wanted.extend(self.open_route(node, pool, net));
                    wanted.extend(self.encrypted_route(node, net));
                }
            }
            RouteOrigin::Peer(net) => {
                let route = self.gateways.get(net).map(|gateway| Route::via(*gateway));
                wanted.extend(route.map(|route| (RouteKey::from(*net), route)));
            }
            RouteOrigin::TunnelEnd(node) => {
                let connected = Route::through(TunnelKind::VxlanV6, None);
                let end = self.tunnel_ends.get(node).map(|end| IpNet::from(*end));
                wanted.extend(end.map(|end| (RouteKey::from(end), connected)));
            }
            RouteOrigin::Host(node) => {
                for (kind, encryption) in self.wireguard.iter().filter(|(_, encryption)| encryption.hosts) {
                    if let Some(endpoint) = encryption.peers.get(node).copied() {
                        let key = RouteKey { table: encryption.table, destination: IpNet::from(endpoint) };
                        wanted.insert(key, Route::through(*kind, Some(endpoint)));
                    }
                }
            }
            RouteOrigin::Block(_) | RouteOrigin::Workload(_) => {}
        }
        wanted
    }

    /// Returns the route for unencrypted packets, if this node writes it. Single local addresses have none.
    fn open_route(&self, node: &str, pool: &RoutedPool, net: IpNet) -> Option<(RouteKey, Route)> {
        if !self.programs(pool.encapsulation) {
            return None;
        }
        let route = if node == self.host {
            let single = net.prefix_len() == net.max_prefix_len();
            (!single).then_some(Route::BLACKHOLE)?
        } else {
            self.route_to_node(node, pool, net)?
        };
        Some((RouteKey::from(net), route))
    }

    /// Returns the route for encrypted packets. Packets to a node that is no peer, and to this node, are routed as
    /// without WireGuard.
    fn encrypted_route(&self, node: &str, destination: IpNet) -> Option<(RouteKey, Route)> {
        let kind = TunnelKind::wireguard(destination.addr().is_ipv4());
        let encryption = self.wireguard.get(&kind)?;
        let route = match encryption.peers.get(node) {
            Some(endpoint) => Route::through(kind, Some(*endpoint)),
            None => Route::to(RouteTarget::Throw),
        };
        Some((RouteKey { table: encryption.table, destination }, route))
    }

    pub(super) fn programs(&self, encapsulation: PoolEncapsulation) -> bool {
        match encapsulation {
            PoolEncapsulation::None => self.policy.no_encap,
            PoolEncapsulation::Ipip(_) => self.policy.ipip,
            PoolEncapsulation::Vxlan(_) => self.policy.vxlan,
        }
    }

    /// Returns the route to a node for an address of this pool, or `None` while the address of the node or of its
    /// tunnel endpoint is unknown.
    fn route_to_node(&self, node: &str, pool: &RoutedPool, destination: IpNet) -> Option<Route> {
        let facts = self.nodes.get(node)?;
        let is_ipv4 = destination.addr().is_ipv4();
        let address = facts.address(is_ipv4)?.addr();
        match pool.encapsulation {
            PoolEncapsulation::Vxlan(scope) if self.encapsulates(scope, address) => {
                let tunnel = if is_ipv4 { TunnelKind::VxlanV4 } else { TunnelKind::VxlanV6 };
                let end = facts.vxlan(is_ipv4).address?;
                // The tunnel endpoint itself is on the link of the tunnel.
                let gateway = Some(end).filter(|end| IpNet::from(*end) != destination);
                Some(Route::through(tunnel, gateway))
            }
            // IPIP carries IPv4 only.
            PoolEncapsulation::Ipip(scope) if is_ipv4 && self.encapsulates(scope, address) => {
                Some(Route::through(TunnelKind::Ipip, Some(address)))
            }
            PoolEncapsulation::None | PoolEncapsulation::Ipip(_) | PoolEncapsulation::Vxlan(_) => {
                Some(Route::via(address))
            }
        }
    }

    /// Returns whether packets to a node with this address are encapsulated.
    fn encapsulates(&self, scope: EncapsulationScope, address: IpAddr) -> bool {
        let own = self.nodes.get(&self.host).and_then(|own| own.address(address.is_ipv4()));
        scope == EncapsulationScope::Always || !own.is_some_and(|own| own.trunc().contains(&address))
    }

    pub(super) fn pool_of(&self, net: IpNet) -> Option<&RoutedPool> {
        self.pools.values().filter(|pool| pool.cidr.contains(&net)).max_by_key(|pool| pool.cidr.prefix_len())
    }
}
