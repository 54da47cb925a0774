//! What the node reports to the store: that it lives, and how its endpoints are.

use crate::state::State;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tortie_dataplane::{Report, Reports, WorkloadState};
use tortie_model::status::{EndpointState, EndpointStatus, Heartbeat};
use tortie_model::{Key, Value};
use tortie_plan::WorkloadId;
use tortie_store::Client;

/// Before the first heartbeat.
const FIRST: Duration = Duration::from_secs(10);
/// How often settings are looked at while heartbeats are off.
const IDLE: Duration = Duration::from_secs(10);

/// Says from time to time that the node lives, if the settings want it.
pub async fn heartbeats(state: Arc<State>, client: Client, host: String) {
    let started = Instant::now();
    let parameters = state.parameters();
    let mut first = true;
    tokio::time::sleep(FIRST).await;
    loop {
        let (interval, ttl, region) = {
            let parameters = parameters.borrow();
            let interval = parameters.span("reportingInterval");
            (interval, parameters.span("reportingTTL"), parameters.text("openstackRegion"))
        };
        if interval.is_zero() {
            tokio::time::sleep(IDLE).await;
            continue;
        }
        let uptime = (started.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let beat = Heartbeat { time: format!("{:.0}", Timestamp::now()), uptime, first_update: first };
        let living = Key::FelixStatus { region: region.clone(), host: host.clone() };
        let last = Key::FelixLastStatus { region, host: host.clone() };
        let value = Value::Heartbeat(beat);
        let ttl = Some(ttl).filter(|ttl| !ttl.is_zero());
        let written = async {
            client.apply(&living, &value, ttl).await?;
            client.apply(&last, &value, None).await
        };
        match written.await {
            Ok(_) => first = false,
            Err(error) => tracing::debug!(%error, "heartbeat not written"),
        }
        tokio::time::sleep(interval).await;
    }
}

/// Takes in what the dataplane reports, and writes endpoint states to the store if the settings want it.
pub async fn endpoints(
    state: Arc<State>,
    client: Client,
    host: String,
    mut dataplanes: mpsc::Receiver<Reports>,
) {
    let mut writer = Writer { client, host, wanted: BTreeMap::new(), written: BTreeMap::new() };
    let parameters = state.parameters();
    let mut reports: Option<Reports> = None;
    loop {
        let (enabled, delay, region) = {
            let parameters = parameters.borrow();
            let delay = parameters.span("endpointReportingDelay").max(Duration::from_millis(10));
            (parameters.flag("endpointReportingEnabled"), delay, parameters.text("openstackRegion"))
        };
        writer.forget_unless(|id| state.has_workload(id));
        let pending = enabled && writer.next().is_some();
        tokio::select! {
            dataplane = dataplanes.recv() => match dataplane {
                Some(dataplane) => reports = Some(dataplane),
                None => return,
            },
            report = next(&mut reports) => match report {
                Some(report) => take_in(&state, &mut writer, report),
                None => reports = None,
            },
            () = tokio::time::sleep(delay), if pending => writer.write_one(&region).await,
            () = tokio::time::sleep(IDLE), if !pending => {}
        }
    }
}

async fn next(reports: &mut Option<Reports>) -> Option<Report> {
    match reports {
        Some(reports) => reports.next().await,
        None => std::future::pending().await,
    }
}

fn take_in(state: &State, writer: &mut Writer, report: Report) {
    match report {
        Report::Workload { id, state } => {
            writer.wanted.insert(id, Some(state));
        }
        Report::Mtu(choice) => {
            tracing::info!(
                mtu = choice.mtu,
                interface = choice.interface,
                reason = choice.reason,
                "MTU of workloads"
            );
            state.set_mtu(choice.mtu);
        }
        Report::RouteCount(count) => {
            state.metrics.routes.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        Report::Table(stats) => state.metrics.table.set(&stats),
    }
}

struct Writer {
    client: Client,
    host: String,
    wanted: BTreeMap<WorkloadId, Option<WorkloadState>>,
    written: BTreeMap<WorkloadId, Option<WorkloadState>>,
}

impl Writer {
    /// What is no longer in the plan has no state.
    fn forget_unless(&mut self, lives: impl Fn(&WorkloadId) -> bool) {
        self.wanted.iter_mut().filter(|(id, _)| !lives(id)).for_each(|(_, state)| *state = None);
    }

    fn next(&self) -> Option<&WorkloadId> {
        self.wanted.iter().find(|(id, state)| self.written.get(*id) != Some(*state)).map(|(id, _)| id)
    }

    /// One at a time, so that a node full of endpoints does not storm the store.
    async fn write_one(&mut self, region: &str) {
        let Some(id) = self.next().cloned() else { return };
        let Some(state) = self.wanted.get(&id).cloned() else { return };
        let key = Key::WorkloadEndpointStatus {
            region: region.to_owned(),
            host: self.host.clone(),
            orchestrator: id.orchestrator.clone(),
            workload: id.workload.clone(),
            endpoint: id.endpoint.clone(),
        };
        let status = match &state {
            Some(WorkloadState::Up) => Some(EndpointState::Up),
            Some(WorkloadState::Down) => Some(EndpointState::Down),
            Some(WorkloadState::Error(_)) => Some(EndpointState::Error),
            None => None,
        };
        let outcome = match status {
            Some(status) => {
                let value = Value::EndpointStatus(EndpointStatus { status });
                self.client.apply(&key, &value, None).await.map(|_| ())
            }
            None => match self.client.delete(&key, None).await {
                Ok(_) | Err(tortie_store::Error::DoesNotExist { .. }) => Ok(()),
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
            Err(error) => tracing::debug!(%error, "endpoint status not written"),
        }
    }
}
