//! Watches that survive: a snapshot, then every later change once, whatever happens to connections and history.
//!
//! `follower` decides (what the backend says in, changes out, no I/O); a `source` is the backend's part; this file
//! drives the one with the other and hands the changes to the consumer.

mod backoff;
pub(crate) mod follower;
pub(crate) mod source;

use crate::{Error, Event, Result, Revision};
pub use backoff::Backoff;
use follower::{Change, Follower, Step, Update};
use source::{Heard, Snapshot, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tortie_model::KeyRange;

/// Events waiting for a slow consumer; when they are this many, the server has to wait.
const QUEUE: usize = 256;

/// How a watch reaches the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// Why the store cannot be heard at present; `None` while it can.
    pub trouble: Option<String>,
    /// Attempts that failed since the watch was started.
    pub failed_attempts: u64,
}

/// Whether a watch says up to where it has reported everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Silent,
    Reported,
}

/// A stream of events that survives reconnects and compaction. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    events: mpsc::Receiver<Event>,
    connection: watch::Receiver<Connection>,
    signs: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Watch {
    pub(crate) fn start(
        source: impl Source,
        range: KeyRange,
        after: Option<Revision>,
        progress: Progress,
    ) -> Watch {
        let (sender, events) = mpsc::channel(QUEUE);
        let (report, connection) = watch::channel(Connection::default());
        let signs = Arc::new(AtomicU64::new(0));
        let feed = Feed { source, range, sender, connection: report, signs: signs.clone(), progress };
        let task = tokio::spawn(feed.run(Follower::new(after))).abort_handle();
        Watch { events, connection, signs, task }
    }

    /// `None` only when the runtime is shutting down. Safe to cancel.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Why the store cannot be heard at present; `None` while it can. Silence with trouble is not news.
    pub fn trouble(&self) -> Option<String> {
        self.connection.borrow().trouble.clone()
    }

    /// The connection from now on, for whoever looks after more than one watch.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.clone()
    }

    /// Counts whatever is heard of the store, and every attempt that fails. Every wait has a deadline, so a number that stays
    /// the same for minutes is that of a watch that is stuck.
    pub fn signs_of_life(&self) -> Arc<AtomicU64> {
        self.signs.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The consumer is gone.
struct Gone;

struct Feed<S> {
    source: S,
    range: KeyRange,
    sender: mpsc::Sender<Event>,
    connection: watch::Sender<Connection>,
    signs: Arc<AtomicU64>,
    progress: Progress,
}

impl<S: Source> Feed<S> {
    async fn run(mut self, mut follower: Follower) {
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let outcome = match follower.step() {
                Step::List => self.list(&mut follower).await,
                Step::ListKeys { revision } => self.list_keys(&mut follower, revision).await,
                Step::Watch { after } => self.watch(&mut follower, after, &mut backoff).await,
            };
            self.signs.fetch_add(1, Ordering::Relaxed);
            match outcome {
                Err(Gone) => return,
                Ok(Ok(())) => self.connected(),
                Ok(Err(error)) => {
                    // Tried again until it works: whoever watches says once that it does not.
                    tracing::debug!(range = %self.range, %error, "watch interrupted; trying again");
                    self.connection.send_modify(|connection| {
                        connection.trouble = Some(error.to_string());
                        connection.failed_attempts += 1;
                    });
                    // What went well for a while is a new start, also when there was nothing to report.
                    if began.elapsed() > Backoff::LONGEST {
                        backoff.reset();
                    }
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    async fn list(&mut self, follower: &mut Follower) -> std::result::Result<Result<()>, Gone> {
        match self.source.list().await {
            Ok(Snapshot { items, revision }) => {
                self.deliver(follower.listed(items, revision.clone())).await?;
                self.reached(revision).await.map(Ok)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn list_keys(
        &mut self,
        follower: &mut Follower,
        revision: Revision,
    ) -> std::result::Result<Result<()>, Gone> {
        match self.source.keys_at(&revision).await {
            Ok(Some(keys)) => self.deliver(follower.keys_listed(keys, revision)).await.map(Ok),
            Ok(None) => self.deliver(follower.revision_gone()).await.map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn watch(
        &mut self,
        follower: &mut Follower,
        after: Revision,
        backoff: &mut Backoff,
    ) -> std::result::Result<Result<()>, Gone> {
        if let Err(error) = self.source.open(&after).await {
            return Ok(Err(error));
        }
        loop {
            match self.source.next().await {
                Ok(Heard::Updates { updates, revision }) => {
                    self.signs.fetch_add(1, Ordering::Relaxed);
                    self.connected();
                    if !updates.is_empty() {
                        backoff.reset();
                    }
                    self.deliver(follower.updated(updates, revision.clone())).await?;
                    self.reached(revision).await?;
                }
                Ok(Heard::Stale(reason)) => {
                    follower.stale();
                    return Ok(Err(Error::Datastore(reason)));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn deliver(
        &mut self,
        changes: impl IntoIterator<Item = Change<S::Value>>,
    ) -> std::result::Result<(), Gone> {
        for change in changes {
            let event = match change {
                Change::Update(Update::Put(item)) => {
                    let (key, revision) = (item.key.clone(), item.revision.clone());
                    match self.source.read(item) {
                        Ok(entry) => Event::Put(entry),
                        Err(error) => Event::Unreadable { key, revision, error },
                    }
                }
                Change::Update(Update::Delete { key, revision }) => Event::Delete { key, revision },
                Change::InSync(revision) => Event::InSync(revision),
                Change::Reset => Event::Reset,
            };
            self.sender.send(event).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    async fn reached(&mut self, revision: Revision) -> std::result::Result<(), Gone> {
        match self.progress {
            Progress::Silent => Ok(()),
            Progress::Reported => self.sender.send(Event::Reached(revision)).await.map_err(|_| Gone),
        }
    }

    fn connected(&self) {
        self.connection.send_if_modified(|connection| connection.trouble.take().is_some());
    }
}
