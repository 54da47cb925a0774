//! The loop of the node: what the store says and what CNI attaches goes through compute into the dataplane.
//!
//! One task owns compute and dataplane. Until the whole store has been heard once, nothing is touched in the kernel;
//! while the store is silent, everything stays as it is.

use crate::bgp;
use crate::state::State;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tortie_compute::Compute;
use tortie_dataplane::{Dataplane, Failure, Netns, Reports};
use tortie_model::kinds::ClusterInformation;
use tortie_model::{FeedEvent, Key, Resource, Revision, Value};
use tortie_plan::{Plan, Settings, Update, WorkloadId};
use tortie_sync::Feed;

/// How much is taken in before the plan is looked at.
const AT_ONCE: usize = 1024;
const QUEUE: usize = 1024;
/// Between attempts to start the dataplane.
const RETRY: Duration = Duration::from_secs(1);

/// How long news of a profile that was just written may take. Without it the endpoint is wired but denied.
const PROFILE_PATIENCE: Duration = Duration::from_secs(5);

/// How an order went.
type Outcome = Result<(), String>;

/// What happens locally.
#[derive(Debug)]
pub enum Order {
    /// An endpoint of ours exists: program it now, and keep it whatever the store says.
    Attach { key: Key, value: Box<Value>, profile: Option<String>, done: oneshot::Sender<Outcome> },
    /// It is gone, deleted from the store at this revision of it.
    Detach { key: Key, revision: Option<Revision>, done: oneshot::Sender<Outcome> },
}

/// The way to the engine.
#[derive(Clone, Debug)]
pub struct Orders(mpsc::Sender<Order>);

impl Orders {
    /// Returns when the endpoint is in the kernel, and with it the profile if one is given: it was written just before
    /// the endpoint, and news of it may still be on the way.
    pub async fn attach(&self, key: Key, value: Value, profile: Option<String>) -> Result<(), String> {
        let (done, answer) = oneshot::channel();
        self.send(Order::Attach { key, value: Box::new(value), profile, done }, answer).await
    }

    /// Returns when nothing of the endpoint is in the kernel.
    pub async fn detach(&self, key: Key, revision: Option<Revision>) -> Result<(), String> {
        let (done, answer) = oneshot::channel();
        self.send(Order::Detach { key, revision, done }, answer).await
    }

    async fn send(&self, order: Order, answer: oneshot::Receiver<Outcome>) -> Result<(), String> {
        let stopped = || "the node's daemon is stopping".to_owned();
        self.0.send(order).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

pub struct Engine {
    host: Netns,
    compute: Compute,
    state: Arc<State>,
    plan: Plan,
    dataplane: Option<(Dataplane, Settings)>,
    /// Where the reports of each new dataplane go.
    reports: mpsc::Sender<Reports>,
    /// Endpoints of live attachments: only CNI takes them away.
    held: HashSet<Key>,
    /// Endpoints we deleted: news of them up to this revision is old.
    retired: BTreeMap<Key, Revision>,
    /// The feed's snapshot is complete.
    in_sync: bool,
    waiting: Vec<Waiting>,
    /// Spent on news since the plan was last looked at.
    computing: Duration,
    /// Where the node speaks BGP.
    bgp: Option<bgp::BgpHandle>,
    /// BGP has been told the plan as a whole; from now on, changes do.
    bgp_knows: bool,
}

/// Whoever waits for the kernel.
struct Waiting {
    workload: Option<WorkloadId>,
    /// To be heard of first.
    profile: Option<String>,
    since: Instant,
    done: oneshot::Sender<Outcome>,
}

impl Engine {
    pub fn new(
        host: Netns,
        compute: Compute,
        state: Arc<State>,
        held: HashSet<Key>,
        bgp: Option<bgp::BgpHandle>,
    ) -> (Engine, mpsc::Receiver<Reports>) {
        let (reports, reported) = mpsc::channel(1);
        let engine = Engine {
            host,
            compute,
            state,
            plan: Plan::default(),
            dataplane: None,
            reports,
            held,
            retired: BTreeMap::new(),
            in_sync: false,
            waiting: Vec::new(),
            computing: Duration::ZERO,
            bgp,
            bgp_knows: false,
        };
        (engine, reported)
    }

    pub fn orders() -> (Orders, mpsc::Receiver<Order>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Orders(sender), receiver)
    }

    pub async fn run(mut self, mut feed: Feed, mut orders: mpsc::Receiver<Order>) {
        let mut retry = tokio::time::interval(RETRY);
        loop {
            tokio::select! {
                Some(event) = feed.recv() => self.hear(event),
                Some(order) = orders.recv() => self.obey(order),
                Some(news) = learnt(&mut self.bgp) => self.learn(news).await,
                _ = retry.tick() => {}
                else => return,
            }
            for _ in 0..AT_ONCE {
                if let Ok(order) = orders.try_recv() {
                    self.obey(order);
                } else if let Ok(event) = feed.try_recv() {
                    self.hear(event);
                } else {
                    break;
                }
            }
            self.converge().await;
        }
    }

    fn hear(&mut self, event: FeedEvent) {
        self.state.metrics.updates.inc();
        match event {
            FeedEvent::Put { key, value, revision } => {
                if let Value::Resource(Resource::ClusterInformation(information)) = &value {
                    self.state.set_datastore_ready(is_ready(information));
                }
                let old = self.retired.get(&key).is_some_and(|at| revision.is_at_or_before(at) == Some(true));
                if !old {
                    self.retired.remove(&key);
                    let begun = Instant::now();
                    self.compute.put(&key, &value);
                    self.computing += begun.elapsed();
                }
            }
            FeedEvent::Delete { key, .. } => {
                self.retired.remove(&key);
                if self.held.contains(&key) {
                    tracing::warn!(%key, "the store lost an endpoint whose container lives; it keeps its network");
                } else {
                    let begun = Instant::now();
                    self.compute.delete(&key);
                    self.computing += begun.elapsed();
                }
            }
            FeedEvent::InSync => self.in_sync = true,
            FeedEvent::Unreadable { key, reason, .. } => {
                self.state.metrics.bad_objects.inc();
                tracing::warn!(%key, reason, "ignored an entry that cannot be read; write it again");
            }
            FeedEvent::ConnectionLost { reason } => {
                tracing::warn!(
                    reason,
                    "the datastore is out of reach; the network of workloads stays as it is, trying again"
                );
                self.state.set_trouble("datastore", Some(reason));
            }
            FeedEvent::ConnectionBack { failed_attempts } => {
                tracing::info!(failed_attempts, "the datastore is back");
                self.state.metrics.datastore_failures.inc_by(failed_attempts);
                self.state.set_trouble("datastore", None);
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Attach { key, value, profile, done } => {
                let workload = match &*value {
                    Value::Resource(Resource::WorkloadEndpoint(endpoint)) => {
                        tortie_compute::local_workload(endpoint, true).ok().map(|(id, _)| id)
                    }
                    _ => None,
                };
                self.retired.remove(&key);
                self.compute.put(&key, &value);
                self.held.insert(key);
                self.waiting.push(Waiting { workload, profile, since: Instant::now(), done });
            }
            Order::Detach { key, revision, done } => {
                self.held.remove(&key);
                self.compute.delete(&key);
                if let Some(revision) = revision {
                    self.retired.insert(key, revision);
                }
                self.waiting.push(Waiting { workload: None, profile: None, since: Instant::now(), done });
            }
        }
    }

    /// Takes in what BGP brought. It never comes before the plan it follows from is in the kernel.
    async fn learn(&mut self, news: bgp::RouteUpdates) {
        let (mut routes, mut ages) = (news.routes, vec![news.since]);
        while let Some(Ok(more)) = self.bgp.as_mut().map(|bgp| bgp.learnt.try_recv()) {
            routes.extend(more.routes);
            ages.push(more.since);
        }
        routes.iter().for_each(|route| self.plan.apply(route.clone()));
        // What fails is tried again by the dataplane itself, or by starting it anew.
        if self.program(routes).await.is_ok() {
            let lag = &self.state.metrics.fib_lag;
            ages.iter().for_each(|since| lag.observe(since.elapsed().as_secs_f64()));
        }
    }

    async fn converge(&mut self) {
        let begun = Instant::now();
        let updates = self.compute.flush();
        let flow = &self.state.metrics.flow;
        flow.plan_updates.inc_by(u64::try_from(updates.len()).unwrap_or_default());
        let computing = std::mem::take(&mut self.computing);
        if !computing.is_zero() {
            flow.plan_time.observe((computing + begun.elapsed()).as_secs_f64());
        }
        updates.iter().for_each(|update| self.plan.apply(update.clone()));
        self.state.note(&updates);
        self.publish();
        if !self.in_sync {
            for Waiting { done, .. } in self.waiting.drain(..) {
                // Whoever asked may be gone.
                let _ = done.send(Err("the datastore has not been heard completely yet".to_owned()));
            }
            return;
        }
        let for_bgp = |update: &&Update| matches!(update, Update::Bgp(_) | Update::Workload(..));
        let told = self.bgp.is_some().then(|| updates.iter().filter(for_bgp).cloned().collect::<Vec<_>>());
        let outcome = self.program(updates).await;
        if let (Some(bgp), Some(updates)) = (&self.bgp, told.filter(|_| self.dataplane.is_some())) {
            // What came while the store was not heard completely is in the plan as a whole.
            let updates =
                if std::mem::replace(&mut self.bgp_knows, true) { updates } else { self.plan_for_bgp() };
            if !updates.is_empty() {
                // Fails only while the daemon ends.
                let _ = bgp.plan.send(updates);
            }
        }
        let compute = &self.compute;
        let ready = |waiting: &mut Waiting| {
            let known = waiting.profile.as_ref().is_none_or(|profile| compute.has_profile(profile));
            known || outcome.is_err() || waiting.since.elapsed() > PROFILE_PATIENCE
        };
        for Waiting { workload, done, .. } in self.waiting.extract_if(.., ready) {
            let result = match &outcome {
                Err(error) => Err(error.clone()),
                Ok(failures) => {
                    let ours = |failure: &&Failure| workload.as_ref().is_some_and(|id| failure.concerns(id));
                    failures.iter().find(ours).map_or(Ok(()), |failure| Err(failure.to_string()))
                }
            };
            let _ = done.send(result);
        }
    }

    /// All that BGP has to know.
    fn plan_for_bgp(&self) -> Vec<Update> {
        let workloads = self.plan.workloads.iter();
        let workloads = workloads.map(|(id, workload)| Update::Workload(id.clone(), Some(workload.clone())));
        self.plan.bgp.iter().cloned().map(Update::Bgp).chain(workloads).collect()
    }

    /// Makes the kernel have the plan; what it did not take is named.
    async fn program(&mut self, updates: Vec<Update>) -> Result<Vec<Failure>, String> {
        let settings = self.compute.settings();
        let current = self.dataplane.as_ref().is_some_and(|(_, started_with)| started_with == settings);
        if !current {
            return self.start_dataplane(settings.clone()).await;
        }
        let Some((dataplane, _)) = &self.dataplane else { return Ok(Vec::new()) };
        if updates.is_empty() {
            return Ok(Vec::new());
        }
        let begun = Instant::now();
        self.state.metrics.flow.batch.observe(f64::from(u32::try_from(updates.len()).unwrap_or(u32::MAX)));
        let outcome = dataplane.apply(updates).await;
        self.state.metrics.apply_time.observe(begun.elapsed().as_secs_f64());
        match outcome {
            Ok(outcome) => {
                self.report(&outcome.failures);
                Ok(outcome.failures)
            }
            Err(error) => {
                self.state.metrics.dataplane_failures.inc();
                tracing::error!(%error, "the dataplane stopped; starting it again");
                self.dataplane = None;
                Err(error.to_string())
            }
        }
    }

    /// A new dataplane takes over what the kernel has: nothing is taken away in between.
    async fn start_dataplane(&mut self, settings: Settings) -> Result<Vec<Failure>, String> {
        if let Some((old, _)) = self.dataplane.take() {
            old.stop().await;
        }
        let begun = Instant::now();
        let started = Dataplane::start(self.host.clone(), settings.clone()).await;
        let (dataplane, reports) = match started {
            Ok(started) => started,
            Err(error) => {
                self.state.metrics.dataplane_failures.inc();
                self.state.set_trouble("dataplane", Some(error.to_string()));
                tracing::error!(%error, "the dataplane does not start; will be tried again");
                return Err(error.to_string());
            }
        };
        let failures = match dataplane.replace(self.plan.clone()).await {
            Ok(outcome) => outcome.failures,
            Err(error) => {
                self.state.set_trouble("dataplane", Some(error.to_string()));
                return Err(error.to_string());
            }
        };
        self.report(&failures);
        self.state.set_trouble("dataplane", None);
        self.state.metrics.flow.first_sync.set(begun.elapsed().as_secs_f64());
        self.state.set_mtu(dataplane.mtu().mtu);
        let _ = self.reports.send(reports).await;
        self.dataplane = Some((dataplane, settings));
        self.state.set_in_sync();
        Ok(failures)
    }

    fn report(&self, failures: &[Failure]) {
        for failure in failures {
            self.state.metrics.dataplane_failures.inc();
            tracing::warn!(%failure, "the kernel refused an object; it will be tried again");
        }
    }

    fn publish(&mut self) {
        self.state.set_parameters(self.compute.parameters());
        let totals = self.compute.totals();
        let metrics = &self.state.metrics;
        metrics.count(&totals);
        for (object, reason) in self.state.set_problems(self.compute.problems()) {
            metrics.bad_objects.inc();
            tracing::warn!(object, reason, "passed over");
        }
    }
}

async fn learnt(bgp: &mut Option<bgp::BgpHandle>) -> Option<bgp::RouteUpdates> {
    match bgp {
        Some(bgp) => bgp.learnt.recv().await,
        None => std::future::pending().await,
    }
}

fn is_ready(information: &ClusterInformation) -> bool {
    information.spec.datastore_ready.unwrap_or(true)
}
