//! Watches that survive failures: a snapshot, then each later change once, whatever happens to connections and history.
//!
//! `follower` holds the state and decides what to deliver (no I/O); a `source` accesses the backend; this module
//! connects the two and delivers the changes to the consumer.

mod absence;
mod backoff;
pub(crate) mod follower;
pub(crate) mod source;

use crate::{Revision, StoreError, StoreEvent, StoreResult};
use absence::{AbsenceDoubt, AbsenceVerdict};
pub use absence::{ListAbsence, collection_prefix, guarded_collection, is_guarded};
pub use backoff::Backoff;
use follower::{FollowerChange, FollowerStep, WatchFollower, WatchUpdate};
use source::{RangeSnapshot, WatchReport, WatchSource};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tortie_model::KeyRange;

/// Maximum number of events queued for a slow consumer; beyond it the server has to wait.
const MAX_QUEUED_EVENTS: usize = 256;

/// Connection status of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchConnection {
    /// Reason for which the store is unreachable; `None` while it is reachable.
    pub trouble: Option<String>,
    /// Number of failed attempts since the watch was started.
    pub failed_attempts: u64,
    /// The store responds, but most objects are missing without having been deleted; they are kept.
    pub distrusted: bool,
}

/// Maximum random delay before a retry when another watch of the same client has reached the store again.
const MAX_RECOVERY_DELAY: Duration = Duration::from_millis(250);

static DISTRUSTED_LISTS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lists whose absences were not applied by watches of this process, because most known objects
/// were missing.
pub fn distrusted_lists() -> u64 {
    DISTRUSTED_LISTS.load(Ordering::Relaxed)
}

/// Options that the client gives to a watch.
#[derive(Debug)]
pub struct WatchOptions {
    pub(crate) after: Option<Revision>,
    pub(crate) progress: ProgressReporting,
    /// False if a value that the backend stores in encoded form is delivered as it is.
    pub(crate) decodes: bool,
    /// Shared by the watches of a client.
    pub(crate) recovered: Arc<Notify>,
}

/// Whether a watch reports the revision up to which it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressReporting {
    Silent,
    Reported,
}

/// A stream of events that survives reconnects and compaction. Dropping it ends the watch.
#[derive(Debug)]
pub struct StoreWatch {
    events: mpsc::Receiver<StoreEvent>,
    connection: watch::Receiver<WatchConnection>,
    signs: Arc<AtomicU64>,
    task: AbortHandle,
}

impl StoreWatch {
    /// Starts a watch. `grace` is the time for which a large share of objects must be missing before they are deleted.
    pub(crate) fn start(
        source: impl WatchSource,
        range: KeyRange,
        grace: Duration,
        options: WatchOptions,
    ) -> StoreWatch {
        let WatchOptions { after, progress, recovered, .. } = options;
        let (sender, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let (report, connection) = watch::channel(WatchConnection::default());
        let signs = Arc::new(AtomicU64::new(0));
        let doubt = AbsenceDoubt::new(&range, grace);
        let feed = WatchFeed {
            source,
            range,
            sender,
            connection: report,
            signs: signs.clone(),
            progress,
            recovered,
            doubt,
        };
        let task = tokio::spawn(feed.run(WatchFollower::new(after))).abort_handle();
        StoreWatch { events, connection, signs, task }
    }

    /// Returns the next event; `None` only if the runtime is shutting down. Cancel-safe.
    pub async fn next(&mut self) -> Option<StoreEvent> {
        self.events.recv().await
    }

    /// Returns the reason for which the store is unreachable; `None` while it is reachable. Without events, this
    /// distinguishes an outage from a quiet store.
    pub fn trouble(&self) -> Option<String> {
        self.connection.borrow().trouble.clone()
    }

    /// Returns a receiver of the connection status, for callers that supervise several watches.
    pub fn connection(&self) -> watch::Receiver<WatchConnection> {
        self.connection.clone()
    }

    /// Returns a counter of messages from the store and of failed attempts. Every wait has a timeout, so a watch whose
    /// counter is constant for minutes is stuck.
    pub fn signs_of_life(&self) -> Arc<AtomicU64> {
        self.signs.clone()
    }
}

impl Drop for StoreWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The consumer has dropped the watch.
struct ConsumerGone;

struct WatchFeed<S> {
    source: S,
    range: KeyRange,
    sender: mpsc::Sender<StoreEvent>,
    connection: watch::Sender<WatchConnection>,
    signs: Arc<AtomicU64>,
    progress: ProgressReporting,
    recovered: Arc<Notify>,
    doubt: AbsenceDoubt,
}

impl<S: WatchSource> WatchFeed<S> {
    async fn run(mut self, mut follower: WatchFollower) {
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let outcome = match follower.step() {
                FollowerStep::List => self.list(&mut follower).await,
                FollowerStep::ListKeys { revision } => self.list_keys(&mut follower, revision).await,
                FollowerStep::Watch { after } => self.watch(&mut follower, after, &mut backoff).await,
            };
            self.signs.fetch_add(1, Ordering::Relaxed);
            match outcome {
                Err(ConsumerGone) => return,
                Ok(Ok(())) => self.connected(),
                Ok(Err(error)) => {
                    // Retried until it succeeds; the supervisor of the watch reports the outage once.
                    tracing::debug!(range = %self.range, %error, "watch interrupted; trying again");
                    self.connection.send_modify(|connection| {
                        connection.trouble = Some(error.to_string());
                        connection.failed_attempts += 1;
                        connection.distrusted = self.doubt.is_open();
                    });
                    // An attempt that ran for a while resets the backoff, even if there was nothing to report.
                    if began.elapsed() > Backoff::MAX_DELAY {
                        backoff.reset();
                    }
                    tokio::select! {
                        () = tokio::time::sleep(backoff.pause()) => {}
                        () = self.recovered.notified() => {
                            let spread = MAX_RECOVERY_DELAY.mul_f64(rand::random_range(0.0..=1.0));
                            tokio::time::sleep(spread).await;
                        }
                    }
                }
            }
        }
    }

    async fn list(
        &mut self,
        follower: &mut WatchFollower,
    ) -> std::result::Result<StoreResult<()>, ConsumerGone> {
        let requested = Instant::now();
        match self.source.list().await {
            Ok(RangeSnapshot { items, revision }) => {
                let absence = follower.measure_absence(&items);
                let verdict = self.doubt.judge(absence, requested, Instant::now());
                if let AbsenceVerdict::Doubted { is_first } = verdict {
                    DISTRUSTED_LISTS.fetch_add(1, Ordering::Relaxed);
                    let error = StoreError::Absence {
                        range: self.range.to_string(),
                        known: absence.known,
                        missing: absence.missing,
                        grace: self.doubt.grace(),
                    };
                    if is_first {
                        tracing::error!(%error, "keeping objects that are missing from a list of the datastore");
                    }
                    self.deliver(follower.listed_in_doubt(items)).await?;
                    return Ok(Err(error));
                }
                if absence.is_large() {
                    let range = &self.range;
                    tracing::warn!(%range, ?absence, "removing objects that are gone from the datastore");
                }
                self.deliver(follower.listed(items, revision.clone())).await?;
                self.reached(revision).await.map(Ok)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn list_keys(
        &mut self,
        follower: &mut WatchFollower,
        revision: Revision,
    ) -> std::result::Result<StoreResult<()>, ConsumerGone> {
        match self.source.keys_at(&revision).await {
            Ok(Some(keys)) => self.deliver(follower.keys_listed(keys, revision)).await.map(Ok),
            Ok(None) => self.deliver(follower.revision_gone()).await.map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn watch(
        &mut self,
        follower: &mut WatchFollower,
        after: Revision,
        backoff: &mut Backoff,
    ) -> std::result::Result<StoreResult<()>, ConsumerGone> {
        if let Err(error) = self.source.open(&after).await {
            return Ok(Err(error));
        }
        loop {
            match self.source.next().await {
                Ok(WatchReport::Updates { updates, revision }) => {
                    self.signs.fetch_add(1, Ordering::Relaxed);
                    self.connected();
                    if !updates.is_empty() {
                        backoff.reset();
                    }
                    self.deliver(follower.updated(updates, revision.clone())).await?;
                    self.reached(revision).await?;
                }
                Ok(WatchReport::Stale(reason)) => {
                    follower.stale();
                    return Ok(Err(StoreError::Datastore(reason)));
                }
                Ok(WatchReport::Relist) => {
                    follower.stale();
                    return Ok(Ok(()));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn deliver(
        &mut self,
        changes: impl IntoIterator<Item = FollowerChange<S::Value>>,
    ) -> std::result::Result<(), ConsumerGone> {
        for change in changes {
            let event = match change {
                FollowerChange::Update(WatchUpdate::Put(item)) => {
                    let key = item.key.clone();
                    let revision = item.revision.clone();
                    match self.source.read(item) {
                        Ok(entry) => StoreEvent::Put(entry),
                        Err(error) => StoreEvent::Unreadable { key, revision, error },
                    }
                }
                FollowerChange::Update(WatchUpdate::Delete { key, revision }) => {
                    StoreEvent::Delete { key, revision }
                }
                FollowerChange::InSync(revision) => StoreEvent::InSync(revision),
                FollowerChange::Reset => StoreEvent::Reset,
            };
            self.sender.send(event).await.map_err(|_| ConsumerGone)?;
        }
        Ok(())
    }

    async fn reached(&mut self, revision: Revision) -> std::result::Result<(), ConsumerGone> {
        match self.progress {
            ProgressReporting::Silent => Ok(()),
            ProgressReporting::Reported => {
                self.sender.send(StoreEvent::Reached(revision)).await.map_err(|_| ConsumerGone)
            }
        }
    }

    fn connected(&self) {
        let is_back = self.connection.send_if_modified(|connection| {
            connection.distrusted = false;
            connection.trouble.take().is_some()
        });
        if is_back {
            self.recovered.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreEntry;
    use follower::WatchItem;
    use tortie_model::StoreKey;

    /// An empty range of a store that is unreachable until `back_at`.
    struct ReturningSource {
        back_at: Instant,
    }

    impl WatchSource for ReturningSource {
        type Value = ();

        async fn list(&mut self) -> StoreResult<RangeSnapshot<()>> {
            match Instant::now() < self.back_at {
                true => Err(StoreError::Datastore("away".into())),
                false => Ok(RangeSnapshot { items: Vec::new(), revision: 1.into() }),
            }
        }

        async fn keys_at(&mut self, _: &Revision) -> StoreResult<Option<Vec<(StoreKey, Revision)>>> {
            Ok(None)
        }

        async fn open(&mut self, _: &Revision) -> StoreResult<()> {
            Ok(())
        }

        async fn next(&mut self) -> StoreResult<WatchReport<()>> {
            std::future::pending().await
        }

        fn read(&self, item: WatchItem<()>) -> StoreResult<StoreEntry> {
            Err(StoreError::Datastore(item.key.to_string()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_watches_recover_within_seconds() {
        let back_at = Instant::now() + Duration::from_secs(60);
        let recovered: Arc<Notify> = Arc::default();
        let watch = |_| {
            let recovered = recovered.clone();
            let options =
                WatchOptions { after: None, progress: ProgressReporting::Silent, decodes: true, recovered };
            StoreWatch::start(ReturningSource { back_at }, KeyRange::Handles, Duration::ZERO, options)
        };
        let mut watches: Vec<StoreWatch> = (0..25).map(watch).collect();
        for watch in &mut watches {
            assert!(matches!(watch.next().await, Some(StoreEvent::InSync(_))));
        }
        let took = back_at.elapsed();
        assert!(took <= Backoff::MAX_DELAY, "{took:?}");
    }

    /// A range whose kind the store begins to serve after the first watch.
    struct NewKindSource {
        lists: u64,
    }

    impl WatchSource for NewKindSource {
        type Value = ();

        async fn list(&mut self) -> StoreResult<RangeSnapshot<()>> {
            self.lists += 1;
            let item = WatchItem {
                key: StoreKey::Handle { id: format!("h{}", self.lists) },
                revision: self.lists.into(),
                value: (),
            };
            Ok(RangeSnapshot { items: vec![item], revision: self.lists.into() })
        }

        async fn keys_at(&mut self, _: &Revision) -> StoreResult<Option<Vec<(StoreKey, Revision)>>> {
            Ok(None)
        }

        async fn open(&mut self, _: &Revision) -> StoreResult<()> {
            Ok(())
        }

        async fn next(&mut self) -> StoreResult<WatchReport<()>> {
            match self.lists {
                1 => Ok(WatchReport::Relist),
                _ => std::future::pending().await,
            }
        }

        fn read(&self, item: WatchItem<()>) -> StoreResult<StoreEntry> {
            let value = tortie_model::StoreValue::Handle(tortie_model::ipam::AddressHandle::default());
            Ok(StoreEntry { key: item.key, value, revision: item.revision })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_kind_is_no_outage() {
        let options = WatchOptions {
            after: None,
            progress: ProgressReporting::Silent,
            decodes: true,
            recovered: Arc::default(),
        };
        let source = NewKindSource { lists: 0 };
        let mut watch = StoreWatch::start(source, KeyRange::Handles, Duration::ZERO, options);
        let connection = watch.connection();
        let second = StoreKey::Handle { id: "h2".into() };
        loop {
            match watch.next().await {
                Some(StoreEvent::Put(entry)) if entry.key == second => break,
                Some(_) => {}
                None => panic!("the watch has ended"),
            }
        }
        assert_eq!(*connection.borrow(), WatchConnection::default());
    }
}
