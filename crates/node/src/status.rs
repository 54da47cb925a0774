//! Reports the status of the node: heartbeats and endpoint states to the datastore, endpoint states to files, and the
//! reports of the dataplane to the shared state.

use crate::endpoint_files::EndpointFiles;
use crate::health::{
    FELIX_COMPONENT, MTU_COMPONENT, OFFLOAD_COMPONENT, OVERRULED_COMPONENT, POLICY_COMPONENT,
    PROXIED_COMPONENT, TUNNELS_COMPONENT,
};
use crate::state::NodeState;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tortie_compute::NodeParameters;
use tortie_dataplane::{DataplaneReport, KernelFailure, KernelObject, ReportReceiver, WorkloadState};
use tortie_model::key::WorkloadStatusKey;
use tortie_model::kinds::NetworkWarning;
use tortie_model::status::{EndpointState, EndpointStatus, FelixHeartbeat};
use tortie_model::{StoreKey, StoreValue};
use tortie_plan::{EndpointId, PlannedWorkload, TunnelKind, WorkloadId};
use tortie_store::StoreClient;

/// Delay before the first heartbeat.
const FIRST_HEARTBEAT_DELAY: Duration = Duration::from_secs(10);
/// Interval between checks of the settings while there is nothing to report.
const SETTINGS_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Warning about a Felix that was started beside the node.
const SECOND_ENGINE_WARNING: &str = "Felix's chains are in the kernel beside our policy: two policy engines, and each drops what it \
    denies; stop calico-node, or stop this node and run `tortie node --leave`";

/// Writes heartbeats to the datastore at the configured interval, if enabled.
pub async fn send_heartbeats(state: Arc<NodeState>, client: StoreClient, host: String) {
    if !client.capabilities().expiring_entries {
        return std::future::pending().await;
    }
    let started = Instant::now();
    let parameters = state.parameters();
    let mut first = true;
    tokio::time::sleep(FIRST_HEARTBEAT_DELAY).await;
    loop {
        let (interval, ttl, region) = {
            let parameters = parameters.borrow();
            (parameters.reporting_interval, parameters.reporting_ttl, parameters.openstack_region.clone())
        };
        if interval.is_zero() {
            tokio::time::sleep(SETTINGS_POLL_INTERVAL).await;
            continue;
        }
        let uptime = (started.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let beat = FelixHeartbeat { time: format!("{:.0}", Timestamp::now()), uptime, first_update: first };
        let living = StoreKey::FelixStatus { region: region.clone(), host: host.clone() };
        let last = StoreKey::FelixLastStatus { region, host: host.clone() };
        let value = StoreValue::Heartbeat(beat);
        let ttl = Some(ttl).filter(|ttl| !ttl.is_zero());
        let written = async {
            client.apply(&living, &value, ttl).await?;
            client.apply(&last, &value, None).await
        };
        match written.await {
            Ok(_) => first = false,
            Err(error) => tracing::debug!(%error, "cannot write the heartbeat"),
        }
        tokio::time::sleep(interval).await;
    }
}

/// Handles the reports of the dataplane, and writes endpoint states to the datastore and to files if the settings
/// enable that.
pub async fn write_endpoint_statuses(
    state: Arc<NodeState>,
    client: StoreClient,
    host: String,
    run_dir: Option<PathBuf>,
    mut dataplanes: mpsc::Receiver<ReportReceiver>,
) {
    let mut writer = EndpointStatusWriter { client, host, wanted: BTreeMap::new(), written: BTreeMap::new() };
    let mut files = None;
    let parameters = state.parameters();
    let mut reports: Option<ReportReceiver> = None;
    loop {
        let (enabled, delay, region) = {
            let parameters = parameters.borrow();
            let delay = parameters.endpoint_reporting_delay.max(Duration::from_millis(10));
            (parameters.endpoint_reporting_enabled, delay, parameters.openstack_region.clone())
        };
        let prefix = build_status_prefix(&parameters.borrow(), run_dir.as_deref());
        for id in state.take_changed_workloads() {
            let workload = state.workload(&id);
            writer.note(&id, workload.is_some());
            show(&mut files, &writer, &id, workload.as_ref());
        }
        if state.is_in_sync() {
            open(&mut files, prefix.as_deref(), &state, &writer);
        }
        let pending = enabled && writer.client.capabilities().expiring_entries && writer.next().is_some();
        tokio::select! {
            dataplane = dataplanes.recv() => match dataplane {
                Some(dataplane) => reports = Some(dataplane),
                None => return,
            },
            report = next(&mut reports) => match report {
                Some(DataplaneReport::Workload { id, state: now }) => {
                    writer.wanted.insert(EndpointId::Workload(id.clone()), Some(now));
                    show(&mut files, &writer, &id, state.workload(&id).as_ref());
                }
                Some(DataplaneReport::HostEndpoints(states)) => writer.note_hosts(states),
                Some(report) => take_in(&state, report),
                None => reports = None,
            },
            () = state.workloads_changed() => {}
            () = tokio::time::sleep(delay), if pending => writer.write_one(&region).await,
            () = tokio::time::sleep(SETTINGS_POLL_INTERVAL), if !pending => {}
        }
    }
}

async fn next(reports: &mut Option<ReportReceiver>) -> Option<DataplaneReport> {
    match reports {
        Some(reports) => reports.next().await,
        None => std::future::pending().await,
    }
}

/// Returns the parent directory of the endpoint status files: the configured one, else a custom run directory, else
/// the default. Returns None if the files are disabled.
fn build_status_prefix(parameters: &NodeParameters, run_dir: Option<&Path>) -> Option<PathBuf> {
    let prefix = &parameters.endpoint_status_path_prefix;
    let prefix = match run_dir {
        Some(dir) if !prefix.is_set => dir.to_owned(),
        _ => PathBuf::from(&prefix.value),
    };
    Some(prefix).filter(|prefix| !prefix.as_os_str().is_empty())
}

/// Opens the directory of the files, or closes it after the setting changed. Files of endpoints that no longer exist
/// are removed.
fn open(
    files: &mut Option<EndpointFiles>,
    prefix: Option<&Path>,
    state: &NodeState,
    writer: &EndpointStatusWriter,
) {
    if files.as_ref().map(|files| prefix.is_some_and(|prefix| files.is_below(prefix))) == prefix.map(|_| true)
    {
        return;
    }
    if let Some(mut old) = files.take() {
        report(old.keep(std::iter::empty()));
    }
    let Some(prefix) = prefix else { return };
    match EndpointFiles::open(prefix) {
        Ok(mut new) => {
            let living = state.workload_ids();
            report(new.keep(living.iter()));
            *files = Some(new);
            living.iter().for_each(|id| show(files, writer, id, state.workload(id).as_ref()));
        }
        Err(error) => {
            tracing::warn!(%error, prefix = %prefix.display(), "cannot write files of endpoint status; check the directory")
        }
    }
}

/// Writes the file of an endpoint that is up, and removes it otherwise.
fn show(
    files: &mut Option<EndpointFiles>,
    writer: &EndpointStatusWriter,
    id: &WorkloadId,
    workload: Option<&PlannedWorkload>,
) {
    let Some(files) = files else { return };
    let state = writer.wanted.get(&EndpointId::Workload(id.clone())).and_then(Option::as_ref);
    report(match (workload, state) {
        (Some(workload), Some(WorkloadState::Up)) => files.put(id, workload),
        // The state is not known yet. A file of an earlier run may still be correct, so keep it.
        (Some(_), None) => Ok(()),
        _ => files.remove(id),
    });
}

fn report(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "cannot write the status file of an endpoint");
    }
}

fn take_in(state: &NodeState, report: DataplaneReport) {
    match report {
        DataplaneReport::Workload { .. } | DataplaneReport::HostEndpoints(_) => {}
        DataplaneReport::Mtu(choice) => {
            state.set_mtu(choice);
        }
        DataplaneReport::Oversized(workloads) => {
            let warning = describe_oversized(&workloads);
            if let Some(warning) = &warning {
                tracing::warn!(warning, "workloads run with an older, larger MTU");
            }
            state.set_warning(MTU_COMPONENT, warning);
        }
        DataplaneReport::RouteCount(count) => {
            state.metrics.routes.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        DataplaneReport::Unreachable(next_hops) => state.set_unreachable(next_hops),
        DataplaneReport::Policy(stats) => state.metrics.table.set(&stats),
        DataplaneReport::Refused(refused) => {
            let refused =
                refused.into_iter().map(|failure| (failure.object.to_string(), failure.reason.to_string()));
            state.set_refused(refused.collect());
        }
        DataplaneReport::Tunnels(failures) => {
            let parameters = state.parameters().borrow().clone();
            let warnings = failures.iter().map(|failure| describe_tunnel_warning(failure, &parameters));
            state.set_network_warnings(TUNNELS_COMPONENT, warnings.collect());
        }
        DataplaneReport::Proxied(count, failures) => {
            state.metrics.proxied.set(i64::try_from(count).unwrap_or(i64::MAX));
            let text = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            state.set_warning(PROXIED_COMPONENT, Some(text).filter(|text| !text.is_empty()));
        }
        DataplaneReport::Overruled(failures) => {
            let warnings = failures.iter().map(overruled_warning);
            state.set_network_warnings(OVERRULED_COMPONENT, warnings.collect());
        }
        DataplaneReport::PublicKeys(keys) => state.set_public_keys(keys),
        DataplaneReport::Announced(ids) => state.set_announced(ids),
        DataplaneReport::NotOffloaded(failure) => {
            let reason = failure.map(|failure| failure.to_string());
            if let Some(reason) = &reason {
                tracing::warn!(
                    reason,
                    "nftablesFlowTableOffload: the kernel refuses the flow table; connections take the usual way"
                );
            }
            state.set_warning(OFFLOAD_COMPONENT, reason);
        }
        DataplaneReport::SecondEngine(present) => {
            state.metrics.second_engine.set(i64::from(present));
            state.set_warning(FELIX_COMPONENT, present.then(|| SECOND_ENGINE_WARNING.to_owned()));
        }
        DataplaneReport::NotEnforced(failure) => {
            let reason = failure.map(|failure| failure.to_string());
            match &reason {
                Some(reason) => tracing::error!(
                    reason,
                    "policy is not in force: the kernel refuses the table inet tortie; the node is not ready and \
                     attaches no workloads until it does"
                ),
                None => tracing::info!("policy is in force"),
            }
            state.metrics.policy_in_force.set(i64::from(reason.is_none()));
            state.set_trouble(POLICY_COMPONENT, reason);
        }
    }
}

/// Describes a failure of a tunnel. If the tunnel has no device, names the encapsulation and the effect on packets.
fn describe_tunnel_warning(failure: &KernelFailure, parameters: &NodeParameters) -> NetworkWarning {
    const PLAIN_ADVICE: &str = "the node retries";
    let KernelObject::Interface { name } = &failure.object else {
        return NetworkWarning {
            object: failure.object.to_string(),
            reason: failure.reason.to_string(),
            advice: PLAIN_ADVICE.to_owned(),
        };
    };
    let configured = [&parameters.wireguard_interface_name, &parameters.wireguard_interface_name_v6];
    let kinds = [
        (TunnelKind::VxlanV4, "VXLAN"),
        (TunnelKind::VxlanV6, "VXLAN of IPv6"),
        (TunnelKind::Ipip, "IPIP"),
        (TunnelKind::WireguardV4, "WireGuard"),
        (TunnelKind::WireguardV6, "WireGuard of IPv6"),
    ];
    let named = kinds.iter().find(|(kind, _)| kind.device() == name).map(|(_, mode)| *mode);
    let mode = named.or_else(|| configured.contains(&name).then_some("WireGuard"));
    let advice = match mode {
        Some(mode) if mode.starts_with("WireGuard") => {
            "packets to other nodes are sent in clear text until then"
        }
        Some(_) => {
            "packets to pods of such pools on other nodes are lost until then; the pool can use another mode"
        }
        None => PLAIN_ADVICE,
    };
    NetworkWarning {
        object: mode.map_or_else(|| failure.object.to_string(), str::to_owned),
        reason: format!("configured but not in force: {failure}"),
        advice: advice.to_owned(),
    }
}

fn overruled_warning(failure: &KernelFailure) -> NetworkWarning {
    const ADVICE: &str = "accept packets of workloads in that chain, or give it a priority from 0 to 49 at the hook \
                          forward and let other programs change its table";
    NetworkWarning {
        object: failure.object.to_string(),
        reason: format!("packets may be dropped although policy allows them: {}", failure.reason),
        advice: ADVICE.to_owned(),
    }
}

/// Returns a warning with some of the workloads whose MTU is larger than that of the path.
fn describe_oversized(workloads: &BTreeMap<WorkloadId, u32>) -> Option<String> {
    const SHOWN: usize = 3;
    let shown: Vec<String> =
        workloads.iter().take(SHOWN).map(|(id, mtu)| format!("{} {mtu}", id.workload)).collect();
    let more = workloads.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!shown.is_empty()).then(|| {
        format!(
            "too large for what carries their packets: {}{more}; start them again, or set clampMSS",
            shown.join(", ")
        )
    })
}

struct EndpointStatusWriter {
    client: StoreClient,
    host: String,
    wanted: BTreeMap<EndpointId, Option<WorkloadState>>,
    written: BTreeMap<EndpointId, Option<WorkloadState>>,
}

impl EndpointStatusWriter {
    /// Clears the state of a workload that is no longer in the plan.
    fn note(&mut self, id: &WorkloadId, lives: bool) {
        if !lives && let Some(state) = self.wanted.get_mut(&EndpointId::Workload(id.clone())) {
            *state = None;
        }
    }

    /// Replaces the states of all host endpoints.
    fn note_hosts(&mut self, states: BTreeMap<String, WorkloadState>) {
        for (_, state) in self.wanted.range_mut(EndpointId::Host(String::new())..) {
            *state = None;
        }
        self.wanted.extend(states.into_iter().map(|(name, state)| (EndpointId::Host(name), Some(state))));
    }

    fn next(&self) -> Option<&EndpointId> {
        self.wanted.iter().find(|(id, state)| self.written.get(*id) != Some(*state)).map(|(id, _)| id)
    }

    /// Writes one endpoint state. Writing one at a time keeps a node with many endpoints from overloading the
    /// datastore.
    async fn write_one(&mut self, region: &str) {
        let Some(id) = self.next().cloned() else { return };
        let Some(state) = self.wanted.get(&id).cloned() else { return };
        let host = self.host.clone();
        let key = match &id {
            EndpointId::Workload(id) => StoreKey::WorkloadEndpointStatus(Box::new(WorkloadStatusKey {
                region: region.to_owned(),
                host,
                orchestrator: id.orchestrator.clone(),
                workload: id.workload.clone(),
                endpoint: id.endpoint.clone(),
            })),
            EndpointId::Host(name) => StoreKey::HostEndpointStatus { host, endpoint: name.clone() },
        };
        let status = match &state {
            Some(WorkloadState::Up) => Some(EndpointState::Up),
            Some(WorkloadState::Down) => Some(EndpointState::Down),
            Some(WorkloadState::Error(_)) => Some(EndpointState::Error),
            None => None,
        };
        let outcome = match status {
            Some(status) => {
                let value = StoreValue::EndpointStatus(EndpointStatus { status });
                self.client.apply(&key, &value, None).await.map(|_| ())
            }
            None => match self.client.delete(&key, None).await {
                Ok(_) | Err(tortie_store::StoreError::DoesNotExist { .. }) => Ok(()),
                Err(error) => Err(error),
            },
        };
        match outcome {
            Ok(()) if status.is_none() => {
                self.wanted.remove(&id);
                self.written.remove(&id);
            }
            Ok(()) => {
                self.written.insert(id, state);
            }
            Err(error) => tracing::debug!(%error, "cannot write the status of an endpoint"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_compute::ParameterEnvironment;
    use tortie_dataplane::AffectedWorkloads;
    use tortie_model::kinds::FelixConfiguration;

    fn warning(interface: &str, parameters: &NodeParameters) -> NetworkWarning {
        let object = KernelObject::Interface { name: interface.to_owned() };
        let concerns = AffectedWorkloads::none();
        let failure = KernelFailure { object, concerns, reason: "no such devices".to_owned().into() };
        describe_tunnel_warning(&failure, parameters)
    }

    #[test]
    fn a_missing_device_names_its_mode() {
        let parameters = NodeParameters::default();
        for (interface, mode) in [
            ("tunl0", "IPIP"),
            ("vxlan.calico", "VXLAN"),
            ("vxlan-v6.calico", "VXLAN of IPv6"),
            ("wireguard.cali", "WireGuard"),
            ("wg-v6.cali", "WireGuard of IPv6"),
            ("other0", "interface other0"),
        ] {
            let warning = warning(interface, &parameters);
            assert_eq!(warning.object, mode);
            let reason = format!("configured but not in force: interface {interface}: no such devices");
            assert_eq!(warning.reason, reason);
        }
        let name = ("FELIX_WIREGUARDINTERFACENAME".to_owned(), "secret0".to_owned());
        let none: [FelixConfiguration; 0] = [];
        let environment = ParameterEnvironment::new([name], []);
        let parameters = NodeParameters::resolve("n1", &BTreeMap::new(), &none, &environment);
        let renamed = warning("secret0", &parameters);
        assert_eq!(renamed.object, "WireGuard");
        assert!(renamed.advice.contains("clear text"), "{renamed:?}");
    }

    #[tokio::test]
    async fn missing_modes_are_warnings_until_they_end() {
        let state = NodeState::new("n1");
        let mut published = state.network_warnings();
        let missing = warning("tunl0", &NodeParameters::default());
        state.set_network_warnings(TUNNELS_COMPONENT, vec![missing.clone()]);
        assert!(published.has_changed().unwrap());
        assert_eq!(published.borrow_and_update()[TUNNELS_COMPONENT], std::slice::from_ref(&missing));
        let health = crate::health::NodeHealth::check(&state).await;
        let part = health.parts.iter().find(|part| part.name == TUNNELS_COMPONENT).unwrap();
        assert_eq!(part.level, crate::health::HealthLevel::Warning);
        assert!(part.message.starts_with("IPIP: configured but not in force: "), "{}", part.message);
        state.set_network_warnings(TUNNELS_COMPONENT, vec![missing]);
        assert!(!published.has_changed().unwrap(), "unchanged warnings are not published again");
        state.set_network_warnings(TUNNELS_COMPONENT, Vec::new());
        assert!(published.has_changed().unwrap());
        assert_eq!(state.warnings().get(TUNNELS_COMPONENT), None);
    }
}
