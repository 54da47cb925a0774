//! Resolves a name or an address to an endpoint, a node or an external address.

use super::cluster::{PolicyCluster, node_addresses, parse_address};
use super::traffic::ExplainedTraffic;
use std::net::IpAddr;
use tortie_compute::{EndpointPermissions, local_workload};
use tortie_model::kinds::{HostEndpoint, Node, WorkloadEndpoint};
use tortie_plan::WorkloadId;

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("{name} is not enforced: {reason}")]
    NotEnforced { name: String, reason: String },
    #[error("{text:?} may be any of {}: say which", .candidates.join(", "))]
    Ambiguous { text: String, candidates: Vec<String> },
    #[error(
        "no {kinds} is called {name:?}{}{}",
        if .similar.is_empty() { "" } else { "; there is " },
        .similar.join(", ")
    )]
    Unknown { kinds: &'static str, name: String, similar: Vec<String> },
    #[error("neither {from} nor {to} belongs to this cluster")]
    BothOutside { from: String, to: String },
    #[error("{traffic} needs addresses of one family: {from}, {to}")]
    NoCommonFamily { traffic: ExplainedTraffic, from: String, to: String },
}

/// One end of the traffic to explain.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficParty {
    /// The name for display.
    pub name: String,
    pub place: PartyLocation,
    pub addresses: Vec<IpAddr>,
    /// The labels that selectors match, for display.
    pub labels: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PartyLocation {
    Workload {
        node: String,
        interface: String,
        id: WorkloadId,
    },
    Host {
        node: String,
        endpoint: Option<String>,
    },
    /// An external address, to which no policy applies.
    Outside,
}

impl TrafficParty {
    pub fn node(&self) -> Option<&str> {
        match &self.place {
            PartyLocation::Workload { node, .. } | PartyLocation::Host { node, .. } => Some(node),
            PartyLocation::Outside => None,
        }
    }

    /// Returns the namespace of a workload.
    pub fn namespace(&self) -> Option<&str> {
        match &self.place {
            PartyLocation::Workload { id, .. } => id.workload.split_once('/').map(|(namespace, _)| namespace),
            _ => None,
        }
    }

    /// Formats its addresses: `shop/web-0 has 10.65.0.7`.
    pub fn describe_addresses(&self) -> String {
        if self.addresses.is_empty() {
            return format!("{} has no address", self.name);
        }
        let texts: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        format!("{} has {}", self.name, texts.join(", "))
    }

    fn from_workload(endpoint: &WorkloadEndpoint) -> Result<TrafficParty, EndpointError> {
        let name = workload_name(endpoint);
        // Spoofing permissions are irrelevant: the explained packet is sent from the workload's own address.
        let (id, workload) = local_workload(endpoint, EndpointPermissions::ALL).map_err(|reason| {
            EndpointError::NotEnforced { name: name.clone(), reason: reason.to_string() }
        })?;
        let place =
            PartyLocation::Workload { node: endpoint.spec.node.clone(), interface: workload.interface, id };
        Ok(TrafficParty {
            name,
            place,
            addresses: workload.addresses,
            labels: labels(&endpoint.metadata.labels),
        })
    }

    pub fn from_host_endpoint(endpoint: &HostEndpoint, cluster: &PolicyCluster) -> TrafficParty {
        let node = endpoint.spec.node.clone();
        let mut addresses: Vec<IpAddr> =
            endpoint.spec.expected_ips.iter().filter_map(|ip| parse_address(ip)).collect();
        if addresses.is_empty() {
            addresses = cluster.node_addresses(&node);
        }
        let name = endpoint.metadata.name.clone();
        let place = PartyLocation::Host { node, endpoint: Some(name.clone()) };
        TrafficParty { name, place, addresses, labels: labels(&endpoint.metadata.labels) }
    }

    fn from_node(node: &Node) -> TrafficParty {
        let name = node.metadata.name.clone();
        let place = PartyLocation::Host { node: name.clone(), endpoint: None };
        TrafficParty { name, place, addresses: node_addresses(node), labels: labels(&node.metadata.labels) }
    }
}

/// Resolves `namespace/pod`, `pod`, a host endpoint, a node, or an address, which may be external. `hep:NAME`
/// and `node:NAME` resolve ambiguous names.
pub fn find(cluster: &PolicyCluster, text: &str) -> Result<TrafficParty, EndpointError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return find_by_address(cluster, address);
    }
    let (kind, name) = match text.split_once(':') {
        Some(("hep", name)) => (Some("hep"), name),
        Some(("node", name)) => (Some("node"), name),
        _ => (None, text),
    };
    let mut found: Vec<(String, Result<TrafficParty, EndpointError>)> = Vec::new();
    if kind.is_none() {
        let named = cluster.workloads().filter(|endpoint| is_called(endpoint, name));
        found.extend(named.map(|endpoint| (workload_name(endpoint), TrafficParty::from_workload(endpoint))));
    }
    if kind != Some("node") {
        let named = cluster.host_endpoints().filter(|endpoint| endpoint.metadata.name == name);
        found
            .extend(named.map(|e| (format!("hep:{name}"), Ok(TrafficParty::from_host_endpoint(e, cluster)))));
    }
    if kind != Some("hep") {
        let named = cluster.nodes().filter(|node| node.metadata.name == name);
        found.extend(named.map(|node| (format!("node:{name}"), Ok(TrafficParty::from_node(node)))));
    }
    if found.len() > 1 {
        let candidates = found.into_iter().map(|(name, _)| name).collect();
        return Err(EndpointError::Ambiguous { text: text.to_owned(), candidates });
    }
    match found.pop() {
        Some((_, party)) => party,
        None => Err(unknown_name(cluster, kind, name)),
    }
}

pub fn find_by_address(cluster: &PolicyCluster, address: IpAddr) -> Result<TrafficParty, EndpointError> {
    let workload = cluster.workloads().find(|endpoint| contains(&endpoint.spec.ip_networks, address));
    let host = cluster.host_endpoints().find(|endpoint| contains(&endpoint.spec.expected_ips, address));
    let node = cluster.nodes().find(|node| node_addresses(node).contains(&address));
    let mut party = match (workload, host, node) {
        (Some(endpoint), _, _) => TrafficParty::from_workload(endpoint)?,
        (None, Some(endpoint), _) => TrafficParty::from_host_endpoint(endpoint, cluster),
        (None, None, Some(node)) => TrafficParty::from_node(node),
        (None, None, None) => TrafficParty {
            name: address.to_string(),
            place: PartyLocation::Outside,
            addresses: Vec::new(),
            labels: Vec::new(),
        },
    };
    // Use only the address that the user specified.
    party.addresses = vec![address];
    Ok(party)
}

fn contains(texts: &[String], address: IpAddr) -> bool {
    texts.iter().any(|text| parse_address(text) == Some(address))
}

/// Returns the pod or container of an endpoint.
fn short_name(endpoint: &WorkloadEndpoint) -> &str {
    let spec = &endpoint.spec;
    match spec.orchestrator.as_str() {
        "k8s" => &spec.pod,
        "cni" => &spec.container_id,
        _ => &spec.workload,
    }
}

pub fn workload_name(endpoint: &WorkloadEndpoint) -> String {
    format!("{}/{}", endpoint.metadata.namespace, short_name(endpoint))
}

fn is_called(endpoint: &WorkloadEndpoint, name: &str) -> bool {
    match name.split_once('/') {
        Some((namespace, name)) => {
            endpoint.metadata.namespace == namespace
                && (short_name(endpoint) == name || endpoint.metadata.name == name)
        }
        None => short_name(endpoint) == name || endpoint.metadata.name == name,
    }
}

/// Formats the labels that users set as `key=value`.
fn labels(labels: &std::collections::BTreeMap<String, String>) -> Vec<String> {
    let given = labels.iter().filter(|(key, _)| !key.starts_with("projectcalico.org/"));
    given.map(|(key, value)| format!("{key}={value}")).collect()
}

/// Returns the error for an unknown name, with similar names as suggestions.
fn unknown_name(cluster: &PolicyCluster, kind: Option<&str>, name: &str) -> EndpointError {
    const MAX_SUGGESTIONS: usize = 5;
    const NAME_SIMILARITY_THRESHOLD: f64 = 0.8;
    let workloads = cluster.workloads().map(workload_name);
    let hosts = cluster.host_endpoints().map(|endpoint| endpoint.metadata.name.clone());
    let nodes = cluster.nodes().map(|node| node.metadata.name.clone());
    let mut similar: Vec<(f64, String)> = workloads
        .chain(hosts)
        .chain(nodes)
        .map(|known| (similarity(&known, name), known))
        .filter(|(similarity, _)| *similarity > NAME_SIMILARITY_THRESHOLD)
        .collect();
    similar.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
    similar.dedup();
    let kinds = match kind {
        Some("hep") => "host endpoint",
        Some(_) => "node",
        None => "pod, host endpoint or node",
    };
    let similar = similar.into_iter().take(MAX_SUGGESTIONS).map(|(_, known)| known).collect();
    EndpointError::Unknown { kinds, name: name.to_owned(), similar }
}

/// Returns the similarity of two names, with or without their namespaces.
fn similarity(known: &str, name: &str) -> f64 {
    let [short_known, short_name] = [known, name].map(|name| name.rsplit('/').next().unwrap_or_default());
    strsim::jaro_winkler(known, name).max(strsim::jaro_winkler(short_known, short_name))
}
