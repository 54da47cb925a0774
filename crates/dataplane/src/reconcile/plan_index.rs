//! The plan with indexes by interface name, address and next hop.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{
    LearntRouteEntry, NodePlan, PlanUpdate, PlannedWorkload, Route, RouteKey, RouteTarget, RoutingRule,
    RoutingTable, TunnelDevice, TunnelKind, Vtep, VtepId, WireguardPeer, WireguardPeerId, WorkloadId,
};

#[derive(Debug, Default)]
pub struct PlanIndex {
    plan: NodePlan,
    by_interface: BTreeMap<String, BTreeSet<WorkloadId>>,
    by_address: BTreeMap<IpAddr, BTreeSet<WorkloadId>>,
    by_node: BTreeMap<IpAddr, BTreeSet<RouteKey>>,
    by_tunnel: BTreeMap<TunnelKind, BTreeSet<RouteKey>>,
}

impl PlanIndex {
    pub fn new(plan: NodePlan) -> PlanIndex {
        let mut index = PlanIndex::default();
        for (id, workload) in plan.workloads {
            index.apply(PlanUpdate::Workload(id, Some(workload)));
        }
        for (kind, device) in plan.tunnels {
            index.apply(PlanUpdate::Tunnel(kind, Some(device)));
        }
        for (id, vtep) in plan.vteps {
            index.apply(PlanUpdate::Vtep(id, Some(vtep)));
        }
        for (key, route) in plan.routes {
            index.apply(PlanUpdate::Route(key, Some(route)));
        }
        for (net, route) in plan.learnt {
            index.apply(PlanUpdate::Learnt(net, Some(route)));
        }
        index.plan.wireguard_peers = plan.wireguard_peers;
        index.plan.routing_rules = plan.routing_rules;
        index.plan.learnt_complete = plan.learnt_complete;
        index.plan.proxied = plan.proxied;
        index.plan.bgp = plan.bgp;
        index
    }

    /// Applies a change, and returns the destinations that it may affect.
    pub fn apply(&mut self, update: PlanUpdate) -> BTreeSet<RouteKey> {
        let mut touched = BTreeSet::new();
        match &update {
            PlanUpdate::Workload(id, new) => {
                if let Some(old) = self.plan.workloads.get(id) {
                    // Another workload with the same interface or address may become active.
                    touched.extend(self.rivals(old));
                    remove(&mut self.by_interface, &old.interface, id);
                    old.routed().for_each(|address| remove(&mut self.by_address, &address, id));
                }
                if let Some(new) = new {
                    self.by_interface.entry(new.interface.clone()).or_default().insert(id.clone());
                    for address in new.routed() {
                        self.by_address.entry(address).or_default().insert(id.clone());
                    }
                    touched.extend(self.rivals(new));
                    touched.extend(new.routed().map(|address| RouteKey::from(IpNet::from(address))));
                }
            }
            PlanUpdate::Route(key, new) => {
                self.unlink_route(key);
                // Restore the index entries for the next hops of a BGP route to the same destination.
                self.link_route(key, *new);
                self.link_learnt(key);
                touched.insert(*key);
            }
            PlanUpdate::Learnt(net, new) => {
                let key = RouteKey::from(*net);
                if let Some(old) = self.plan.learnt.get(net) {
                    for hop in &old.next_hops {
                        remove(&mut self.by_node, &hop.address, &key);
                        hop.tunnel.iter().for_each(|tunnel| remove(&mut self.by_tunnel, tunnel, &key));
                    }
                }
                self.link_hops(key, new.as_ref());
                // Restore the index entries for the next hops of our own route to the same destination.
                self.link_route(&key, self.plan.routes.get(&key).copied());
                touched.insert(key);
            }
            PlanUpdate::Tunnel(kind, _) => touched.extend(self.destinations_through(*kind)),
            PlanUpdate::Vtep(..)
            | PlanUpdate::WireguardPeer(..)
            | PlanUpdate::RoutingRules(_)
            | PlanUpdate::Proxied(_) => {}
            PlanUpdate::LearntComplete
            | PlanUpdate::Bgp(_)
            | PlanUpdate::Namespace(..)
            | PlanUpdate::ServiceAccount(..) => {}
            // Policy has no destinations.
            PlanUpdate::Set(..)
            | PlanUpdate::Members { .. }
            | PlanUpdate::Policy(..)
            | PlanUpdate::Profile(..)
            | PlanUpdate::WorkloadPolicy(..)
            | PlanUpdate::HostEndpoint(..)
            | PlanUpdate::ServiceRanges(_) => return touched,
        }
        self.plan.apply(update);
        touched
    }

    fn link_route(&mut self, key: &RouteKey, route: Option<Route>) {
        match route.map(|route| route.target) {
            Some(RouteTarget::Via(node)) => {
                self.by_node.entry(node).or_default().insert(*key);
            }
            Some(RouteTarget::Tunnel { tunnel, .. }) => {
                self.by_tunnel.entry(tunnel).or_default().insert(*key);
            }
            Some(RouteTarget::Blackhole | RouteTarget::Throw | RouteTarget::Host) | None => {}
        }
    }

    fn unlink_route(&mut self, key: &RouteKey) {
        match self.plan.routes.get(key).map(|route| route.target) {
            Some(RouteTarget::Via(node)) => remove(&mut self.by_node, &node, key),
            Some(RouteTarget::Tunnel { tunnel, .. }) => remove(&mut self.by_tunnel, &tunnel, key),
            Some(RouteTarget::Blackhole | RouteTarget::Throw | RouteTarget::Host) | None => {}
        }
    }

    fn link_learnt(&mut self, key: &RouteKey) {
        let learnt =
            self.plan.learnt.get(&key.destination).filter(|_| key.table == RoutingTable::MAIN).cloned();
        self.link_hops(*key, learnt.as_ref());
    }

    fn link_hops(&mut self, key: RouteKey, learnt: Option<&LearntRouteEntry>) {
        for hop in learnt.into_iter().flat_map(|learnt| &learnt.next_hops) {
            match hop.tunnel {
                Some(tunnel) => self.by_tunnel.entry(tunnel).or_default().insert(key),
                None => self.by_node.entry(hop.address).or_default().insert(key),
            };
        }
    }

    /// Returns the addresses of all workloads that share this workload's interface, including its own.
    fn rivals(&self, workload: &PlannedWorkload) -> Vec<RouteKey> {
        let sharing = self.by_interface.get(&workload.interface).into_iter().flatten();
        let workloads = sharing.filter_map(|id| self.plan.workloads.get(id)).chain([workload]);
        let addresses = workloads.flat_map(PlannedWorkload::routed);
        addresses.map(|address| RouteKey::from(IpNet::from(address))).collect()
    }

    /// Returns every destination in the plan.
    pub fn destinations(&self) -> impl Iterator<Item = RouteKey> {
        let addresses = self.by_address.keys().map(|address| IpNet::from(*address));
        let main = addresses.chain(self.plan.learnt.keys().copied()).map(RouteKey::from);
        main.chain(self.plan.routes.keys().copied())
    }

    /// Returns whether an address belongs to a workload or is in a block of the cluster.
    pub fn covers(&self, address: IpAddr) -> bool {
        let routes = self.plan.routes.keys().map(|key| &key.destination);
        let workloads = self.by_address.contains_key(&address);
        workloads || routes.chain(self.plan.learnt.keys()).any(|net| net.contains(&address))
    }

    pub fn tunnel(&self, kind: TunnelKind) -> Option<&TunnelDevice> {
        self.plan.tunnels.get(&kind)
    }

    /// Returns the VTEPs of a tunnel, ordered by node name.
    pub fn vteps(&self, kind: TunnelKind) -> impl Iterator<Item = &Vtep> {
        let first = VtepId { tunnel: kind, node: String::new() };
        self.plan.vteps.range(first..).take_while(move |(id, _)| id.tunnel == kind).map(|(_, vtep)| vtep)
    }

    /// Returns the peers of a WireGuard tunnel, ordered by node name.
    pub fn wireguard_peers(&self, kind: TunnelKind) -> impl Iterator<Item = &WireguardPeer> {
        let first = WireguardPeerId { tunnel: kind, node: String::new() };
        let peers = self.plan.wireguard_peers.range(first..);
        peers.take_while(move |(id, _)| id.tunnel == kind).map(|(_, peer)| peer)
    }

    pub fn routing_rules(&self) -> &BTreeSet<RoutingRule> {
        &self.plan.routing_rules
    }

    /// Returns the addresses for which the host answers ARP or ND requests.
    pub fn proxied(&self) -> &BTreeSet<IpAddr> {
        &self.plan.proxied
    }

    /// Returns the destinations that are routed through a tunnel.
    pub fn destinations_through(&self, kind: TunnelKind) -> impl Iterator<Item = RouteKey> {
        self.by_tunnel.get(&kind).into_iter().flatten().copied()
    }

    pub fn workloads(&self) -> &BTreeMap<WorkloadId, PlannedWorkload> {
        &self.plan.workloads
    }

    /// Returns the active workload of an interface: the one with the smallest id if several name it.
    pub fn active(&self, interface: &str) -> Option<(&WorkloadId, &PlannedWorkload)> {
        let id = self.by_interface.get(interface)?.first()?;
        self.plan.workloads.get_key_value(id)
    }

    /// Returns the active workloads with an address.
    pub fn at_address(&self, address: IpAddr) -> impl Iterator<Item = &PlannedWorkload> {
        self.by_address.get(&address).into_iter().flatten().filter_map(|id| {
            let workload = self.plan.workloads.get(id)?;
            let (active, _) = self.active(&workload.interface)?;
            (active == id).then_some(workload)
        })
    }

    /// Returns every workload that claims the single address of a destination.
    pub fn claimants(&self, key: &RouteKey) -> impl Iterator<Item = &WorkloadId> {
        let RouteKey { table, destination } = key;
        let single = destination.prefix_len() == destination.max_prefix_len() && *table == RoutingTable::MAIN;
        let ids = if single { self.by_address.get(&destination.addr()) } else { None };
        ids.into_iter().flatten()
    }

    /// Returns every workload that claims an interface.
    pub fn at_interface(&self, interface: &str) -> impl Iterator<Item = &WorkloadId> {
        self.by_interface.get(interface).into_iter().flatten()
    }

    pub fn route(&self, key: &RouteKey) -> Option<Route> {
        self.plan.routes.get(key).copied()
    }

    pub fn learnt(&self, destination: &IpNet) -> Option<&LearntRouteEntry> {
        self.plan.learnt.get(destination)
    }

    /// Returns whether the node has BGP, either its own speaker or a BIRD beside it.
    pub fn speaks_bgp(&self) -> bool {
        self.plan.bgp.is_some()
    }

    /// Returns whether the plan contains all routes that BGP has learned.
    pub fn is_learnt_complete(&self) -> bool {
        self.plan.learnt_complete
    }

    pub fn tunnels(&self) -> &BTreeMap<TunnelKind, TunnelDevice> {
        &self.plan.tunnels
    }

    /// Returns the nodes that are next hops of routes.
    pub fn nodes(&self) -> impl Iterator<Item = IpAddr> {
        self.by_node.keys().copied()
    }

    pub fn destinations_by(&self, node: IpAddr) -> impl Iterator<Item = RouteKey> {
        self.by_node.get(&node).into_iter().flatten().copied()
    }
}

fn remove<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(workload: &str) -> WorkloadId {
        WorkloadId { orchestrator: "k8s".into(), workload: workload.into(), endpoint: "eth0".into() }
    }

    fn workload(interface: &str, address: &str) -> PlannedWorkload {
        let addresses = vec![address.parse().unwrap()];
        PlannedWorkload { interface: interface.into(), addresses, ..PlannedWorkload::default() }
    }

    #[test]
    fn the_smaller_id_is_active_on_an_interface() {
        let mut index = PlanIndex::default();
        index.apply(PlanUpdate::Workload(id("b"), Some(workload("cali1", "10.0.0.2"))));
        index.apply(PlanUpdate::Workload(id("a"), Some(workload("cali1", "10.0.0.1"))));
        assert_eq!(index.active("cali1").unwrap().0, &id("a"));
        assert_eq!(index.at_address("10.0.0.2".parse().unwrap()).count(), 0);
        let touched = index.apply(PlanUpdate::Workload(id("a"), None));
        assert!(
            touched.contains(&"10.0.0.2/32".parse::<IpNet>().unwrap().into()),
            "the shadow has to be routed now"
        );
        assert_eq!(index.active("cali1").unwrap().0, &id("b"));
    }

    #[test]
    fn nothing_is_left_of_what_was_taken_away() {
        let mut index = PlanIndex::default();
        let net: IpNet = "10.0.0.0/26".parse().unwrap();
        index.apply(PlanUpdate::Workload(id("a"), Some(workload("cali1", "10.0.0.1"))));
        index.apply(PlanUpdate::Route(net.into(), Some(Route::via("192.168.0.2".parse().unwrap()))));
        let through = Route::through(TunnelKind::Ipip, Some("192.168.0.3".parse().unwrap()));
        index.apply(PlanUpdate::Route("10.0.1.0/26".parse::<IpNet>().unwrap().into(), Some(through)));
        assert_eq!(index.destinations_through(TunnelKind::Ipip).count(), 1);
        index.apply(PlanUpdate::Workload(id("a"), None));
        index.apply(PlanUpdate::Route(net.into(), None));
        index.apply(PlanUpdate::Route("10.0.1.0/26".parse::<IpNet>().unwrap().into(), None));
        assert_eq!(index.destinations_through(TunnelKind::Ipip).count(), 0);
        assert_eq!(index.destinations().count(), 0);
        assert_eq!(index.nodes().count(), 0);
        assert!(index.active("cali1").is_none());
    }
}
