//! The plan, findable by what the kernel speaks of: interface names, addresses, next hops.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{Encapsulation, Learnt, Plan, Route, Update, Workload, WorkloadId};

#[derive(Debug, Default)]
pub(crate) struct PlanIndex {
    plan: Plan,
    by_interface: BTreeMap<String, BTreeSet<WorkloadId>>,
    by_address: BTreeMap<IpAddr, BTreeSet<WorkloadId>>,
    by_node: BTreeMap<IpAddr, BTreeSet<IpNet>>,
}

impl PlanIndex {
    pub fn new(plan: Plan) -> PlanIndex {
        let mut index = PlanIndex::default();
        for (id, workload) in plan.workloads {
            index.apply(Update::Workload(id, Some(workload)));
        }
        for (net, route) in plan.routes {
            index.apply(Update::Route(net, Some(route)));
        }
        for (net, route) in plan.learnt {
            index.apply(Update::Learnt(net, Some(route)));
        }
        index.plan.learnt_complete = plan.learnt_complete;
        index.plan.encapsulations = plan.encapsulations;
        index
    }

    /// Takes a change in; returns the destinations it may concern.
    pub fn apply(&mut self, update: Update) -> BTreeSet<IpNet> {
        let mut touched = BTreeSet::new();
        match &update {
            Update::Workload(id, new) => {
                if let Some(old) = self.plan.workloads.get(id) {
                    // Whoever was second for the name or the address comes first now.
                    touched.extend(self.rivals(old));
                    remove(&mut self.by_interface, &old.interface, id);
                    old.addresses.iter().for_each(|address| remove(&mut self.by_address, address, id));
                }
                if let Some(new) = new {
                    self.by_interface.entry(new.interface.clone()).or_default().insert(id.clone());
                    for address in &new.addresses {
                        self.by_address.entry(*address).or_default().insert(id.clone());
                    }
                    touched.extend(self.rivals(new));
                    touched.extend(new.addresses.iter().map(|address| IpNet::from(*address)));
                }
            }
            Update::Route(net, new) => {
                if let Some(Route::Via(node)) = self.plan.routes.get(net) {
                    remove(&mut self.by_node, node, net);
                }
                let learnt = self.plan.learnt.get(net).into_iter().flat_map(|learnt| &learnt.next_hops);
                let via = new.iter().filter_map(|route| match route {
                    Route::Via(node) => Some(node),
                    Route::Blackhole => None,
                });
                for node in via.chain(learnt) {
                    self.by_node.entry(*node).or_default().insert(*net);
                }
                touched.insert(*net);
            }
            Update::Learnt(net, new) => {
                if let Some(old) = self.plan.learnt.get(net) {
                    old.next_hops.iter().for_each(|hop| remove(&mut self.by_node, hop, net));
                }
                for hop in new.iter().flat_map(|new| &new.next_hops) {
                    self.by_node.entry(*hop).or_default().insert(*net);
                }
                // One of our own to the same place goes through the same next hops.
                if let Some(Route::Via(node)) = self.plan.routes.get(net) {
                    self.by_node.entry(*node).or_default().insert(*net);
                }
                touched.insert(*net);
            }
            Update::LearntComplete => {}
            Update::Encapsulations(_) => {}
            // Policy has no destinations, and BGP is not the kernel's.
            Update::Set(..)
            | Update::Members { .. }
            | Update::Policy(..)
            | Update::Profile(..)
            | Update::WorkloadPolicy(..)
            | Update::HostEndpoint(..)
            | Update::ServiceRanges(_)
            | Update::Bgp(_) => return touched,
        }
        self.plan.apply(update);
        touched
    }

    /// The addresses of everyone who shares this workload's interface, itself included.
    fn rivals(&self, workload: &Workload) -> Vec<IpNet> {
        let sharing = self.by_interface.get(&workload.interface).into_iter().flatten();
        let workloads = sharing.filter_map(|id| self.plan.workloads.get(id)).chain([workload]);
        workloads.flat_map(|workload| &workload.addresses).map(|address| IpNet::from(*address)).collect()
    }

    /// Every destination that the plan says something about.
    pub fn destinations(&self) -> impl Iterator<Item = IpNet> {
        let addresses = self.by_address.keys().map(|address| IpNet::from(*address));
        addresses.chain(self.plan.routes.keys().copied()).chain(self.plan.learnt.keys().copied())
    }

    pub fn workloads(&self) -> &BTreeMap<WorkloadId, Workload> {
        &self.plan.workloads
    }

    /// The workload that an interface leads to: of several with one name, the one with the smallest id.
    pub fn active(&self, interface: &str) -> Option<(&WorkloadId, &Workload)> {
        let id = self.by_interface.get(interface)?.first()?;
        self.plan.workloads.get_key_value(id)
    }

    /// The active workloads behind an address.
    pub fn at_address(&self, address: IpAddr) -> impl Iterator<Item = &Workload> {
        self.by_address.get(&address).into_iter().flatten().filter_map(|id| {
            let workload = self.plan.workloads.get(id)?;
            let (active, _) = self.active(&workload.interface)?;
            (active == id).then_some(workload)
        })
    }

    /// Every workload that claims the address that a destination is.
    pub fn claimants(&self, destination: &IpNet) -> impl Iterator<Item = &WorkloadId> {
        let single = destination.prefix_len() == destination.max_prefix_len();
        let ids = if single { self.by_address.get(&destination.addr()) } else { None };
        ids.into_iter().flatten()
    }

    /// Every workload that claims an interface.
    pub fn at_interface(&self, interface: &str) -> impl Iterator<Item = &WorkloadId> {
        self.by_interface.get(interface).into_iter().flatten()
    }

    pub fn route(&self, destination: &IpNet) -> Option<Route> {
        self.plan.routes.get(destination).copied()
    }

    pub fn learnt(&self, destination: &IpNet) -> Option<&Learnt> {
        self.plan.learnt.get(destination)
    }

    /// Whether every route that BGP has to tell is in the plan.
    pub fn is_learnt_complete(&self) -> bool {
        self.plan.learnt_complete
    }

    /// How packets between nodes are wrapped.
    pub fn encapsulations(&self) -> &BTreeSet<Encapsulation> {
        &self.plan.encapsulations
    }

    /// The nodes that routes lead to.
    pub fn nodes(&self) -> impl Iterator<Item = IpAddr> {
        self.by_node.keys().copied()
    }

    pub fn destinations_by(&self, node: IpAddr) -> impl Iterator<Item = IpNet> {
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

    fn workload(interface: &str, address: &str) -> Workload {
        let addresses = vec![address.parse().unwrap()];
        Workload { interface: interface.into(), mac: None, addresses, may_spoof: false }
    }

    #[test]
    fn of_two_workloads_with_one_interface_the_smaller_id_is_active_and_the_other_takes_over() {
        let mut index = PlanIndex::default();
        index.apply(Update::Workload(id("b"), Some(workload("cali1", "10.0.0.2"))));
        index.apply(Update::Workload(id("a"), Some(workload("cali1", "10.0.0.1"))));
        assert_eq!(index.active("cali1").unwrap().0, &id("a"));
        assert_eq!(index.at_address("10.0.0.2".parse().unwrap()).count(), 0);
        let touched = index.apply(Update::Workload(id("a"), None));
        assert!(touched.contains(&"10.0.0.2/32".parse().unwrap()), "the shadow has to be routed now");
        assert_eq!(index.active("cali1").unwrap().0, &id("b"));
    }

    #[test]
    fn nothing_is_left_of_what_was_taken_away() {
        let mut index = PlanIndex::default();
        let net: IpNet = "10.0.0.0/26".parse().unwrap();
        index.apply(Update::Workload(id("a"), Some(workload("cali1", "10.0.0.1"))));
        index.apply(Update::Route(net, Some(Route::Via("192.168.0.2".parse().unwrap()))));
        index.apply(Update::Workload(id("a"), None));
        index.apply(Update::Route(net, None));
        assert_eq!(index.destinations().count(), 0);
        assert_eq!(index.nodes().count(), 0);
        assert!(index.active("cali1").is_none());
    }
}
