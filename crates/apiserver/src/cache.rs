//! Cache of the objects of a kind: one watch of the store for all watches of clients.

use crate::history::{Change, History, Position, TooOld};
use crate::stored::{Stored, number};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tortie_model::{Key, KeyRange, Kind, Resource, Value};
use tortie_store::{Client, Event};

/// How long a request waits for the first snapshot.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Cache {
    history: RwLock<History>,
    /// Incremented on every event.
    happened: watch::Sender<u64>,
    /// Incremented when an object is added, changed or deleted after the first snapshot.
    changed: watch::Sender<u64>,
    task: std::sync::OnceLock<AbortHandle>,
}

impl Cache {
    /// Starts the watch. `always` is an object that exists without being stored.
    pub fn start(client: &Client, kind: Kind, always: Option<Resource>) -> Arc<Cache> {
        let cache = Arc::new(Cache {
            history: RwLock::default(),
            happened: watch::channel(0).0,
            changed: watch::channel(0).0,
            task: std::sync::OnceLock::new(),
        });
        if let Some(resource) = always {
            let name = resource.metadata().name.clone();
            cache.change(|history| history.put((String::new(), name), Stored::of(&resource)));
        }
        let mut events = client.watch_with_progress(KeyRange::Written { kind, namespace: None });
        let follower = Arc::downgrade(&cache);
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let Some(cache) = follower.upgrade() else { return };
                cache.hear(event);
            }
        });
        let _ = cache.task.set(task.abort_handle());
        cache
    }

    fn hear(&self, event: Event) {
        let place = |key: &Key| match key {
            Key::Resource { namespace, name, .. } => Some((namespace.clone(), name.clone())),
            _ => None,
        };
        match event {
            Event::Put(entry) => {
                if let (Some(key), Value::Resource(resource)) = (place(&entry.key), entry.value) {
                    let object = Stored::of(&resource);
                    self.change(|history| history.put(key, object));
                    self.count_change();
                }
            }
            Event::Delete { key, revision } => {
                if let Some(key) = place(&key) {
                    self.change(|history| history.delete(&key, number(&revision)));
                    self.count_change();
                }
            }
            Event::InSync(revision) => self.change(|history| history.synchronise(number(&revision))),
            Event::Reached(revision) => self.change(|history| history.reach(number(&revision))),
            Event::Unreadable { key, error, .. } => {
                tracing::warn!(%key, %error, "cannot decode an object, it is not served; correct or delete it");
            }
            // Only sent to watches that start from a revision; this one does not.
            Event::Reset => {}
        }
    }

    fn change(&self, change: impl FnOnce(&mut History)) {
        change(&mut self.history.write().unwrap_or_else(PoisonError::into_inner));
        self.happened.send_modify(|count| *count += 1);
    }

    fn count_change(&self) {
        if self.look(History::is_in_sync) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    fn look<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.history.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a receiver that is notified of every event.
    pub fn happenings(&self) -> watch::Receiver<u64> {
        self.happened.subscribe()
    }

    /// Returns a receiver that is notified when an object is added, changed or deleted.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Waits for the first snapshot and returns whether there is one.
    pub async fn ready(&self) -> bool {
        let mut happenings = self.happenings();
        let in_sync = happenings.wait_for(|_| self.look(History::is_in_sync));
        matches!(tokio::time::timeout(PATIENCE, in_sync).await, Ok(Ok(_)))
    }

    pub fn reached(&self) -> u64 {
        self.look(History::reached)
    }

    pub fn floor(&self) -> u64 {
        self.look(History::floor)
    }

    /// Returns all objects, their revision, and the position after it.
    pub fn snapshot(&self) -> (Vec<Arc<Stored>>, u64, Position) {
        self.look(|history| (history.objects().cloned().collect(), history.reached(), history.end()))
    }

    pub fn after(&self, revision: u64) -> Result<Position, TooOld> {
        self.look(|history| history.after(revision))
    }

    pub fn next(&self, from: Position, at_most: usize) -> Result<(Vec<Change>, Position), TooOld> {
        self.look(|history| history.next(from, at_most))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}
