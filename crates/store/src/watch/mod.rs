//! Watches that survive: a snapshot, then every later change once, whatever happens to connections and history.
//!
//! `follower` is the thinking (responses in, changes out, no I/O); this file feeds it from the network and hands
//! its changes to the consumer.

mod backoff;
mod follower;

use crate::client::{Event, entry};
use crate::etcd::{Cluster, open_watch};
use crate::{Error, Result};
use backoff::Backoff;
use follower::{Change, Follower, Heard, Step};
use std::sync::Arc;
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

/// A stream of events that survives reconnects and compaction. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    events: mpsc::Receiver<Event>,
    connection: watch::Receiver<Connection>,
    task: AbortHandle,
}

impl Watch {
    pub(crate) fn start(cluster: Arc<Cluster>, range: KeyRange, after: Option<i64>) -> Watch {
        let (sender, events) = mpsc::channel(QUEUE);
        let (report, connection) = watch::channel(Connection::default());
        let feed = Feed { cluster, prefix: range.prefix(), sender, connection: report };
        let task = tokio::spawn(feed.run(Follower::new(range, after))).abort_handle();
        Watch { events, connection, task }
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
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The consumer is gone.
struct Gone;

struct Feed {
    cluster: Arc<Cluster>,
    prefix: String,
    sender: mpsc::Sender<Event>,
    connection: watch::Sender<Connection>,
}

impl Feed {
    async fn run(self, mut follower: Follower) {
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let outcome = match follower.step() {
                Step::List => self.list(&mut follower).await,
                Step::ListKeys { revision } => self.list_keys(&mut follower, revision).await,
                Step::Watch { from } => self.watch(&mut follower, from, &mut backoff).await,
            };
            match outcome {
                Err(Gone) => return,
                Ok(Ok(())) => self.connected(),
                Ok(Err(error)) => {
                    // Tried again until it works: whoever watches says once that it does not.
                    tracing::debug!(prefix = self.prefix, %error, "watch interrupted; trying again");
                    self.connection.send_modify(|connection| {
                        connection.trouble = Some(error.to_string());
                        connection.failed_attempts += 1;
                    });
                    // What went well for a while is a new start, also when there was nothing to tell.
                    if began.elapsed() > Backoff::LONGEST {
                        backoff.reset();
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
    }

    async fn list(&self, follower: &mut Follower) -> std::result::Result<Result<()>, Gone> {
        match self.cluster.list(&self.prefix, None, false, Some).await {
            Ok(listed) => {
                self.deliver(follower.listed(listed.items, listed.revision, listed.cluster_id)).await.map(Ok)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn list_keys(
        &self,
        follower: &mut Follower,
        revision: i64,
    ) -> std::result::Result<Result<()>, Gone> {
        match self.cluster.list(&self.prefix, Some(revision), true, Some).await {
            Ok(listed) => self.deliver(follower.keys_listed(listed.items, listed.cluster_id)).await.map(Ok),
            Err(Error::Datastore(text)) if text.contains("required revision") => {
                self.deliver(follower.revision_gone()).await.map(Ok)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn watch(
        &self,
        follower: &mut Follower,
        from: i64,
        backoff: &mut Backoff,
    ) -> std::result::Result<Result<()>, Gone> {
        let mut stream = match open_watch(&self.cluster, &self.prefix, from).await {
            Ok(stream) => stream,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            let response = match stream.next().await {
                Ok(response) => response,
                Err(error) => return Ok(Err(error)),
            };
            match follower.heard(response) {
                Heard::Changes(changes) => {
                    self.connected();
                    if !changes.is_empty() {
                        backoff.reset();
                    }
                    self.deliver(changes).await?;
                }
                Heard::Stale(reason) => return Ok(Err(Error::Datastore(reason))),
                Heard::Closed(reason) => {
                    stream.refused().await;
                    return Ok(Err(Error::Datastore(format!("the datastore closed the watch: {reason}"))));
                }
            }
        }
    }

    async fn deliver(&self, changes: Vec<Change>) -> std::result::Result<(), Gone> {
        for change in changes {
            let event = match change {
                Change::Put { key, kv } => match entry(key.clone(), &kv.value, kv.mod_revision) {
                    Ok(entry) => Event::Put(entry),
                    Err(error) => Event::Unreadable { key, error },
                },
                Change::Delete { key, revision } => Event::Delete { key, revision },
                Change::InSync(revision) => Event::InSync(revision),
                Change::Reset => Event::Reset,
            };
            self.sender.send(event).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    fn connected(&self) {
        self.connection.send_if_modified(|connection| connection.trouble.take().is_some());
    }
}
