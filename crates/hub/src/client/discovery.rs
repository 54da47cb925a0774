//! Hub discovery: by configured addresses or through the endpoints of a Kubernetes Service.

use rand::seq::SliceRandom;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::{OrchestratorClient, ServiceEndpoint};
use tortie_store::{StoreError, StoreLimits, StoreResult};

/// Timeout of a DNS lookup or of an endpoint query to kube-apiserver.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Port name of the Service, as in Calico's manifests.
const HUB_PORT_NAME: &str = "calico-typha";
/// Maximum number of addresses that are used for one DNS name.
const MAX_ADDRESSES_PER_NAME: usize = 64;

/// Sources of hub addresses.
#[derive(Clone, Debug)]
pub enum HubLocations {
    /// Addresses or DNS names, each with its port. A name resolves to all of its addresses.
    Addresses(Vec<String>),
    Service(Box<HubService>),
}

/// A Kubernetes Service whose endpoints are hubs.
#[derive(Clone, Debug)]
pub struct HubService {
    pub kubernetes: KubernetesTarget,
    pub namespace: String,
    pub name: String,
    /// Kubernetes name of this node: a hub on the same node is preferred.
    pub node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a hub; expected HOST:PORT, such as 10.0.0.5:5473 or [fd00::5]:5473")]
pub struct HubAddressError(String);

/// Reason why no hub was found.
#[derive(Debug, thiserror::Error)]
pub enum HubDiscoveryError {
    #[error("service {service}: {source}")]
    Store { service: String, source: StoreError },
    #[error("service {service}: kube-apiserver did not respond in time")]
    ServiceTimeout { service: String },
    #[error("service {service}: it has no ready endpoint with a port {HUB_PORT_NAME}")]
    NoEndpoint { service: String },
    #[error("{name}: {source}")]
    Lookup { name: String, source: io::Error },
    #[error("{name}: the DNS lookup timed out")]
    LookupTimeout { name: String },
    #[error("there is no hub")]
    NoHub,
}

impl HubLocations {
    /// Parses a comma-separated list.
    pub fn parse(text: &str) -> Result<HubLocations, HubAddressError> {
        let hubs: Vec<String> =
            text.split(',').map(str::trim).filter(|hub| !hub.is_empty()).map(str::to_owned).collect();
        if hubs.is_empty() {
            return Err(HubAddressError(text.to_owned()));
        }
        match hubs.iter().find(|hub| !is_host_and_port(hub)) {
            Some(invalid) => Err(HubAddressError(invalid.clone())),
            None => Ok(HubLocations::Addresses(hubs)),
        }
    }

    /// Returns the addresses to try: hubs on this node first, the others in random order, and the hub that was just
    /// lost last.
    pub async fn addresses(&self, lost: Option<SocketAddr>) -> Result<Vec<SocketAddr>, HubDiscoveryError> {
        let mut found = match self {
            HubLocations::Addresses(hubs) => {
                let mut found = resolve(hubs).await?;
                found.shuffle(&mut rand::rng());
                found
            }
            HubLocations::Service(service) => {
                let mut endpoints = service.endpoints().await?;
                endpoints.shuffle(&mut rand::rng());
                endpoints.sort_by_key(|endpoint| service.node.is_empty() || endpoint.node != service.node);
                endpoints.into_iter().map(|endpoint| endpoint.address).collect()
            }
        };
        found.sort_by_key(|address| Some(*address) == lost);
        Ok(found)
    }
}

fn is_host_and_port(hub: &str) -> bool {
    let Some((host, port)) = hub.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    !bare.is_empty()
        && (!bare.contains(':') || hub.starts_with('['))
        && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl HubService {
    async fn endpoints(&self) -> Result<Vec<ServiceEndpoint>, HubDiscoveryError> {
        let service = format!("{}/{}", self.namespace, self.name);
        match timeout(DISCOVERY_TIMEOUT, self.list_endpoints()).await {
            Err(_) => Err(HubDiscoveryError::ServiceTimeout { service }),
            Ok(Err(source)) => Err(HubDiscoveryError::Store { service, source }),
            Ok(Ok(found)) if found.is_empty() => Err(HubDiscoveryError::NoEndpoint { service }),
            Ok(Ok(found)) => Ok(found),
        }
    }

    async fn list_endpoints(&self) -> StoreResult<Vec<ServiceEndpoint>> {
        let kubernetes = OrchestratorClient::connect(&self.kubernetes, StoreLimits::default()).await?;
        kubernetes.service_endpoints(&self.namespace, &self.name, HUB_PORT_NAME).await
    }
}

/// Resolves all names. Returns an error only if no name can be resolved.
async fn resolve(hubs: &[String]) -> Result<Vec<SocketAddr>, HubDiscoveryError> {
    let mut found = Vec::new();
    let mut failure = HubDiscoveryError::NoHub;
    for hub in hubs {
        match timeout(DISCOVERY_TIMEOUT, tokio::net::lookup_host(hub)).await {
            Ok(Ok(addresses)) => found.extend(addresses.take(MAX_ADDRESSES_PER_NAME)),
            Ok(Err(source)) => failure = HubDiscoveryError::Lookup { name: hub.clone(), source },
            Err(_) => failure = HubDiscoveryError::LookupTimeout { name: hub.clone() },
        }
    }
    if found.is_empty() {
        return Err(failure);
    }
    found.sort();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_ports() {
        for good in ["10.0.0.1:5473", "hub.example:5473", "[fd00::1]:5473,  10.0.0.1:1"] {
            assert!(HubLocations::parse(good).is_ok(), "{good}");
        }
        for bad in
            ["", " , ", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", ":5473", "fd00::1:5473", "a:1,b", "a:65536"]
        {
            let error = HubLocations::parse(bad).unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{bad}: {error}");
        }
    }

    #[tokio::test]
    async fn the_lost_hub_is_tried_last() {
        let hubs = HubLocations::parse("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:2").unwrap();
        let lost = "127.0.0.1:2".parse().unwrap();
        for _ in 0..20 {
            let found = hubs.addresses(Some(lost)).await.unwrap();
            assert_eq!((found.len(), found.last()), (3, Some(&lost)));
        }
    }
}
