//! The decisions of the node, without I/O and without a clock: events in, actions out.
//!
//! The kernel is not changed until the snapshot of the datastore is complete, and nothing changes while the datastore
//! is unavailable. A workload that CNI attached is removed only by CNI.

use super::consumers::{ConsumerBacklog, PlanConsumer, PlanStage, concerns_kernel};
use super::event::{
    ApplyFailure, EngineAction, EngineEvent, LearntNextHops, LearntRoute, RequestRefusal, WaiterId,
};
use super::waiters::{AwaitedOutcome, WaitingRequests};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use tortie_compute::PlanCompute;
use tortie_model::{FeedEvent, Kind, Resource, Revision, StoreKey, StoreValue};
use tortie_plan::bgp::BgpInstall;
use tortie_plan::{
    DataplaneSettings, LearntNextHop, LearntRouteEntry, MigrationState, NodePlan, PlanUpdate, WorkloadId,
};

/// Delay between attempts to start the dataplane.
const DATAPLANE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time after which a missing endpoint is reported if the container still runs.
const MISSING_ENDPOINT_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct EngineCore {
    compute: PlanCompute,
    plan: NodePlan,
    dataplane: DataplaneState,
    in_sync: bool,
    datastore_ready: bool,
    /// The datastore deleted the endpoint of a held attachment, or did not have it in its snapshot.
    lost: bool,
    /// Held endpoints that the datastore has deleted, with the time of the deletion, until they are reported.
    missing: BTreeMap<StoreKey, Duration>,
    /// Held endpoints that the feed has not delivered; emptied when the snapshot is complete.
    undelivered: HashSet<StoreKey>,
    /// Endpoints of live attachments. Only CNI removes them.
    held: HashSet<StoreKey>,
    /// Endpoints that CNI wrote or deleted and that the watch has not delivered yet. Older events about them are
    /// stale.
    written: BTreeMap<StoreKey, CniWrite>,
    waiters: WaitingRequests,
    /// Updates from BGP that have not been sent to the dataplane yet.
    learnt: Vec<PlanUpdate>,
    consumers: Vec<ConsumerBacklog>,
    /// Virtual machines that have migrated here, with the time until which their routes keep a higher priority.
    settling: BTreeMap<WorkloadId, Duration>,
    planned: u64,
}

/// The state of the dataplane.
#[derive(Debug)]
enum DataplaneState {
    Down { retry_at: Duration },
    Starting(DataplaneSettings),
    Idle(DataplaneSettings),
    Applying(DataplaneSettings),
}

/// The last write of CNI to an endpoint in the datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CniWrite {
    Put(Revision),
    /// The last revision at which the endpoint existed.
    Deleted(Revision),
}

impl CniWrite {
    /// Returns whether a put with this revision is stale. Revisions without an order are never stale: the next event
    /// from the datastore corrects the state.
    fn outdates_put(&self, put: &Revision) -> bool {
        match self {
            CniWrite::Put(own) => put != own && put.is_at_or_before(own) == Some(true),
            CniWrite::Deleted(last) => put.is_at_or_before(last) == Some(true),
        }
    }

    fn outdates_deletion(&self, deletion: &Revision) -> bool {
        matches!(self, CniWrite::Put(own) if deletion.is_at_or_before(own) == Some(true))
    }
}

/// A live attachment of an earlier run, with its endpoint if the journal has it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldAttachment {
    pub key: StoreKey,
    pub endpoint: Option<StoreValue>,
}

impl EngineCore {
    /// Creates a core whose plan starts with the live attachments, so that an endpoint that the datastore lost keeps
    /// its network.
    pub fn new(mut compute: PlanCompute, held: Vec<HeldAttachment>) -> EngineCore {
        for HeldAttachment { key, endpoint } in &held {
            if let Some(endpoint) = endpoint {
                compute.put(key, endpoint);
            }
        }
        let held: HashSet<StoreKey> = held.into_iter().map(|held| held.key).collect();
        EngineCore {
            compute,
            plan: NodePlan::default(),
            dataplane: DataplaneState::Down { retry_at: Duration::ZERO },
            in_sync: false,
            datastore_ready: true,
            lost: false,
            missing: BTreeMap::new(),
            undelivered: held.clone(),
            held,
            written: BTreeMap::new(),
            waiters: WaitingRequests::default(),
            learnt: Vec::new(),
            consumers: Vec::new(),
            settling: BTreeMap::new(),
            planned: 0,
        }
    }

    /// Adds a consumer of the plan. It gets [`EngineAction::Publish`].
    pub fn register(&mut self, consumer: PlanConsumer) {
        self.consumers.push(ConsumerBacklog::new(consumer));
    }

    pub fn compute(&self) -> &PlanCompute {
        &self.compute
    }

    /// Returns the state that the kernel should have.
    pub fn plan(&self) -> &NodePlan {
        &self.plan
    }

    /// Returns false while an operator has locked the datastore, for example for a migration.
    pub fn is_datastore_ready(&self) -> bool {
        self.datastore_ready
    }

    /// Returns whether the datastore has lost the endpoint of a running container since the last call.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Returns the endpoints of running containers that have been missing from the datastore for
    /// [`MISSING_ENDPOINT_DELAY`] since the last call. The endpoint of a deleted pod is missing until the runtime sends
    /// DEL, which is normal.
    pub fn take_missing(&mut self, now: Duration) -> Vec<StoreKey> {
        let missing = self.missing.extract_if(.., |_, since| *since + MISSING_ENDPOINT_DELAY <= now);
        missing.map(|(key, _)| key).collect()
    }

    /// Returns whether the dataplane is working. Until it is done, [`EngineEvent::Turn`] has no effect.
    pub fn is_busy(&self) -> bool {
        matches!(self.dataplane, DataplaneState::Starting(_) | DataplaneState::Applying(_))
    }

    /// Returns the number of plan updates so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// Handles an event and returns the resulting actions. `now` is the time since a fixed moment.
    pub fn handle(&mut self, now: Duration, event: EngineEvent) -> Vec<EngineAction> {
        match event {
            EngineEvent::Feed(feed) => self.apply_feed_event(now, feed),
            EngineEvent::Attach { waiter, key, value, profile } => {
                self.attach(waiter, key, &value, profile, now);
            }
            EngineEvent::Detach { waiter, key, revision } => self.detach(waiter, key, revision, now),
            EngineEvent::Hold { waiter, key } => {
                self.held.insert(key);
                return vec![EngineAction::Answer { waiter, outcome: Ok(()) }];
            }
            EngineEvent::Learnt { routes, complete } => {
                let install = self.plan.bgp.as_ref().map(|bgp| &bgp.install);
                self.learnt.extend(routes.into_iter().map(|route| learnt_update(route, install)));
                self.learnt.extend(complete.then_some(PlanUpdate::LearntComplete));
            }
            EngineEvent::Announced(ids) => ids.iter().for_each(|id| self.compute.announced(id)),
            EngineEvent::HttpProxies(changes) => {
                changes
                    .into_iter()
                    .for_each(|change| self.compute.set_http_proxy(change.workload, change.live));
            }
            EngineEvent::Started => return self.finish_start(),
            EngineEvent::Applied(failures) => return self.finish_apply(&failures),
            EngineEvent::Stopped(reason) => return self.fail_waiters(now, reason),
            EngineEvent::Turn => return self.turn(now),
        }
        Vec::new()
    }

    fn apply_feed_event(&mut self, now: Duration, event: FeedEvent) {
        match event {
            FeedEvent::Put { key, value, revision } => {
                if let StoreValue::Resource(Resource::ClusterInformation(information)) = &value {
                    self.datastore_ready = information.spec.datastore_ready.unwrap_or(true);
                }
                self.undelivered.remove(&key);
                self.missing.remove(&key);
                if !self.written.get(&key).is_some_and(|written| written.outdates_put(&revision)) {
                    self.written.remove(&key);
                    self.compute.put(&key, &value);
                }
            }
            FeedEvent::Delete { key, revision } => {
                if self.written.get(&key).is_some_and(|written| written.outdates_deletion(&revision)) {
                    return;
                }
                self.written.remove(&key);
                if let StoreKey::Resource { kind: Kind::ClusterInformation, .. } = &key {
                    self.datastore_ready = true;
                }
                if self.held.contains(&key) {
                    self.lost = true;
                    self.missing.insert(key, now);
                } else {
                    self.compute.delete(&key);
                }
            }
            FeedEvent::InSync => {
                self.in_sync = true;
                self.lost |= !std::mem::take(&mut self.undelivered).is_empty();
            }
            // A lost connection does not delete anything.
            FeedEvent::ConnectionLost { .. } | FeedEvent::ConnectionBack { .. } => {}
            FeedEvent::Unreadable { key, text, reason, .. } => {
                self.compute.put_unreadable(&key, &text, &reason)
            }
        }
    }

    fn attach(
        &mut self,
        id: WaiterId,
        key: StoreKey,
        value: &StoreValue,
        profile: Option<String>,
        now: Duration,
    ) {
        if self.waiters.contains(id) {
            return;
        }
        let (workload, revision) = match value {
            StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) => {
                let workload =
                    tortie_compute::local_workload(endpoint, tortie_compute::EndpointPermissions::ALL).ok();
                (workload.map(|(id, _)| id), endpoint.metadata.resource_version.parse().ok())
            }
            _ => (None, None),
        };
        match revision {
            Some(revision) => self.written.insert(key.clone(), CniWrite::Put(revision)),
            None => self.written.remove(&key),
        };
        self.compute.put(&key, value);
        self.held.insert(key.clone());
        self.waiters.insert(id, AwaitedOutcome::Attached { key, workload, profile }, now);
    }

    fn detach(&mut self, id: WaiterId, key: StoreKey, revision: Option<Revision>, now: Duration) {
        if self.waiters.contains(id) {
            return;
        }
        self.held.remove(&key);
        self.missing.remove(&key);
        self.compute.delete(&key);
        if let Some(revision) = revision {
            self.written.insert(key, CniWrite::Deleted(revision));
        }
        self.waiters.insert(id, AwaitedOutcome::Detached, now);
    }

    fn turn(&mut self, now: Duration) -> Vec<EngineAction> {
        if self.is_busy() {
            return Vec::new();
        }
        for (id, _) in self.settling.extract_if(.., |_, until| *until <= now) {
            self.compute.settled(&id);
        }
        let mut updates = self.compute.flush();
        self.track_settling(now, &updates);
        updates.append(&mut self.learnt);
        self.planned += u64::try_from(updates.len()).unwrap_or_default();
        let parameters = self.compute.parameters();
        self.consumers.iter_mut().for_each(|backlog| backlog.follow_parameters(parameters));
        for update in &updates {
            self.consumers.iter_mut().for_each(|backlog| backlog.add(update));
            self.plan.apply(update.clone());
        }
        if !self.in_sync {
            return refuse_all(self.waiters.drain(), &RequestRefusal::NotInSync);
        }
        updates.retain(concerns_kernel);
        let mut actions = self.publish(PlanStage::Planned);
        actions.extend(self.program(now, updates));
        actions
    }

    /// Brings the kernel from the previous plan to the current one, which differs by `updates`.
    fn program(&mut self, now: Duration, updates: Vec<PlanUpdate>) -> Vec<EngineAction> {
        let settings = self.compute.settings();
        match &self.dataplane {
            DataplaneState::Idle(current) if current == settings => self.apply(now, None, updates),
            DataplaneState::Idle(current) if !needs_restart(current, settings) => {
                let settings = Some(Box::new(settings.clone()));
                self.apply(now, settings, updates)
            }
            DataplaneState::Down { retry_at } if now < *retry_at => Vec::new(),
            _ => {
                self.dataplane = DataplaneState::Starting(settings.clone());
                vec![EngineAction::Start {
                    settings: Box::new(settings.clone()),
                    plan: Box::new(self.plan.clone()),
                }]
            }
        }
    }

    fn track_settling(&mut self, now: Duration, updates: &[PlanUpdate]) {
        let until = now + self.compute.parameters().live_migration_route_convergence_time;
        for update in updates {
            match update {
                PlanUpdate::Workload(id, Some(workload))
                    if workload.migration == MigrationState::Settling =>
                {
                    self.settling.entry(id.clone()).or_insert(until);
                }
                PlanUpdate::Workload(id, _) => {
                    self.settling.remove(id);
                }
                _ => {}
            }
        }
    }

    /// Sends the changes to the dataplane, together with the workloads that requests wait for: the kernel may have
    /// refused such a workload earlier, in which case it is not part of the changes.
    fn apply(
        &mut self,
        now: Duration,
        settings: Option<Box<DataplaneSettings>>,
        mut updates: Vec<PlanUpdate>,
    ) -> Vec<EngineAction> {
        let mut actions = Vec::new();
        let compute = &self.compute;
        for (id, wanted) in self.waiters.ready(now, |profile| compute.has_profile(profile)) {
            match self.repeat_awaited(&wanted, &updates) {
                Ok(repeated) => {
                    updates.extend(repeated);
                    self.waiters.put_in_batch(id);
                }
                Err(refusal) => {
                    self.waiters.remove(id);
                    actions.push(EngineAction::Answer { waiter: id, outcome: Err(refusal) });
                }
            }
        }
        if updates.is_empty() && settings.is_none() {
            actions.extend(self.finish(&[]));
            return actions;
        }
        self.dataplane = match std::mem::replace(&mut self.dataplane, DataplaneState::Down { retry_at: now })
        {
            DataplaneState::Idle(current) => {
                DataplaneState::Applying(settings.as_deref().cloned().unwrap_or(current))
            }
            other => other,
        };
        actions.push(EngineAction::Apply { settings, updates });
        actions
    }

    /// Returns the update that has to be sent to the dataplane again so that it reports on the awaited workload.
    fn repeat_awaited(
        &self,
        wanted: &AwaitedOutcome,
        updates: &[PlanUpdate],
    ) -> Result<Option<PlanUpdate>, RequestRefusal> {
        let AwaitedOutcome::Attached { key, workload, .. } = wanted else { return Ok(None) };
        let planned = workload.as_ref().and_then(|id| Some((id, self.plan.workloads.get(id)?)));
        let Some((id, workload)) = planned else {
            let problem = self.compute.problems().remove(&key.to_string());
            return Err(RequestRefusal::Endpoint(
                problem.unwrap_or_else(|| "it was removed meanwhile".to_owned()),
            ));
        };
        if let Some(reason) = self.compute.floating_refusal(key) {
            return Err(RequestRefusal::Endpoint(reason));
        }
        if updates.iter().any(|update| matches!(update, PlanUpdate::Workload(other, _) if other == id)) {
            return Ok(None);
        }
        Ok(Some(PlanUpdate::Workload(id.clone(), Some(workload.clone()))))
    }

    fn finish_start(&mut self) -> Vec<EngineAction> {
        let DataplaneState::Starting(settings) = &self.dataplane else { return Vec::new() };
        // Waiting requests are answered after the next batch, which reports the failures.
        self.dataplane = DataplaneState::Idle(settings.clone());
        self.publish(PlanStage::Programmed)
    }

    fn finish_apply(&mut self, failures: &[ApplyFailure]) -> Vec<EngineAction> {
        let DataplaneState::Applying(settings) = &self.dataplane else { return Vec::new() };
        self.dataplane = DataplaneState::Idle(settings.clone());
        self.finish(failures)
    }

    /// Records the end of the dataplane and answers all requests.
    fn fail_waiters(&mut self, now: Duration, reason: String) -> Vec<EngineAction> {
        let retry_at = match self.dataplane {
            // It was running, so restart it without delay.
            DataplaneState::Idle(_) | DataplaneState::Applying(_) => now,
            DataplaneState::Starting(_) => now + DATAPLANE_RETRY_DELAY,
            DataplaneState::Down { .. } => return Vec::new(),
        };
        self.dataplane = DataplaneState::Down { retry_at };
        refuse_all(self.waiters.drain(), &RequestRefusal::Dataplane(reason))
    }

    /// Handles the end of a batch: everything except the failures is in the kernel.
    fn finish(&mut self, failures: &[ApplyFailure]) -> Vec<EngineAction> {
        let mut actions = self.publish(PlanStage::Programmed);
        let answers = self.waiters.finish(failures).into_iter();
        actions.extend(answers.map(|(waiter, outcome)| EngineAction::Answer { waiter, outcome }));
        actions
    }

    /// Releases the changes for the consumers of a stage, which the plan has just reached.
    fn publish(&mut self, stage: PlanStage) -> Vec<EngineAction> {
        let backlogs = self.consumers.iter_mut().filter(|backlog| backlog.consumer.stage == stage);
        let changes = backlogs.filter_map(|backlog| {
            let change = backlog.release(&self.plan)?;
            Some(EngineAction::Publish { consumer: backlog.consumer.name, change })
        });
        changes.collect()
    }
}

/// Returns whether the new settings require a restart of the dataplane.
fn needs_restart(current: &DataplaneSettings, wanted: &DataplaneSettings) -> bool {
    current.policy.cut_denied_flows != wanted.policy.cut_denied_flows
}

/// Converts a learnt route into an update. Next hops behind a tunnel get that tunnel. When the tunnels change, BGP
/// sends all its routes again.
fn learnt_update(route: LearntRoute, install: Option<&BgpInstall>) -> PlanUpdate {
    let LearntRoute { destination, route } = route;
    let entry = route.map(|LearntNextHops { next_hops, metric }| {
        let next_hops = next_hops.into_iter().map(|address| LearntNextHop {
            address,
            tunnel: install.and_then(|install| install.tunnel(&destination, address)),
        });
        LearntRouteEntry { next_hops: next_hops.collect(), metric }
    });
    PlanUpdate::Learnt(destination, entry)
}

fn refuse_all(waiters: Vec<WaiterId>, refusal: &RequestRefusal) -> Vec<EngineAction> {
    let waiters = waiters.into_iter();
    waiters.map(|waiter| EngineAction::Answer { waiter, outcome: Err(refusal.clone()) }).collect()
}
