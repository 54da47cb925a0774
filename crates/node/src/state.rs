//! State that the tasks of the daemon share: health, the effective settings, and the workloads of the plan.

use crate::bgp;
use crate::flow_records::FlowRecordStatus;
use crate::http::DenialMetrics;
use crate::metrics::NodeMetrics;
use crate::queries::RunningBgp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tortie_compute::NodeParameters;
use tortie_dataplane::MtuChoice;
use tortie_http::liveness::Liveness;
use tortie_model::kinds::NetworkWarning;
use tortie_plan::bgp::BgpLogSeverity;
use tortie_plan::{PlanUpdate, PlannedWorkload, TunnelKind, WorkloadId};

#[derive(Debug)]
pub struct NodeState {
    /// Name of the node.
    pub host: String,
    pub metrics: NodeMetrics,
    pub denials: DenialMetrics,
    pub liveness: Liveness,
    facts: Mutex<SharedNodeFacts>,
    parameters: watch::Sender<NodeParameters>,
    in_sync: watch::Sender<bool>,
    mtu: watch::Sender<Option<MtuChoice>>,
    public_keys: watch::Sender<Option<BTreeMap<TunnelKind, String>>>,
    unreachable: watch::Sender<BTreeSet<IpAddr>>,
    announced: watch::Sender<BTreeSet<WorkloadId>>,
    network_warnings: watch::Sender<BTreeMap<&'static str, Vec<NetworkWarning>>>,
    bgp_log_severity: watch::Sender<BgpLogSeverity>,
    workloads_changed: Notify,
    endpoint_lost: AtomicBool,
    running_bgp_changed: Notify,
}

#[derive(Debug, Default)]
struct SharedNodeFacts {
    /// Errors that make the node unready, by component.
    troubles: BTreeMap<String, String>,
    /// Limitations that do not make the node unready, by component.
    warnings: BTreeMap<String, String>,
    /// Objects of the datastore that cannot take effect, with the reason.
    problems: BTreeMap<String, String>,
    /// Chains and sets that the kernel rejected. All packets of the endpoints that need them are dropped.
    refused: BTreeMap<String, String>,
    datastore_locked: bool,
    /// The workloads in the plan of this node.
    workloads: BTreeMap<WorkloadId, PlannedWorkload>,
    /// Workloads that were added, changed or removed since [`NodeState::take_changed_workloads`].
    changed_workloads: BTreeSet<WorkloadId>,
    /// The BGP backend, if BGP is enabled.
    running: Option<RunningBgp>,
    /// The state of flow records, if they are enabled.
    flow_records: Option<FlowRecordStatus>,
}

impl NodeState {
    pub fn new(host: &str) -> NodeState {
        NodeState {
            host: host.to_owned(),
            metrics: NodeMetrics::new(host),
            denials: DenialMetrics::default(),
            liveness: Liveness::default(),
            facts: Mutex::default(),
            parameters: watch::channel(NodeParameters::default()).0,
            in_sync: watch::channel(false).0,
            mtu: watch::channel(None).0,
            public_keys: watch::channel(None).0,
            unreachable: watch::channel(BTreeSet::new()).0,
            announced: watch::channel(BTreeSet::new()).0,
            network_warnings: watch::channel(BTreeMap::new()).0,
            bgp_log_severity: watch::channel(BgpLogSeverity::default()).0,
            workloads_changed: Notify::new(),
            endpoint_lost: AtomicBool::new(false),
            running_bgp_changed: Notify::new(),
        }
    }

    pub fn parameters(&self) -> watch::Receiver<NodeParameters> {
        self.parameters.subscribe()
    }

    /// Sets the effective parameters. Invalid or ineffective settings are logged once and stay on the health page.
    pub fn set_parameters(&self, parameters: &NodeParameters) {
        let mut new = Vec::new();
        let differs = self.parameters.send_if_modified(|known| {
            let differs = known != parameters;
            if differs {
                let warnings = parameters.warnings().iter();
                new = warnings.filter(|warning| !known.warnings().contains(warning)).cloned().collect();
                *known = parameters.clone();
            }
            differs
        });
        for warning in &new {
            tracing::warn!(warning, "invalid or ineffective setting; see `tortie settings`");
        }
        if differs {
            let warnings = parameters.warnings();
            self.set_warning("settings", (!warnings.is_empty()).then(|| warnings.join("; ")));
        }
    }

    /// Returns a receiver of the severity of log lines about BGP.
    pub fn bgp_log_severity(&self) -> watch::Receiver<BgpLogSeverity> {
        self.bgp_log_severity.subscribe()
    }

    pub fn set_bgp_log_severity(&self, severity: BgpLogSeverity) {
        self.bgp_log_severity.send_if_modified(|known| std::mem::replace(known, severity) != severity);
    }

    /// Returns the configured liveness timeouts by component.
    pub fn health_timeouts(&self) -> BTreeMap<String, Duration> {
        let parameters = self.parameters.borrow();
        let mut limits =
            BTreeMap::from([("dataplane-loop".to_owned(), parameters.dataplane_watchdog_timeout)]);
        for (name, limit) in &parameters.health_timeout_overrides.0 {
            // Translate the component names of Felix to those of this daemon.
            let name = match name.as_str() {
                "InternalDataplaneMainLoop" => "dataplane-loop",
                "CalculationGraph" => "engine",
                other => other,
            };
            limits.insert(name.to_owned(), *limit);
        }
        limits
    }

    /// Returns a receiver that becomes true once the snapshot of the datastore is complete and the kernel has the plan.
    pub fn in_sync(&self) -> watch::Receiver<bool> {
        self.in_sync.subscribe()
    }

    pub fn is_in_sync(&self) -> bool {
        *self.in_sync.borrow()
    }

    pub fn set_in_sync(&self) {
        self.metrics.resync_state.set(3);
        self.in_sync.send_replace(true);
    }

    /// Returns the MTU of workloads and the reason for it; `None` while it is unknown.
    pub fn mtu(&self) -> Option<MtuChoice> {
        self.mtu.borrow().clone()
    }

    pub fn mtu_changes(&self) -> watch::Receiver<Option<MtuChoice>> {
        self.mtu.subscribe()
    }

    pub fn set_mtu(&self, mtu: MtuChoice) {
        self.mtu.send_if_modified(|known| {
            let differs = known.as_ref() != Some(&mtu);
            *known = Some(mtu);
            differs
        });
    }

    /// Returns a receiver of the public keys of the WireGuard devices; `None` while it is unknown which devices exist.
    pub fn public_keys(&self) -> watch::Receiver<Option<BTreeMap<TunnelKind, String>>> {
        self.public_keys.subscribe()
    }

    pub fn set_public_keys(&self, keys: BTreeMap<TunnelKind, String>) {
        self.public_keys.send_replace(Some(keys));
    }

    /// Returns a receiver of the next hops of BGP routes to which the kernel has no route.
    pub fn unreachable(&self) -> watch::Receiver<BTreeSet<IpAddr>> {
        self.unreachable.subscribe()
    }

    /// Returns a receiver of the virtual machines in live migration to this node that have announced their addresses on
    /// their link.
    pub fn announced(&self) -> watch::Receiver<BTreeSet<WorkloadId>> {
        self.announced.subscribe()
    }

    pub fn set_announced(&self, ids: BTreeSet<WorkloadId>) {
        self.announced.send_replace(ids);
    }

    pub fn set_unreachable(&self, next_hops: BTreeSet<IpAddr>) {
        self.unreachable.send_replace(next_hops);
    }

    /// Records that the datastore lost the endpoint of a live attachment. It may also have lost other objects.
    pub fn set_endpoint_lost(&self) {
        self.endpoint_lost.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`NodeState::set_endpoint_lost`] was called since the last call of this function.
    pub fn take_endpoint_lost(&self) -> bool {
        self.endpoint_lost.swap(false, Ordering::Relaxed)
    }

    /// Sets or clears the error of a component, which makes the node unready.
    pub fn set_trouble(&self, part: &str, trouble: Option<String>) {
        let mut facts = self.lock();
        match trouble {
            Some(trouble) => facts.troubles.insert(part.to_owned(), trouble),
            None => facts.troubles.remove(part),
        };
    }

    pub fn troubles(&self) -> BTreeMap<String, String> {
        self.lock().troubles.clone()
    }

    /// Sets or clears a warning about a component. A warning does not make the node unready.
    pub fn set_warning(&self, part: &str, warning: Option<String>) {
        let mut facts = self.lock();
        match warning {
            Some(warning) => facts.warnings.insert(part.to_owned(), warning),
            None => facts.warnings.remove(part),
        };
    }

    /// Replaces the network warnings of a component: network modes that are configured but not in force. They are also
    /// warnings of the component, and are published in the Node object.
    pub fn set_network_warnings(&self, part: &'static str, warnings: Vec<NetworkWarning>) {
        let known = self.network_warnings.borrow().get(part).cloned().unwrap_or_default();
        if known == warnings {
            return;
        }
        for warning in warnings.iter().filter(|warning| !known.contains(warning)) {
            let NetworkWarning { object, reason, advice } = warning;
            tracing::warn!(object, reason, advice, "a configured network mode is not in force");
        }
        let text: Vec<String> = warnings
            .iter()
            .map(|NetworkWarning { object, reason, advice }| format!("{object}: {reason}; {advice}"))
            .collect();
        self.set_warning(part, (!text.is_empty()).then(|| text.join("; ")));
        self.network_warnings.send_modify(|all| {
            all.insert(part, warnings);
        });
    }

    /// Returns a receiver of the network warnings by component.
    pub fn network_warnings(&self) -> watch::Receiver<BTreeMap<&'static str, Vec<NetworkWarning>>> {
        self.network_warnings.subscribe()
    }

    pub fn warnings(&self) -> BTreeMap<String, String> {
        self.lock().warnings.clone()
    }

    /// Replaces the objects of the datastore that cannot take effect. Returns those that are new.
    pub fn set_problems(&self, problems: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut facts = self.lock();
        let mut new = problems.clone();
        new.retain(|object, reason| facts.problems.get(object) != Some(reason));
        facts.problems = problems;
        new
    }

    pub fn problems(&self) -> BTreeMap<String, String> {
        self.lock().problems.clone()
    }

    pub fn set_refused(&self, refused: BTreeMap<String, String>) {
        self.metrics.refused.set(i64::try_from(refused.len()).unwrap_or(i64::MAX));
        self.lock().refused = refused;
    }

    pub fn refused(&self) -> BTreeMap<String, String> {
        self.lock().refused.clone()
    }

    pub fn set_datastore_ready(&self, ready: bool) {
        self.lock().datastore_locked = !ready;
    }

    /// Returns whether an operator has locked the datastore, for example for a migration.
    pub fn is_datastore_locked(&self) -> bool {
        self.lock().datastore_locked
    }

    pub fn set_running_bgp(&self, running: Option<RunningBgp>) {
        let started = running.as_ref().map(|running| running.started);
        let before = std::mem::replace(&mut self.lock().running, running);
        if before.map(|before| before.started) != started {
            self.running_bgp_changed.notify_one();
        }
    }

    /// Records that the BGP speaker received a new configuration.
    pub fn set_bgp_configured(&self) {
        if let Some(running) = &mut self.lock().running {
            running.configured = std::time::SystemTime::now();
        }
    }

    /// Waits until the BGP backend has started or stopped since this function last returned.
    pub async fn running_bgp_changed(&self) {
        self.running_bgp_changed.notified().await;
    }

    /// Returns the error if the BGP backend does not run, or does not run as configured.
    pub fn bgp_trouble(&self) -> Option<String> {
        let facts = self.lock();
        facts.troubles.get(bgp::BIRD).or_else(|| facts.troubles.get("bgp")).cloned()
    }

    pub fn running_bgp(&self) -> Option<RunningBgp> {
        self.lock().running.clone()
    }

    pub fn set_flow_records(&self, status: Option<FlowRecordStatus>) {
        self.lock().flow_records = status;
    }

    /// Returns the state of flow records, if they are enabled.
    pub fn flow_records(&self) -> Option<FlowRecordStatus> {
        self.lock().flow_records.clone()
    }

    /// Updates the workloads in the plan.
    pub fn update_workloads(&self, updates: &[PlanUpdate]) {
        let mut facts = self.lock();
        for update in updates {
            let PlanUpdate::Workload(id, workload) = update else { continue };
            match workload {
                Some(workload) => facts.workloads.insert(id.clone(), workload.clone()),
                None => facts.workloads.remove(id),
            };
            facts.changed_workloads.insert(id.clone());
            self.workloads_changed.notify_one();
        }
    }

    /// Replaces the set of workloads in the plan.
    pub fn set_workloads(&self, workloads: &BTreeMap<WorkloadId, PlannedWorkload>) {
        let mut facts = self.lock();
        let old = std::mem::replace(&mut facts.workloads, workloads.clone());
        let ids = old.keys().chain(workloads.keys());
        facts.changed_workloads.extend(ids.filter(|id| old.get(*id) != workloads.get(*id)).cloned());
        self.workloads_changed.notify_one();
    }

    /// Waits until workloads were added, changed or removed since [`NodeState::take_changed_workloads`].
    pub async fn workloads_changed(&self) {
        self.workloads_changed.notified().await;
    }

    /// Returns the workloads that were added, changed or removed since the last call.
    pub fn take_changed_workloads(&self) -> BTreeSet<WorkloadId> {
        std::mem::take(&mut self.lock().changed_workloads)
    }

    pub fn workload(&self, id: &WorkloadId) -> Option<PlannedWorkload> {
        self.lock().workloads.get(id).cloned()
    }

    pub fn workload_ids(&self) -> Vec<WorkloadId> {
        self.lock().workloads.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, SharedNodeFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
