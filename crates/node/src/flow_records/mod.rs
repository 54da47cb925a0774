//! Records the flows of this node: takes the events of the dataplane, evaluates them under the policy that the kernel has, and
//! keeps one hour of records, which a socket serves and a collector may receive. A consumer of the plan; idle unless the
//! settings enable flow records.

mod interfaces;
mod sender;
mod status;

pub use status::FlowRecordStatus;

use crate::engine::{EngineHandle, PlanChange, PlanConsumer, PlanReceiver, PlanStage};
use crate::health::FLOW_RECORDS_COMPONENT;
use crate::state::NodeState;
use interfaces::list_host_interfaces;
use sender::CollectorSender;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tortie_compute::{FlowEvaluation, NodeParameters};
use tortie_flows::record::{AddressBook, FlowRecorder, PolicyView, RecorderLimits};
use tortie_flows::ring::RingOptions;
use tortie_flows::{FlowCollector, now_seconds, serve_local_flows};
use tortie_http::liveness::Liveness;
use tortie_plan::flow::FlowEvent;
use tortie_plan::{NodePlan, PlanUpdate, assign};

/// Width of a bucket, as in Goldmane, and the memory limit of the records.
const BUCKET_SECONDS: u32 = 15;
const MAX_RECORD_BYTES: usize = 32 << 20;
/// Maximum number of events that are handled before other work.
const MAX_EVENTS_PER_BATCH: usize = 512;
/// Interval of periodic work.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after the kernel has a change of policy before events are evaluated under it: those of connections that were
/// opened before are still on their way. Newer ones wait until then if the change concerns them.
const PLAN_DELAY: Duration = Duration::from_secs(1);
/// Delay before the socket is created again if that failed.
const SOCKET_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Events are evaluated under the policy that the kernel has.
pub const PLAN_CONSUMER: PlanConsumer = PlanConsumer {
    name: "flow records",
    stage: PlanStage::Programmed,
    enabled: |parameters| parameters.records_flows(),
    wants: |update| {
        matches!(
            update,
            PlanUpdate::Workload(..)
                | PlanUpdate::Tunnel(..)
                | PlanUpdate::Set(..)
                | PlanUpdate::Members { .. }
                | PlanUpdate::Policy(..)
                | PlanUpdate::Profile(..)
                | PlanUpdate::WorkloadPolicy(..)
                | PlanUpdate::HostEndpoint(..)
                | PlanUpdate::ServiceRanges(_)
        )
    },
    select: |plan| NodePlan {
        workloads: plan.workloads.clone(),
        tunnels: plan.tunnels.clone(),
        sets: plan.sets.clone(),
        policies: plan.policies.clone(),
        profiles: plan.profiles.clone(),
        workload_policies: plan.workload_policies.clone(),
        host_endpoints: plan.host_endpoints.clone(),
        service_ranges: plan.service_ranges.clone(),
        ..NodePlan::default()
    },
};

/// The receiver of a dataplane's events. The engine passes on a new one when it starts another dataplane.
pub type FlowEventReceiver = mpsc::Receiver<FlowEvent>;

/// The task that records flows.
pub struct FlowRecordTask {
    state: Arc<NodeState>,
    engine: EngineHandle,
    parameters: watch::Receiver<NodeParameters>,
    plan: PlanReceiver,
    /// A change of the plan that has been received, and when it takes effect here.
    change: Option<(PlanChange, Instant)>,
    sources: mpsc::Receiver<FlowEventReceiver>,
    events: Option<FlowEventReceiver>,
    socket: PathBuf,
}

/// Why the view of the policy is built again.
enum ViewEnd {
    Plan(PlanChange),
    Settings,
    Stopped,
}

/// The records while they are enabled.
struct ActiveRecords {
    recorder: FlowRecorder,
    collector: Arc<FlowCollector>,
    sender: CollectorSender,
    book: AddressBook,
    /// Whether there were staged policies when live connections were last evaluated.
    had_staged: bool,
    /// Tasks that end with the records.
    _tasks: JoinSet<()>,
    _stop: watch::Sender<bool>,
}

impl FlowRecordTask {
    pub fn new(
        state: Arc<NodeState>,
        engine: EngineHandle,
        plan: PlanReceiver,
        sources: mpsc::Receiver<FlowEventReceiver>,
        socket: PathBuf,
    ) -> FlowRecordTask {
        let parameters = state.parameters();
        FlowRecordTask { state, engine, parameters, plan, change: None, sources, events: None, socket }
    }

    /// Runs until the engine ends.
    pub async fn run(mut self) {
        let host = self.state.host.clone();
        let mut plan = NodePlan::default();
        let mut revision = 0;
        let mut records: Option<ActiveRecords> = None;
        loop {
            let parameters = self.parameters.borrow_and_update().clone();
            self.configure(&mut records, &parameters);
            revision += 1;
            let settings = parameters.settings();
            let assignment = assign(&plan.host_endpoints, &list_host_interfaces(&plan));
            let evaluates_pending = parameters.flow_logs_policy_evaluation_mode == FlowEvaluation::Continuous;
            let view = PolicyView::new(&plan, &settings, assignment, &host, revision, evaluates_pending);
            let end = self.follow_events(&mut records, &view).await;
            drop(view);
            match end {
                ViewEnd::Plan(PlanChange::Resync(whole)) => plan = *whole,
                ViewEnd::Plan(PlanChange::Updates(updates)) => {
                    updates.into_iter().for_each(|update| plan.apply(update));
                }
                ViewEnd::Settings => {}
                ViewEnd::Stopped => return,
            }
        }
    }

    /// Starts or stops recording, depending on the settings.
    fn configure(&self, records: &mut Option<ActiveRecords>, parameters: &NodeParameters) {
        if !parameters.records_flows() {
            if records.take().is_some() {
                tracing::info!("flows are no longer recorded");
                self.state.set_flow_records(None);
                self.state.set_warning(FLOW_RECORDS_COMPONENT, None);
            }
            return;
        }
        if records.is_none() {
            tracing::info!(socket = %self.socket.display(), "recording flows");
        }
        let records = records.get_or_insert_with(|| ActiveRecords::start(&self.socket));
        records.sender.configure(parameters, &records.collector);
    }

    /// Handles events until the policy or the settings change.
    async fn follow_events(&mut self, records: &mut Option<ActiveRecords>, view: &PolicyView<'_>) -> ViewEnd {
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut batch = Vec::new();
        if let Some(records) = records {
            records.reevaluate(view);
        }
        loop {
            let until = self.change.as_ref().map(|(_, until)| *until);
            tokio::select! {
                received = self.plan.recv(), if until.is_none() => {
                    let Some(received) = received else { return ViewEnd::Stopped };
                    // The first plan takes effect at once: there was none before.
                    let is_whole = matches!(received, PlanChange::Resync(_));
                    let delay = if is_whole { Duration::ZERO } else { PLAN_DELAY };
                    self.change = Some((received, Instant::now() + delay));
                }
                () = sleep_until(until) => {
                    if let Some((change, _)) = self.change.take() {
                        return ViewEnd::Plan(change);
                    }
                }
                changed = self.parameters.changed() => {
                    return if changed.is_ok() { ViewEnd::Settings } else { ViewEnd::Stopped };
                }
                source = self.sources.recv() => match source {
                    Some(source) => self.events = Some(source),
                    None => return ViewEnd::Stopped,
                },
                count = receive(&mut self.events, &mut batch) => {
                    if count == 0 {
                        self.events = None;
                    } else if let Some(records) = records
                        && records.handle(&mut batch, &self.engine, view).await.is_none()
                    {
                        return ViewEnd::Stopped;
                    }
                    batch.clear();
                }
                _ = tick.tick() => {
                    if let Some(records) = records
                        && records.tick(&self.state, &self.engine, view).await.is_none()
                    {
                        return ViewEnd::Stopped;
                    }
                }
            }
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Receives some events. Returns zero when the dataplane has ended.
async fn receive(events: &mut Option<FlowEventReceiver>, batch: &mut Vec<FlowEvent>) -> usize {
    match events {
        Some(events) => events.recv_many(batch, MAX_EVENTS_PER_BATCH).await,
        None => std::future::pending().await,
    }
}

impl ActiveRecords {
    fn start(socket: &std::path::Path) -> ActiveRecords {
        let options = RingOptions { window: BUCKET_SECONDS, max_bytes: MAX_RECORD_BYTES };
        let collector = Arc::new(FlowCollector::new(options));
        let mut tasks = JoinSet::new();
        let (stop, stopped) = watch::channel(false);
        let clock = collector.clone();
        tasks.spawn(async move { clock.keep_time(Liveness::default().part("clock")).await });
        let (served, path) = (collector.clone(), socket.to_owned());
        tasks.spawn(async move {
            loop {
                match serve_local_flows(&path, served.clone(), stopped.clone()).await {
                    Ok(()) => return,
                    Err(error) => {
                        let path = path.display();
                        tracing::error!(%error, %path, "cannot serve flow records; `tortie flows list` fails; trying again");
                    }
                }
                tokio::time::sleep(SOCKET_RETRY_DELAY).await;
            }
        });
        ActiveRecords {
            recorder: FlowRecorder::new(RecorderLimits::default(), now_seconds()),
            collector,
            sender: CollectorSender::default(),
            book: AddressBook::default(),
            had_staged: false,
            _tasks: tasks,
            _stop: stop,
        }
    }

    /// Records events. Returns `None` if the engine has ended.
    async fn handle(
        &mut self,
        batch: &mut Vec<FlowEvent>,
        engine: &EngineHandle,
        view: &PolicyView<'_>,
    ) -> Option<()> {
        let (mut objects, mut services) = (BTreeSet::new(), BTreeSet::new());
        for event in batch.iter() {
            self.recorder.list_addresses(event, &mut objects, &mut services);
        }
        self.look_up(engine, objects, services).await?;
        let now = now_seconds();
        let mut flows = Vec::new();
        for event in batch.drain(..) {
            self.recorder.handle(&event, view, &self.book, now, &mut flows);
        }
        self.record(&flows);
        Some(())
    }

    /// Updates the pending verdicts of live connections after a change of policy.
    fn reevaluate(&mut self, view: &PolicyView<'_>) {
        let had_staged = std::mem::replace(&mut self.had_staged, view.has_staged());
        if had_staged || self.had_staged {
            let mut flows = Vec::new();
            self.recorder.reevaluate(view, now_seconds(), &mut flows);
            self.record(&flows);
        }
    }

    /// Does periodic work. Returns `None` if the engine has ended.
    async fn tick(&mut self, state: &NodeState, engine: &EngineHandle, view: &PolicyView<'_>) -> Option<()> {
        let mut objects = BTreeSet::new();
        self.recorder.list_waiting_addresses(&mut objects);
        self.look_up(engine, objects, BTreeSet::new()).await?;
        let mut flows = Vec::new();
        self.recorder.tick(view, &self.book, now_seconds(), &mut flows);
        self.record(&flows);
        let status = FlowRecordStatus::new(&self.recorder, &self.collector, self.sender.state());
        state.set_warning(FLOW_RECORDS_COMPONENT, status.warning(self.sender.problem()));
        state.metrics.flow_records.set(&status);
        state.set_flow_records(Some(status));
        Some(())
    }

    /// Looks up the objects that have these addresses now, so that an address that was assigned again is not described by
    /// its previous owner.
    async fn look_up(
        &mut self,
        engine: &EngineHandle,
        objects: BTreeSet<std::net::IpAddr>,
        services: BTreeSet<std::net::IpAddr>,
    ) -> Option<()> {
        self.book = AddressBook::default();
        if objects.is_empty() && services.is_empty() {
            return Some(());
        }
        let found =
            engine.find_objects(objects.into_iter().collect(), services.into_iter().collect()).await?;
        self.book.objects.extend(found.objects);
        self.book.services.extend(found.services);
        Some(())
    }

    fn record(&self, flows: &[tortie_flows::proto::Flow]) {
        for flow in flows {
            if let Err(rejection) = self.collector.record(flow) {
                tracing::debug!(%rejection, "a flow was not recorded");
            }
        }
    }
}
