//! The CNI DEL command, and the rollback of unfinished attachments. A failed step does not stop the others. An
//! attachment that could not be undone stays in the journal and is retried.

use super::identity::{self, CALICO_IPAM, ContainerIdentity};
use super::ipam::convert_store_error;
use super::request::CniRequest;
use super::service::{CniService, MAX_ENDPOINT_WRITE_ATTEMPTS};
use crate::engine::EngineRequestError;
use crate::journal::{AttachmentPhase, AttachmentRecord, DelegatedIpam};
use std::path::Path;
use tortie_cni::{CniError, code};
use tortie_dataplane::pod;
use tortie_model::StoreKey;
use tortie_model::kinds::WorkloadEndpointSpec;
use tortie_store::StoreError;

impl CniService {
    /// Handles DEL. Succeeds if there is nothing left to undo.
    pub(super) async fn del(&self, request: &CniRequest) -> Result<(), CniError> {
        let id = CniService::record_id(request);
        if let Some(record) = self.find_shared_record(&id, &request.config.name) {
            return self.leave_network(&record, &request.config.name, &id.ifname).await;
        }
        if let Some(mut record) = self.journal.get(&id) {
            // The request is about a network that the container has already left; it is still attached to others.
            if CniService::is_of_another_network(request, &record) {
                return Ok(());
            }
            if !request.netns.is_empty() {
                record.netns = request.netns.clone();
            }
            // The record of an adopted container does not name another IPAM plugin, but the request does.
            if record.adopted && record.handle.is_none() {
                record.delegate = find_delegate(request)?;
            }
            return self.undo(&record).await;
        }
        // There is no record: another program attached the container, or it was removed long ago. Remove everything
        // whose name can be derived from the request.
        let identity = ContainerIdentity::from_request(request);
        let derived = self.pick_host_interface(request, &identity);
        let own_ipam = request.config.ipam.kind == CALICO_IPAM;
        let delegate = find_delegate(request)?;
        let record = AttachmentRecord {
            id,
            phase: AttachmentPhase::Removing,
            network: request.config.name.clone(),
            netns: request.netns.clone(),
            host_interface: if self.is_in_use(&derived) { String::new() } else { derived },
            handle: own_ipam.then(|| identity::derive_handle(&request.config.name, &request.container_id)),
            endpoint: Some((identity.namespace.clone(), self.derive_endpoint_name(request, &identity)?)),
            result: None,
            chained: request.config.previous.is_some() && !own_ipam && delegate.is_none(),
            delegate,
            adopted: false,
            workload: None,
            joined: Vec::new(),
        };
        self.tear_down(&record, false).await?;
        if own_ipam {
            self.release_addresses(&identity::derive_legacy_handle(&identity, &request.container_id)).await?;
        }
        Ok(())
    }

    /// Undoes an attachment that has a record.
    pub(super) async fn undo(&self, record: &AttachmentRecord) -> Result<(), CniError> {
        let record = AttachmentRecord { phase: AttachmentPhase::Removing, result: None, ..record.clone() };
        self.write_record(&record, false)?;
        self.tear_down(&record, true).await?;
        crate::failpoint::hit("del-dismantled").await;
        self.journal.remove(&record.id).map_err(|error| {
            CniError::new(code::IO, "cannot remove the record of the attachment").with(error.to_string())
        })
    }

    /// Removes the endpoint, the interface and the addresses. The addresses are released last, so that they are not
    /// assigned again while something here still uses them. With `ours`, only an interface that we created is
    /// removed.
    async fn tear_down(&self, record: &AttachmentRecord, ours: bool) -> Result<(), CniError> {
        let mut failures = Vec::new();
        crate::failpoint::hit("del-journalled").await;
        if let Err(error) = self.delete_endpoint(record).await {
            failures.push(error);
        }
        crate::failpoint::hit("del-unstored").await;
        let netns = Some(Path::new(&record.netns)).filter(|path| !path.as_os_str().is_empty());
        let host_interface = Some(record.host_interface.as_str()).filter(|name| !name.is_empty());
        let inside = &record.id.ifname;
        let detached = match (netns, host_interface) {
            _ if record.chained => Ok(()),
            (Some(netns), Some(outside)) if ours => {
                pod::undo_attach(&self.host, netns, inside, outside).await
            }
            _ => pod::detach(&self.host, netns, inside, host_interface).await,
        };
        if let Err(error) = detached {
            failures.push(CniError::new(code::FAILED, error.to_string()));
        }
        crate::failpoint::hit("del-detached").await;
        if failures.is_empty() {
            if let Some(handle) = &record.handle {
                self.release_addresses(handle).await?;
            }
            if let Some(delegate) = &record.delegate {
                delegate.del(&record.id, &record.netns).await?;
            }
            crate::failpoint::hit("del-released").await;
        }
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => {
                let code = failures[0].code;
                let all: Vec<String> = failures.iter().map(CniError::to_string).collect();
                Err(CniError::new(code, all.join("; ")))
            }
        }
    }

    /// Deletes the endpoint, from the kernel first, unless it belongs to a newer sandbox.
    async fn delete_endpoint(&self, record: &AttachmentRecord) -> Result<(), CniError> {
        let Some(key) = record.endpoint_key() else { return Ok(()) };
        let StoreKey::Resource { kind, namespace, name } = key.clone() else { return Ok(()) };
        let mut last = None;
        for _ in 0..MAX_ENDPOINT_WRITE_ATTEMPTS {
            let stored = match self.resources.get_as::<WorkloadEndpointSpec>(&namespace, &name).await {
                Ok(stored) => stored,
                Err(StoreError::DoesNotExist { .. }) => {
                    return self.engine.detach(key, None).await.map_err(convert_removal_error);
                }
                Err(error) => return Err(convert_store_error(error)),
            };
            let container = &stored.spec.container_id;
            if !container.is_empty() && *container != record.id.container_id {
                return Ok(());
            }
            let version = stored.metadata.resource_version.clone();
            self.engine.detach(key.clone(), version.parse().ok()).await.map_err(convert_removal_error)?;
            match self.resources.delete(kind, &namespace, &name, Some(&version)).await {
                Ok(_) | Err(StoreError::DoesNotExist { .. }) => return Ok(()),
                Err(error @ StoreError::Conflict { .. }) => last = Some(error),
                Err(error) => return Err(convert_store_error(error)),
            }
        }
        let reason = last.map(|error| error.to_string()).unwrap_or_default();
        Err(CniError::new(code::TRY_AGAIN, "error deleting endpoint").with(reason))
    }

    fn is_in_use(&self, interface: &str) -> bool {
        self.journal.find(|record| record.host_interface == interface).is_some()
    }
}

/// Returns the other IPAM plugin that the request names, if any.
fn find_delegate(request: &CniRequest) -> Result<Option<DelegatedIpam>, CniError> {
    let kind = &request.config.ipam.kind;
    if kind.is_empty() || kind == CALICO_IPAM {
        return Ok(None);
    }
    DelegatedIpam::from_request(request, &build_placeholder_networks()).map(Some)
}

/// Returns placeholders for the pod CIDRs: to release an address, a plugin does not need its network.
fn build_placeholder_networks() -> [String; 2] {
    ["0.0.0.0/0".to_owned(), "::/0".to_owned()]
}

fn convert_removal_error(error: EngineRequestError) -> CniError {
    CniError::new(code::TRY_AGAIN, "the endpoint is still programmed").with(error.to_string())
}
