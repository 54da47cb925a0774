//! What a backend does for a watch of one range.

use super::follower::{Item, Update};
use crate::{Entry, Result, Revision};
use std::future::Future;
use tortie_model::Key;

/// The range as it stands at one revision.
pub(crate) struct Snapshot<V> {
    pub items: Vec<Item<V>>,
    pub revision: Revision,
}

/// What the backend reports on an open watch.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard<V> {
    /// All that happened up to the revision, in order; nothing, if only the revision moved on.
    Updates { updates: Vec<Update<V>>, revision: Revision },
    /// The place in history is gone: list again.
    Stale(String),
}

/// One range of one backend. Values are read only when the consumer has to hear of them.
pub(crate) trait Source: Send + 'static {
    type Value: Send;

    fn list(&mut self) -> impl Future<Output = Result<Snapshot<Self::Value>>> + Send;

    /// The keys as they were at a revision; `None` if the backend cannot say any more.
    fn keys_at(
        &mut self,
        revision: &Revision,
    ) -> impl Future<Output = Result<Option<Vec<(Key, Revision)>>>> + Send;

    /// Opens the watch for what comes after a revision. Ends the one before.
    fn open(&mut self, after: &Revision) -> impl Future<Output = Result<()>> + Send;

    /// Waits for the next report; after an error the watch must be opened again.
    fn next(&mut self) -> impl Future<Output = Result<Heard<Self::Value>>> + Send;

    fn read(&self, item: Item<Self::Value>) -> Result<Entry>;
}
