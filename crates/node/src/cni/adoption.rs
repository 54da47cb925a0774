//! Adopts containers that another program attached to this node. From the endpoint in the datastore, the address
//! allocation and the interface in the kernel it creates the journal record that our own ADD would have written. It
//! changes neither the datastore nor the kernel, and does not adopt an endpoint whose interface does not exist.

use super::request::{check_container_id, check_interface};
use super::result::{CniResult, ResultInterface, ResultIp};
use super::service::CniService;
use crate::engine::EngineRequestError;
use crate::journal::{AttachmentId, AttachmentPhase, AttachmentRecord};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::PoisonError;
use tortie_cni::CniError;
use tortie_dataplane::pod::{self, DiscoveredPod, PodSearch};
use tortie_model::ipam::AllocationAttribute;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_model::{Resource, StoreKey};

/// Component name of the warning on the health page.
const ADOPTION_COMPONENT: &str = "adoption";
/// Maximum number of endpoints named on the health page.
const MAX_NAMED_ENDPOINTS: usize = 5;

/// A failure after which the adoption is tried again later.
#[derive(Debug, thiserror::Error)]
pub enum AdoptionError {
    #[error("cannot find the interfaces of endpoints: {0}")]
    Kernel(#[from] tortie_dataplane::DataplaneError),
    #[error("cannot read address allocations from IPAM: {0}")]
    Addresses(#[from] tortie_ipam::IpamError),
    #[error("cannot write the record of container {container}: {error}")]
    Journal { container: String, error: std::io::Error },
    #[error(transparent)]
    Engine(#[from] EngineRequestError),
}

impl CniService {
    /// Adopts all containers that the journal does not know. Reports those whose interface exists but that cannot be
    /// adopted.
    pub async fn adopt_endpoints(&self) {
        let outcome = self.adopt_where(|_| true).await;
        let mut lines = match outcome {
            Ok(rejected) => rejected,
            Err(error) => {
                tracing::warn!(%error, "cannot adopt containers that another program attached; retrying");
                vec![error.to_string()]
            }
        };
        if lines.len() > MAX_NAMED_ENDPOINTS {
            let more = lines.len() - MAX_NAMED_ENDPOINTS;
            lines.truncate(MAX_NAMED_ENDPOINTS);
            lines.push(format!("and {more} more"));
        }
        if self.pending.has_overflowed() {
            lines.push("the datastore has more endpoints for this node than can be adopted".to_owned());
        }
        self.state.set_warning(ADOPTION_COMPONENT, (!lines.is_empty()).then(|| lines.join("; ")));
    }

    /// Adopts one container if it is pending. The caller must not hold its lock.
    pub(super) async fn adopt_container(&self, container_id: &str) -> Result<(), AdoptionError> {
        self.adopt_where(|endpoint| endpoint.spec.container_id == container_id).await.map(drop)
    }

    /// Adopts the selected endpoints. Returns those that have an interface and cannot be adopted, with the reason.
    async fn adopt_where(
        &self,
        is_selected: impl Fn(&WorkloadEndpoint) -> bool,
    ) -> Result<Vec<String>, AdoptionError> {
        let candidates = self.pending.select(is_selected);
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let searches: Vec<PodSearch> =
            candidates.iter().map(|(_, endpoint)| build_search(endpoint)).collect();
        let pods = pod::discover(&self.host, &searches).await?;
        let prefixes = self.state.parameters().borrow().interface_prefix.clone();
        let mut connected = Vec::new();
        let mut rejected = Vec::new();
        for (index, ((key, endpoint), pod)) in candidates.into_iter().zip(pods).enumerate() {
            let Some(pod) = pod else { continue };
            let search = &searches[index];
            let rivals = searches.iter().filter(|other| other.host_interface == search.host_interface);
            let is_ambiguous = pod.netns.is_none() && rivals.count() > 1;
            match check_endpoint(&endpoint, search, &prefixes) {
                Ok(()) if is_ambiguous => {
                    rejected.push(format!("{key}: another endpoint has the same interface"))
                }
                Ok(()) => connected.push((key, endpoint, search, pod)),
                Err(reason) => rejected.push(format!("{key}: {reason}")),
            }
        }
        let addresses: Vec<IpAddr> =
            connected.iter().flat_map(|(_, _, search, _)| search.addresses.iter().copied()).collect();
        let mut allocations = BTreeMap::new();
        if !addresses.is_empty() {
            allocations = self.allocator.records_of(&addresses).await?;
        }
        for (key, endpoint, search, pod) in connected {
            let has_host_mac = pod.has_host_mac;
            let record = build_record(endpoint, search, pod, &allocations);
            // Skip endpoints with neither an address from IPAM nor an interface as created by the CNI plugins: the
            // author of the endpoint manages them.
            if record.handle.is_some() || has_host_mac {
                self.insert_adopted(&key, record).await?;
            }
        }
        Ok(rejected)
    }

    async fn insert_adopted(&self, key: &StoreKey, record: AttachmentRecord) -> Result<(), AdoptionError> {
        let container = record.id.container_id.clone();
        let _lock = self.lock(&container).await;
        {
            let _alone = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
            let existing = self.journal.find(|other| {
                other.id == record.id
                    || other.endpoint == record.endpoint
                    || other.host_interface == record.host_interface
            });
            // A request of the runtime was handled first and has better data.
            if existing.is_some() {
                return Ok(());
            }
            self.journal.announce(&record);
        }
        if let Err(error) = self.journal.put(&record, true) {
            let _ = self.journal.remove(&record.id);
            return Err(AdoptionError::Journal { container, error });
        }
        self.pending.remove(key);
        self.engine.hold(key.clone()).await?;
        tracing::info!(
            container,
            %key,
            interface = record.host_interface,
            netns = record.netns,
            network = record.network,
            "adopted a container that another program attached"
        );
        Ok(())
    }
}

fn build_search(endpoint: &WorkloadEndpoint) -> PodSearch {
    let spec = &endpoint.spec;
    PodSearch {
        host_interface: spec.interface_name.clone(),
        container_interface: spec.endpoint.clone(),
        addresses: spec.ip_networks.iter().filter_map(|net| net.split('/').next()?.parse().ok()).collect(),
    }
}

/// Validates the values of an endpoint. They become names of files and of interfaces that a DEL removes, and any
/// client that may write endpoints can choose them.
fn check_endpoint(
    endpoint: &WorkloadEndpoint,
    search: &PodSearch,
    prefixes: &[String],
) -> Result<(), InvalidEndpoint> {
    let spec = &endpoint.spec;
    check_container_id(&spec.container_id).map_err(InvalidEndpoint::ContainerId)?;
    check_interface(&spec.endpoint).map_err(InvalidEndpoint::Endpoint)?;
    if !prefixes.iter().any(|prefix| spec.interface_name.starts_with(prefix.as_str())) {
        let name = spec.interface_name.clone();
        return Err(InvalidEndpoint::InterfaceName { name, prefixes: prefixes.to_vec() });
    }
    if search.addresses.len() != spec.ip_networks.len() {
        return Err(InvalidEndpoint::Addresses(spec.ip_networks.clone()));
    }
    Ok(())
}

/// Why an endpoint cannot be adopted.
#[derive(Debug, thiserror::Error)]
enum InvalidEndpoint {
    #[error("containerID: {0}")]
    ContainerId(CniError),
    #[error("endpoint: {0}")]
    Endpoint(CniError),
    #[error("interfaceName {name} does not begin with {}", prefixes.join(" or "))]
    InterfaceName { name: String, prefixes: Vec<String> },
    #[error("ipNetworks {0:?} are not addresses")]
    Addresses(Vec<String>),
}

fn build_record(
    endpoint: WorkloadEndpoint,
    search: &PodSearch,
    pod: DiscoveredPod,
    allocations: &BTreeMap<IpAddr, AllocationAttribute>,
) -> AttachmentRecord {
    let spec = &endpoint.spec;
    let handle = find_own_handle(&endpoint, search, allocations);
    let network = handle.as_deref().and_then(|handle| parse_network(handle, &spec.container_id));
    // Calico gives a container that is not a pod the profile of its network.
    let profile = spec.profiles.first().filter(|_| spec.orchestrator == "cni");
    let network = network.or(profile.map(String::as_str)).unwrap_or_default().to_owned();
    let netns = pod.netns.map(|path| path.display().to_string()).unwrap_or_default();
    let mac = pod.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
    let inside = ResultInterface {
        name: spec.endpoint.clone(),
        mac: mac.unwrap_or_else(|| spec.mac.clone()),
        mtu: pod.mtu,
        sandbox: netns.clone(),
    };
    let outside = ResultInterface { name: spec.interface_name.clone(), ..ResultInterface::default() };
    let ip =
        |address: &IpAddr| ResultIp { address: IpNet::from(*address), gateway: None, interface: Some(1) };
    let result = CniResult {
        interfaces: vec![outside, inside],
        ips: search.addresses.iter().map(ip).collect(),
        ..CniResult::default()
    };
    AttachmentRecord {
        id: AttachmentId { container_id: spec.container_id.clone(), ifname: spec.endpoint.clone() },
        phase: AttachmentPhase::Live,
        network,
        netns,
        host_interface: spec.interface_name.clone(),
        handle,
        delegate: None,
        endpoint: Some((endpoint.metadata.namespace.clone(), endpoint.metadata.name.clone())),
        result: Some(result),
        chained: false,
        adopted: true,
        joined: Vec::new(),
        workload: Some(Resource::from(endpoint).to_value()),
    }
}

/// Returns the IPAM handle of the addresses if it belongs to this container only. Its addresses are released with the
/// container.
fn find_own_handle(
    endpoint: &WorkloadEndpoint,
    search: &PodSearch,
    allocations: &BTreeMap<IpAddr, AllocationAttribute>,
) -> Option<String> {
    let spec = &endpoint.spec;
    let legacy = match spec.orchestrator.as_str() {
        "k8s" => format!("{}.{}", endpoint.metadata.namespace, spec.pod),
        _ => spec.container_id.clone(),
    };
    let handles = search.addresses.iter().filter_map(|address| allocations.get(address)?.handle());
    let mut own =
        handles.filter(|handle| parse_network(handle, &spec.container_id).is_some() || *handle == legacy);
    own.next().map(str::to_owned)
}

/// Returns the network of a handle of the form `<network>.<container>`.
fn parse_network<'a>(handle: &'a str, container_id: &str) -> Option<&'a str> {
    handle.strip_suffix(container_id)?.strip_suffix('.').filter(|network| !network.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn endpoint(container: &str, interface: &str) -> WorkloadEndpoint {
        let object = json!({"kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "n1-cni-c1-eth0", "namespace": "default"},
            "spec": {"node": "n1", "orchestrator": "cni", "containerID": container, "endpoint": "eth0",
                "interfaceName": interface, "ipNetworks": ["10.0.0.1/32"], "profiles": ["net"]}});
        let resource = Resource::from_store(tortie_model::Kind::WorkloadEndpoint, object).unwrap();
        WorkloadEndpoint::try_from(resource).unwrap()
    }

    fn allocated(handle: &str) -> BTreeMap<IpAddr, AllocationAttribute> {
        let attribute = AllocationAttribute { handle_id: Some(handle.to_owned()), ..Default::default() };
        BTreeMap::from([("10.0.0.1".parse().unwrap(), attribute)])
    }

    #[test]
    fn names_from_the_datastore_are_checked() {
        let check = |container: &str, interface: &str| {
            let endpoint = endpoint(container, interface);
            check_endpoint(&endpoint, &build_search(&endpoint), &["cali".to_owned()]).is_ok()
        };
        assert!(check("c1", "cali1"));
        assert!(!check("", "cali1"));
        assert!(!check("../../etc/x", "cali1"));
        assert!(!check("c1", "eth0"));
        let mut endpoint = endpoint("c1", "cali1");
        endpoint.spec.ip_networks.push("not an address".to_owned());
        assert!(check_endpoint(&endpoint, &build_search(&endpoint), &["cali".to_owned()]).is_err());
    }

    #[test]
    fn only_handles_of_the_container_are_adopted() {
        let record = |handle: &str| {
            let endpoint = endpoint("c1", "cali1");
            let search = build_search(&endpoint);
            build_record(endpoint, &search, DiscoveredPod::default(), &allocated(handle))
        };
        let own = record("k8s-pod-network.c1");
        assert_eq!(
            (own.handle.as_deref(), own.network.as_str()),
            (Some("k8s-pod-network.c1"), "k8s-pod-network")
        );
        assert_eq!((record("c1").handle.as_deref(), record("c1").network.as_str()), (Some("c1"), "net"));
        // The handle of a virtual machine, which keeps its addresses longer than its pods live.
        assert_eq!(record("k8s-pod-network.vmi.shop.vm1").handle, None);
        assert_eq!(record("net.xc1").handle, None);
    }
}
