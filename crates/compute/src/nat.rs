//! Sets for outgoing NAT: the sources that are translated and the destinations that are excluded. Also the set of all
//! pools, which is needed to mark packets that leave them.

use crate::counted_nets::CountedNets;
use crate::pools::PoolFacts;
use ipnet::IpNet;
use std::collections::BTreeMap;
use tortie_plan::{ALL_POOLS_SET, NAT_EXCLUSIONS_SET, NAT_SOURCES_SET, PlanUpdate, SetId, SetKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NatPool {
    cidr: IpNet,
    nat_outgoing: bool,
}

/// Addresses that count as part of the cluster besides those of pools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NatPolicy {
    pub exclude_hosts: bool,
    /// Hosts that are not nodes of this cluster.
    pub external_nodes: Vec<IpNet>,
}

#[derive(Debug, Default)]
pub(crate) struct OutgoingNat {
    policy: NatPolicy,
    pools: BTreeMap<String, NatPool>,
    hosts: BTreeMap<String, Vec<IpNet>>,
    sources: NetSet,
    exclusions: NetSet,
    all_pools: NetSet,
    /// Whether an endpoint sets the DSCP of its packets.
    marking: bool,
}

/// A set of nets in the plan.
#[derive(Debug, Default)]
struct NetSet {
    nets: CountedNets,
    in_plan: bool,
}

impl OutgoingNat {
    pub fn set_policy(&mut self, policy: NatPolicy) {
        if self.policy == policy {
            return;
        }
        self.excluded_hosts().into_iter().for_each(|net| self.exclusions.nets.remove(net));
        self.policy = policy;
        self.excluded_hosts().into_iter().for_each(|net| self.exclusions.nets.add(net));
    }

    pub fn put_pool(&mut self, name: &str, pool: &PoolFacts) {
        self.remove_pool(name);
        if pool.only_balancers {
            return;
        }
        let pool = NatPool { cidr: pool.cidr.trunc(), nat_outgoing: pool.nat_outgoing };
        self.exclusions.nets.add(pool.cidr);
        self.all_pools.nets.add(pool.cidr);
        if pool.nat_outgoing {
            self.sources.nets.add(pool.cidr);
        }
        self.pools.insert(name.to_owned(), pool);
    }

    pub fn remove_pool(&mut self, name: &str) {
        let Some(pool) = self.pools.remove(name) else { return };
        self.exclusions.nets.remove(pool.cidr);
        self.all_pools.nets.remove(pool.cidr);
        if pool.nat_outgoing {
            self.sources.nets.remove(pool.cidr);
        }
    }

    pub fn put_host(&mut self, name: &str, addresses: Vec<IpNet>) {
        self.remove_host(name);
        if self.policy.exclude_hosts {
            addresses.iter().for_each(|net| self.exclusions.nets.add(*net));
        }
        self.hosts.insert(name.to_owned(), addresses);
    }

    pub fn remove_host(&mut self, name: &str) {
        let Some(addresses) = self.hosts.remove(name) else { return };
        if self.policy.exclude_hosts {
            addresses.iter().for_each(|net| self.exclusions.nets.remove(*net));
        }
    }

    fn excluded_hosts(&self) -> Vec<IpNet> {
        if !self.policy.exclude_hosts {
            return Vec::new();
        }
        self.hosts.values().flatten().chain(&self.policy.external_nodes).copied().collect()
    }

    pub fn set_marking(&mut self, marking: bool) {
        self.marking = marking;
    }

    /// Returns the updates since the last flush. The sets are in the plan only while packets are translated or
    /// marked.
    pub fn flush(&mut self) -> Vec<PlanUpdate> {
        let translating = !self.sources.nets.is_empty();
        let parts = [
            (NAT_SOURCES_SET, &mut self.sources, translating),
            (NAT_EXCLUSIONS_SET, &mut self.exclusions, translating),
            (ALL_POOLS_SET, &mut self.all_pools, self.marking),
        ];
        parts.into_iter().flat_map(|(name, set, wanted)| set.flush(name, wanted)).collect()
    }
}

impl NetSet {
    fn flush(&mut self, name: &str, wanted: bool) -> Vec<PlanUpdate> {
        let was = std::mem::replace(&mut self.in_plan, wanted);
        // The common case.
        if was == wanted && !self.nets.has_changes() {
            return Vec::new();
        }
        let set = SetId::new(name);
        let changes = self.nets.take_changes();
        let mut updates = Vec::new();
        let (added, removed) = match (was, wanted) {
            (_, false) => {
                updates.extend(was.then_some(PlanUpdate::Set(set, None)));
                return updates;
            }
            (false, true) => {
                updates.push(PlanUpdate::Set(set.clone(), Some(SetKind::Nets)));
                (self.nets.members(), Vec::new())
            }
            (true, true) => changes,
        };
        if !added.is_empty() || !removed.is_empty() {
            updates.push(PlanUpdate::Members { set, added, removed });
        }
        updates
    }
}
