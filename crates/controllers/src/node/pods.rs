//! Pods and the addresses that they hold.

use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_ipam::block::AddressAllocation;
use tortie_ipam::owner::attribute;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_store::orchestrator::PodAddressUse;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

/// All pods with their own network namespace.
#[derive(Debug, Default)]
pub struct PodIndex(BTreeMap<PodName, PodAddressUse>);

impl PodName {
    /// Returns the pod that an address was assigned to, if it was a pod.
    pub fn from_allocation(allocation: &AddressAllocation<'_>) -> Option<PodName> {
        let [namespace, name] = [attribute::NAMESPACE_ATTRIBUTE, attribute::POD_ATTRIBUTE]
            .map(|name| allocation.attribute(name).filter(|text| !text.is_empty()).map(str::to_owned));
        Some(PodName { namespace: namespace?, name: name? })
    }

    pub fn from_endpoint(endpoint: &WorkloadEndpoint) -> PodName {
        PodName { namespace: endpoint.metadata.namespace.clone(), name: endpoint.spec.pod.clone() }
    }
}

impl PodIndex {
    pub fn get(&self, name: &PodName) -> Option<&PodAddressUse> {
        self.0.get(name)
    }

    /// Stores the pod of an endpoint. A finished pod has no addresses, and neither has a pod that is being started.
    pub fn put(&mut self, endpoint: &WorkloadEndpoint) {
        let addresses =
            endpoint.spec.ip_networks.iter().filter_map(|text| text.split('/').next()?.parse().ok());
        let address_use = PodAddressUse {
            node: endpoint.spec.node.clone(),
            addresses: addresses.collect(),
            evicted: false,
        };
        self.0.insert(PodName::from_endpoint(endpoint), address_use);
    }

    /// Removes a pod from a node. A pod of the same name on another node is kept.
    pub fn remove(&mut self, name: &PodName, node: &str) {
        if self.0.get(name).is_some_and(|pod| pod.node == node) {
            self.0.remove(name);
        }
    }
}

/// Returns whether a pod holds an address that was assigned to it on a node. A pod without addresses counts as holding
/// it, because it may be about to report it.
pub fn holds(pod: Option<&PodAddressUse>, node: Option<&str>, address: IpAddr) -> bool {
    pod.is_some_and(|pod| {
        let here = node.is_none_or(|node| pod.node == node);
        here && !pod.evicted && (pod.addresses.is_empty() || pod.addresses.contains(&address))
    })
}

/// Returns whether a pod, as read from kube-apiserver, may hold an address that was assigned to it on a node. A pod
/// holds its own addresses on any node. A pod without addresses may be about to report this one, but only on that
/// node: pods do not move between nodes, so a pod on another node or without a node is a later pod of the same name.
pub fn may_hold(pod: Option<&PodAddressUse>, node: Option<&str>, address: IpAddr) -> bool {
    pod.is_some_and(|pod| {
        let is_pending = pod.addresses.is_empty() && !pod.node.is_empty();
        let is_here = node.is_none_or(|node| pod.node == node);
        !pod.evicted && (pod.addresses.contains(&address) || is_pending && is_here)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_pods_of_the_same_name_hold_nothing() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let hold = |node: &str, addresses: &[IpAddr]| PodAddressUse {
            node: node.to_owned(),
            addresses: addresses.to_vec(),
            evicted: false,
        };
        let held = |pod: PodAddressUse| may_hold(Some(&pod), Some("n1"), address);
        assert!(held(hold("n1", &[address])) && held(hold("n2", &[address])));
        assert!(held(hold("n1", &[])), "the pod may be about to report its address");
        assert!(!held(hold("n2", &[])) && !held(hold("", &[])));
        assert!(!held(hold("n1", &["10.0.0.2".parse().unwrap()])));
        assert!(!held(PodAddressUse { evicted: true, ..hold("n1", &[address]) }));
        assert!(!may_hold(None, Some("n1"), address));
    }
}
