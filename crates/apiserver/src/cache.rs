//! Cache of the objects of a kind: one watch of the store serves the watches of all clients.

use crate::history::{CachedChange, ChangeHistory, HistoryPosition, TooOld};
use crate::stored::{StoredObject, convert_revision};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreEvent};

/// Time that a request waits for the first snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct ResourceCache {
    history: RwLock<ChangeHistory>,
    /// Incremented on every event.
    event_count: watch::Sender<u64>,
    /// Incremented when an object is added, changed or deleted after the first snapshot.
    change_count: watch::Sender<u64>,
    task: std::sync::OnceLock<AbortHandle>,
}

impl ResourceCache {
    /// Starts the watch. `built_in` is an object that exists without being stored.
    pub fn start(client: &StoreClient, kind: Kind, built_in: Option<Resource>) -> Arc<ResourceCache> {
        let cache = Arc::new(ResourceCache {
            history: RwLock::default(),
            event_count: watch::channel(0).0,
            change_count: watch::channel(0).0,
            task: std::sync::OnceLock::new(),
        });
        if let Some(resource) = built_in {
            let name = resource.metadata().name.clone();
            cache.update(|history| history.put((String::new(), name), StoredObject::new(&resource)));
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
                    self.update(|history| history.put(key, object));
                    self.count_change();
                }
            }
            StoreEvent::Delete { key: StoreKey::Resource { namespace, name, .. }, revision } => {
                self.update(|history| history.delete(&(namespace, name), convert_revision(&revision)));
                self.count_change();
            }
            StoreEvent::InSync(revision) => {
                self.update(|history| history.complete_snapshot(convert_revision(&revision)))
            }
            StoreEvent::Reached(revision) => {
                self.update(|history| history.advance_to(convert_revision(&revision)))
            }
            StoreEvent::Unreadable { key, error, .. } => {
                tracing::warn!(%key, %error, "cannot decode an object, which is not served; correct or delete the object");
            }
            // Only sent to watches that start from a revision; this one does not.
            StoreEvent::Reset | StoreEvent::Delete { .. } => {}
        }
    }

    fn update(&self, update: impl FnOnce(&mut ChangeHistory)) {
        update(&mut self.history.write().unwrap_or_else(PoisonError::into_inner));
        self.event_count.send_modify(|count| *count += 1);
    }

    fn count_change(&self) {
        if self.read(ChangeHistory::is_in_sync) {
            self.change_count.send_modify(|count| *count += 1);
        }
    }

    fn read<T>(&self, read: impl FnOnce(&ChangeHistory) -> T) -> T {
        read(&self.history.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a receiver that is notified of every event.
    pub fn subscribe_events(&self) -> watch::Receiver<u64> {
        self.event_count.subscribe()
    }

    /// Returns a receiver that is notified when an object is added, changed or deleted.
    pub fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.change_count.subscribe()
    }

    /// Waits for the first snapshot. Returns false if it does not arrive in time.
    pub async fn wait_until_synced(&self) -> bool {
        let mut events = self.subscribe_events();
        let in_sync = events.wait_for(|_| self.read(ChangeHistory::is_in_sync));
        matches!(tokio::time::timeout(SNAPSHOT_TIMEOUT, in_sync).await, Ok(Ok(_)))
    }

    pub fn reached_revision(&self) -> u64 {
        self.read(ChangeHistory::reached_revision)
    }

    pub fn floor(&self) -> u64 {
        self.read(ChangeHistory::floor)
    }

    /// Returns all objects, their revision, and the position after the changes that they include.
    pub fn snapshot(&self) -> (Vec<Arc<StoredObject>>, u64, HistoryPosition) {
        self.read(|history| (history.objects().cloned().collect(), history.reached_revision(), history.end()))
    }

    pub fn position_after(&self, revision: u64) -> Result<HistoryPosition, TooOld> {
        self.read(|history| history.position_after(revision))
    }

    pub fn changes_from(
        &self,
        from: HistoryPosition,
        limit: usize,
    ) -> Result<(Vec<CachedChange>, HistoryPosition), TooOld> {
        self.read(|history| history.changes_from(from, limit))
    }
}

impl Drop for ResourceCache {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}
