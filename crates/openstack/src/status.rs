//! Follows what nodes report in the datastore and turns it into commands for Neutron's driver.

use crate::OpenStackRegion;
use crate::command_queue::{
    CommandPriority, CommandQueue, CommandResult, CommandState, CommandSubject, DriverCommand, PortState,
};
use crate::metrics::{OpenStackMetrics, increment};
use crate::names::ORCHESTRATOR;
use jiff::Timestamp;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tortie_model::status::{EndpointState, EndpointStatus, FelixHeartbeat};
use tortie_model::{KeyRange, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreEvent};

/// Age from which a heartbeat is reported as late.
const LATE_HEARTBEAT_SECONDS: i64 = 300;
/// Minimum interval between warnings about late heartbeats.
const LATE_WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of commands in one response.
const MAX_COMMANDS: usize = 100;

/// The states of all nodes and ports, shared by the watches and the driver's requests.
#[derive(Debug)]
pub struct StatusBoard {
    queue: Mutex<CommandQueue>,
    changed: Notify,
    started: Instant,
    metrics: Arc<OpenStackMetrics>,
    late_warning: Mutex<Option<Instant>>,
}

impl StatusBoard {
    pub fn new(metrics: Arc<OpenStackMetrics>) -> StatusBoard {
        StatusBoard {
            queue: Mutex::default(),
            changed: Notify::new(),
            started: Instant::now(),
            metrics,
            late_warning: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CommandQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends all states again, because this daemon begins to lead.
    pub fn restart(&self) {
        self.lock().restart();
        self.changed.notify_waiters();
    }

    /// Requests a resync from the driver.
    pub fn request_resync(&self) {
        let number = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or_default();
        self.set(CommandSubject::Resync, CommandState::Resync(number), CommandPriority::Live, true);
    }

    pub fn pending(&self) -> usize {
        self.lock().pending()
    }

    /// Returns the commands that are due; waits up to `timeout` for the first one.
    pub async fn take(&self, timeout: Duration, leads: impl Fn() -> bool) -> Vec<DriverCommand> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            // Registered before the queue is read, so that no change is missed.
            let changed = self.changed.notified();
            let now = self.started.elapsed();
            let (commands, next) = {
                let mut queue = self.lock();
                (queue.take(now, MAX_COMMANDS, leads()), queue.next_due())
            };
            if !commands.is_empty() || tokio::time::Instant::now() >= deadline {
                return commands;
            }
            // At least a second, so that states that a follower must not send cause no busy loop.
            let next = next.map_or(timeout, |due| due.saturating_sub(now).max(Duration::from_secs(1)));
            let wake = deadline.min(tokio::time::Instant::now() + next);
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    pub fn complete(&self, results: &[CommandResult]) {
        let (succeeded, failed) = self.lock().complete(results, self.started.elapsed());
        self.metrics.commands.fetch_add(succeeded, Ordering::Relaxed);
        self.metrics.failed_commands.fetch_add(failed, Ordering::Relaxed);
        // A state that changed in flight is due now.
        self.changed.notify_waiters();
    }

    fn set(&self, subject: CommandSubject, state: CommandState, priority: CommandPriority, is_final: bool) {
        if !self.lock().set(subject, state, priority, is_final) {
            increment(&self.metrics.dropped_statuses);
        }
        self.changed.notify_waiters();
    }

    /// Follows the heartbeats and endpoint statuses of a region. Does not return while the watches live.
    pub async fn follow(&self, client: &StoreClient, region: &OpenStackRegion) {
        let statuses =
            KeyRange::WorkloadEndpointStatuses { region: Some(region.name().to_owned()), host: None };
        tokio::join!(
            self.follow_range(client, region, statuses),
            self.follow_range(client, region, KeyRange::FelixStatuses)
        );
    }

    async fn follow_range(&self, client: &StoreClient, region: &OpenStackRegion, range: KeyRange) {
        let mut watch = client.watch(range, None);
        let mut priority = CommandPriority::Snapshot;
        while let Some(event) = watch.next().await {
            match event {
                StoreEvent::Put(entry) => {
                    self.put(region, &entry.key, entry.value, &entry.revision.to_string(), priority)
                }
                StoreEvent::Delete { key, .. } => self.delete(region, &key),
                StoreEvent::Unreadable { key, error, .. } => {
                    tracing::warn!(%key, %error, "a status in the datastore cannot be decoded");
                    self.set_port(region, &key, PortState::Error, priority, false);
                }
                StoreEvent::InSync(_) => priority = CommandPriority::Live,
                StoreEvent::Reset => priority = CommandPriority::Snapshot,
                StoreEvent::Reached(_) => {}
            }
        }
    }

    fn put(
        &self,
        region: &OpenStackRegion,
        key: &StoreKey,
        value: StoreValue,
        revision: &str,
        priority: CommandPriority,
    ) {
        match (key, value) {
            (StoreKey::FelixStatus { region: its_region, host }, StoreValue::Heartbeat(beat))
                if its_region == region.name() =>
            {
                self.check_age(host, &beat);
                let state = CommandState::Agent { beat: revision.to_owned(), start_flag: beat.first_update };
                self.set(CommandSubject::Agent { host: host.clone() }, state, priority, false);
            }
            (StoreKey::WorkloadEndpointStatus(_), StoreValue::EndpointStatus(EndpointStatus { status })) => {
                let state = match status {
                    EndpointState::Up => PortState::Active,
                    EndpointState::Down => PortState::Down,
                    EndpointState::Error => PortState::Error,
                };
                self.set_port(region, key, state, priority, false);
            }
            _ => {}
        }
    }

    fn delete(&self, region: &OpenStackRegion, key: &StoreKey) {
        if let StoreKey::FelixStatus { region: its_region, host } = key
            && its_region == region.name()
        {
            // Neutron notices by itself: it marks the agent as dead after agent_down_time.
            tracing::warn!(host, "the heartbeat of a node expired; check that its daemon runs");
            self.lock().remove(&CommandSubject::Agent { host: host.clone() });
        }
        self.set_port(region, key, PortState::Error, CommandPriority::Live, true);
    }

    fn set_port(
        &self,
        region: &OpenStackRegion,
        key: &StoreKey,
        state: PortState,
        priority: CommandPriority,
        is_final: bool,
    ) {
        let StoreKey::WorkloadEndpointStatus(status) = key else { return };
        if status.orchestrator != ORCHESTRATOR || status.region != region.name() {
            return;
        }
        let subject = CommandSubject::Port { host: status.host.clone(), port: status.endpoint.clone() };
        self.set(subject, CommandState::Port(state), priority, is_final);
    }

    /// Warns about a heartbeat that is too old, which is a sign of different clocks or of a slow datastore.
    fn check_age(&self, host: &str, beat: &FelixHeartbeat) {
        let Ok(time) = beat.time.parse::<Timestamp>() else { return };
        let age = Timestamp::now().as_second() - time.as_second();
        if age <= LATE_HEARTBEAT_SECONDS {
            return;
        }
        increment(&self.metrics.late_heartbeats);
        let mut last = self.late_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= LATE_WARNING_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!(
                host,
                age,
                "a heartbeat is too old; check the clock of the node and the datastore"
            );
        }
    }
}
