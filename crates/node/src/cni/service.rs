//! The CNI service: the state that requests need, the dispatch of commands, and the garbage collection of
//! attachments.

use super::config::{self, ValidAttachment};
use super::identity;
use super::request::{CniCommand, CniRequest};
use super::workload::CachedOrchestrator;
use crate::engine::EngineHandle;
use crate::health::POLICY_COMPONENT;
use crate::journal::{AttachmentId, AttachmentJournal, AttachmentPhase, AttachmentRecord};
use crate::pending_endpoints::PendingEndpoints;
use crate::state::NodeState;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tortie_cni::{CniError, CniPlugin, code};
use tortie_dataplane::Netns;
use tortie_ipam::Allocator;
use tortie_store::ResourceClient;
use tortie_store::config::KubernetesTarget;

/// Timeout after which a request is aborted and undone. The plugin waits longer.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time that a step of an ADD may take while the datastore is lost. Longer than a client needs to reach a datastore that
/// is back.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between checks whether the datastore is lost.
const OUTAGE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of networks whose ignored keys are logged.
const MAX_REPORTED_NETWORKS: usize = 256;

/// Maximum number of attempts after write conflicts on an endpoint.
pub(super) const MAX_ENDPOINT_WRITE_ATTEMPTS: usize = 6;

/// The response to a request, which the plugin prints.
pub struct CniResponse<'a> {
    pub text: String,
    /// The new attachment, to be rolled back if the plugin does not read the response.
    pub attached: Option<NewAttachment<'a>>,
}

/// A new attachment, with the lock of its container.
pub struct NewAttachment<'a> {
    id: AttachmentId,
    network: String,
    _lock: ContainerLock<'a>,
}

#[derive(Debug)]
pub struct CniService {
    pub node: String,
    pub host: Netns,
    pub allocator: Allocator,
    pub resources: ResourceClient,
    pub engine: EngineHandle,
    pub journal: Arc<AttachmentJournal>,
    pub state: Arc<NodeState>,
    /// Endpoints that another program attached and that have not been adopted yet.
    pub(super) pending: PendingEndpoints,
    /// The daemon's own connection to Kubernetes, if there is one.
    pub(super) own_orchestrator: Option<KubernetesTarget>,
    pub(super) connected: tokio::sync::Mutex<Option<CachedOrchestrator>>,
    /// Profiles known to exist.
    pub(super) profiles: Mutex<HashSet<String>>,
    /// Held while an interface name is chosen and added to the journal, so that two containers whose ids have the
    /// same prefix do not choose the same name.
    pub(super) naming: Mutex<()>,
    /// Networks whose ignored keys have been logged.
    networks_with_ignored_keys: Mutex<HashSet<String>>,
    /// Locks of the containers with current requests.
    busy: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Dead attachments seen by the last garbage collection. An attachment is collected when it is seen dead twice.
    suspects: Mutex<BTreeSet<AttachmentId>>,
}

impl CniService {
    pub fn new(
        node: &str,
        host: Netns,
        allocator: Allocator,
        resources: ResourceClient,
        engine: EngineHandle,
        journal: Arc<AttachmentJournal>,
        state: Arc<NodeState>,
    ) -> CniService {
        CniService {
            node: node.to_owned(),
            host,
            allocator,
            resources,
            engine,
            journal,
            state,
            pending: PendingEndpoints::default(),
            own_orchestrator: None,
            connected: tokio::sync::Mutex::default(),
            profiles: Mutex::default(),
            naming: Mutex::default(),
            networks_with_ignored_keys: Mutex::default(),
            busy: Mutex::default(),
            suspects: Mutex::default(),
        }
    }

    /// Sets the credentials for Kubernetes, which take precedence over those in network configurations.
    pub fn with_orchestrator(mut self, orchestrator: Option<KubernetesTarget>) -> CniService {
        self.own_orchestrator = orchestrator;
        self
    }

    /// Sets the endpoints to be adopted by [`CniService::adopt_endpoints`] or by a request of the runtime.
    pub fn with_pending_endpoints(mut self, pending: PendingEndpoints) -> CniService {
        self.pending = pending;
        self
    }

    /// Logs the keys of the configuration that have no effect, once for each network.
    fn report_ignored_keys(&self, request: &CniRequest) {
        let keys = config::find_ignored_keys(&request.whole_config);
        if keys.is_empty() {
            return;
        }
        let mut reported = self.networks_with_ignored_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let network = &request.config.name;
        if reported.len() < MAX_REPORTED_NETWORKS && reported.insert(network.clone()) {
            tracing::info!(
                network,
                ?keys,
                "the network configuration names a datastore; the daemon uses its own connection"
            );
        }
    }

    /// Handles a request and returns the response of the plugin.
    pub async fn handle_request(&self, request: CniRequest) -> Result<CniResponse<'_>, CniError> {
        if request.plugin == CniPlugin::Calico {
            self.report_ignored_keys(&request);
        }
        let is_about_container =
            matches!(request.command, CniCommand::Add | CniCommand::Del | CniCommand::Check);
        if request.plugin == CniPlugin::Calico && is_about_container {
            self.check_ready()?;
            let adopted = self.adopt_container(&request.container_id).await;
            adopted.map_err(|error| {
                CniError::new(code::TRY_AGAIN, "the container is not adopted yet").with(error.to_string())
            })?;
        }
        if (request.plugin, request.command) == (CniPlugin::Calico, CniCommand::Add) {
            self.check_policy()?;
            let lock = self.lock(&request.container_id).await;
            let added = self.add(&request).await?;
            let text = added.result.render(&request.config.cni_version);
            let id = CniService::record_id(&request);
            let attachment = NewAttachment { id, network: request.config.name, _lock: lock };
            let attached = added.is_new.then_some(attachment);
            return Ok(CniResponse { text, attached });
        }
        self.handle_other(request).await.map(|text| CniResponse { text, attached: None })
    }

    /// Undoes an attachment whose plugin was killed before it could read the response. The runtime may never send a
    /// DEL for it.
    pub async fn roll_back(&self, attached: NewAttachment<'_>) {
        let container = &attached.id.container_id;
        let undone = match self.find_shared_record(&attached.id, &attached.network) {
            Some(record) => self.leave_network(&record, &attached.network, &attached.id.ifname).await,
            None => match self.journal.get(&attached.id) {
                Some(record) => self.undo(&record).await,
                None => return,
            },
        };
        match undone {
            Ok(()) => {
                tracing::info!(container, "the plugin was killed before the response; rolled back the ADD")
            }
            Err(error) => {
                tracing::warn!(%error, container, "the plugin was killed before the response; cannot roll back the ADD; retrying")
            }
        }
    }

    /// Handles all requests other than an ADD of the network plugin.
    async fn handle_other(&self, request: CniRequest) -> Result<String, CniError> {
        match request.command {
            CniCommand::Status | CniCommand::Test => return self.status(request.command),
            CniCommand::Add | CniCommand::Del | CniCommand::Check | CniCommand::Gc => self.check_ready()?,
        }
        let version = request.config.cni_version.clone();
        match (request.plugin, request.command) {
            (CniPlugin::CalicoIpam, CniCommand::Add) => {
                Ok(self.handle_ipam_add(&request).await?.render(&version))
            }
            (CniPlugin::CalicoIpam, CniCommand::Del) => {
                self.handle_ipam_del(&request).await.map(|()| String::new())
            }
            (CniPlugin::CalicoIpam, _) => Ok(String::new()),
            (CniPlugin::Calico, CniCommand::Del) => {
                let _lock = self.lock(&request.container_id).await;
                self.del(&request).await.map(|()| String::new())
            }
            (CniPlugin::Calico, CniCommand::Check) => self.check(&request).await.map(|()| String::new()),
            (CniPlugin::Calico, _) => self.gc(&request).await.map(|()| String::new()),
        }
    }

    fn check_ready(&self) -> Result<(), CniError> {
        if self.state.is_datastore_locked() {
            return Err(CniError::new(code::FAILED, "Calico is currently not ready to process requests")
                .with("ClusterInformation says that the datastore is locked (datastoreReady: false)"));
        }
        if !self.state.is_in_sync() {
            return Err(CniError::new(code::TRY_AGAIN, "the node's daemon is still starting")
                .with(describe(&self.state.troubles())));
        }
        Ok(())
    }

    /// Fails if policy is not in force, because a new workload would not be isolated.
    fn check_policy(&self) -> Result<(), CniError> {
        match self.state.troubles().remove(POLICY_COMPONENT) {
            Some(reason) => {
                Err(CniError::new(code::TRY_AGAIN, "policy is not in force on this node").with(reason))
            }
            None => Ok(()),
        }
    }

    /// Runs a step of an ADD. Fails after [`REQUEST_TIMEOUT`], and after [`OUTAGE_TIMEOUT`] if the datastore is lost:
    /// each of several writes to a datastore that hangs would have its own timeout.
    pub(super) async fn within_deadline<T>(
        &self,
        step: impl Future<Output = Result<T, CniError>>,
    ) -> Result<T, CniError> {
        tokio::select! {
            outcome = step => outcome,
            reason = self.datastore_lost() => {
                Err(CniError::new(code::TRY_AGAIN, "the datastore does not respond").with(reason))
            }
            () = tokio::time::sleep(REQUEST_TIMEOUT) => {
                Err(CniError::new(code::TRY_AGAIN, format!("not done within {REQUEST_TIMEOUT:?}")))
            }
        }
    }

    /// Waits for [`OUTAGE_TIMEOUT`], and then until the datastore is lost. Returns the reason.
    async fn datastore_lost(&self) -> String {
        tokio::time::sleep(OUTAGE_TIMEOUT).await;
        loop {
            if let Some(reason) = self.state.troubles().remove("datastore") {
                return reason;
            }
            tokio::time::sleep(OUTAGE_CHECK_INTERVAL).await;
        }
    }

    fn status(&self, command: CniCommand) -> Result<String, CniError> {
        let troubles = self.state.troubles();
        let mut ready = self.check_ready();
        if ready.is_ok() && !troubles.is_empty() {
            ready = Err(CniError::new(code::NOT_AVAILABLE, describe(&troubles)));
        }
        let code = if command == CniCommand::Test { code::CONNECTION_TEST } else { code::NOT_AVAILABLE };
        ready.map(|()| String::new()).map_err(|error| CniError { code, ..error })
    }

    /// Handles GC: removes the attachments of the network that are not listed as valid.
    async fn gc(&self, request: &CniRequest) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else {
            return Err(CniError::new(code::NETWORK_CONFIG, "cni.dev/valid-attachments is missing"));
        };
        let valid: BTreeSet<&ValidAttachment> = valid.iter().collect();
        let mut failures = Vec::new();
        let network = &request.config.name;
        for record in self.journal.all() {
            let is_valid = |ifname: &str| {
                let container_id = record.id.container_id.clone();
                valid.contains(&ValidAttachment { container_id, ifname: ifname.to_owned() })
            };
            let parted = self.leave_networks_where(&record.id, |joined| {
                joined.network == *network && !is_valid(&joined.ifname)
            });
            if let Err(error) = parted.await {
                failures.push(error.to_string());
            }
            if record.network != *network || is_valid(&record.id.ifname) {
                continue;
            }
            let _lock = self.lock(&record.id.container_id).await;
            if let Some(record) = self.journal.get(&record.id)
                && let Err(error) = self.undo(&record).await
            {
                failures.push(error.to_string());
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(CniError::new(code::FAILED, failures.join("; "))) }
    }

    /// Removes unfinished attachments, and live ones whose network namespace vanished without a DEL. Called at start
    /// and then periodically.
    pub async fn collect_garbage(&self) {
        let mut seen = BTreeSet::new();
        let records = self.journal.all();
        // Read the interfaces after the records: the interface of a live attachment is older than its record.
        let mut interfaces = None;
        if records.iter().any(is_judged_by_interface) {
            match tortie_dataplane::interface_names(&self.host).await {
                Ok(names) => interfaces = Some(names),
                Err(error) => {
                    tracing::warn!(%error, "cannot list interfaces; adopted containers are not garbage-collected");
                }
            }
        }
        for record in records {
            let dead = match record.phase {
                AttachmentPhase::Adding | AttachmentPhase::Removing => true,
                AttachmentPhase::Live => is_dead(&record, interfaces.as_ref()),
            };
            if !dead {
                if let Err(error) = self
                    .leave_networks_where(&record.id, |joined| joined.phase != AttachmentPhase::Live)
                    .await
                {
                    tracing::warn!(%error, container = record.id.container_id, "cannot remove a container from a further network; retrying");
                }
                continue;
            }
            let seen_before = {
                let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
                suspects.contains(&record.id)
            };
            if record.phase == AttachmentPhase::Live && !seen_before {
                seen.insert(record.id);
                continue;
            }
            let _lock = self.lock(&record.id.container_id).await;
            // Another request may have finished the attachment while we waited for the lock.
            let Some(current) = self.journal.get(&record.id).filter(|now| now.phase == record.phase) else {
                continue;
            };
            tracing::info!(container = record.id.container_id, phase = ?record.phase, "removing an attachment that is unfinished or whose namespace is gone");
            if let Err(error) = self.undo(&current).await {
                tracing::warn!(%error, container = record.id.container_id, "cannot remove the attachment; retrying");
            }
        }
        *self.suspects.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    pub(super) fn record_id(request: &CniRequest) -> AttachmentId {
        AttachmentId { container_id: request.container_id.clone(), ifname: request.ifname.clone() }
    }

    /// Returns a free name for the host interface, even if another container id has the same prefix.
    pub(super) fn pick_host_interface(
        &self,
        request: &CniRequest,
        identity: &identity::ContainerIdentity,
    ) -> String {
        let id = CniService::record_id(request);
        let prefix = self.interface_prefix();
        let derived = identity.derive_host_interface(&prefix, &request.container_id);
        if identity.orchestrator == "k8s" {
            return derived;
        }
        if self.journal.find(|record| record.host_interface == derived && record.id != id).is_none() {
            return derived;
        }
        identity.derive_other_host_interface(&prefix, &request.container_id, &request.ifname)
    }

    pub(super) fn interface_prefix(&self) -> String {
        self.state.parameters().borrow().interface_prefix.first().cloned().unwrap_or_default()
    }

    pub async fn lock(&self, container_id: &str) -> ContainerLock<'_> {
        let lock = {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            busy.entry(container_id.to_owned()).or_default().clone()
        };
        let guard = lock.lock_owned().await;
        ContainerLock { service: self, container_id: container_id.to_owned(), guard: Some(guard) }
    }
}

/// Lock of a container, which serialises the requests for it.
pub struct ContainerLock<'a> {
    service: &'a CniService,
    container_id: String,
    guard: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for ContainerLock<'_> {
    fn drop(&mut self) {
        self.guard.take();
        let mut busy = self.service.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.get(&self.container_id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            busy.remove(&self.container_id);
        }
    }
}

/// Returns whether the network namespace of a live attachment is gone; false if that cannot be determined.
fn is_dead(record: &AttachmentRecord, interfaces: Option<&BTreeMap<String, bool>>) -> bool {
    if is_judged_by_interface(record) {
        return interfaces.is_some_and(|names| !names.contains_key(&record.host_interface));
    }
    !Netns::exists(&record.netns)
}

/// Returns whether the liveness of an attachment is determined by its host interface, which the kernel removes
/// together with the namespace. The path in an adopted record may be one of several names of the namespace, and that
/// name may disappear while the container is alive.
fn is_judged_by_interface(record: &AttachmentRecord) -> bool {
    record.netns.is_empty() || (record.adopted && !record.host_interface.is_empty())
}

fn describe(troubles: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = troubles.iter().map(|(part, trouble)| format!("{part}: {trouble}")).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adopted_container_outlives_a_namespace_name() {
        let path = "/proc/self/ns/net";
        let record = |netns: &str, adopted: bool| AttachmentRecord {
            id: AttachmentId { container_id: "c1".into(), ifname: "eth0".into() },
            phase: AttachmentPhase::Live,
            network: String::new(),
            netns: netns.to_owned(),
            host_interface: "cali1".into(),
            handle: None,
            delegate: None,
            endpoint: None,
            result: None,
            chained: false,
            adopted,
            workload: None,
            joined: Vec::new(),
        };
        let there = BTreeMap::from([("cali1".to_owned(), true)]);
        for netns in ["/nonexistent", path, ""] {
            assert!(!is_dead(&record(netns, true), Some(&there)), "{netns}");
            assert!(is_dead(&record(netns, true), Some(&BTreeMap::new())), "{netns}");
            assert!(!is_dead(&record(netns, true), None), "{netns}");
        }
        assert!(is_dead(&record("/nonexistent", false), Some(&there)));
        assert!(!is_dead(&record(path, false), Some(&BTreeMap::new())));
    }
}
