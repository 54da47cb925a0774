//! The main loop of the node: passes events of the datastore, CNI requests and BGP routes to the core, applies the
//! results to the dataplane and publishes them to the other consumers of the plan.
//!
//! [`EngineCore`] makes the decisions. The task in this module owns the dataplane, the channels and the clock, and carries
//! out the actions.

mod consumers;
mod core;
mod event;
mod json;
mod requests;
#[cfg(test)]
mod tests;
mod waiters;

pub use self::core::{EngineCore, HeldAttachment};
pub use consumers::{PlanChange, PlanConsumer, PlanReceiver, PlanStage};
pub use event::{
    ApplyFailure, EngineAction, EngineEvent, FailureScope, HttpProxyChange, LearntNextHops, LearntRoute,
    RequestRefusal, WaiterId,
};
pub use json::{event_from_json, event_to_json, held_from_json, held_to_json};
pub use requests::{EngineHandle, EngineInbox, EngineRequestError, FoundObjects};

use crate::flow_records::FlowEventReceiver;
use crate::health::ROUTES_COMPONENT;
use crate::metrics::NodeMetrics;
use crate::recording::NodeRecording;
use crate::state::NodeState;
use crate::{bgp, failpoint};
use consumers::{PlanSender, plan_queue};
use requests::EngineRequest;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tortie_compute::UnroutedPool;
use tortie_dataplane::{
    AffectedWorkloads, DataplaneError, DataplaneHandle, KernelFailure, Netns, ReportReceiver, WireguardKeys,
};
use tortie_model::FeedEvent;
use tortie_model::kinds::NetworkWarning;
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate};
use tortie_sync::Feed as FeedReceiver;

/// Maximum number of events that are handled before their changes are applied.
const MAX_EVENTS_PER_BATCH: usize = 1024;
/// Number of dataplanes whose flow events wait for the recorder; it needs only the newest.
const FLOW_SOURCE_CAPACITY: usize = 8;
/// Interval between checks for conditions without an event: expired timers, and the end of the dataplane.
const ENGINE_TICK_INTERVAL: Duration = Duration::from_secs(1);

pub struct NodeEngine {
    host: Netns,
    keys: WireguardKeys,
    core: EngineCore,
    state: Arc<NodeState>,
    started: Instant,
    dataplane: Option<DataplaneHandle>,
    /// The loop counter of the current dataplane, and its value at the last check.
    turns: (Arc<AtomicU64>, u64),
    /// The running command to the dataplane, if any.
    work: Option<JoinHandle<DataplaneTaskResult>>,
    /// Passes on the report channel of each new dataplane.
    reports: mpsc::Sender<ReportReceiver>,
    /// Passes on the flow events of each new dataplane.
    flow_sources: Option<mpsc::Sender<FlowEventReceiver>>,
    /// Objects that the kernel refuses, with the reason. Each is logged only once.
    refused: BTreeMap<String, String>,
    answers: HashMap<WaiterId, oneshot::Sender<Result<(), RequestRefusal>>>,
    next_waiter: u64,
    consumers: Vec<PlanSender>,
    recording: Option<NodeRecording>,
    timing: EngineTiming,
}

/// The result of a command to the dataplane, which it returns.
struct DataplaneTaskResult {
    dataplane: Option<DataplaneHandle>,
    reports: Option<ReportReceiver>,
    event: EngineEvent,
    took: Duration,
}

/// Time measurements for the metrics.
#[derive(Default)]
struct EngineTiming {
    /// Time spent on events of the datastore since the last turn.
    computing: Duration,
    planned: u64,
    /// When the routes were learnt that the dataplane has not received yet, and those in the current batch.
    learnt: Vec<Instant>,
    in_batch: Vec<Instant>,
}

impl NodeEngine {
    pub fn new(
        host: Netns,
        keys: WireguardKeys,
        core: EngineCore,
        state: Arc<NodeState>,
        recording: Option<NodeRecording>,
    ) -> (NodeEngine, mpsc::Receiver<ReportReceiver>) {
        let (reports, reported) = mpsc::channel(1);
        let engine = NodeEngine {
            host,
            keys,
            core,
            state,
            started: Instant::now(),
            dataplane: None,
            turns: Default::default(),
            work: None,
            reports,
            flow_sources: None,
            refused: BTreeMap::new(),
            answers: HashMap::new(),
            next_waiter: 0,
            consumers: Vec::new(),
            recording,
            timing: EngineTiming::default(),
        };
        (engine, reported)
    }

    /// Registers a consumer of the plan, which receives its changes from the returned queue.
    pub fn register(&mut self, consumer: PlanConsumer) -> PlanReceiver {
        let (sender, receiver) = plan_queue(consumer);
        self.core.register(consumer);
        self.consumers.push(sender);
        receiver
    }

    /// Returns a channel of the flow events of each new dataplane.
    pub fn follow_flows(&mut self) -> mpsc::Receiver<FlowEventReceiver> {
        let (sender, sources) = mpsc::channel(FLOW_SOURCE_CAPACITY);
        self.flow_sources = Some(sender);
        sources
    }

    /// Runs the loop. While the dataplane works, no other events are received; they wait in their bounded channels.
    pub async fn run(
        mut self,
        mut feed: FeedReceiver,
        inbox: EngineInbox,
        mut routes: mpsc::Receiver<bgp::RouteUpdates>,
    ) {
        let mut tick = tokio::time::interval(ENGINE_TICK_INTERVAL);
        let heartbeat = self.state.liveness.part("engine");
        let dataplane = self.state.liveness.part("dataplane-loop");
        let mut announced = self.state.announced();
        let EngineInbox { mut requests, proxies, mut lookups } = inbox;
        loop {
            heartbeat.beat();
            let idle = self.work.is_none();
            tokio::select! {
                result = await_result(&mut self.work) => self.handle_dataplane_result(result).await,
                event = feed.recv(), if idle => match event {
                    Some(event) => self.handle_feed_event(event),
                    None => return tracing::error!("the feed of the datastore has ended"),
                },
                Some(request) = requests.recv(), if idle => self.handle_request(request).await,
                Some(lookup) = lookups.recv() => lookup.respond(self.core.compute()),
                Some(updates) = routes.recv(), if idle => self.handle_routes(updates),
                Ok(()) = announced.changed(), if idle => {
                    let ids = announced.borrow_and_update().iter().cloned().collect();
                    self.handle(EngineEvent::Announced(ids));
                }
                changes = proxies.recv(), if idle => {
                    self.handle(EngineEvent::HttpProxies(changes));
                }
                _ = tick.tick() => {
                    if self.dataplane_moves() {
                        dataplane.beat();
                    }
                    self.detect_dataplane_end();
                }
            }
            for _ in 0..if self.work.is_none() { MAX_EVENTS_PER_BATCH } else { 0 } {
                if let Ok(request) = requests.try_recv() {
                    self.handle_request(request).await;
                } else if let Ok(event) = feed.try_recv() {
                    self.handle_feed_event(event);
                } else if let Ok(updates) = routes.try_recv() {
                    self.handle_routes(updates);
                } else {
                    break;
                }
            }
            self.turn();
        }
    }

    /// Handles an event and carries out the actions. Returns the computing time of the core alone.
    fn handle(&mut self, event: EngineEvent) -> Duration {
        let now = self.started.elapsed();
        if let Some(recording) = &mut self.recording {
            recording.record(now, &event);
            self.state.metrics.unrecorded.set(i64::try_from(recording.lost()).unwrap_or(i64::MAX));
        }
        let begun = Instant::now();
        let actions = self.core.handle(now, event);
        let took = begun.elapsed();
        if let Some(recording) = &mut self.recording {
            recording.record_actions(now, &actions);
        }
        for action in actions {
            self.carry_out(action);
        }
        if self.core.take_lost() {
            self.state.set_endpoint_lost();
        }
        took
    }

    fn handle_feed_event(&mut self, event: FeedEvent) {
        let metrics = &self.state.metrics;
        metrics.updates.inc();
        match &event {
            FeedEvent::Unreadable { key, reason, .. } => {
                metrics.bad_objects.inc();
                tracing::warn!(%key, reason, "cannot read an entry of the datastore; the health page shows which parts are used; write it again");
            }
            FeedEvent::ConnectionLost { reason } => {
                tracing::warn!(
                    reason,
                    "the datastore is out of reach; the network of workloads stays as it is, trying again"
                );
                self.state.set_trouble("datastore", Some(reason.clone()));
            }
            FeedEvent::ConnectionBack { failed_attempts } => {
                tracing::info!(failed_attempts, "the datastore is back");
                metrics.datastore_failures.inc_by(*failed_attempts);
                metrics.resyncs.inc();
                self.state.set_trouble("datastore", None);
            }
            FeedEvent::Put { .. } | FeedEvent::Delete { .. } | FeedEvent::InSync => {}
        }
        let took = self.handle(EngineEvent::Feed(event));
        self.timing.computing += took;
    }

    async fn handle_request(&mut self, request: EngineRequest) {
        failpoint::hit("engine-request").await;
        let waiter = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        let (event, answer) = request.into_event(waiter);
        self.answers.insert(waiter, answer);
        self.handle(event);
    }

    fn handle_routes(&mut self, updates: bgp::RouteUpdates) {
        self.timing.learnt.push(updates.since);
        self.handle(EngineEvent::Learnt { routes: updates.routes, complete: updates.complete });
    }

    /// Returns whether the dataplane is not stuck: its loop has advanced since the last check, or no dataplane is at
    /// work.
    fn dataplane_moves(&mut self) -> bool {
        let (counter, before) = &mut self.turns;
        let now = counter.load(Ordering::Relaxed);
        std::mem::replace(before, now) != now || self.dataplane.is_none() && self.work.is_none()
    }

    fn detect_dataplane_end(&mut self) {
        if self.dataplane.as_ref().is_some_and(|dataplane| !dataplane.is_running()) {
            tracing::error!(
                "the dataplane has ended; it is started again and takes over what the kernel has"
            );
            self.dataplane = None;
            self.handle(EngineEvent::Stopped("it has ended".to_owned()));
        }
    }

    fn turn(&mut self) {
        if self.work.is_some() {
            return;
        }
        let took = self.handle(EngineEvent::Turn);
        self.report_missing_endpoints();
        let flow = &self.state.metrics.flow;
        let computing = std::mem::take(&mut self.timing.computing);
        if !computing.is_zero() {
            flow.plan_time.observe((computing + took).as_secs_f64());
        }
        let planned = self.core.planned();
        flow.plan_updates.inc_by(planned - std::mem::replace(&mut self.timing.planned, planned));
        self.update_state();
    }

    fn report_missing_endpoints(&mut self) {
        let missing = self.core.take_missing(self.started.elapsed());
        if let Some(example) = missing.first() {
            tracing::warn!(
                endpoints = missing.len(),
                %example,
                "the datastore has lost endpoints of running containers; the containers keep their network"
            );
        }
    }

    fn carry_out(&mut self, action: EngineAction) {
        match action {
            EngineAction::Answer { waiter, outcome } => {
                if let Some(answer) = self.answers.remove(&waiter) {
                    // The client may have gone away.
                    let _ = answer.send(outcome);
                }
            }
            EngineAction::Publish { consumer, change } => {
                let sender = self.consumers.iter().find(|sender| sender.consumer.name == consumer);
                if sender.is_some_and(|sender| sender.send(change, self.core.plan())) {
                    let resyncs = &self.state.metrics.plan_consumer_resyncs;
                    resyncs.get_or_create(&[("consumer", consumer.to_owned())]).inc();
                }
            }
            EngineAction::Start { settings, plan } => {
                self.state.set_workloads(&plan.workloads);
                self.timing.in_batch.append(&mut self.timing.learnt);
                let old = self.dataplane.take();
                let started = start(self.host.clone(), self.keys.clone(), old, *settings, *plan);
                self.work = Some(tokio::spawn(started));
            }
            EngineAction::Apply { settings, updates } => {
                let Some(dataplane) = self.dataplane.take() else { return };
                self.state.update_workloads(&updates);
                self.timing.in_batch.append(&mut self.timing.learnt);
                let size = f64::from(u32::try_from(updates.len()).unwrap_or(u32::MAX));
                self.state.metrics.flow.batch.observe(size);
                self.work = Some(tokio::spawn(apply(dataplane, settings, updates)));
            }
        }
    }

    async fn handle_dataplane_result(&mut self, result: DataplaneTaskResult) {
        self.work = None;
        let metrics = &self.state.metrics;
        match &result.event {
            EngineEvent::Started => {
                self.state.set_trouble("dataplane", None);
                metrics.flow.first_sync.set(result.took.as_secs_f64());
                self.state.set_in_sync();
            }
            EngineEvent::Stopped(reason) => {
                metrics.dataplane_failures.inc();
                self.state.set_trouble("dataplane", Some(reason.clone()));
                tracing::error!(reason, "the dataplane does not run; it is started again within a second");
            }
            EngineEvent::Applied(failures) => {
                metrics.apply_time.observe(result.took.as_secs_f64());
                self.refused = report_failures(&self.refused, failures, metrics);
            }
            _ => {}
        }
        let ages = std::mem::take(&mut self.timing.in_batch);
        if matches!(result.event, EngineEvent::Started | EngineEvent::Applied(_)) {
            ages.iter().for_each(|since| metrics.fib_lag.0.observe(since.elapsed().as_secs_f64()));
        }
        self.dataplane = result.dataplane;
        if let (Some(dataplane), Some(reports)) = (&mut self.dataplane, result.reports) {
            self.turns = (dataplane.turns(), 0);
            self.state.set_mtu(dataplane.mtu());
            if let (Some(sources), Some(events)) = (&self.flow_sources, dataplane.take_flow_events()) {
                // Fails only if the recorder does not take the events of several dataplanes; it takes the next.
                let _ = sources.try_send(events);
            }
            let _ = self.reports.send(reports).await;
        }
        self.handle(result.event);
    }

    /// Updates the shared state and the metrics from the plan.
    fn update_state(&self) {
        let compute = self.core.compute();
        self.state.set_datastore_ready(self.core.is_datastore_ready());
        self.state.set_parameters(compute.parameters());
        let metrics = &self.state.metrics;
        let totals = compute.totals();
        metrics.set_totals(&totals);
        if self.state.is_in_sync() {
            let unrouted = compute.unrouted_pools().iter().map(unrouted_warning).collect();
            self.state.set_network_warnings(ROUTES_COMPONENT, unrouted);
        }
        self.state.set_warning("http policy", unproxied_warning(totals.unproxied_workloads));
        for (object, reason) in self.state.set_problems(compute.problems()) {
            metrics.bad_objects.inc();
            tracing::warn!(
                object,
                reason,
                "an object of the datastore is not used as it is written; correct it"
            );
        }
    }
}

fn unrouted_warning(pool: &UnroutedPool) -> NetworkWarning {
    NetworkWarning {
        object: format!("IPPool({})", pool.name),
        reason: pool.to_string(),
        advice: pool.advice().to_owned(),
    }
}

/// Returns the warning about workloads with HTTP rules that match nothing, because the workloads have no proxy.
fn unproxied_warning(workloads: usize) -> Option<String> {
    (workloads > 0).then(|| {
        format!(
            "workloads with rules whose http conditions no proxy enforces: {workloads}; \
             see policySyncPathPrefix and httpRulesWithoutProxy"
        )
    })
}

/// Starts a dataplane. It takes over the state of the kernel, so that nothing is removed in between.
async fn start(
    host: Netns,
    keys: WireguardKeys,
    old: Option<DataplaneHandle>,
    settings: DataplaneSettings,
    plan: NodePlan,
) -> DataplaneTaskResult {
    if let Some(old) = old {
        old.stop().await;
    }
    let begun = Instant::now();
    let started = async {
        let (dataplane, reports) = DataplaneHandle::start_with_keys(host, settings, keys).await?;
        dataplane.replace(plan).await?;
        Ok::<_, DataplaneError>((dataplane, reports))
    };
    let (dataplane, reports, event) = match started.await {
        Ok((dataplane, reports)) => (Some(dataplane), Some(reports), EngineEvent::Started),
        Err(error) => (None, None, EngineEvent::Stopped(error.to_string())),
    };
    DataplaneTaskResult { dataplane, reports, event, took: begun.elapsed() }
}

async fn apply(
    dataplane: DataplaneHandle,
    settings: Option<Box<DataplaneSettings>>,
    updates: Vec<PlanUpdate>,
) -> DataplaneTaskResult {
    let begun = Instant::now();
    let mut failures = Vec::new();
    let applied = async {
        if let Some(settings) = settings {
            tracing::info!("settings have changed; applying them to the kernel");
            match dataplane.configure(*settings).await {
                // The previous settings stay in force.
                Err(DataplaneError::Invalid { field, reason }) => {
                    failures.push(invalid_setting(field, reason))
                }
                outcome => drop(outcome?),
            }
        }
        dataplane.apply(updates).await
    };
    let outcome = applied.await;
    let (dataplane, event) = match outcome {
        Ok(outcome) => {
            failures.extend(outcome.failures.into_iter().map(ApplyFailure::from));
            (Some(dataplane), EngineEvent::Applied(failures))
        }
        Err(error) => (None, EngineEvent::Stopped(error.to_string())),
    };
    DataplaneTaskResult { dataplane, reports: None, event, took: begun.elapsed() }
}

/// Logs and counts new failures. Returns all failures.
fn report_failures(
    known: &BTreeMap<String, String>,
    failures: &[ApplyFailure],
    metrics: &NodeMetrics,
) -> BTreeMap<String, String> {
    let refused: BTreeMap<String, String> =
        failures.iter().map(|failure| (failure.object.clone(), failure.reason.clone())).collect();
    for (object, reason) in refused.iter().filter(|(object, reason)| known.get(*object) != Some(*reason)) {
        metrics.dataplane_failures.inc();
        tracing::warn!(object, reason, "the kernel refused an object; retrying");
    }
    for object in known.keys().filter(|object| !refused.contains_key(*object)) {
        tracing::info!(object, "no longer refused by the kernel");
    }
    refused
}

fn invalid_setting(field: &str, reason: String) -> ApplyFailure {
    ApplyFailure {
        concerns: FailureScope::Workloads(BTreeSet::new()),
        object: format!("setting {field}"),
        reason,
    }
}

impl From<KernelFailure> for ApplyFailure {
    fn from(failure: KernelFailure) -> ApplyFailure {
        let concerns = match failure.concerns {
            AffectedWorkloads::Everything => FailureScope::Everything,
            AffectedWorkloads::Workloads(ids) => FailureScope::Workloads(ids),
        };
        ApplyFailure { concerns, object: failure.object.to_string(), reason: failure.reason.to_string() }
    }
}

/// Waits for the end of the running command. A panic counts as the end of the dataplane.
async fn await_result(work: &mut Option<JoinHandle<DataplaneTaskResult>>) -> DataplaneTaskResult {
    let Some(handle) = work else { return std::future::pending().await };
    match handle.await {
        Ok(result) => result,
        Err(error) => {
            let event = EngineEvent::Stopped(error.to_string());
            DataplaneTaskResult { dataplane: None, reports: None, event, took: Duration::ZERO }
        }
    }
}
