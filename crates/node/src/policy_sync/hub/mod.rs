//! The plan and the subscribers of the policy-sync server, and which workloads have a live proxy.
//!
//! All methods return without waiting. The task of the server passes changes of the plan to the hub; the streams of
//! clients take their messages from it.

use super::credentials::WorkloadCredentials;
use super::live_record::{LiveRecord, LiveWorkloads};
use super::subscriber::{OutgoingMessage, Subscriber};
use super::sync_plan::SyncPlan;
use crate::engine::{EngineHandle, PlanChange};
use crate::state::NodeState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tortie_plan::{PlanUpdate, WorkloadId};

/// Time after which a stream is closed whose client does not take the messages that are ready for it: the client is not
/// in sync any more.
pub const STALLED_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Identifies a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubscriberId(u64);

/// Connects a stream with its subscriber.
#[derive(Debug)]
pub struct SubscriberSignal {
    changed: Notify,
    closed: AtomicBool,
    started: Instant,
    /// When the client has taken its last message, in milliseconds since `started`.
    progress: AtomicU64,
}

impl SubscriberSignal {
    fn new() -> SubscriberSignal {
        SubscriberSignal {
            changed: Notify::new(),
            closed: AtomicBool::new(false),
            started: Instant::now(),
            progress: AtomicU64::new(0),
        }
    }

    /// Waits until there may be messages, or the stream is closed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Records that the client takes messages.
    pub fn record_progress(&self) {
        let elapsed = self.started.elapsed().as_millis();
        self.progress.store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn since_progress(&self) -> Duration {
        let last = Duration::from_millis(self.progress.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last)
    }
}

#[derive(Debug)]
struct SubscriberEntry {
    subscriber: Subscriber,
    /// UID of the credentials of its socket.
    uid: String,
    signal: Arc<SubscriberSignal>,
    /// Whether the client has taken everything.
    idle: bool,
    /// Whether the client has been sent everything once, and the endpoint of its workload.
    in_sync: bool,
    has_endpoint: bool,
}

#[derive(Debug, Default)]
struct HubState {
    /// `None` until the node is in sync.
    plan: Option<SyncPlan>,
    subscribers: BTreeMap<SubscriberId, SubscriberEntry>,
    /// The one stream of each workload.
    active: BTreeMap<WorkloadId, SubscriberId>,
    next_id: u64,
    /// Workloads whose client is in sync and has their endpoint.
    live: LiveWorkloads,
    /// Workloads that were live when the previous daemon ended, and whose client may come back.
    restored: LiveWorkloads,
}

#[derive(Debug)]
pub struct SyncHub {
    state: Mutex<HubState>,
    engine: EngineHandle,
    record: LiveRecord,
    /// Notified when the record has to be written.
    live_changed: Notify,
    node: Arc<NodeState>,
}

impl SyncHub {
    /// Creates a hub. Workloads that were live when the previous daemon ended count as live until
    /// [`SyncHub::end_restoration`].
    pub fn new(engine: EngineHandle, record: LiveRecord, node: Arc<NodeState>) -> SyncHub {
        let restored = record.read();
        for workload in restored.keys() {
            engine.set_http_proxy(workload.clone(), true);
        }
        SyncHub {
            state: Mutex::new(HubState { restored, ..HubState::default() }),
            engine,
            record,
            live_changed: Notify::new(),
            node,
        }
    }

    /// Waits until the record of live workloads has to be written.
    pub async fn live_changed(&self) {
        self.live_changed.notified().await;
    }

    /// Writes the record of live workloads. Only the task of the server does this, not the streams: when the daemon stops,
    /// its tasks end before the streams, so that the record keeps the workloads that were live until then.
    pub fn write_record(&self) {
        let live: LiveWorkloads = {
            let state = self.lock();
            let entries = state.restored.iter().chain(&state.live);
            entries.map(|(workload, uid)| (workload.clone(), uid.clone())).collect()
        };
        self.record.write(&live);
    }

    pub fn node(&self) -> &NodeState {
        &self.node
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn apply_change(&self, change: PlanChange) {
        let state = &mut *self.lock();
        match change {
            PlanChange::Resync(plan) => {
                let plan = state.plan.insert(SyncPlan::from(*plan));
                let subscribers = state.subscribers.values_mut();
                subscribers.for_each(|entry| entry.subscriber.note_replacement(plan));
                let known = state.active.keys().chain(state.live.keys()).chain(state.restored.keys());
                let gone = known.filter(|workload| !plan.endpoints.contains_key(*workload));
                let gone: BTreeSet<WorkloadId> = gone.cloned().collect();
                gone.iter().for_each(|workload| self.end_workload(state, workload));
            }
            PlanChange::Updates(updates) => {
                for update in updates {
                    if let PlanUpdate::WorkloadPolicy(workload, None) = &update {
                        self.end_workload(state, workload);
                    }
                    let Some(plan) = &mut state.plan else { return };
                    for entry in state.subscribers.values_mut() {
                        if entry.subscriber.note_update(&update) {
                            self.node.metrics.policy_sync.resyncs.inc();
                        }
                    }
                    plan.apply(update);
                }
            }
        }
        for entry in state.subscribers.values_mut().filter(|entry| entry.subscriber.has_messages()) {
            if std::mem::take(&mut entry.idle) {
                entry.signal.record_progress();
            }
            entry.signal.changed.notify_one();
        }
    }

    /// Adds a subscriber, and closes the earlier stream of the workload. A workload that is live stays so while the new
    /// stream becomes in sync: the client that opens a new stream still has its policy.
    pub fn join(&self, credentials: &WorkloadCredentials) -> (SubscriberId, Arc<SubscriberSignal>) {
        let WorkloadCredentials { uid, workload } = credentials;
        let state = &mut *self.lock();
        let id = SubscriberId(state.next_id);
        state.next_id += 1;
        if let Some(earlier) = state.active.insert(workload.clone(), id)
            && let Some(entry) = state.subscribers.remove(&earlier)
        {
            entry.signal.close();
            tracing::info!(workload = workload.workload, "a new policy-sync stream replaces the earlier one");
        }
        let signal = Arc::new(SubscriberSignal::new());
        let subscriber = Subscriber::new(workload.clone());
        let entry = SubscriberEntry {
            subscriber,
            uid: uid.clone(),
            signal: signal.clone(),
            idle: false,
            in_sync: false,
            has_endpoint: false,
        };
        state.subscribers.insert(id, entry);
        self.count_subscribers(state);
        (id, signal)
    }

    /// Returns the messages that are ready for a subscriber, or `None` if it has been closed.
    pub fn take_messages(&self, id: SubscriberId) -> Option<Vec<OutgoingMessage>> {
        let state = &mut *self.lock();
        let entry = state.subscribers.get_mut(&id)?;
        entry.signal.record_progress();
        let messages = match &state.plan {
            Some(plan) => entry.subscriber.take_messages(plan),
            None => Vec::new(),
        };
        entry.idle = messages.is_empty();
        Some(messages)
    }

    /// Updates the state of a subscriber after a message has been sent to its client.
    pub fn record_sent(&self, id: SubscriberId, message: &OutgoingMessage) {
        match message {
            OutgoingMessage::InSync => self.set_in_sync(id),
            OutgoingMessage::Endpoint(_, Some(_)) => self.set_endpoint_sent(id),
            _ => {}
        }
    }

    /// Records that the client of a subscriber has been sent its whole policy.
    fn set_in_sync(&self, id: SubscriberId) {
        let state = &mut *self.lock();
        if let Some(entry) = state.subscribers.get_mut(&id) {
            entry.in_sync = true;
            self.update_live(state, id);
        }
    }

    /// Records that the client of a subscriber has been sent the endpoint of its workload. The plan may have lost the
    /// endpoint in the meantime.
    fn set_endpoint_sent(&self, id: SubscriberId) {
        let state = &mut *self.lock();
        let Some(plan) = &state.plan else { return };
        if let Some(entry) = state.subscribers.get_mut(&id) {
            entry.has_endpoint = plan.endpoints.contains_key(entry.subscriber.workload());
            self.update_live(state, id);
        }
    }

    /// Updates whether the workload of a subscriber is live. Until the client is in sync, the state of its predecessor
    /// applies.
    fn update_live(&self, state: &mut HubState, id: SubscriberId) {
        let Some(entry) = state.subscribers.get(&id).filter(|entry| entry.in_sync) else { return };
        let (workload, uid) = (entry.subscriber.workload().clone(), entry.uid.clone());
        if !entry.has_endpoint {
            self.end_live(state, &workload);
            return;
        }
        state.restored.remove(&workload);
        if state.live.insert(workload.clone(), uid).is_none() {
            tracing::info!(workload = workload.workload, "the proxy of the workload is in sync");
            self.engine.set_http_proxy(workload, true);
        }
        self.live_changed.notify_one();
    }

    /// Ends the liveness of a workload whose endpoint is gone. Another workload may get its name: its proxy must have
    /// received the new endpoint before connections pass.
    fn end_workload(&self, state: &mut HubState, workload: &WorkloadId) {
        if let Some(id) = state.active.get(workload)
            && let Some(entry) = state.subscribers.get_mut(id)
        {
            entry.has_endpoint = false;
        }
        self.end_live(state, workload);
    }

    fn end_live(&self, state: &mut HubState, workload: &WorkloadId) {
        let was_live = state.live.remove(workload).is_some();
        if state.restored.remove(workload).is_some() || was_live {
            self.engine.set_http_proxy(workload.clone(), false);
            self.live_changed.notify_one();
        }
    }

    /// Removes the subscriber of a stream that has ended. Its workload has no proxy any more.
    pub fn leave(&self, id: SubscriberId) {
        self.remove(&mut self.lock(), id);
    }

    /// Closes the stream of a workload whose credentials have been removed or changed.
    pub fn close_workload(&self, workload: &WorkloadId) {
        let state = &mut *self.lock();
        if let Some(id) = state.active.get(workload).copied() {
            self.remove(state, id);
        }
    }

    /// Closes streams whose clients do not read.
    pub fn close_stalled(&self) {
        let state = &mut *self.lock();
        if state.plan.is_none() {
            return;
        }
        let stalled =
            |entry: &SubscriberEntry| !entry.idle && entry.signal.since_progress() > STALLED_CLIENT_TIMEOUT;
        let stalled: Vec<SubscriberId> =
            state.subscribers.iter().filter(|(_, entry)| stalled(entry)).map(|(id, _)| *id).collect();
        for id in stalled {
            if let Some(entry) = state.subscribers.get(&id) {
                let workload = &entry.subscriber.workload().workload;
                tracing::warn!(workload, "the policy-sync client does not read; its stream is closed");
            }
            self.remove(state, id);
        }
    }

    /// Ends the liveness of workloads of the previous daemon whose credentials are gone: their proxies cannot come back, and
    /// a pod that got the name while no daemon ran has not received its policy.
    pub fn retain_restored(&self, credentials: &BTreeMap<String, WorkloadCredentials>) {
        let state = &mut *self.lock();
        let is_present = |workload: &WorkloadId, uid: &String| {
            credentials.get(uid).is_some_and(|known| known.workload == *workload)
        };
        let gone: Vec<WorkloadId> = state
            .restored
            .iter()
            .filter(|(workload, uid)| !is_present(workload, uid))
            .map(|(workload, _)| workload.clone())
            .collect();
        for workload in gone {
            tracing::info!(
                workload = workload.workload,
                "the credentials of the workload are gone since the restart of the node"
            );
            self.end_live(state, &workload);
        }
    }

    /// Ends the time in which clients of the previous daemon may come back: workloads without a live client have no
    /// proxy.
    pub fn end_restoration(&self) {
        let state = &mut *self.lock();
        for (workload, _) in std::mem::take(&mut state.restored) {
            tracing::warn!(
                workload = workload.workload,
                "the proxy has not come back after the restart of the node"
            );
            self.engine.set_http_proxy(workload, false);
        }
        self.live_changed.notify_one();
    }

    fn remove(&self, state: &mut HubState, id: SubscriberId) {
        let Some(entry) = state.subscribers.remove(&id) else { return };
        entry.signal.close();
        let workload = entry.subscriber.workload();
        state.active.remove(workload);
        if state.live.contains_key(workload) {
            tracing::info!(workload = workload.workload, "the proxy of the workload is gone");
        }
        self.end_live(state, workload);
        self.count_subscribers(state);
    }

    fn count_subscribers(&self, state: &HubState) {
        let number = i64::try_from(state.subscribers.len()).unwrap_or(i64::MAX);
        self.node.metrics.policy_sync.subscribers.set(number);
    }
}

#[cfg(test)]
mod tests;
