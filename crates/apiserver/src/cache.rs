//! Cache of the objects of a kind: one watch of the store for all watches of clients.

use crate::history::{CachedChange, ChangeHistory, HistoryPosition, TooOld};
use crate::stored::{StoredObject, revision_number};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreEvent};

/// How long a request waits for the first snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct ResourceCache {
    history: RwLock<ChangeHistory>,
    /// Incremented on every event.
    happened: watch::Sender<u64>,
    /// Incremented when an object is added, changed or deleted after the first snapshot.
    changed: watch::Sender<u64>,
    task: std::sync::OnceLock<AbortHandle>,
}

impl ResourceCache {
    /// Starts the watch. `always` is an object that exists without being stored.
    pub fn start(client: &StoreClient, kind: Kind, always: Option<Resource>) -> Arc<ResourceCache> {
        let cache = Arc::new(ResourceCache {
            history: RwLock::default(),
            happened: watch::channel(0).0,
            changed: watch::channel(0).0,
            task: std::sync::OnceLock::new(),
        });
        if let Some(resource) = always {
            let name = resource.metadata().name.clone();
            cache.change(|history| history.put((String::new(), name), StoredObject::new(&resource)));
        }
        let mut events = client.watch_with_progress(KeyRange::Written { kind, namespace: None });
        let follower = Arc::downgrade(&cache);
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let Some(cache) = follower.upgrade() else { return };
                cache.apply(event);
            }
        });
        let _ = cache.task.set(task.abort_handle());
        cache
    }

    fn apply(&self, event: StoreEvent) {
        match event {
            StoreEvent::Put(entry) => {
                if let (StoreKey::Resource { namespace, name, .. }, StoreValue::Resource(resource)) =
                    (entry.key, entry.value)
                {
                    let key = (namespace, name);
                    let object = StoredObject::new(&resource);
                    self.change(|history| history.put(key, object));
                    self.count_change();
                }
            }
            StoreEvent::Delete { key: StoreKey::Resource { namespace, name, .. }, revision } => {
                self.change(|history| history.delete(&(namespace, name), revision_number(&revision)));
                self.count_change();
            }
            StoreEvent::InSync(revision) => {
                self.change(|history| history.synchronise(revision_number(&revision)))
            }
            StoreEvent::Reached(revision) => self.change(|history| history.reach(revision_number(&revision))),
            StoreEvent::Unreadable { key, error, .. } => {
                tracing::warn!(%key, %error, "cannot decode an object, it is not served; correct or delete it");
            }
            // Only sent to watches that start from a revision; this one does not.
            StoreEvent::Reset | StoreEvent::Delete { .. } => {}
        }
    }

    fn change(&self, change: impl FnOnce(&mut ChangeHistory)) {
        change(&mut self.history.write().unwrap_or_else(PoisonError::into_inner));
        self.happened.send_modify(|count| *count += 1);
    }

    fn count_change(&self) {
        if self.look(ChangeHistory::is_in_sync) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    fn look<T>(&self, look: impl FnOnce(&ChangeHistory) -> T) -> T {
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
        let in_sync = happenings.wait_for(|_| self.look(ChangeHistory::is_in_sync));
        matches!(tokio::time::timeout(SNAPSHOT_TIMEOUT, in_sync).await, Ok(Ok(_)))
    }

    pub fn reached(&self) -> u64 {
        self.look(ChangeHistory::reached)
    }

    pub fn floor(&self) -> u64 {
        self.look(ChangeHistory::floor)
    }

    /// Returns all objects, their revision, and the position after it.
    pub fn snapshot(&self) -> (Vec<Arc<StoredObject>>, u64, HistoryPosition) {
        self.look(|history| (history.objects().cloned().collect(), history.reached(), history.end()))
    }

    pub fn after(&self, revision: u64) -> Result<HistoryPosition, TooOld> {
        self.look(|history| history.after(revision))
    }

    pub fn next(
        &self,
        from: HistoryPosition,
        at_most: usize,
    ) -> Result<(Vec<CachedChange>, HistoryPosition), TooOld> {
        self.look(|history| history.next(from, at_most))
    }
}

impl Drop for ResourceCache {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}
