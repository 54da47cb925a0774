//! Addresses for which this node answers ARP and ND requests on its links: those of its workloads, and its share of
//! those of services, if they are in a pool without encapsulation. A pool with encapsulation is a separate network,
//! which is unknown on the links.
//!
//! Every user who can create a service can request any address, so services get only addresses of pools for load
//! balancers, and none that a node or an endpoint has.

mod balancers;

use crate::nodes::NodeFacts;
use crate::pools::{PoolEncapsulation, PoolFacts};
use balancers::{BalancerServiceKey, LoadBalancerShares};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use thiserror::Error;
use tortie_model::kubernetes::KubernetesService;
use tortie_plan::{PlanUpdate, Route, RouteKey, RouteTarget};

#[derive(Debug)]
pub(crate) struct ProxiedAddresses {
    enabled: bool,
    /// The pools without encapsulation.
    pools: BTreeMap<String, ProxyPool>,
    balancers: LoadBalancerShares,
    stale: bool,
    /// This node's share of the service addresses that are in one of the pools.
    share: BTreeMap<IpAddr, BalancerServiceKey>,
    refusals: BTreeMap<IpAddr, ServiceRefusal>,
    in_plan: AnsweredAddresses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProxyPool {
    cidr: IpNet,
    balances: bool,
}

/// Reason why no node answers for an address of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum ServiceRefusal {
    #[error("its IPPool does not allow LoadBalancer")]
    Pool,
    #[error("it belongs to a node")]
    Node,
    #[error("it belongs to an endpoint")]
    Endpoint,
    #[error("it is in a block of IPAM that is not for services")]
    Block,
}

/// The addresses that a node answers for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AnsweredAddresses {
    addresses: BTreeSet<IpAddr>,
    /// Those of them that belong to services.
    services: BTreeSet<IpAddr>,
    /// Source address of packets that the host itself sends to services.
    source: Option<IpAddr>,
}

impl ProxiedAddresses {
    pub fn new(host: &str) -> ProxiedAddresses {
        ProxiedAddresses {
            enabled: false,
            pools: BTreeMap::new(),
            balancers: LoadBalancerShares::new(host),
            stale: false,
            share: BTreeMap::new(),
            refusals: BTreeMap::new(),
            in_plan: AnsweredAddresses::default(),
        }
    }

    pub fn configure(&mut self, enabled: bool) {
        self.stale |= self.enabled != enabled;
        self.enabled = enabled;
    }

    pub fn put_pool(&mut self, name: &str, pool: &PoolFacts) {
        if pool.encapsulation != PoolEncapsulation::None {
            return self.remove_pool(name);
        }
        let new = ProxyPool { cidr: pool.cidr, balances: pool.balances };
        self.stale |= self.pools.insert(name.to_owned(), new) != Some(new);
    }

    pub fn remove_pool(&mut self, name: &str) {
        self.stale |= self.pools.remove(name).is_some();
    }

    pub fn put_node(&mut self, name: &str, facts: Arc<NodeFacts>) {
        self.stale |= self.balancers.put_node(name, facts);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.stale |= self.balancers.remove_node(name);
    }

    pub fn put_service(&mut self, namespace: &str, name: &str, service: &KubernetesService) {
        self.stale |= self.balancers.put_service(namespace, name, service);
    }

    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        self.stale |= self.balancers.remove_service(namespace, name);
    }

    /// Returns the updates since the last flush. `changed` is true if the addresses of workloads changed;
    /// `find_owner` returns the other owner of an address.
    pub fn flush(
        &mut self,
        changed: bool,
        workloads: impl Iterator<Item = IpAddr>,
        find_owner: impl Fn(IpAddr) -> Option<ServiceRefusal>,
    ) -> Vec<PlanUpdate> {
        let stale = std::mem::take(&mut self.stale);
        if stale {
            self.share = self.select_share();
        }
        let mut refusals = BTreeMap::new();
        for address in self.share.keys() {
            let balances = self.pools_of(*address).any(|pool| pool.balances);
            let refusal = if balances { find_owner(*address) } else { Some(ServiceRefusal::Pool) };
            refusals.extend(refusal.map(|refusal| (*address, refusal)));
        }
        let refused = self.refusals != refusals;
        self.refusals = refusals;
        if !(stale || refused || changed && self.enabled) {
            return Vec::new();
        }
        let answered = self.select_answered(workloads);
        let before = std::mem::replace(&mut self.in_plan, answered);
        let mut updates = Vec::new();
        if before.addresses != self.in_plan.addresses {
            updates.push(PlanUpdate::Proxied(self.in_plan.addresses.clone()));
        }
        let gone = before.services.difference(&self.in_plan.services);
        updates.extend(route_keys(gone).map(|key| PlanUpdate::Route(key, None)));
        let moved = before.source != self.in_plan.source;
        let new = self.in_plan.services.iter().filter(|address| moved || !before.services.contains(*address));
        let route = Route { source: self.in_plan.source, ..Route::to(RouteTarget::Host) };
        updates.extend(route_keys(new).map(|key| PlanUpdate::Route(key, Some(route))));
        updates
    }

    /// Returns the addresses of services that this node answers for.
    pub fn services(&self) -> &BTreeSet<IpAddr> {
        &self.in_plan.services
    }

    /// Returns the services with addresses in a pool for which no node answers.
    pub fn refusals(&self) -> impl Iterator<Item = (&BalancerServiceKey, IpAddr, ServiceRefusal)> {
        self.refusals
            .iter()
            .filter_map(|(address, refusal)| Some((self.share.get(address)?, *address, *refusal)))
    }

    fn pools_of(&self, address: IpAddr) -> impl Iterator<Item = &ProxyPool> {
        self.pools.values().filter(move |pool| pool.cidr.contains(&address))
    }

    fn select_share(&self) -> BTreeMap<IpAddr, BalancerServiceKey> {
        if !self.enabled {
            return BTreeMap::new();
        }
        let own = self.balancers.own().filter(|(address, _)| self.pools_of(*address).next().is_some());
        own.map(|(address, name)| (address, name.clone())).collect()
    }

    fn select_answered(&self, workloads: impl Iterator<Item = IpAddr>) -> AnsweredAddresses {
        if !self.enabled {
            return AnsweredAddresses::default();
        }
        let granted = self.share.keys().filter(|address| !self.refusals.contains_key(*address));
        let services: BTreeSet<IpAddr> = granted.copied().collect();
        let mut addresses: BTreeSet<IpAddr> =
            workloads.filter(|address| self.pools_of(*address).next().is_some()).collect();
        addresses.extend(&services);
        AnsweredAddresses { addresses, services, source: self.balancers.host_address() }
    }
}

/// Returns the keys of the routes for service addresses. The kernel does not answer ARP for an address if its route
/// leads back to the link of the request; ND is not as strict.
fn route_keys<'a>(addresses: impl Iterator<Item = &'a IpAddr>) -> impl Iterator<Item = RouteKey> {
    addresses.filter(|address| address.is_ipv4()).map(|address| IpNet::from(*address).into())
}
