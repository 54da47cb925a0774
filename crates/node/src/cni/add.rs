//! The CNI ADD command: assigns addresses, creates the interface and the endpoint, and responds after everything is
//! programmed.

use super::chained::ChainedInterface;
use super::gates;
use super::identity::{self, CALICO_IPAM, ContainerIdentity};
use super::ipam::convert_store_error;
use super::pod_annotations::{AddressSource, PodNetworkAnnotations};
use super::request::CniRequest;
use super::result::{CniResult, ResultInterface, ResultIp};
use super::service::{CniService, MAX_ENDPOINT_WRITE_ATTEMPTS};
use super::workload::KubernetesPod;
use crate::engine::{EngineRequestError, RequestRefusal};
use crate::journal::{AttachmentPhase, AttachmentRecord, DelegatedIpam};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use tortie_cni::{CniError, code};
use tortie_dataplane::pod::{self, AttachRequest, AttachedInterface};
use tortie_model::kinds::{
    Action, IPNAT, NodeSpec, Profile, ProfileSpec, Rule, WorkloadEndpoint, WorkloadEndpointSpec,
};
use tortie_model::{Kind, ObjectMeta, Resource, StoreKey, StoreValue};
use tortie_store::StoreError;
use tortie_store::orchestrator::OrchestratorClient;

/// The outcome of an ADD.
pub(super) struct AddOutcome {
    pub result: CniResult,
    /// False if an earlier ADD had already made the attachment.
    pub is_new: bool,
}

impl CniService {
    pub(super) async fn add(&self, request: &CniRequest) -> Result<AddOutcome, CniError> {
        let config = &request.config;
        config.check(&self.node)?;
        let identity = ContainerIdentity::from_request(request);
        if config.feature_control.ip_addrs_no_ipam && identity.orchestrator != "k8s" {
            let message = "requested feature is not supported for this runtime: ip_addrs_no_ipam";
            return Err(CniError::new(code::FAILED, message));
        }
        gates::wait_for_gates(&config.readiness_gates).await?;
        if let Some(record) = self.find_shareable_record(request, &identity) {
            return self.join_network(request, &identity, record).await;
        }
        let id = CniService::record_id(request);
        let mut joined = Vec::new();
        if let Some(known) = self.journal.get(&id) {
            // A repeated ADD gets the same result, as long as the attachment is intact.
            if known.phase == AttachmentPhase::Live
                && known.is_in(&request.netns)
                && self.is_intact(request, &known).await
            {
                return self.repeat_result(request, known);
            }
            if known.adopted && known.phase == AttachmentPhase::Live {
                // Another program created the interface, and it may carry traffic.
                self.refuse_existing_interface(request).await?;
            }
            self.undo(&known).await?;
            if known.is_in(&request.netns) {
                // A container that is attached again rejoins all its further networks.
                joined = known.joined;
                joined.retain(|joined| joined.phase == AttachmentPhase::Live);
            }
        }
        let orchestrator = self.connect_orchestrator(request).await?;
        self.refuse_existing_interface(request).await?;
        let workload = self.read_workload(request, &identity, orchestrator.as_ref()).await?;
        let pod_annotations =
            workload.as_ref().map(|workload| workload.pod_annotations.clone()).unwrap_or_default();
        let prefixes = self.state.parameters().borrow().interface_prefix.clone();
        let chained = ChainedInterface::from_config(config, &request.ifname, &prefixes)?;
        let own_ipam = config.ipam.kind == CALICO_IPAM && chained.is_none();
        let managed = own_ipam && !matches!(pod_annotations.addresses, AddressSource::Unmanaged(_));
        let mut record = AttachmentRecord {
            id,
            phase: AttachmentPhase::Adding,
            network: config.name.clone(),
            netns: request.netns.clone(),
            host_interface: String::new(),
            handle: managed.then(|| identity::derive_handle(&config.name, &request.container_id)),
            delegate: if own_ipam || chained.is_some() {
                None
            } else {
                Some(self.resolve_delegate(request, orchestrator.as_ref()).await?)
            },
            endpoint: Some((identity.namespace.clone(), self.derive_endpoint_name(request, &identity)?)),
            result: None,
            chained: chained.is_some(),
            adopted: false,
            workload: None,
            joined,
        };
        {
            let _alone = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
            record.host_interface = match &chained {
                Some(chained) => chained.host_interface.clone(),
                None => self.pick_host_interface(request, &identity),
            };
            self.journal.announce(&record);
        }
        if let Err(error) = self.take_over(&record).and_then(|()| self.write_record(&record, true)) {
            // Nothing has been started, and the file may not exist.
            let _ = self.journal.remove(&record.id);
            return Err(error);
        }
        let setup = async {
            match chained {
                Some(chained) => self.adopt_interface(request, &identity, &record, workload, chained).await,
                None => self.connect_container(request, &identity, &record, workload).await,
            }
        };
        let outcome = self.within_deadline(setup).await;
        let result = outcome.and_then(|(result, workload)| {
            let live = AttachmentRecord {
                phase: AttachmentPhase::Live,
                result: Some(result.clone()),
                workload: Some(workload),
                ..record.clone()
            };
            self.write_record(&live, false).map(|()| result)
        });
        if result.is_err()
            && let Err(error) = self.within_deadline(self.undo(&record)).await
        {
            tracing::warn!(%error, container = request.container_id, "cannot roll back a failed ADD; retrying");
        }
        result.map(|result| AddOutcome { result, is_new: true })
    }

    /// Repeats the response to an ADD. Updates the network namespace path of an adopted record to that of the
    /// runtime.
    fn repeat_result(
        &self,
        request: &CniRequest,
        mut known: AttachmentRecord,
    ) -> Result<AddOutcome, CniError> {
        let result = known.result.as_mut();
        let result = result.ok_or_else(|| CniError::new(code::FAILED, "the record has no result"))?;
        if known.adopted && known.netns != request.netns {
            if let Some(inside) = result.interfaces.get_mut(1) {
                inside.sandbox.clone_from(&request.netns);
            }
            known.netns.clone_from(&request.netns);
            self.write_record(&known, false)?;
        }
        let result = known.result.unwrap_or_default();
        Ok(AddOutcome { result, is_new: false })
    }

    /// Fails if another program created the interface, before anything is started that would have to be undone: the
    /// address and the endpoint of such a container are not ours to release.
    async fn refuse_existing_interface(&self, request: &CniRequest) -> Result<(), CniError> {
        if request.config.previous.is_some() {
            return Ok(());
        }
        let CniRequest { netns, ifname: name, .. } = request;
        let is_there = pod::has_interface(Path::new(netns), name).await.map_err(convert_kernel_error)?;
        if !is_there {
            return Ok(());
        }
        let message =
            format!("interface {name} already exists in {netns}, and was not attached by this node");
        Err(CniError::new(code::FAILED, message))
    }

    async fn connect_container(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
        record: &AttachmentRecord,
        workload: Option<KubernetesPod>,
    ) -> Result<(CniResult, serde_json::Value), CniError> {
        crate::failpoint::hit("add-journalled").await;
        let (pod_annotations, namespace_labels) = match &workload {
            Some(workload) => (workload.pod_annotations.clone(), workload.namespace_labels.clone()),
            None => Default::default(),
        };
        let addresses = match &record.delegate {
            Some(delegate) => delegate.add(&record.id, &record.netns).await?,
            None => {
                let request = CniRequest { namespace_labels, ..request.clone() };
                self.assign_requested_addresses(request, &pod_annotations).await?
            }
        };
        crate::failpoint::hit("add-assigned").await;
        let profile = match &workload {
            Some(workload) => self.ensure_profiles(workload).await?,
            None => self.ensure_profile(request, identity).await?,
        };
        let attach = self.build_attach_request(request, record, &addresses, pod_annotations.mac)?;
        let attached = pod::attach(&self.host, &attach).await.map_err(convert_kernel_error)?;
        crate::failpoint::hit("add-attached").await;
        let mac = attached.mac.map(|byte| format!("{byte:02x}")).join(":");
        // Publish the result in the journal now, because the feed may deliver the endpoint before the attachment is
        // live.
        self.journal.announce(&AttachmentRecord { result: Some(addresses.clone()), ..record.clone() });
        let described = workload.map(|workload| workload.endpoint);
        let mut endpoint = self.build_endpoint(request, identity, record, described, &attach.addresses, &mac);
        endpoint.spec.ip_nats = map_floating_addresses(&pod_annotations.floating, &attach.addresses);
        let workload = self.program_endpoint(record, endpoint, profile).await?;
        Ok((build_result(request, record, &attach, &attached, mac, addresses), workload))
    }

    /// Enforces policy on an interface that another plugin created.
    async fn adopt_interface(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
        record: &AttachmentRecord,
        workload: Option<KubernetesPod>,
        chained: ChainedInterface,
    ) -> Result<(CniResult, serde_json::Value), CniError> {
        let profile = match &workload {
            Some(workload) => self.ensure_profiles(workload).await?,
            None => self.ensure_profile(request, identity).await?,
        };
        self.journal.announce(&AttachmentRecord { result: Some(chained.result.clone()), ..record.clone() });
        let floating =
            workload.as_ref().map(|workload| workload.pod_annotations.floating.clone()).unwrap_or_default();
        let described = workload.map(|workload| workload.endpoint);
        let addresses = chained.addresses();
        let mut endpoint =
            self.build_endpoint(request, identity, record, described, &addresses, &chained.mac);
        endpoint.spec.ip_nats = map_floating_addresses(&floating, &addresses);
        let workload = self.program_endpoint(record, endpoint, profile).await?;
        Ok((chained.result, workload))
    }

    /// Writes the endpoint and returns it as stored, once its policy is in force.
    async fn program_endpoint(
        &self,
        record: &AttachmentRecord,
        endpoint: WorkloadEndpoint,
        profile: Option<String>,
    ) -> Result<serde_json::Value, CniError> {
        let networks = endpoint.spec.ip_networks.clone();
        let nats = endpoint.spec.ip_nats.clone();
        let (key, stored) = self.write_endpoint(endpoint).await?;
        let stored = set_attached_addresses(stored, networks, nats, &record.id.container_id);
        crate::failpoint::hit("add-stored").await;
        let workload = stored.to_value();
        let wired = set_interface_name(stored, &record.host_interface);
        self.engine.attach(key, StoreValue::Resource(wired), profile).await.map_err(convert_engine_error)?;
        crate::failpoint::hit("add-programmed").await;
        Ok(workload)
    }

    /// Assigns addresses from Calico IPAM, or uses those that the pod's annotations name.
    async fn assign_requested_addresses(
        &self,
        mut request: CniRequest,
        pod_annotations: &PodNetworkAnnotations,
    ) -> Result<CniResult, CniError> {
        pod_annotations.apply(&mut request.config);
        let listed = match &pod_annotations.addresses {
            AddressSource::Any => return self.assign_addresses(&request, None).await,
            AddressSource::Unmanaged(listed) | AddressSource::Exactly(listed) => listed,
        };
        let mut result = CniResult::default();
        for address in listed {
            if matches!(pod_annotations.addresses, AddressSource::Exactly(_)) {
                request.args.ip = Some(address.to_string());
                self.assign_addresses(&request, None).await?;
            }
            result.ips.push(ResultIp { address: IpNet::from(*address), gateway: None, interface: None });
        }
        Ok(result)
    }

    pub(super) fn build_attach_request(
        &self,
        request: &CniRequest,
        record: &AttachmentRecord,
        addresses: &CniResult,
        mac: Option<[u8; 6]>,
    ) -> Result<AttachRequest, CniError> {
        let config = &request.config;
        let mut routes: Vec<IpNet> = Vec::new();
        for route in &config.ipam.routes {
            let dst = route.dst.parse::<IpNet>().map_err(|_| {
                CniError::new(code::NETWORK_CONFIG, format!("ipam.routes: {:?} is not a CIDR", route.dst))
            })?;
            routes.push(dst);
        }
        if config.include_default_routes && !routes.is_empty() {
            routes.splice(0..0, [IpNet::V4(Default::default()), IpNet::V6(Default::default())]);
        }
        let mtu = u32::try_from(config.mtu).ok().filter(|mtu| *mtu != 0);
        let mtu = mtu.or_else(|| self.state.mtu().map(|choice| choice.mtu));
        Ok(AttachRequest {
            netns: PathBuf::from(&request.netns),
            container_interface: request.ifname.clone(),
            host_interface: record.host_interface.clone(),
            addresses: addresses.ips.iter().map(|ip| ip.address.addr()).collect(),
            routes,
            mtu,
            mac,
            queues: u32::try_from(config.num_queues).unwrap_or(0).max(1),
            allow_ip_forwarding: config.container_settings.allow_ip_forwarding,
        })
    }

    pub(super) fn derive_endpoint_name(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
    ) -> Result<String, CniError> {
        let parts = tortie_model::names::WorkloadEndpointParts {
            node: &self.node,
            orchestrator: identity.orchestrator,
            pod: &identity.pod,
            container_id: &request.container_id,
            workload: "",
            endpoint: &request.ifname,
        };
        parts.name().map_err(|bad| {
            let reasons: Vec<String> =
                bad.iter().map(|part| format!("{} {:?}: {}", part.field, part.value, part.reason)).collect();
            CniError::new(
                code::ENVIRONMENT,
                format!("no endpoint can have this name: {}", reasons.join("; ")),
            )
        })
    }

    fn build_endpoint(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
        record: &AttachmentRecord,
        described: Option<WorkloadEndpoint>,
        addresses: &[IpAddr],
        mac: &str,
    ) -> WorkloadEndpoint {
        let (namespace, name) = record.endpoint.clone().unwrap_or_default();
        let mut meta =
            ObjectMeta { name, namespace, labels: identity.labels.clone(), ..ObjectMeta::default() };
        let mut spec = WorkloadEndpointSpec {
            profiles: vec![select_profile(request, identity)],
            ..WorkloadEndpointSpec::default()
        };
        if let Some(described) = described {
            meta.labels.extend(described.metadata.labels);
            meta.generate_name = described.metadata.generate_name;
            spec = described.spec;
        }
        for joined in &record.joined {
            if !spec.profiles.contains(&joined.profile) {
                spec.profiles.push(joined.profile.clone());
            }
        }
        WorkloadEndpoint::new(
            meta,
            WorkloadEndpointSpec {
                orchestrator: identity.orchestrator.to_owned(),
                node: self.node.clone(),
                container_id: request.container_id.clone(),
                pod: identity.pod.clone(),
                endpoint: request.ifname.clone(),
                ip_networks: addresses.iter().map(|address| IpNet::from(*address).to_string()).collect(),
                interface_name: record.host_interface.clone(),
                mac: mac.to_owned(),
                ..spec
            },
        )
    }

    /// Creates the endpoint, or replaces that of the pod's previous sandbox.
    async fn write_endpoint(&self, endpoint: WorkloadEndpoint) -> Result<(StoreKey, Resource), CniError> {
        let namespace = endpoint.metadata.namespace.clone();
        let name = endpoint.metadata.name.clone();
        let key = StoreKey::resource(Kind::WorkloadEndpoint, &namespace, &name);
        let mut last = None;
        for _ in 0..MAX_ENDPOINT_WRITE_ATTEMPTS {
            let created = self.resources.create(endpoint.clone().into()).await;
            let written = match created {
                Err(StoreError::AlreadyExists { .. }) => {
                    let stored = self.resources.get_as::<WorkloadEndpointSpec>(&namespace, &name).await;
                    match stored {
                        Ok(mut stored) => {
                            stored.metadata.labels = endpoint.metadata.labels.clone();
                            stored.spec = endpoint.spec.clone();
                            self.resources.update(stored.into()).await
                        }
                        Err(error) => Err(error),
                    }
                }
                other => other,
            };
            match written {
                Ok(stored) => return Ok((key, stored)),
                Err(error @ (StoreError::Conflict { .. } | StoreError::DoesNotExist { .. })) => {
                    last = Some(error)
                }
                Err(error) => return Err(convert_store_error(error)),
            }
        }
        let reason = last.map(|error| error.to_string()).unwrap_or_default();
        Err(CniError::new(code::TRY_AGAIN, "the endpoint keeps changing while it is written").with(reason))
    }

    /// Creates the profile named after the network, for networks without a policy type. An existing profile is never
    /// changed. Returns the name if the profile certainly exists in the datastore.
    pub(super) async fn ensure_profile(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
    ) -> Result<Option<String>, CniError> {
        // With the Kubernetes datastore, profiles are derived from namespaces.
        if self.resources.client().capabilities().derives(Kind::Profile) {
            return Ok(Some(format!("kns.{}", identity.namespace)));
        }
        let network = &request.config.name;
        if !request.config.policy.kind.is_empty() {
            return self.existing_profile(select_profile(request, identity)).await;
        }
        let name = &identity::derive_profile_name(network);
        if self.profiles.lock().unwrap_or_else(PoisonError::into_inner).contains(name) {
            return Ok(Some(name.clone()));
        }
        let allow = Rule { action: Action::Allow, ..Rule::default() };
        let mut ingress = allow.clone();
        if identity.orchestrator != "k8s" {
            ingress.source.selector = format!("has({network})");
        }
        let spec = ProfileSpec {
            ingress: vec![ingress],
            egress: vec![allow],
            labels_to_apply: BTreeMap::from([(network.clone(), String::new())]),
        };
        let meta = ObjectMeta { name: name.clone(), ..ObjectMeta::default() };
        match self.resources.create(Profile::new(meta, spec).into()).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => {
                self.profiles.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
                Ok(Some(name.clone()))
            }
            Err(error) => Err(convert_store_error(error)),
        }
    }

    /// Returns the name of a profile that the node does not manage, if it exists in the datastore.
    async fn existing_profile(&self, name: String) -> Result<Option<String>, CniError> {
        match self.resources.get_as::<ProfileSpec>("", &name).await {
            Ok(_) => Ok(Some(name)),
            Err(StoreError::DoesNotExist { .. }) => Ok(None),
            Err(error) => Err(convert_store_error(error)),
        }
    }

    /// Transfers the interface and the endpoint from the pod's previous sandbox to the new one. The previous sandbox
    /// keeps only its address.
    fn take_over(&self, record: &AttachmentRecord) -> Result<(), CniError> {
        let old = self.journal.find(|other| {
            other.id != record.id
                && (other.endpoint.is_some() && other.endpoint == record.endpoint
                    || other.host_interface == record.host_interface)
        });
        if let Some(old) = old {
            let old = AttachmentRecord { host_interface: String::new(), endpoint: None, ..old };
            self.write_record(&old, true)?;
        }
        Ok(())
    }

    /// Returns the IPAM plugin to call. Fails if its executable is missing, because it could not undo anything
    /// either.
    async fn resolve_delegate(
        &self,
        request: &CniRequest,
        orchestrator: Option<&OrchestratorClient>,
    ) -> Result<DelegatedIpam, CniError> {
        let delegate =
            DelegatedIpam::from_request(request, &self.read_pod_cidrs(request, orchestrator).await?)?;
        delegate.find_program().map(|_| delegate)
    }

    /// Returns the pod CIDRs of the node if the IPAM configuration refers to them.
    async fn read_pod_cidrs(
        &self,
        request: &CniRequest,
        orchestrator: Option<&OrchestratorClient>,
    ) -> Result<Vec<String>, CniError> {
        if !DelegatedIpam::wants_pod_cidrs(request) {
            return Ok(Vec::new());
        }
        if let Some(orchestrator) = orchestrator {
            let given = &request.config.kubernetes.node_name;
            let node = if given.is_empty() { &self.node } else { given };
            let cidrs = orchestrator.pod_cidrs(node).await.map_err(convert_store_error)?;
            if cidrs.is_empty() {
                return Err(CniError::new(code::FAILED, format!("no podCidr for node {node}")));
            }
            return Ok(cidrs);
        }
        let node = self.resources.get_as::<NodeSpec>("", &self.node).await.map_err(convert_store_error)?;
        Ok(node.status.pod_cidrs)
    }

    pub(super) fn write_record(&self, record: &AttachmentRecord, durable: bool) -> Result<(), CniError> {
        self.journal.put(record, durable).map_err(|error| {
            CniError::new(code::IO, "cannot write the record of the attachment").with(error.to_string())
        })
    }
}

/// Returns the profile that a network gives to its endpoints, unless Kubernetes defines it.
pub(super) fn select_profile(request: &CniRequest, identity: &ContainerIdentity) -> String {
    match request.config.policy.kind.as_str() {
        "k8s" => format!("kns.{}", identity.namespace),
        _ => identity::derive_profile_name(&request.config.name),
    }
}

/// Returns the stored endpoint with the addresses of this attachment: Kubernetes may still report the pod's previous
/// sandbox.
fn set_attached_addresses(
    stored: Resource,
    networks: Vec<String>,
    nats: Vec<IPNAT>,
    container_id: &str,
) -> Resource {
    let Resource::WorkloadEndpoint(mut endpoint) = stored else { return stored };
    endpoint.spec.ip_nats = nats;
    endpoint.spec.ip_networks = networks;
    container_id.clone_into(&mut endpoint.spec.container_id);
    Resource::WorkloadEndpoint(endpoint)
}

/// Returns the endpoint with its actual interface name: Kubernetes only has the name that is derived from the pod.
fn set_interface_name(endpoint: Resource, interface: &str) -> Resource {
    let Resource::WorkloadEndpoint(mut endpoint) = endpoint else { return endpoint };
    interface.clone_into(&mut endpoint.spec.interface_name);
    Resource::WorkloadEndpoint(endpoint)
}

/// Maps each floating address to the pod's address of the same family, if there is one.
fn map_floating_addresses(floating: &[IpAddr], addresses: &[IpAddr]) -> Vec<IPNAT> {
    let pairs = floating.iter().filter_map(|external| {
        let internal = addresses.iter().find(|address| address.is_ipv4() == external.is_ipv4())?;
        Some(IPNAT { internal_ip: internal.to_string(), external_ip: external.to_string() })
    });
    pairs.collect()
}

fn build_result(
    request: &CniRequest,
    record: &AttachmentRecord,
    attach: &AttachRequest,
    attached: &AttachedInterface,
    mac: String,
    addresses: CniResult,
) -> CniResult {
    let single =
        |address: &IpAddr| ResultIp { address: IpNet::from(*address), gateway: None, interface: Some(1) };
    CniResult {
        interfaces: vec![
            ResultInterface { name: record.host_interface.clone(), ..ResultInterface::default() },
            ResultInterface {
                name: request.ifname.clone(),
                mac,
                mtu: attached.mtu,
                sandbox: request.netns.clone(),
            },
        ],
        ips: attach.addresses.iter().map(single).collect(),
        routes: addresses.routes,
        dns: addresses.dns,
    }
}

/// Maps an engine error to a CNI error. An object that the kernel refused would be refused again, so a retry helps
/// only with the other errors.
pub(super) fn convert_engine_error(error: EngineRequestError) -> CniError {
    let code = match &error {
        EngineRequestError::Refused(RequestRefusal::Kernel { .. } | RequestRefusal::Endpoint(_)) => {
            code::FAILED
        }
        _ => code::TRY_AGAIN,
    };
    CniError::new(code, "the endpoint is not programmed").with(error.to_string())
}

fn convert_kernel_error(error: tortie_dataplane::DataplaneError) -> CniError {
    let code = match error {
        tortie_dataplane::DataplaneError::Invalid { .. } => code::NETWORK_CONFIG,
        _ => code::FAILED,
    };
    CniError::new(code, error.to_string())
}
