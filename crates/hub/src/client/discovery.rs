//! Hub discovery: by configured addresses or through the endpoints of a Kubernetes Service.

use rand::seq::SliceRandom;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;
use tortie_store::StoreLimits;
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::{OrchestratorClient, ServiceEndpoint};

/// Timeout of a DNS lookup or of an endpoint query to kube-apiserver.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Port name of the Service, as in Calico's manifests.
const HUB_PORT_NAME: &str = "calico-typha";
/// Maximum number of addresses used of one DNS name.
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
    /// Kubernetes name of the own node: a hub on the same node is preferred.
    pub node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a hub; expected HOST:PORT, such as 10.0.0.5:5473 or [fd00::5]:5473")]
pub struct HubAddressError(String);

impl HubLocations {
    /// Parses a comma-separated list.
    pub fn parse(text: &str) -> Result<HubLocations, HubAddressError> {
        let check = |hub: &str| {
            let valid = match hub.rsplit_once(':') {
                Some((host, port)) => {
                    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                    !host.is_empty()
                        && (!host.contains(':') || hub.starts_with('['))
                        && port.parse::<u16>().is_ok_and(|port| port > 0)
                }
                None => false,
            };
            valid.then(|| hub.to_owned()).ok_or_else(|| HubAddressError(hub.to_owned()))
        };
        let hubs: Vec<&str> = text.split(',').map(str::trim).filter(|hub| !hub.is_empty()).collect();
        match hubs.is_empty() {
            true => Err(HubAddressError(text.to_owned())),
            false => Ok(HubLocations::Addresses(hubs.into_iter().map(check).collect::<Result<_, _>>()?)),
        }
    }

    /// Returns the addresses to try: hubs on this node first, the others in random order, and the hub that was just
    /// lost last.
    pub async fn addresses(&self, lost: Option<SocketAddr>) -> Result<Vec<SocketAddr>, String> {
        let (near, mut others) = match self {
            HubLocations::Addresses(hubs) => (Vec::new(), resolve(hubs).await?),
            HubLocations::Service(service) => {
                let (near, others): (Vec<_>, Vec<_>) = service
                    .endpoints()
                    .await?
                    .into_iter()
                    .partition(|endpoint| !service.node.is_empty() && endpoint.node == service.node);
                let addresses =
                    |found: Vec<ServiceEndpoint>| found.into_iter().map(|found| found.address).collect();
                (addresses(near), addresses(others))
            }
        };
        others.shuffle(&mut rand::rng());
        let mut found: Vec<SocketAddr> = near.into_iter().chain(others).collect();
        found.sort_by_key(|address| Some(*address) == lost);
        Ok(found)
    }
}

impl HubService {
    async fn endpoints(&self) -> Result<Vec<ServiceEndpoint>, String> {
        let asked = async {
            let kubernetes = OrchestratorClient::connect(&self.kubernetes, StoreLimits::default()).await?;
            kubernetes.service_endpoints(&self.namespace, &self.name, HUB_PORT_NAME).await
        };
        let failed = |reason: String| format!("service {}/{}: {reason}", self.namespace, self.name);
        let found = timeout(DISCOVERY_TIMEOUT, asked)
            .await
            .map_err(|_| failed("kube-apiserver did not respond in time".to_owned()))?;
        let found = found.map_err(|error| failed(error.to_string()))?;
        match found.is_empty() {
            true => Err(failed(format!("it has no ready endpoint with a port {HUB_PORT_NAME}"))),
            false => Ok(found),
        }
    }
}

/// Resolves all names. Returns an error only if no name can be resolved.
async fn resolve(hubs: &[String]) -> Result<Vec<SocketAddr>, String> {
    let mut found = Vec::new();
    let mut failure = None;
    for hub in hubs {
        match timeout(DISCOVERY_TIMEOUT, tokio::net::lookup_host(hub)).await {
            Ok(Ok(addresses)) => found.extend(addresses.take(MAX_ADDRESSES_PER_NAME)),
            Ok(Err(error)) => failure = Some(format!("{hub}: {error}")),
            Err(_) => failure = Some(format!("{hub}: the name cannot be resolved in time")),
        }
    }
    found.sort();
    found.dedup();
    match (found.is_empty(), failure) {
        (true, failure) => Err(failure.unwrap_or_else(|| "there is no hub".to_owned())),
        (false, _) => Ok(found),
    }
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
    async fn the_one_that_was_lost_is_tried_last() {
        let hubs = HubLocations::parse("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:2").unwrap();
        let lost = "127.0.0.1:2".parse().unwrap();
        for _ in 0..20 {
            let found = hubs.addresses(Some(lost)).await.unwrap();
            assert_eq!((found.len(), found.last()), (3, Some(&lost)));
        }
    }
}
