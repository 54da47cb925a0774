//! EndpointSlices: the addresses and ports of the endpoints of a service.

use super::service::ip_version;
use crate::scalar::Protocol;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Label with the name of the service that a slice belongs to.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The part of a slice that policies and routes need. Every address has every port; the readiness of
/// endpoints matters for routes only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// In the slice's namespace.
    pub service: String,
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// `None` if endpoints have DNS names instead of addresses.
    #[serde(default)]
    pub ip_version: Option<u8>,
    /// The nodes with at least one ready endpoint; an empty name represents endpoints without a node.
    #[serde(default)]
    pub ready_on: Vec<String>,
    /// The addresses without a ready endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unready: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServicePort {
    pub protocol: u8,
    pub port: u16,
}

/// The fields of a discovery.k8s.io/v1 EndpointSlice that are read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RawEndpointSlice {
    address_type: String,
    endpoints: Option<Vec<RawEndpoint>>,
    ports: Option<Vec<RawPort>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawEndpoint {
    addresses: Vec<String>,
    conditions: RawConditions,
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawConditions {
    /// Absent means ready.
    ready: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawPort {
    protocol: Option<String>,
    port: Option<u16>,
}

impl EndpointSlice {
    /// Converts a slice; returns `None` if it does not belong to a service.
    pub fn read(labels: &BTreeMap<String, String>, raw: &RawEndpointSlice) -> Option<EndpointSlice> {
        let service = labels.get(SERVICE_LABEL).filter(|name| !name.is_empty())?.clone();
        let endpoints = match &raw.endpoints {
            Some(endpoints) if raw.address_type != "FQDN" => endpoints.as_slice(),
            _ => &[],
        };
        let texts = endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        let mut addresses: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut ports: Vec<ServicePort> = raw.ports.iter().flatten().filter_map(RawPort::read).collect();
        ports.sort_unstable();
        ports.dedup();
        let ready = endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false));
        let ready_texts = ready.clone().flat_map(|endpoint| &endpoint.addresses);
        let ready_addresses: BTreeSet<IpAddr> = ready_texts.filter_map(|text| text.parse().ok()).collect();
        let unready =
            addresses.iter().copied().filter(|address| !ready_addresses.contains(address)).collect();
        let mut ready_on: Vec<String> =
            ready.map(|endpoint| endpoint.node_name.clone().unwrap_or_default()).collect();
        ready_on.sort_unstable();
        ready_on.dedup();
        let ip_version = ip_version(&raw.address_type);
        Some(EndpointSlice { service, addresses, ports, ip_version, ready_on, unready })
    }
}

impl RawPort {
    /// Converts a port. Returns `None` for a port without a number, which means any port and cannot be
    /// expressed in rules.
    fn read(&self) -> Option<ServicePort> {
        let protocol = self.protocol.as_deref().filter(|name| !name.is_empty()).unwrap_or("TCP");
        Some(ServicePort { protocol: Protocol::from(protocol).number()?, port: self.port? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(labels: serde_json::Value, slice: serde_json::Value) -> Option<serde_json::Value> {
        let labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap();
        let slice = EndpointSlice::read(&labels, &serde_json::from_value(slice).unwrap())?;
        Some(serde_json::to_value(slice).unwrap())
    }

    #[test]
    fn every_address_has_every_port() {
        let slice = json!({
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}, "nodeName": "n1"},
                {"addresses": ["10.0.0.1", "10.0.0.2"], "nodeName": "n2"}, {"addresses": ["10.0.0.1"]},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false}, "nodeName": "n3"},
            ],
            "ports": [{"name": "web", "port": 80}, {"protocol": "UDP", "port": 53}, {"protocol": "TCP"}],
        });
        let expected = json!({"service": "s", "addresses": ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
            "unready": ["10.0.0.3"], "ports": [{"protocol": 6, "port": 80}, {"protocol": 17, "port": 53}], "ip_version": 4,
            "ready_on": ["", "n2"]});
        assert_eq!(read(json!({SERVICE_LABEL: "s", "a": "b"}), slice.clone()), Some(expected));
        assert_eq!(read(json!({"a": "b"}), slice), None);
    }

    #[test]
    fn names_are_no_addresses() {
        let slice =
            json!({"addressType": "FQDN", "endpoints": [{"addresses": ["a.example"]}], "ports": null});
        assert_eq!(
            read(json!({SERVICE_LABEL: "s"}), slice),
            Some(json!({"service": "s", "addresses": [], "ports": [], "ip_version": null, "ready_on": []}))
        );
        let nothing = json!({"addressType": "IPv6", "endpoints": null});
        assert_eq!(
            read(json!({SERVICE_LABEL: "s"}), nothing),
            Some(json!({"service": "s", "addresses": [], "ports": [], "ip_version": 6, "ready_on": []}))
        );
    }
}
