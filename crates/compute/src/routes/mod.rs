//! Routes of this node to the blocks of the cluster: a local block is a blackhole except for the addresses of
//! workloads, a remote block is routed to its node.

mod unrouted;
mod wanted;

pub use unrouted::{MissingBgpRoutes, UnroutedPool};

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tortie_model::ipam::AddressBlock;
use tortie_model::ipam::block::allocations;
use tortie_model::ipam::owner::attribute;
use tortie_model::key::AffinityType;
use tortie_plan::{PlanUpdate, Route, RouteKey, RoutingTable, TunnelKind};

use crate::changes::{PlanChanges, set_entry};
use crate::nodes::NodeFacts;
use crate::pools::{PoolEncapsulation, PoolFacts};
use crate::workloads::EndpointName;

/// The routes that this node writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutePolicy {
    pub no_encap: bool,
    pub ipip: bool,
    pub vxlan: bool,
    /// One route per workload instead of one per block.
    pub by_workload: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RoutedPool {
    cidr: IpNet,
    encapsulation: PoolEncapsulation,
}

/// The nodes that use the addresses of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BlockUse {
    owner: Option<String>,
    /// Its addresses are for services.
    is_virtual: bool,
    /// Addresses that a node other than the owner uses.
    borrowed: Vec<(IpAddr, String)>,
}

/// The object that a route is derived from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum RouteOrigin {
    Block(IpNet),
    Workload(EndpointName),
    /// A BGP peer that is reachable only through a gateway.
    Peer(IpNet),
    /// The IPv6 tunnel endpoint of a node. The kernel does not accept a gateway that another route leads elsewhere,
    /// as that of the node's block does while a pool begins to use tunnels.
    TunnelEnd(String),
    /// A node itself, if traffic between nodes is encrypted.
    Host(String),
}

/// Routing through a WireGuard tunnel.
#[derive(Debug)]
struct WireguardRouting {
    /// Table of the routes.
    table: RoutingTable,
    /// Traffic to the nodes themselves is encrypted too.
    hosts: bool,
    /// The nodes that are peers, with the addresses of their endpoints.
    peers: BTreeMap<String, IpAddr>,
}

#[derive(Debug, Default)]
pub(crate) struct RouteCompute {
    host: String,
    policy: RoutePolicy,
    pools: BTreeMap<String, RoutedPool>,
    nodes: BTreeMap<String, Arc<NodeFacts>>,
    blocks: BTreeMap<IpNet, BlockUse>,
    /// Workloads of other nodes, if they have individual routes.
    remote: BTreeMap<EndpointName, (String, Vec<IpAddr>)>,
    /// Gateways of BGP peers.
    gateways: BTreeMap<IpNet, IpAddr>,
    /// IPv6 tunnel endpoints by node.
    tunnel_ends: BTreeMap<String, IpAddr>,
    wireguard: BTreeMap<TunnelKind, WireguardRouting>,
    /// The sources to re-evaluate when a node changes.
    of_node: BTreeMap<String, BTreeSet<RouteOrigin>>,
    changed: BTreeSet<RouteOrigin>,
    /// Candidate routes per destination, in the order of sources: the last is the most specific.
    offers: BTreeMap<RouteKey, Vec<(RouteOrigin, Route)>>,
    offered: BTreeMap<RouteOrigin, Vec<RouteKey>>,
    in_plan: BTreeMap<RouteKey, Route>,
}

impl RouteCompute {
    pub fn new(host: &str) -> RouteCompute {
        RouteCompute { host: host.to_owned(), ..RouteCompute::default() }
    }

    /// Returns whether workloads of other nodes have individual routes.
    pub fn by_workload(&self) -> bool {
        self.policy.by_workload
    }

    pub fn set_policy(&mut self, policy: RoutePolicy) {
        if self.policy != policy {
            self.policy = policy;
            self.all_changed();
        }
    }

    /// Replaces the peers that are reachable through a gateway.
    pub fn set_gateways(&mut self, gateways: BTreeMap<IpNet, IpAddr>) {
        let old = std::mem::replace(&mut self.gateways, gateways);
        let nets = old.keys().chain(self.gateways.keys());
        let differ = nets.filter(|net| old.get(net) != self.gateways.get(net));
        self.changed.extend(differ.copied().map(RouteOrigin::Peer));
    }

    /// Sets the address of a node's IPv6 tunnel endpoint.
    pub fn set_tunnel_end(&mut self, node: String, address: Option<IpAddr>) {
        set_entry(&mut self.tunnel_ends, node.clone(), address);
        self.changed.insert(RouteOrigin::TunnelEnd(node));
    }

    /// Sets the table of the routes through a WireGuard tunnel, and whether they include the nodes themselves.
    pub fn set_wireguard(&mut self, kind: TunnelKind, table: Option<(RoutingTable, bool)>) {
        let old = self.wireguard.remove(&kind);
        self.hosts_changed(old.as_ref());
        if let Some((table, hosts)) = table {
            let peers = old.map(|old| old.peers).unwrap_or_default();
            let new = WireguardRouting { table, hosts, peers };
            self.hosts_changed(Some(&new));
            self.wireguard.insert(kind, new);
        }
        self.all_changed();
    }

    /// Sets the endpoint of a WireGuard peer, or removes the peer.
    pub fn set_wireguard_peer(&mut self, kind: TunnelKind, node: &str, endpoint: Option<IpAddr>) {
        let Some(encryption) = self.wireguard.get_mut(&kind) else { return };
        set_entry(&mut encryption.peers, node.to_owned(), endpoint);
        if encryption.hosts {
            self.changed.insert(RouteOrigin::Host(node.to_owned()));
        }
        self.changed.extend(self.of_node.get(node).into_iter().flatten().cloned());
    }

    fn hosts_changed(&mut self, encryption: Option<&WireguardRouting>) {
        let peers = encryption
            .filter(|encryption| encryption.hosts)
            .into_iter()
            .flat_map(|encryption| encryption.peers.keys());
        self.changed.extend(peers.cloned().map(RouteOrigin::Host));
    }

    pub fn put_pool(&mut self, name: &str, pool: &PoolFacts) {
        if pool.only_balancers {
            return self.remove_pool(name);
        }
        let new = RoutedPool { cidr: pool.cidr.trunc(), encapsulation: pool.encapsulation };
        let old = self.pools.insert(name.to_owned(), new);
        if old != Some(new) {
            self.inside_changed(new.cidr);
            if let Some(old) = old {
                self.inside_changed(old.cidr);
            }
        }
    }

    pub fn remove_pool(&mut self, name: &str) {
        if let Some(old) = self.pools.remove(name) {
            self.inside_changed(old.cidr);
        }
    }

    pub fn put_node(&mut self, name: &str, facts: Arc<NodeFacts>) {
        self.nodes.insert(name.to_owned(), facts);
        self.node_changed(name);
    }

    pub fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.node_changed(name);
        }
    }

    pub fn put_block(&mut self, block: &AddressBlock) {
        let cidr = block.cidr;
        let new = read_block(block);
        if self.blocks.get(&cidr) == Some(&new) {
            return;
        }
        self.remove_block(cidr);
        let source = RouteOrigin::Block(cidr);
        for node in new.owner.iter().chain(new.borrowed.iter().map(|(_, node)| node)) {
            self.of_node.entry(node.clone()).or_default().insert(source.clone());
        }
        self.blocks.insert(cidr, new);
        self.changed.insert(source);
    }

    pub fn remove_block(&mut self, cidr: IpNet) {
        let Some(old) = self.blocks.remove(&cidr) else { return };
        let source = RouteOrigin::Block(cidr);
        for node in old.owner.iter().chain(old.borrowed.iter().map(|(_, node)| node)) {
            self.unlink(node, &source);
        }
        self.changed.insert(source);
    }

    /// Returns whether the address is in an IPAM block, for workloads, tunnels or services.
    pub fn has_block_of(&self, address: IpAddr) -> bool {
        self.block_of(address).is_some()
    }

    /// Returns whether the address is in an IPAM block that is not for services.
    pub fn has_host_block_of(&self, address: IpAddr) -> bool {
        self.block_of(address).is_some_and(|block| !block.is_virtual)
    }

    /// Returns the block of an address. Blocks do not overlap: only the last one that begins at or before the address
    /// can contain it.
    fn block_of(&self, address: IpAddr) -> Option<&BlockUse> {
        let before = self.blocks.range(..=IpNet::from(address)).next_back();
        before.filter(|(cidr, _)| cidr.contains(&address)).map(|(_, block)| block)
    }

    pub fn put_remote(&mut self, name: EndpointName, node: &str, addresses: Vec<IpAddr>) {
        self.remove_remote(&name);
        let source = RouteOrigin::Workload(name.clone());
        self.of_node.entry(node.to_owned()).or_default().insert(source.clone());
        self.remote.insert(name, (node.to_owned(), addresses));
        self.changed.insert(source);
    }

    pub fn remove_remote(&mut self, name: &EndpointName) {
        let Some((node, _)) = self.remote.remove(name) else { return };
        let source = RouteOrigin::Workload(name.clone());
        self.unlink(&node, &source);
        self.changed.insert(source);
    }

    /// Removes all workloads of other nodes.
    pub fn forget_remote(&mut self) {
        let names: Vec<EndpointName> = self.remote.keys().cloned().collect();
        names.iter().for_each(|name| self.remove_remote(name));
    }

    /// Returns the changes since the last flush. Addresses of local workloads have no route here: the workload has
    /// it.
    pub fn flush(&mut self, moved: BTreeSet<IpAddr>, is_local: impl Fn(IpAddr) -> bool) -> PlanChanges {
        let mut changes = PlanChanges::default();
        let mut keys: BTreeSet<RouteKey> =
            moved.into_iter().map(|address| RouteKey::from(IpNet::from(address))).collect();
        for source in std::mem::take(&mut self.changed) {
            let wanted = self.derive_routes(&source);
            for key in self.offered.remove(&source).into_iter().flatten() {
                if let Some(offers) = self.offers.get_mut(&key) {
                    offers.retain(|(other, _)| *other != source);
                    if offers.is_empty() {
                        self.offers.remove(&key);
                    }
                }
                keys.insert(key);
            }
            let mut mine = Vec::with_capacity(wanted.len());
            for (key, route) in wanted {
                let offers = self.offers.entry(key).or_default();
                let place = offers.partition_point(|(other, _)| *other < source);
                offers.insert(place, (source.clone(), route));
                keys.insert(key);
                mine.push(key);
            }
            if !mine.is_empty() {
                self.offered.insert(source, mine);
            }
        }
        for key in keys {
            let RouteKey { table, destination } = key;
            let single =
                destination.prefix_len() == destination.max_prefix_len() && table == RoutingTable::MAIN;
            let route = self.offers.get(&key).and_then(|offers| offers.last()).map(|(_, route)| *route);
            let route = route.filter(|_| !single || !is_local(destination.addr()));
            match route {
                Some(route) if self.in_plan.get(&key) != Some(&route) => {
                    self.in_plan.insert(key, route);
                    changes.added.push(PlanUpdate::Route(key, Some(route)));
                }
                None if self.in_plan.remove(&key).is_some() => {
                    changes.removed.push(PlanUpdate::Route(key, None));
                }
                _ => {}
            }
        }
        changes
    }

    fn unlink(&mut self, node: &str, source: &RouteOrigin) {
        if let Some(sources) = self.of_node.get_mut(node) {
            sources.remove(source);
            if sources.is_empty() {
                self.of_node.remove(node);
            }
        }
    }

    fn node_changed(&mut self, node: &str) {
        if node == self.host {
            // Which nodes are in the local subnet depends on the address of this node.
            self.all_changed();
        } else {
            self.changed.extend(self.of_node.get(node).into_iter().flatten().cloned());
        }
    }

    fn inside_changed(&mut self, cidr: IpNet) {
        self.changed.extend(
            self.blocks.keys().filter(|block| cidr.contains(*block)).copied().map(RouteOrigin::Block),
        );
        if self.policy.by_workload {
            self.changed.extend(self.remote.keys().cloned().map(RouteOrigin::Workload));
        }
    }

    fn all_changed(&mut self) {
        self.changed.extend(self.blocks.keys().copied().map(RouteOrigin::Block));
        self.changed.extend(self.remote.keys().cloned().map(RouteOrigin::Workload));
    }
}

fn read_block(block: &AddressBlock) -> BlockUse {
    let (owner, is_virtual) = match block.owner() {
        Some((AffinityType::Host, host)) => (Some(host.to_owned()), false),
        Some((AffinityType::Virtual, _)) => (None, true),
        None => (None, false),
    };
    let mut borrowed = Vec::new();
    for allocation in allocations(block).filter(|allocation| !allocation.is_cooling_down()) {
        if let Some(node) = allocation.attribute(attribute::NODE_ATTRIBUTE)
            && Some(node) != owner.as_deref()
        {
            borrowed.push((allocation.address, node.to_owned()));
        }
    }
    BlockUse { owner, is_virtual, borrowed }
}
