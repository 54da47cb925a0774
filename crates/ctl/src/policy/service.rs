//! Traffic to the address of a Kubernetes service. kube-proxy replaces the destination by an endpoint of the service before
//! policy is evaluated, so each endpoint has its own verdict.

use super::cluster::PolicyCluster;
use super::endpoint_lookup::TrafficParty;
use super::traffic::{ExplainedTraffic, protocol_name};
use serde::Serialize;
use std::net::IpAddr;
use tortie_model::KeyRange;
use tortie_model::kubernetes::{
    EndpointSlice, ExternalTraffic, ForwardedPort, KubernetesService, TargetPort,
};
use tortie_model::{StoreKey, StoreValue};
use tortie_store::ResourceClient;

/// Prefix of the name of a service in `--to`.
pub const SERVICE_PREFIX: &str = "service:";

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("no service is called {0:?}: use service:namespace/name")]
    Unknown(String),
    #[error("service {0} is headless: its name resolves to the addresses of its pods; use a pod")]
    Headless(String),
    #[error("service {service} does not forward {traffic}; it forwards {}", if .ports.is_empty() { "nothing" } else { .ports })]
    NotForwarded { service: String, traffic: ExplainedTraffic, ports: String },
    #[error("the proxy of a pod decides about HTTP requests: use a pod instead of service {0}")]
    NoProxy(String),
}

/// A service as the destination of traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceDestination {
    /// Namespace and name.
    pub name: String,
    pub address: IpAddr,
    service: KubernetesService,
    slices: Vec<EndpointSlice>,
}

/// The service in the explanation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedService {
    pub name: String,
    pub session_affinity: bool,
    /// The ready endpoints that kube-proxy selects from.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// The endpoint whose verdict is explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explained: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct ExplainedEndpoint {
    pub name: String,
    pub address: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub traffic: String,
    pub allowed: bool,
}

/// An endpoint that may receive the traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEndpoint {
    pub address: IpAddr,
    /// `None` if the port has a name that the endpoint does not have.
    pub port: Option<u16>,
}

/// Finds the service that `text` names or whose address it is. Returns `None` for anything else.
pub async fn find_service(
    store: &ResourceClient,
    text: &str,
) -> Result<Option<ServiceDestination>, ServiceLookupError> {
    let named = text.strip_prefix(SERVICE_PREFIX);
    let address = text.parse::<IpAddr>().ok();
    if named.is_none() && address.is_none() || !store.client().capabilities().includes_kubernetes {
        return Ok(None);
    }
    let services = store.client().list(&KeyRange::Services).await?.entries;
    let slices = store.client().list(&KeyRange::EndpointSlices).await?.entries;
    let mut found = None;
    for entry in services {
        if let (StoreKey::Service { namespace, name }, StoreValue::Service(service)) =
            (entry.key, entry.value)
        {
            let is_meant = match (named, address) {
                (Some(named), _) => named == format!("{namespace}/{name}"),
                (None, Some(address)) => {
                    service.addresses().chain(service.external_ips.clone()).any(|own| own == address)
                }
                (None, None) => false,
            };
            if is_meant {
                found = Some((namespace, name, *service));
                break;
            }
        }
    }
    let Some((namespace, name, service)) = found else {
        return match named {
            Some(named) => Err(ServiceError::Unknown(named.to_owned()).into()),
            None => Ok(None),
        };
    };
    let full_name = format!("{namespace}/{name}");
    let Some(address) = address.or_else(|| service.cluster_ips.first().copied()) else {
        return Err(ServiceError::Headless(full_name).into());
    };
    let of_service = slices.into_iter().filter_map(|entry| match (entry.key, entry.value) {
        (StoreKey::EndpointSlice { namespace: other, .. }, StoreValue::EndpointSlice(slice))
            if other == namespace && slice.service == name =>
        {
            Some(slice)
        }
        _ => None,
    });
    Ok(Some(ServiceDestination { name: full_name, address, service, slices: of_service.collect() }))
}

#[derive(Debug, thiserror::Error)]
pub enum ServiceLookupError {
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
}

impl ServiceDestination {
    /// Returns the endpoints that kube-proxy may select for traffic from a node (or from outside the cluster), and the
    /// conditions that this depends on.
    pub fn endpoints(
        &self,
        cluster: &PolicyCluster,
        from: &TrafficParty,
        traffic: ExplainedTraffic,
    ) -> Result<(Vec<ServiceEndpoint>, Vec<String>), ServiceError> {
        let forwarded = self.find_port(traffic)?;
        let node_of = |address: IpAddr| {
            let found = super::endpoint_lookup::find_by_address(cluster, address).ok()?;
            found.node().map(str::to_owned)
        };
        let mut notes = Vec::new();
        let is_cluster_address = self.service.cluster_ips.contains(&self.address);
        let is_local = match from.node() {
            Some(_) => is_cluster_address && self.service.is_internally_local,
            None => {
                notes.push(match self.service.traffic {
                    ExternalTraffic::Local => "externalTrafficPolicy is Local: a node forwards the traffic only to \
                                               endpoints on itself"
                        .to_owned(),
                    ExternalTraffic::Cluster | ExternalTraffic::Unset => {
                        "the node that receives the traffic forwards it to any endpoint, with its own address as the \
                         source; the verdict is for the original source"
                            .to_owned()
                    }
                });
                false
            }
        };
        let mut endpoints = Vec::new();
        for slice in &self.slices {
            for &address in slice.addresses.iter().filter(|address| !slice.unready.contains(address)) {
                let is_here = !is_local || node_of(address).as_deref() == from.node();
                if is_here && address.is_ipv4() == self.address.is_ipv4() {
                    endpoints.push(ServiceEndpoint {
                        address,
                        port: target_port(cluster, forwarded, address, slice),
                    });
                }
            }
        }
        endpoints.sort_by_key(|endpoint| endpoint.address);
        endpoints.dedup();
        if is_local {
            notes.push(
                "internalTrafficPolicy is Local: only endpoints on the node of the source are used"
                    .to_owned(),
            );
        }
        if endpoints.is_empty() {
            notes.push(format!(
                "service {} has no ready endpoint for this traffic: kube-proxy rejects it",
                self.name
            ));
        }
        if endpoints.iter().any(|endpoint| endpoint.port.is_none()) {
            notes.push("endpoints without the named target port do not receive the traffic".to_owned());
            endpoints.retain(|endpoint| endpoint.port.is_some());
        }
        Ok((endpoints, notes))
    }

    fn find_port(&self, traffic: ExplainedTraffic) -> Result<&ForwardedPort, ServiceError> {
        let ports = &self.service.ports;
        let found =
            ports.iter().find(|port| port.protocol == traffic.protocol && Some(port.port) == traffic.port);
        found.ok_or_else(|| {
            let listed: Vec<String> =
                ports.iter().map(|port| format!("{}/{}", protocol_name(port.protocol), port.port)).collect();
            ServiceError::NotForwarded { service: self.name.clone(), traffic, ports: listed.join(", ") }
        })
    }

    pub fn has_session_affinity(&self) -> bool {
        self.service.has_session_affinity
    }
}

/// Returns the port of an endpoint. A name is resolved by the ports of the workload, or by the slice if it has only one
/// port of the protocol.
fn target_port(
    cluster: &PolicyCluster,
    forwarded: &ForwardedPort,
    address: IpAddr,
    slice: &EndpointSlice,
) -> Option<u16> {
    let name = match &forwarded.target {
        TargetPort::Number(number) => return Some(*number),
        TargetPort::Name(name) => name,
    };
    let workload = cluster.workloads().find(|endpoint| {
        endpoint.spec.ip_networks.iter().any(|text| super::cluster::parse_address(text) == Some(address))
    });
    let named = workload.and_then(|endpoint| {
        let matching = |port: &&tortie_model::kinds::WorkloadEndpointPort| {
            port.name == *name && port.protocol.number() == Some(forwarded.protocol)
        };
        endpoint.spec.ports.iter().find(matching).map(|port| port.port)
    });
    let mut of_protocol = slice.ports.iter().filter(|port| port.protocol == forwarded.protocol);
    let only = of_protocol.next().filter(|_| of_protocol.next().is_none()).map(|port| port.port);
    named.or(only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::endpoint_lookup::PartyLocation;
    use tortie_model::kubernetes::ServicePort;

    fn destination(spec: impl FnOnce(&mut KubernetesService)) -> ServiceDestination {
        let address = "10.96.0.7".parse().unwrap();
        let mut service = KubernetesService {
            cluster_ips: vec![address],
            ports: vec![
                ForwardedPort { protocol: 6, port: 80, target: TargetPort::Number(8080) },
                ForwardedPort { protocol: 17, port: 53, target: TargetPort::Name("dns".into()) },
            ],
            ..KubernetesService::default()
        };
        spec(&mut service);
        let slice = EndpointSlice {
            service: "web".into(),
            addresses: ["10.65.0.1", "10.65.0.2", "10.65.0.3"].map(|text| text.parse().unwrap()).to_vec(),
            ports: vec![ServicePort { protocol: 6, port: 8080 }, ServicePort { protocol: 17, port: 5353 }],
            unready: vec!["10.65.0.2".parse().unwrap()],
            ..EndpointSlice::default()
        };
        ServiceDestination { name: "shop/web".into(), address, service, slices: vec![slice] }
    }

    fn party(node: Option<&str>) -> TrafficParty {
        let place = match node {
            Some(node) => PartyLocation::Host { node: node.to_owned(), endpoint: None },
            None => PartyLocation::Outside,
        };
        TrafficParty { name: "x".into(), place, addresses: Vec::new(), labels: Vec::new() }
    }

    #[test]
    fn ready_endpoints_receive_the_target_port() {
        let cluster = PolicyCluster::default();
        let (endpoints, notes) =
            destination(|_| ()).endpoints(&cluster, &party(Some("n1")), "80".parse().unwrap()).unwrap();
        let texts: Vec<String> =
            endpoints.iter().map(|e| format!("{}:{}", e.address, e.port.unwrap())).collect();
        assert_eq!((texts.join(" "), notes.len()), ("10.65.0.1:8080 10.65.0.3:8080".to_owned(), 0));
        let (endpoints, _) =
            destination(|_| ()).endpoints(&cluster, &party(Some("n1")), "udp/53".parse().unwrap()).unwrap();
        assert!(endpoints.iter().all(|endpoint| endpoint.port == Some(5353)), "{endpoints:?}");
    }

    #[test]
    fn ports_that_are_not_forwarded_are_named() {
        let error = destination(|_| ())
            .endpoints(&PolicyCluster::default(), &party(Some("n1")), "81".parse().unwrap())
            .unwrap_err();
        assert_eq!(error.to_string(), "service shop/web does not forward tcp/81; it forwards tcp/80, udp/53");
    }

    #[test]
    fn local_policies_limit_the_endpoints() {
        let cluster = PolicyCluster::default();
        let local = destination(|service| service.is_internally_local = true);
        let (endpoints, notes) =
            local.endpoints(&cluster, &party(Some("n1")), "80".parse().unwrap()).unwrap();
        assert_eq!(endpoints, []);
        assert!(notes[0].contains("internalTrafficPolicy is Local"), "{notes:?}");
        assert!(notes[1].contains("service shop/web has no ready endpoint"), "{notes:?}");
        let external = destination(|service| service.traffic = ExternalTraffic::Local);
        let (endpoints, notes) = external.endpoints(&cluster, &party(None), "80".parse().unwrap()).unwrap();
        assert_eq!(endpoints.len(), 2);
        assert!(notes[0].contains("externalTrafficPolicy is Local"), "{notes:?}");
    }
}
