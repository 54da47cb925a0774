//! Workloads of this node with BGP sessions: those that a BGPPeer selects by their labels.

use super::BgpResolver;
use super::peers::NodeScope;
use crate::nodes::NodeFacts;
use crate::workloads::{EndpointName, addresses};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_model::kinds::{BGPPeer, WorkloadEndpoint};
use tortie_model::selector::Selector;
use tortie_plan::WorkloadPeering;

/// Properties of a workload that BGP depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeeringWorkload {
    labels: BTreeMap<String, String>,
    profiles: Vec<String>,
    /// The first address of each family.
    addresses: Vec<IpAddr>,
}

impl PeeringWorkload {
    pub fn new(endpoint: &WorkloadEndpoint) -> PeeringWorkload {
        PeeringWorkload {
            labels: endpoint.metadata.labels.clone(),
            profiles: endpoint.spec.profiles.clone(),
            addresses: [true, false]
                .into_iter()
                .filter_map(|is_ipv4| addresses(endpoint).find(|address| address.is_ipv4() == is_ipv4))
                .collect(),
        }
    }
}

impl BgpResolver {
    /// Returns whether any BGPPeer selects workloads.
    pub(super) fn selects_workloads(&self) -> bool {
        self.peers.values().any(is_for_workloads)
    }

    /// Returns the workloads that a BGPPeer of this node selects, with its name; of several BGPPeers, the first by
    /// name.
    pub(super) fn selected_workloads(&self) -> BTreeMap<&EndpointName, &str> {
        let unknown = NodeFacts::default();
        let own = self.nodes.get(&self.host).map_or(&unknown, AsRef::as_ref);
        let mut selected = BTreeMap::new();
        let peers = self.peers.iter().filter(|(_, peer)| is_for_workloads(peer));
        for (name, peer) in peers.filter(|(_, peer)| NodeScope::new(&peer.spec).has(&self.host, own)) {
            let Ok(selector) = Selector::parse(&peer.spec.local_workload_selector) else { continue };
            for (workload, facts) in &self.workloads {
                if selector.matches(&self.labels(facts)) {
                    selected.entry(workload).or_insert(name.as_str());
                }
            }
        }
        selected
    }

    /// Returns the addresses of the selected workloads, by BGPPeer.
    pub(super) fn workload_ends(&self) -> BTreeMap<&str, Vec<IpAddr>> {
        let mut ends: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
        for (workload, peer) in self.selected_workloads() {
            let addresses = self.workloads.get(workload).into_iter().flat_map(|facts| &facts.addresses);
            ends.entry(peer).or_default().extend(addresses);
        }
        ends
    }

    /// Returns the selected workloads with their BGPPeer and the addresses at which they reach this node.
    pub(super) fn local_peers(&self) -> BTreeMap<EndpointName, WorkloadPeering> {
        let spec = self.configurations.get("default").map(|configuration| &configuration.spec);
        let texts = spec.map(|spec| [&spec.local_workload_peering_ip_v4, &spec.local_workload_peering_ip_v6]);
        let addresses: Vec<IpAddr> =
            texts.into_iter().flatten().filter_map(|text| text.parse().ok()).collect();
        let selected = self.selected_workloads().into_iter().map(|(workload, name)| {
            let peering = WorkloadPeering { name: name.to_owned(), addresses: addresses.clone() };
            (workload.clone(), peering)
        });
        selected.collect()
    }

    /// Returns the labels of a workload and those that it inherits from its profiles. Its own labels take precedence.
    fn labels(&self, facts: &PeeringWorkload) -> BTreeMap<String, String> {
        let inherited = facts.profiles.iter().rev().filter_map(|profile| self.profiles.get(profile));
        let mut labels: BTreeMap<String, String> =
            inherited.flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
        labels.extend(facts.labels.clone());
        labels
    }
}

/// Returns whether a BGPPeer selects workloads.
pub(super) fn is_for_workloads(peer: &BGPPeer) -> bool {
    !peer.spec.local_workload_selector.is_empty()
}
