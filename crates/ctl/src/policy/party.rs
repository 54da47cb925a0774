//! Resolves a name or an address to an endpoint, a node or an external address.

use super::cluster::{PolicyCluster, node_addresses, single};
use std::net::IpAddr;
use tortie_compute::{EndpointPermissions, local_workload};
use tortie_model::kinds::{HostEndpoint, Node, WorkloadEndpoint};
use tortie_plan::WorkloadId;

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

    fn of_workload(endpoint: &WorkloadEndpoint) -> Result<TrafficParty, String> {
        let name = workload_name(endpoint);
        // Spoofing permissions are irrelevant: the explained packet is sent from the workload's own address.
        let (id, workload) = local_workload(endpoint, EndpointPermissions::ALL)
            .map_err(|reason| format!("{name} is not enforced: {reason}"))?;
        let place =
            PartyLocation::Workload { node: endpoint.spec.node.clone(), interface: workload.interface, id };
        Ok(TrafficParty {
            name,
            place,
            addresses: workload.addresses,
            labels: labels(&endpoint.metadata.labels),
        })
    }

    pub fn of_host_endpoint(endpoint: &HostEndpoint, cluster: &PolicyCluster) -> TrafficParty {
        let node = endpoint.spec.node.clone();
        let expected: Vec<IpAddr> = endpoint.spec.expected_ips.iter().filter_map(|ip| single(ip)).collect();
        let addresses = if expected.is_empty() { cluster.node_addresses(&node) } else { expected };
        let name = endpoint.metadata.name.clone();
        let place = PartyLocation::Host { node, endpoint: Some(name.clone()) };
        TrafficParty { name, place, addresses, labels: labels(&endpoint.metadata.labels) }
    }

    fn of_node(node: &Node) -> TrafficParty {
        let name = node.metadata.name.clone();
        let place = PartyLocation::Host { node: name.clone(), endpoint: None };
        TrafficParty { name, place, addresses: node_addresses(node), labels: labels(&node.metadata.labels) }
    }
}

/// Resolves `namespace/pod`, `pod`, a host endpoint, a node, or an address, which may be external. `hep:NAME`
/// and `node:NAME` resolve ambiguous names.
pub fn find(cluster: &PolicyCluster, text: &str) -> Result<TrafficParty, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return by_address(cluster, address);
    }
    let (kind, name) = match text.split_once(':') {
        Some(("hep", name)) => (Some("hep"), name),
        Some(("node", name)) => (Some("node"), name),
        _ => (None, text),
    };
    let mut found: Vec<(String, Result<TrafficParty, String>)> = Vec::new();
    if kind.is_none() {
        let named = cluster.workloads().filter(|endpoint| is_called(endpoint, name));
        found.extend(named.map(|endpoint| (workload_name(endpoint), TrafficParty::of_workload(endpoint))));
    }
    if kind != Some("node") {
        let named = cluster.host_endpoints().filter(|endpoint| endpoint.metadata.name == name);
        found.extend(named.map(|e| (format!("hep:{name}"), Ok(TrafficParty::of_host_endpoint(e, cluster)))));
    }
    if kind != Some("hep") {
        let named = cluster.nodes().filter(|node| node.metadata.name == name);
        found.extend(named.map(|node| (format!("node:{name}"), Ok(TrafficParty::of_node(node)))));
    }
    if found.len() > 1 {
        let names: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
        return Err(format!("{text:?} may be any of {}: say which", names.join(", ")));
    }
    match found.pop() {
        Some((_, party)) => party,
        None => Err(nobody(cluster, kind, name)),
    }
}

fn by_address(cluster: &PolicyCluster, address: IpAddr) -> Result<TrafficParty, String> {
    let has = |texts: &[String]| texts.iter().any(|text| single(text) == Some(address));
    let workload = cluster.workloads().find(|endpoint| has(&endpoint.spec.ip_networks));
    let host = cluster.host_endpoints().find(|endpoint| has(&endpoint.spec.expected_ips));
    let node = cluster.nodes().find(|node| node_addresses(node).contains(&address));
    let party = match (workload, host, node) {
        (Some(endpoint), _, _) => TrafficParty::of_workload(endpoint)?,
        (None, Some(endpoint), _) => TrafficParty::of_host_endpoint(endpoint, cluster),
        (None, None, Some(node)) => TrafficParty::of_node(node),
        (None, None, None) => {
            return Ok(TrafficParty {
                name: address.to_string(),
                place: PartyLocation::Outside,
                addresses: vec![address],
                labels: Vec::new(),
            });
        }
    };
    // Use only the address that the user specified.
    Ok(TrafficParty { addresses: vec![address], ..party })
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
fn nobody(cluster: &PolicyCluster, kind: Option<&str>, name: &str) -> String {
    const NAME_SIMILARITY_THRESHOLD: f64 = 0.8;
    let workloads = cluster.workloads().map(workload_name);
    let hosts = cluster.host_endpoints().map(|endpoint| endpoint.metadata.name.clone());
    let nodes = cluster.nodes().map(|node| node.metadata.name.clone());
    let short = |known: &str| known.rsplit('/').next().unwrap_or_default().to_owned();
    let mut alike: Vec<(f64, String)> = workloads
        .chain(hosts)
        .chain(nodes)
        .map(|known| {
            let whole = strsim::jaro_winkler(&known, name);
            (whole.max(strsim::jaro_winkler(&short(&known), &short(name))), known)
        })
        .filter(|(likeness, _)| *likeness > NAME_SIMILARITY_THRESHOLD)
        .collect();
    alike.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
    alike.dedup();
    let kinds = match kind {
        Some("hep") => "host endpoint",
        Some(_) => "node",
        None => "pod, host endpoint or node",
    };
    let said = format!("no {kinds} is called {name:?}");
    match alike.is_empty() {
        true => said,
        false => {
            let names: Vec<String> = alike.into_iter().take(5).map(|(_, known)| known).collect();
            format!("{said}; there is {}", names.join(", "))
        }
    }
}
