//! Derives routes from a block, a workload, a peer or a node.

use super::{EncapsulationScope, PoolEncapsulation, RouteCompute, RouteOrigin, RoutedPool};
use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_plan::{Route, RouteKey, RouteTarget, TunnelKind};

impl RouteCompute {
    pub(super) fn wanted(&self, source: &RouteOrigin) -> BTreeMap<RouteKey, Route> {
        let mut wanted = BTreeMap::new();
        match source {
            RouteOrigin::Block(cidr) if !self.policy.by_workload => {
                let Some(block) = self.blocks.get(cidr) else { return wanted };
                let Some(pool) = self.pool_of(*cidr) else { return wanted };
                wanted.extend(block.owner.iter().filter_map(|owner| self.open(owner, pool, *cidr)));
                wanted.extend(block.owner.iter().filter_map(|owner| self.sealed(owner, *cidr)));
                for (address, node) in &block.borrowed {
                    let address = IpNet::from(*address);
                    wanted.extend(self.open(node, pool, address));
                    wanted.extend(self.sealed(node, address));
                }
            }
            RouteOrigin::Workload(name) if self.policy.by_workload => {
                let Some((node, addresses)) = self.remote.get(name) else { return wanted };
                for net in addresses.iter().copied().map(IpNet::from) {
                    let Some(pool) = self.pool_of(net) else { continue };
                    wanted.extend(self.open(node, pool, net));
                    wanted.extend(self.sealed(node, net));
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
                for (kind, sealing) in self.wireguard.iter().filter(|(_, sealing)| sealing.hosts) {
                    let endpoint = sealing.peers.get(node).copied();
                    let key =
                        |endpoint| RouteKey { table: sealing.table, destination: IpNet::from(endpoint) };
                    wanted.extend(endpoint.map(|at| (key(at), Route::through(*kind, Some(at)))));
                }
            }
            RouteOrigin::Block(_) | RouteOrigin::Workload(_) => {}
        }
        wanted
    }

    /// Returns the route for unencrypted packets, if this node writes it. Single local addresses have none.
    fn open(&self, node: &str, pool: &RoutedPool, net: IpNet) -> Option<(RouteKey, Route)> {
        if !self.programs(pool.encapsulation) {
            return None;
        }
        let route = if node == self.host {
            let single = net.prefix_len() == net.max_prefix_len();
            (!single).then_some(Route::BLACKHOLE)?
        } else {
            self.towards(node, pool, net)?
        };
        Some((RouteKey::from(net), route))
    }

    /// Returns the route for encrypted packets. Packets to a node that is no peer, and to this node, are routed as
    /// without WireGuard.
    fn sealed(&self, node: &str, destination: IpNet) -> Option<(RouteKey, Route)> {
        let kind = TunnelKind::wireguard(destination.addr().is_ipv4());
        let sealing = self.wireguard.get(&kind)?;
        let route = match sealing.peers.get(node) {
            Some(endpoint) => Route::through(kind, Some(*endpoint)),
            None => Route::to(RouteTarget::Throw),
        };
        Some((RouteKey { table: sealing.table, destination }, route))
    }

    fn programs(&self, encapsulation: PoolEncapsulation) -> bool {
        match encapsulation {
            PoolEncapsulation::None => self.policy.no_encap,
            PoolEncapsulation::Ipip(_) => self.policy.ipip,
            PoolEncapsulation::Vxlan(_) => self.policy.vxlan,
        }
    }

    /// Returns the route to a node for an address of this pool, or `None` while the address of the node or of its
    /// tunnel endpoint is unknown.
    fn towards(&self, node: &str, pool: &RoutedPool, destination: IpNet) -> Option<Route> {
        let facts = self.nodes.get(node)?;
        let is_ipv4 = destination.addr().is_ipv4();
        let address = facts.address(is_ipv4)?.addr();
        let own = self.nodes.get(&self.host).and_then(|own| own.address(is_ipv4));
        let wrapped = |reach: EncapsulationScope| match reach {
            EncapsulationScope::Always => true,
            EncapsulationScope::CrossSubnet => !own.is_some_and(|own| own.trunc().contains(&address)),
        };
        match pool.encapsulation {
            PoolEncapsulation::Vxlan(reach) if wrapped(reach) => {
                let tunnel = if is_ipv4 { TunnelKind::VxlanV4 } else { TunnelKind::VxlanV6 };
                let end = facts.vxlan(is_ipv4).address?;
                // The tunnel endpoint itself is on the link of the tunnel.
                let gateway = Some(end).filter(|end| IpNet::from(*end) != destination);
                Some(Route::through(tunnel, gateway))
            }
            // IPIP carries IPv4 only.
            PoolEncapsulation::Ipip(reach) if is_ipv4 && wrapped(reach) => {
                Some(Route::through(TunnelKind::Ipip, Some(address)))
            }
            PoolEncapsulation::None | PoolEncapsulation::Ipip(_) | PoolEncapsulation::Vxlan(_) => {
                Some(Route::via(address))
            }
        }
    }

    fn pool_of(&self, net: IpNet) -> Option<&RoutedPool> {
        self.pools.values().filter(|pool| pool.cidr.contains(&net)).max_by_key(|pool| pool.cidr.prefix_len())
    }
}
