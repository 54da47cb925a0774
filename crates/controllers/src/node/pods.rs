//! Pods, and which addresses they hold.

use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_ipam::block::Allocation;
use tortie_ipam::owner::attribute;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_store::orchestrator::PodHold;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

/// What is known of all pods that have a network of their own.
#[derive(Debug, Default)]
pub struct Pods(BTreeMap<PodName, PodHold>);

impl PodName {
    /// The pod that an address was handed to, if it was a pod.
    pub fn of(allocation: &Allocation<'_>) -> Option<PodName> {
        let text = |name: &str| allocation.attribute(name).filter(|text| !text.is_empty()).map(str::to_owned);
        Some(PodName { namespace: text(attribute::NAMESPACE)?, name: text(attribute::POD)? })
    }

    pub fn of_endpoint(endpoint: &WorkloadEndpoint) -> PodName {
        PodName { namespace: endpoint.metadata.namespace.clone(), name: endpoint.spec.pod.clone() }
    }
}

impl Pods {
    pub fn get(&self, name: &PodName) -> Option<&PodHold> {
        self.0.get(name)
    }

    /// A pod as its endpoint tells of it. A finished one has no addresses, which is like having none yet.
    pub fn put(&mut self, endpoint: &WorkloadEndpoint) {
        let addresses =
            endpoint.spec.ip_networks.iter().filter_map(|text| text.split('/').next()?.parse().ok());
        let hold =
            PodHold { node: endpoint.spec.node.clone(), addresses: addresses.collect(), evicted: false };
        self.0.insert(PodName::of_endpoint(endpoint), hold);
    }

    /// The pod of this name is gone from a node; one that is on another node by now stays.
    pub fn remove(&mut self, name: &PodName, node: &str) {
        if self.0.get(name).is_some_and(|pod| pod.node == node) {
            self.0.remove(name);
        }
    }
}

/// Whether a pod holds an address that was handed to it on a node. One that has no address yet may be about to get it.
pub fn holds(pod: Option<&PodHold>, node: Option<&str>, address: IpAddr) -> bool {
    pod.is_some_and(|pod| {
        let here = node.is_none_or(|node| pod.node == node);
        here && !pod.evicted && (pod.addresses.is_empty() || pod.addresses.contains(&address))
    })
}
