//! Addresses that this node answers for where somebody on its own link asks who has them: those of its workloads, and its
//! share of those of services, as far as they are of a pool without encapsulation. A pool with encapsulation is a network of
//! its own, which no link knows.

mod balancers;

use crate::nodes::NodeFacts;
use balancers::Balancers;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::kinds::{EncapMode, IPPool};
use tortie_model::kubernetes::Service;
use tortie_plan::{Route, RouteKey, RouteTarget, Update};

#[derive(Debug)]
pub(crate) struct Proxied {
    enabled: bool,
    /// The pools whose addresses count.
    pools: BTreeMap<String, IpNet>,
    balancers: Balancers,
    stale: bool,
    in_plan: Answered,
}

/// What a node answers for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answered {
    addresses: BTreeSet<IpAddr>,
    /// Those of them that are of services.
    services: BTreeSet<IpAddr>,
    /// The address that the host itself sends from to services.
    source: Option<IpAddr>,
}

impl Proxied {
    pub fn new(host: &str) -> Proxied {
        Proxied {
            enabled: false,
            pools: BTreeMap::new(),
            balancers: Balancers::new(host),
            stale: false,
            in_plan: Answered::default(),
        }
    }

    pub fn configure(&mut self, enabled: bool) {
        self.stale |= self.enabled != enabled;
        self.enabled = enabled;
    }

    pub fn put_pool(&mut self, pool: &IPPool) {
        let name = &pool.metadata.name;
        let wraps = |mode: &EncapMode| matches!(mode, EncapMode::Always | EncapMode::CrossSubnet);
        let wrapped = wraps(&pool.spec.vxlan_mode) || wraps(&pool.spec.ipip_mode);
        let cidr = pool.spec.cidr.parse::<IpNet>().ok().filter(|_| !wrapped);
        let before = match cidr {
            Some(cidr) => self.pools.insert(name.clone(), cidr),
            None => self.pools.remove(name),
        };
        self.stale |= before != cidr;
    }

    pub fn remove_pool(&mut self, name: &str) {
        self.stale |= self.pools.remove(name).is_some();
    }

    pub fn put_node(&mut self, name: &str, facts: NodeFacts) {
        self.stale |= self.balancers.put_node(name, facts);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.stale |= self.balancers.remove_node(name);
    }

    pub fn put_service(&mut self, namespace: &str, name: &str, service: &Service) {
        self.stale |= self.balancers.put_service(namespace, name, service);
    }

    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        self.stale |= self.balancers.remove_service(namespace, name);
    }

    /// What changed since the last time. `changed`: the workloads have other addresses than then.
    pub fn flush(&mut self, changed: bool, workloads: impl Iterator<Item = IpAddr>) -> Vec<Update> {
        if !(std::mem::take(&mut self.stale) || changed && self.enabled) {
            return Vec::new();
        }
        let wanted = self.wanted(workloads);
        let before = std::mem::replace(&mut self.in_plan, wanted);
        let mut updates = Vec::new();
        if before.addresses != self.in_plan.addresses {
            updates.push(Update::Proxied(self.in_plan.addresses.clone()));
        }
        let gone = before.services.difference(&self.in_plan.services);
        updates.extend(routed(gone).map(|key| Update::Route(key, None)));
        let moved = before.source != self.in_plan.source;
        let new = self.in_plan.services.iter().filter(|address| moved || !before.services.contains(*address));
        let route = Route { source: self.in_plan.source, ..Route::to(RouteTarget::Host) };
        updates.extend(routed(new).map(|key| Update::Route(key, Some(route))));
        updates
    }

    /// The addresses of services that this node answers for.
    pub fn services(&self) -> &BTreeSet<IpAddr> {
        &self.in_plan.services
    }

    fn wanted(&self, workloads: impl Iterator<Item = IpAddr>) -> Answered {
        if !self.enabled {
            return Answered::default();
        }
        let eligible = |address: &IpAddr| self.pools.values().any(|cidr| cidr.contains(address));
        let mut addresses: BTreeSet<IpAddr> = workloads.filter(eligible).collect();
        let services: BTreeSet<IpAddr> = self.balancers.own().filter(eligible).collect();
        let services = &services - &addresses;
        addresses.extend(&services);
        Answered { addresses, services, source: self.balancers.host_address() }
    }
}

/// The kernel answers ARP for no address that its routes lead back to the link on which it was asked for. NDP is not as
/// strict.
fn routed<'a>(addresses: impl Iterator<Item = &'a IpAddr>) -> impl Iterator<Item = RouteKey> {
    addresses.filter(|address| address.is_ipv4()).map(|address| IpNet::from(*address).into())
}
