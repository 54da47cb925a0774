//! Interface of a backend for the watch of one range.

use super::follower::{Item, Update};
use crate::{Entry, Result, Revision};
use std::future::Future;
use tortie_model::Key;

/// The content of a range at one revision.
pub(crate) struct Snapshot<V> {
    pub items: Vec<Item<V>>,
    pub revision: Revision,
}

/// Report of a backend on an open watch.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard<V> {
    /// All changes up to the revision, in order; empty if only the revision advanced.
    Updates { updates: Vec<Update<V>>, revision: Revision },
    /// The position in history is lost: a list is required. Contains the reason.
    Stale(String),
}

/// A range of a backend. Values are decoded only when they are delivered to the consumer.
pub(crate) trait Source: Send + 'static {
    type Value: Send;

    fn list(&mut self) -> impl Future<Output = Result<Snapshot<Self::Value>>> + Send;

    /// Returns the keys at a revision; `None` if the backend no longer has it.
    fn keys_at(
        &mut self,
        revision: &Revision,
    ) -> impl Future<Output = Result<Option<Vec<(Key, Revision)>>>> + Send;

    /// Opens a watch for the changes after a revision and closes the previous one.
    fn open(&mut self, after: &Revision) -> impl Future<Output = Result<()>> + Send;

    /// Waits for the next report. After an error the watch has to be opened again.
    fn next(&mut self) -> impl Future<Output = Result<Heard<Self::Value>>> + Send;

    fn read(&self, item: Item<Self::Value>) -> Result<Entry>;
}
