//! Interface of a backend for the watch of one range.

use super::follower::{WatchItem, WatchUpdate};
use crate::{Revision, StoreEntry, StoreResult};
use std::future::Future;
use tortie_model::StoreKey;

/// The content of a range at one revision.
pub(crate) struct RangeSnapshot<V> {
    pub items: Vec<WatchItem<V>>,
    pub revision: Revision,
}

/// Report of a backend on an open watch.
#[derive(Debug, PartialEq)]
pub(crate) enum WatchReport<V> {
    /// All changes up to the revision, in order; empty if only the revision advanced.
    Updates { updates: Vec<WatchUpdate<V>>, revision: Revision },
    /// The position in history is lost: a list is required. Contains the reason.
    Stale(String),
    /// The range has to be listed again, although nothing failed: the store has begun to serve a kind.
    Relist,
}

/// A range of a backend. Values are decoded only when they are delivered to the consumer.
pub(crate) trait WatchSource: Send + 'static {
    type Value: Send;

    fn list(&mut self) -> impl Future<Output = StoreResult<RangeSnapshot<Self::Value>>> + Send;

    /// Returns the keys at a revision; `None` if the backend no longer has it.
    fn keys_at(
        &mut self,
        revision: &Revision,
    ) -> impl Future<Output = StoreResult<Option<Vec<(StoreKey, Revision)>>>> + Send;

    /// Opens a watch for the changes after a revision and closes the previous one.
    fn open(&mut self, after: &Revision) -> impl Future<Output = StoreResult<()>> + Send;

    /// Waits for the next report. After an error the watch has to be opened again.
    fn next(&mut self) -> impl Future<Output = StoreResult<WatchReport<Self::Value>>> + Send;

    fn read(&self, item: WatchItem<Self::Value>) -> StoreResult<StoreEntry>;
}
