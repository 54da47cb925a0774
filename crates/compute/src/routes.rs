//! Where this node sends what is addressed to the cluster's blocks: its own go nowhere unless a workload has the
//! address, those of others go to their node.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::ipam::Block;
use tortie_model::ipam::block::allocations;
use tortie_model::ipam::owner::attribute;
use tortie_model::key::AffinityType;
use tortie_model::kinds::{AllowedUse, EncapMode, IPPool, Node, NodeAddressType};
use tortie_plan::{Route, Update};

use crate::changes::Changes;
use crate::workloads::Name;

/// Which routes are this node's to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    pub no_encap: bool,
    pub ipip: bool,
    /// One route per workload instead of one per block.
    pub by_workload: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pool {
    cidr: IpNet,
    encapsulation: Encapsulation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encapsulation {
    None,
    Ipip(Reach),
    Vxlan(Reach),
}

/// Between which nodes packets are wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Always,
    CrossSubnet,
}

/// A node's addresses, with the prefix length of its network where it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Addresses {
    v4: Option<IpNet>,
    v6: Option<IpNet>,
}

/// Which nodes use the addresses of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BlockUse {
    owner: Option<String>,
    /// Addresses that another node than the owner uses.
    borrowed: Vec<(IpAddr, String)>,
}

/// What a route follows from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Block(IpNet),
    Workload(Name),
    /// A BGP peer that is reached through a gateway alone.
    Peer(IpNet),
}

#[derive(Debug, Default)]
pub(crate) struct Routes {
    host: String,
    policy: Policy,
    pools: BTreeMap<String, Pool>,
    nodes: BTreeMap<String, Addresses>,
    blocks: BTreeMap<IpNet, BlockUse>,
    /// Workloads of other nodes, as long as they have routes of their own.
    remote: BTreeMap<Name, (String, Vec<IpAddr>)>,
    /// Of BGP peers.
    gateways: BTreeMap<IpNet, IpAddr>,
    /// What must be looked at again when a node changes.
    of_node: BTreeMap<String, BTreeSet<Source>>,
    changed: BTreeSet<Source>,
    /// Per destination, in the order of sources: the last is the most specific.
    offers: BTreeMap<IpNet, Vec<(Source, Route)>>,
    offered: BTreeMap<Source, Vec<IpNet>>,
    in_plan: BTreeMap<IpNet, Route>,
}

impl Routes {
    pub fn new(host: &str) -> Routes {
        Routes { host: host.to_owned(), ..Routes::default() }
    }

    /// Whether workloads of other nodes matter here.
    pub fn by_workload(&self) -> bool {
        self.policy.by_workload
    }

    pub fn set_policy(&mut self, policy: Policy) {
        if self.policy != policy {
            self.policy = policy;
            self.all_changed();
        }
    }

    /// These peers, and no others, are reached through a gateway.
    pub fn set_gateways(&mut self, gateways: BTreeMap<IpNet, IpAddr>) {
        let old = std::mem::replace(&mut self.gateways, gateways);
        let nets = old.keys().chain(self.gateways.keys());
        let differ = nets.filter(|net| old.get(net) != self.gateways.get(net));
        self.changed.extend(differ.copied().map(Source::Peer));
    }

    pub fn put_pool(&mut self, pool: &IPPool) -> Result<(), String> {
        let name = &pool.metadata.name;
        let cidr: IpNet =
            pool.spec.cidr.parse().map_err(|_| format!("{:?} is not a CIDR", pool.spec.cidr))?;
        if pool.spec.allowed_uses == [AllowedUse::LoadBalancer] {
            self.remove_pool(name);
            return Ok(());
        }
        let reach = |mode: &EncapMode| match mode {
            EncapMode::Always => Some(Reach::Always),
            EncapMode::CrossSubnet => Some(Reach::CrossSubnet),
            EncapMode::Never | EncapMode::Unknown(_) => None,
        };
        let encapsulation = match (reach(&pool.spec.vxlan_mode), reach(&pool.spec.ipip_mode)) {
            (Some(reach), _) => Encapsulation::Vxlan(reach),
            (None, Some(reach)) => Encapsulation::Ipip(reach),
            (None, None) => Encapsulation::None,
        };
        let new = Pool { cidr: cidr.trunc(), encapsulation };
        let old = self.pools.insert(name.clone(), new.clone());
        if old.as_ref() != Some(&new) {
            self.inside_changed(new.cidr);
            if let Some(old) = old {
                self.inside_changed(old.cidr);
            }
        }
        Ok(())
    }

    pub fn remove_pool(&mut self, name: &str) {
        if let Some(old) = self.pools.remove(name) {
            self.inside_changed(old.cidr);
        }
    }

    pub fn put_node(&mut self, node: &Node) {
        let new = addresses_of(node);
        if self.nodes.insert(node.metadata.name.clone(), new) != Some(new) {
            self.node_changed(&node.metadata.name);
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.node_changed(name);
        }
    }

    pub fn put_block(&mut self, block: &Block) {
        let cidr = block.cidr;
        let new = read_block(block);
        if self.blocks.get(&cidr) == Some(&new) {
            return;
        }
        self.remove_block(cidr);
        let source = Source::Block(cidr);
        for node in new.owner.iter().chain(new.borrowed.iter().map(|(_, node)| node)) {
            self.of_node.entry(node.clone()).or_default().insert(source.clone());
        }
        self.blocks.insert(cidr, new);
        self.changed.insert(source);
    }

    pub fn remove_block(&mut self, cidr: IpNet) {
        let Some(old) = self.blocks.remove(&cidr) else { return };
        let source = Source::Block(cidr);
        for node in old.owner.iter().chain(old.borrowed.iter().map(|(_, node)| node)) {
            self.unlink(node, &source);
        }
        self.changed.insert(source);
    }

    pub fn put_remote(&mut self, name: Name, node: &str, addresses: Vec<IpAddr>) {
        self.remove_remote(&name);
        let source = Source::Workload(name.clone());
        self.of_node.entry(node.to_owned()).or_default().insert(source.clone());
        self.remote.insert(name, (node.to_owned(), addresses));
        self.changed.insert(source);
    }

    pub fn remove_remote(&mut self, name: &Name) {
        let Some((node, _)) = self.remote.remove(name) else { return };
        let source = Source::Workload(name.clone());
        self.unlink(&node, &source);
        self.changed.insert(source);
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// They matter no more.
    pub fn forget_remote(&mut self) {
        let names: Vec<Name> = self.remote.keys().cloned().collect();
        names.iter().for_each(|name| self.remove_remote(name));
    }

    /// What changed since the last time. Addresses of local workloads have no route here: they are the workload's.
    pub fn flush(&mut self, moved: BTreeSet<IpAddr>, is_local: impl Fn(IpAddr) -> bool) -> Changes {
        let mut changes = Changes::default();
        let mut nets: BTreeSet<IpNet> = moved.into_iter().map(IpNet::from).collect();
        for source in std::mem::take(&mut self.changed) {
            let wanted = self.wanted(&source);
            for net in self.offered.remove(&source).into_iter().flatten() {
                if let Some(offers) = self.offers.get_mut(&net) {
                    offers.retain(|(other, _)| *other != source);
                    if offers.is_empty() {
                        self.offers.remove(&net);
                    }
                }
                nets.insert(net);
            }
            let mut mine = Vec::with_capacity(wanted.len());
            for (net, route) in wanted {
                let offers = self.offers.entry(net).or_default();
                let place = offers.partition_point(|(other, _)| *other < source);
                offers.insert(place, (source.clone(), route));
                nets.insert(net);
                mine.push(net);
            }
            if !mine.is_empty() {
                self.offered.insert(source, mine);
            }
        }
        for net in nets {
            let single = net.prefix_len() == net.max_prefix_len();
            let route = self.offers.get(&net).and_then(|offers| offers.last()).map(|(_, route)| *route);
            let route = route.filter(|_| !single || !is_local(net.addr()));
            match route {
                Some(route) if self.in_plan.get(&net) != Some(&route) => {
                    self.in_plan.insert(net, route);
                    changes.added.push(Update::Route(net, Some(route)));
                }
                None if self.in_plan.remove(&net).is_some() => changes.removed.push(Update::Route(net, None)),
                _ => {}
            }
        }
        changes
    }

    fn wanted(&self, source: &Source) -> BTreeMap<IpNet, Route> {
        let mut wanted = BTreeMap::new();
        match source {
            Source::Block(cidr) if !self.policy.by_workload => {
                let Some(block) = self.blocks.get(cidr) else { return wanted };
                let Some(pool) = self.pool_of(*cidr) else { return wanted };
                if !self.programs(pool.encapsulation) {
                    return wanted;
                }
                let single = cidr.prefix_len() == cidr.max_prefix_len();
                match &block.owner {
                    Some(owner) if *owner == self.host => {
                        wanted.extend((!single).then_some((*cidr, Route::Blackhole)));
                    }
                    Some(owner) => {
                        if let Some(route) = self.towards(owner, pool, *cidr) {
                            wanted.insert(*cidr, route);
                        }
                    }
                    None => {}
                }
                for (address, node) in block.borrowed.iter().filter(|(_, node)| *node != self.host) {
                    if let Some(route) = self.towards(node, pool, *cidr) {
                        wanted.insert(IpNet::from(*address), route);
                    }
                }
            }
            Source::Workload(name) if self.policy.by_workload => {
                let Some((node, addresses)) = self.remote.get(name) else { return wanted };
                for address in addresses {
                    let net = IpNet::from(*address);
                    let pool = self.pool_of(net).filter(|pool| self.programs(pool.encapsulation));
                    if let Some(route) = pool.and_then(|pool| self.towards(node, pool, net)) {
                        wanted.insert(net, route);
                    }
                }
            }
            Source::Peer(net) => {
                wanted.extend(self.gateways.get(net).map(|gateway| (*net, Route::Via(*gateway))));
            }
            Source::Block(_) | Source::Workload(_) => {}
        }
        wanted
    }

    fn programs(&self, encapsulation: Encapsulation) -> bool {
        match encapsulation {
            Encapsulation::None => self.policy.no_encap,
            Encapsulation::Ipip(_) => self.policy.ipip,
            Encapsulation::Vxlan(_) => true,
        }
    }

    /// The route to a node for an address of this pool, where packets need no wrapping.
    fn towards(&self, node: &str, pool: &Pool, destination: IpNet) -> Option<Route> {
        let gateway = self.nodes.get(node)?.of_family(destination)?;
        let plain = match pool.encapsulation {
            Encapsulation::None => true,
            Encapsulation::Ipip(Reach::Always) | Encapsulation::Vxlan(Reach::Always) => false,
            Encapsulation::Ipip(Reach::CrossSubnet) | Encapsulation::Vxlan(Reach::CrossSubnet) => {
                let own = self.nodes.get(&self.host).and_then(|own| own.of_family(destination));
                own.is_some_and(|own| own.trunc().contains(&gateway.addr()))
            }
        };
        plain.then(|| Route::Via(gateway.addr()))
    }

    fn pool_of(&self, net: IpNet) -> Option<&Pool> {
        self.pools.values().filter(|pool| pool.cidr.contains(&net)).max_by_key(|pool| pool.cidr.prefix_len())
    }

    fn unlink(&mut self, node: &str, source: &Source) {
        if let Some(sources) = self.of_node.get_mut(node) {
            sources.remove(source);
            if sources.is_empty() {
                self.of_node.remove(node);
            }
        }
    }

    fn node_changed(&mut self, node: &str) {
        if node == self.host {
            // Which nodes are in our subnet depends on our own address.
            self.all_changed();
        } else {
            self.changed.extend(self.of_node.get(node).into_iter().flatten().cloned());
        }
    }

    fn inside_changed(&mut self, cidr: IpNet) {
        self.changed
            .extend(self.blocks.keys().filter(|block| cidr.contains(*block)).copied().map(Source::Block));
        if self.policy.by_workload {
            self.changed.extend(self.remote.keys().cloned().map(Source::Workload));
        }
    }

    fn all_changed(&mut self) {
        self.changed.extend(self.blocks.keys().copied().map(Source::Block));
        self.changed.extend(self.remote.keys().cloned().map(Source::Workload));
    }
}

impl Addresses {
    fn of_family(&self, net: IpNet) -> Option<IpNet> {
        match net {
            IpNet::V4(_) => self.v4,
            IpNet::V6(_) => self.v6,
        }
    }
}

/// The address routing uses, else an internal one, else an external one.
fn addresses_of(node: &Node) -> Addresses {
    let bgp = node.spec.bgp.as_ref();
    let routing = [bgp.map(|bgp| bgp.ipv4_address.as_str()), bgp.map(|bgp| bgp.ipv6_address.as_str())];
    let listed = |kind: NodeAddressType| {
        node.spec.addresses.iter().filter(move |a| a.type_ == kind).map(|a| a.address.as_str())
    };
    let candidates = routing
        .into_iter()
        .flatten()
        .chain(listed(NodeAddressType::CalicoNodeIP))
        .chain(listed(NodeAddressType::InternalIP))
        .chain(listed(NodeAddressType::ExternalIP));
    let mut found = Addresses::default();
    for text in candidates {
        let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().map(IpNet::from).ok());
        match net {
            Some(net @ IpNet::V4(_)) => found.v4 = found.v4.or(Some(net)),
            Some(net @ IpNet::V6(_)) => found.v6 = found.v6.or(Some(net)),
            None => {}
        }
    }
    found
}

/// The address of a node in each family, as a net of its own.
pub(crate) fn host_addresses(node: &Node) -> Vec<IpNet> {
    let Addresses { v4, v6 } = addresses_of(node);
    [v4, v6].into_iter().flatten().map(|net| IpNet::from(net.addr())).collect()
}

fn read_block(block: &Block) -> BlockUse {
    let owner = match block.owner() {
        Some((AffinityType::Host, host)) => Some(host.to_owned()),
        Some((AffinityType::Virtual, _)) | None => None,
    };
    let mut borrowed = Vec::new();
    for allocation in allocations(block).filter(|allocation| !allocation.is_cooling_down()) {
        if let Some(node) = allocation.attribute(attribute::NODE)
            && Some(node) != owner.as_deref()
        {
            borrowed.push((allocation.address, node.to_owned()));
        }
    }
    BlockUse { owner, borrowed }
}
