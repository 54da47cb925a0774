//! Endpoints of a Kubernetes service, for programs that reach it from the host.

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// An endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceEndpoint {
    pub address: SocketAddr,
    /// Kubernetes node on which it runs; empty if unknown.
    pub node: String,
}

/// A discovery.k8s.io/v1 EndpointSlice, reduced to the fields that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceSlice {
    endpoints: Option<Vec<SliceEndpoint>>,
    ports: Option<Vec<SlicePort>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SliceEndpoint {
    addresses: Vec<String>,
    conditions: SliceEndpointConditions,
    node_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SliceEndpointConditions {
    ready: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SlicePort {
    name: Option<String>,
    port: Option<u16>,
}

/// Returns the ready endpoints with a port of this name, each once.
pub(super) fn find_endpoints(slices: &[ServiceSlice], port_name: &str) -> Vec<ServiceEndpoint> {
    let mut found = Vec::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| port.name.as_deref().unwrap_or_default() == port_name);
        let Some(port) = port.and_then(|port| port.port) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            // Unknown readiness counts as ready.
            if endpoint.conditions.ready == Some(false) {
                continue;
            }
            let addresses = endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
            let node = endpoint.node_name.clone().unwrap_or_default();
            found.extend(addresses.map(|address| ServiceEndpoint {
                address: SocketAddr::new(address, port),
                node: node.clone(),
            }));
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ready_places_with_the_port_are_found_once() {
        let slices: Vec<ServiceSlice> = serde_json::from_value(json!([
            {"addressType": "IPv4", "ports": [{"name": "metrics", "port": 9093}, {"name": "calico-typha", "port": 5473}], "endpoints": [
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true}, "nodeName": "n2"},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false}, "nodeName": "n3"},
                {"addresses": ["10.0.0.1"], "conditions": {}},
            ]},
            {"addressType": "IPv4", "ports": [{"name": "calico-typha", "port": 5473}], "endpoints": [
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true}, "nodeName": "n2"},
            ]},
            {"addressType": "FQDN", "ports": [{"name": "calico-typha", "port": 5473}], "endpoints": [{"addresses": ["a.example"]}]},
            {"addressType": "IPv4", "ports": [{"name": "other", "port": 1}], "endpoints": [{"addresses": ["10.0.0.9"]}]},
            {"addressType": "IPv4", "ports": null, "endpoints": null},
        ]))
        .unwrap();
        let found: Vec<(String, String)> = find_endpoints(&slices, "calico-typha")
            .into_iter()
            .map(|found| (found.address.to_string(), found.node))
            .collect();
        let expected = [("10.0.0.1:5473", ""), ("10.0.0.2:5473", "n2")];
        assert_eq!(found, expected.map(|(address, node)| (address.to_owned(), node.to_owned())));
    }
}
