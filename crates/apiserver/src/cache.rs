//! What is known of a kind: one watch of the store for all who watch here.

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
    /// Counts whatever happens.
    happened: watch::Sender<u64>,
    /// Counts objects that come, change or go after the first snapshot.
    changed: watch::Sender<u64>,
    task: std::sync::OnceLock<AbortHandle>,
}

impl Cache {
    /// `always` is there without being stored.
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
                tracing::warn!(%key, %error, "an object cannot be read and is not served; correct it or delete it");
            }
            // Only for a watch from a revision, which this is not.
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

    /// Whatever happens from now on.
    pub fn happenings(&self) -> watch::Receiver<u64> {
        self.happened.subscribe()
    }

    /// Objects that come, change or go from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Waits for the first snapshot; whether there is one.
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

    /// Everything that is there, the revision it is of, and the place after it.
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
