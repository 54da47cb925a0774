//! Compares the live attachments in the journal with the datastore, and repairs the datastore.
//!
//! A restored backup, a migration or a manual mistake can make the datastore lose a live attachment, or assign its
//! address to another one. Lost addresses and endpoints are claimed and written again. Addresses that the datastore
//! assigns to another holder are only reported, because an operator has to decide which holder to remove.

use crate::cni::CniService;
use crate::engine::HeldAttachment;
use crate::journal::{AttachmentJournal, AttachmentPhase, AttachmentRecord};
use crate::state::NodeState;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_ipam::owner::attribute;
use tortie_ipam::{AddressHolder, Allocator, SpecificRequest};
use tortie_model::ipam::AllocationAttribute;
use tortie_model::kinds::{WorkloadEndpoint, WorkloadEndpointSpec};
use tortie_model::{Kind, ObjectMeta, Resource, StoreValue};
use tortie_store::{ResourceClient, StoreError};

/// Maximum number of attachments checked in one pass unless a loss is known, to limit the load on the datastore.
const MAX_ATTACHMENTS_PER_PASS: usize = 32;
/// Maximum number of conflicts named on the health page.
const MAX_NAMED_CONFLICTS: usize = 5;
/// Component name of the warning on the health page.
const ADDRESSES_COMPONENT: &str = "addresses";

/// Checks the attachments of this node in turn.
#[derive(Debug)]
pub struct AttachmentReclaimer {
    node: String,
    /// Index of the first attachment of the next pass.
    next: usize,
    /// Addresses of live attachments that the datastore assigns to another holder, or that could not be claimed
    /// again.
    conflicts: BTreeMap<IpAddr, String>,
}

/// The write that makes the datastore match the attachment.
#[derive(Debug, PartialEq)]
enum EndpointRepair {
    Create(Box<WorkloadEndpoint>),
    Update(Box<WorkloadEndpoint>),
}

/// Returns the live attachments, which are part of the initial plan.
pub fn list_held_attachments(journal: &AttachmentJournal, node: &str) -> Vec<HeldAttachment> {
    let mut held = Vec::new();
    for record in live_attachments(journal) {
        let Some(key) = record.endpoint_key() else { continue };
        let mut endpoint = build_endpoint(&record, node);
        if let Some(endpoint) = &mut endpoint
            && record.chained
        {
            // For a chained attachment the datastore may have another interface name.
            endpoint.spec.interface_name.clone_from(&record.host_interface);
        }
        held.push(HeldAttachment { key, endpoint: endpoint.map(|e| StoreValue::Resource(e.into())) });
    }
    held
}

fn live_attachments(journal: &AttachmentJournal) -> Vec<AttachmentRecord> {
    journal.all().into_iter().filter(|record| record.phase == AttachmentPhase::Live).collect()
}

impl AttachmentReclaimer {
    pub fn new(node: &str) -> AttachmentReclaimer {
        AttachmentReclaimer { node: node.to_owned(), next: 0, conflicts: BTreeMap::new() }
    }

    /// Checks all attachments if the datastore is known to have lost one, else the next [`MAX_ATTACHMENTS_PER_PASS`].
    pub async fn run(&mut self, all: bool, service: &CniService) {
        let CniService { journal, allocator, resources, state, .. } = service;
        // A locked datastore is being migrated or repaired.
        if state.is_datastore_locked() {
            return;
        }
        let records = live_attachments(journal);
        let held: Vec<IpAddr> = records.iter().flat_map(AttachmentRecord::addresses).collect();
        self.conflicts.retain(|address, _| held.contains(address));
        let mut first = 0;
        let mut count = records.len();
        if !all && count > MAX_ATTACHMENTS_PER_PASS {
            first = self.next % records.len();
            count = MAX_ATTACHMENTS_PER_PASS;
        }
        let turn: Vec<&AttachmentRecord> = records.iter().cycle().skip(first).take(count).collect();
        // Read each block once for all records. Addresses that differ from the journal are read again one by one.
        let addresses: Vec<IpAddr> = turn.iter().flat_map(|record| record.addresses()).collect();
        let known = allocator.records_of(&addresses).await.unwrap_or_default();
        for record in turn {
            // The lock keeps a DEL from running at the same time. If the attachment was removed since, it must not be
            // restored.
            let _lock = service.lock(&record.id.container_id).await;
            if journal.get(&record.id).is_none_or(|current| current.phase != AttachmentPhase::Live) {
                continue;
            }
            self.reclaim_addresses(record, &known, allocator).await;
            if let Err(error) = self.restore_endpoint(record, resources).await {
                tracing::warn!(container = record.id.container_id, %error, "cannot restore the endpoint of a live container in the datastore; retrying");
            }
        }
        self.next = first + count;
        self.report(state);
    }

    /// Assigns addresses again that the datastore considers free.
    async fn reclaim_addresses(
        &mut self,
        record: &AttachmentRecord,
        known: &BTreeMap<IpAddr, AllocationAttribute>,
        allocator: &Allocator,
    ) {
        let Some(handle) = &record.handle else { return };
        for address in record.addresses() {
            if known.get(&address).is_some_and(|found| found.handle() == Some(handle)) {
                self.conflicts.remove(&address);
                continue;
            }
            let conflict = match allocator.record_of(address).await {
                Ok(Some(found)) if found.handle() == Some(handle) => None,
                Ok(Some(found)) => Some(format!(
                    "container {} on this node has it, the datastore says that it belongs to handle {}{}",
                    record.id.container_id,
                    found.handle().unwrap_or("<none>"),
                    found
                        .secondary
                        .get(attribute::NODE_ATTRIBUTE)
                        .map(|node| format!(" on node {node}"))
                        .unwrap_or_default()
                )),
                Ok(None) => {
                    let request = SpecificRequest::new(address, self.holder(record, handle));
                    match allocator.assign_address(&request).await {
                        Ok(_) => {
                            tracing::warn!(%address, container = record.id.container_id, "the datastore had lost the address of a live container; it is assigned again");
                            None
                        }
                        Err(error) => Some(format!(
                            "container {} on this node has it, the datastore does not know: {error}",
                            record.id.container_id
                        )),
                    }
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "cannot read the allocation of the address");
                    continue;
                }
            };
            match conflict {
                Some(conflict) => {
                    if self.conflicts.insert(address, conflict.clone()).as_ref() != Some(&conflict) {
                        tracing::error!(%address, conflict, "an address of a live container is in conflict; remove one of its holders");
                    }
                }
                None => {
                    self.conflicts.remove(&address);
                }
            }
        }
    }

    fn holder(&self, record: &AttachmentRecord, handle: &str) -> AddressHolder {
        let mut attributes = BTreeMap::from([(attribute::NODE_ATTRIBUTE.to_owned(), self.node.clone())]);
        if let Some(endpoint) = build_endpoint(record, &self.node)
            && !endpoint.spec.pod.is_empty()
        {
            attributes.insert(attribute::POD_ATTRIBUTE.to_owned(), endpoint.spec.pod);
            attributes.insert(attribute::NAMESPACE_ATTRIBUTE.to_owned(), endpoint.metadata.namespace);
        }
        AddressHolder::new(Some(handle), attributes)
    }

    async fn restore_endpoint(
        &self,
        record: &AttachmentRecord,
        resources: &ResourceClient,
    ) -> Result<(), StoreError> {
        let Some(own) = build_endpoint(record, &self.node) else { return Ok(()) };
        let namespace = own.metadata.namespace.clone();
        let name = own.metadata.name.clone();
        let stored = match resources.get_as::<WorkloadEndpointSpec>(&namespace, &name).await {
            Ok(stored) => Some(stored),
            Err(StoreError::DoesNotExist { .. }) => None,
            Err(error) => return Err(error),
        };
        // With Kubernetes as the datastore the endpoint is the pod: a deleted pod cannot be written back, and only
        // the fields that the CNI plugin sets are ours to repair.
        let container = stored.as_ref().map(|stored| &stored.spec.container_id);
        if resources.client().capabilities().derives(Kind::WorkloadEndpoint)
            && container.is_none_or(|id| *id == own.spec.container_id)
        {
            return Ok(());
        }
        let written = match find_repair(own, stored) {
            None => return Ok(()),
            Some(EndpointRepair::Create(endpoint)) => resources.create(Resource::from(*endpoint)).await,
            Some(EndpointRepair::Update(endpoint)) => resources.update(Resource::from(*endpoint)).await,
        };
        match written {
            Ok(_) => {
                tracing::warn!(
                    namespace,
                    endpoint = name,
                    "the datastore had lost or changed the endpoint of a live container; it is written back"
                );
                Ok(())
            }
            // Another client wrote the endpoint first. The next pass checks the result.
            Err(StoreError::AlreadyExists { .. } | StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn report(&self, state: &NodeState) {
        state.metrics.address_conflicts.set(i64::try_from(self.conflicts.len()).unwrap_or(i64::MAX));
        let mut lines: Vec<String> = self
            .conflicts
            .iter()
            .take(MAX_NAMED_CONFLICTS)
            .map(|(address, conflict)| format!("{address}: {conflict}"))
            .collect();
        if self.conflicts.len() > MAX_NAMED_CONFLICTS {
            lines.push(format!("and {} more", self.conflicts.len() - MAX_NAMED_CONFLICTS));
        }
        state.set_warning(ADDRESSES_COMPONENT, (!lines.is_empty()).then(|| lines.join("; ")));
    }
}

#[doc(hidden)]
pub fn is_attachment(bytes: &[u8]) -> bool {
    let Ok(record) = serde_json::from_slice::<AttachmentRecord>(bytes) else { return false };
    let _ = (record.endpoint_key(), record.addresses().count(), build_endpoint(&record, "node1"));
    true
}

/// Returns the endpoint of an attachment as it was written, or as far as it can be derived from the record.
pub fn build_endpoint(record: &AttachmentRecord, node: &str) -> Option<WorkloadEndpoint> {
    let (namespace, name) = record.endpoint.clone()?;
    if let Some(endpoint) = record.workload.clone() {
        let resource = Resource::from_store(tortie_model::Kind::WorkloadEndpoint, endpoint).ok()?;
        let mut endpoint = WorkloadEndpoint::try_from(resource).ok()?;
        let meta = &mut endpoint.metadata;
        meta.uid.clear();
        meta.resource_version.clear();
        meta.creation_timestamp = None;
        return Some(endpoint);
    }
    // A record of an older version without the endpoint: derive it without labels, with the profile of its network.
    let result = record.result.as_ref()?;
    let inside = result.interfaces.iter().find(|interface| interface.name == record.id.ifname);
    let spec = WorkloadEndpointSpec {
        orchestrator: "cni".to_owned(),
        node: node.to_owned(),
        container_id: record.id.container_id.clone(),
        endpoint: record.id.ifname.clone(),
        ip_networks: record.addresses().map(|address| ipnet::IpNet::from(address).to_string()).collect(),
        profiles: vec![record.network.clone()],
        interface_name: record.host_interface.clone(),
        mac: inside.map(|interface| interface.mac.clone()).unwrap_or_default(),
        ..WorkloadEndpointSpec::default()
    };
    Some(WorkloadEndpoint::new(ObjectMeta { name, namespace, ..ObjectMeta::default() }, spec))
}

/// Returns the fields that the attachment determines.
fn read_attachment_fields(spec: &WorkloadEndpointSpec) -> ([&String; 4], &[String]) {
    ([&spec.node, &spec.container_id, &spec.interface_name, &spec.mac], &spec.ip_networks)
}

/// Returns the write that makes the datastore match the attachment. Users may change labels and profiles, so a
/// difference there is not repaired.
fn find_repair(own: WorkloadEndpoint, stored: Option<WorkloadEndpoint>) -> Option<EndpointRepair> {
    let Some(mut stored) = stored else { return Some(EndpointRepair::Create(Box::new(own))) };
    if read_attachment_fields(&stored.spec) == read_attachment_fields(&own.spec) {
        return None;
    }
    stored.spec = own.spec;
    Some(EndpointRepair::Update(Box::new(stored)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::CniResult;
    use crate::journal::AttachmentId;
    use serde_json::json;

    fn record(workload: Option<serde_json::Value>) -> AttachmentRecord {
        let result = json!({"ips": [{"address": "10.0.0.1/32"}, {"address": "fd00::1/128"}], "routes": [], "dns": {},
            "interfaces": [{"name": "cali1", "mac": "", "mtu": 0, "sandbox": ""},
                {"name": "eth0", "mac": "ee:ee:ee:ee:ee:ee", "mtu": 0, "sandbox": "/run/netns/x"}]});
        AttachmentRecord {
            id: AttachmentId { container_id: "c1".into(), ifname: "eth0".into() },
            phase: AttachmentPhase::Live,
            network: "net".into(),
            netns: "/run/netns/x".into(),
            chained: false,
            adopted: false,
            host_interface: "cali1".into(),
            handle: Some("net.c1".into()),
            delegate: None,
            endpoint: Some(("default".into(), "n1-cni-c1-eth0".into())),
            result: Some(serde_json::from_value::<CniResult>(result).unwrap()),
            workload,
            joined: Vec::new(),
        }
    }

    fn written() -> serde_json::Value {
        json!({"kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "n1-k8s-web-eth0", "namespace": "default", "labels": {"app": "web"},
                "uid": "u", "resourceVersion": "7"},
            "spec": {"node": "n1", "orchestrator": "k8s", "pod": "web", "endpoint": "eth0", "containerID": "c1",
                "interfaceName": "cali1", "ipNetworks": ["10.0.0.1/32"], "profiles": ["kns.default"]}})
    }

    #[test]
    fn the_journaled_endpoint_has_no_store_metadata() {
        let endpoint = build_endpoint(&record(Some(written())), "n1").unwrap();
        assert_eq!(endpoint.metadata.labels["app"], "web");
        assert_eq!((endpoint.metadata.resource_version.as_str(), endpoint.metadata.uid.as_str()), ("", ""));
        assert_eq!(endpoint.spec.pod, "web");
    }

    #[test]
    fn an_old_record_keeps_the_network() {
        let endpoint = build_endpoint(&record(None), "n1").unwrap();
        assert_eq!(endpoint.spec.ip_networks, ["10.0.0.1/32", "fd00::1/128"]);
        assert_eq!(endpoint.spec.interface_name, "cali1");
        assert_eq!(endpoint.spec.profiles, ["net"]);
        assert_eq!(endpoint.spec.mac, "ee:ee:ee:ee:ee:ee");
    }

    #[test]
    fn only_lost_or_rewired_endpoints_are_written() {
        let own = build_endpoint(&record(Some(written())), "n1").unwrap();
        assert!(matches!(find_repair(own.clone(), None), Some(EndpointRepair::Create(_))));
        let mut stored = own.clone();
        stored.metadata.resource_version = "9".into();
        stored.metadata.labels.insert("added".into(), "by hand".into());
        assert_eq!(find_repair(own.clone(), Some(stored.clone())), None);
        stored.spec.container_id = "of a former sandbox".into();
        let Some(EndpointRepair::Update(mended)) = find_repair(own.clone(), Some(stored)) else {
            panic!("not mended")
        };
        assert_eq!(mended.spec, own.spec);
        assert_eq!(mended.metadata.resource_version, "9");
        assert!(mended.metadata.labels.contains_key("added"));
    }
}
