//! Typed get, list, create, update, apply, delete and watch over keys, independent of the backend.

use crate::backend::{self, Backend, BackendCapabilities, ConnectRetryMode, HistoryCompactor};
use crate::operation::{OperationOutcome, StoreOperation, one_by_one};
use crate::page::{PageContinuation, PageRequest};
use crate::watch::{ProgressReporting, StoreWatch, WatchOptions};
use crate::{Revision, StoreConfig, StoreError, StoreLimits, StoreResult};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tortie_model::{KeyRange, StoreKey, StoreValue, ValidationError};

/// A stored value with its key and revision.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreEntry {
    pub key: StoreKey,
    pub value: StoreValue,
    pub revision: Revision,
}

/// The entries of a range, or a page of them, at one revision. Unreadable values are reported separately and are not
/// fatal.
#[derive(Debug)]
pub struct EntryListing {
    pub entries: Vec<StoreEntry>,
    pub unreadable: Vec<StoreError>,
    pub revision: Revision,
    /// Start of the next page; `None` at the end of the list.
    pub next: Option<PageContinuation>,
}

/// A change in a transaction; all changes are applied or none.
#[derive(Clone, Debug)]
pub enum EntryChange {
    Create {
        key: StoreKey,
        value: StoreValue,
    },
    Update {
        key: StoreKey,
        value: StoreValue,
        revision: Revision,
    },
    Delete {
        key: StoreKey,
        revision: Revision,
    },
    /// Changes nothing, but makes the transaction fail if the entry is not at this revision any more.
    Keep {
        key: StoreKey,
        revision: Revision,
    },
}

/// Event of a watch: a snapshot, then each later change once.
#[derive(Debug)]
// Nearly every event is a put: boxing it would cost an allocation each to make the rare variants smaller.
#[allow(clippy::large_enum_variant)]
pub enum StoreEvent {
    Put(StoreEntry),
    Delete {
        key: StoreKey,
        revision: Revision,
    },
    /// The snapshot is complete up to this revision. Reported once.
    InSync(Revision),
    /// An entry was written with an unreadable value; the watch continues.
    Unreadable {
        key: StoreKey,
        revision: Revision,
        error: StoreError,
    },
    /// Only for watches with progress: all changes up to this revision have been reported.
    Reached(Revision),
    /// Only for watches from a revision that the store no longer has: discard the state, a snapshot follows.
    Reset,
}

/// Client of a datastore. Cheap to clone; all clones share the connections.
#[derive(Clone, Debug)]
pub struct StoreClient {
    backend: Arc<dyn Backend>,
    /// Notified when a watch reaches the store again, so that the other watches retry immediately.
    recovered: Arc<Notify>,
}

impl StoreClient {
    pub fn new(backend: Arc<dyn Backend>) -> StoreClient {
        StoreClient { backend, recovered: Arc::default() }
    }

    /// Checks the configuration and creates a client. With the Kubernetes API, discovers the API group and fails after
    /// a few seconds if that is impossible. All other connections are opened on first use.
    pub async fn connect(config: &StoreConfig) -> StoreResult<StoreClient> {
        StoreClient::connect_with(config, StoreLimits::from_environment()).await
    }

    pub async fn connect_with(config: &StoreConfig, limits: StoreLimits) -> StoreResult<StoreClient> {
        Ok(StoreClient::new(backend::connect(config, limits, ConnectRetryMode::Command).await?))
    }

    /// Like `connect`, but for daemons: waits until the API group is known and reports each cause of the delay once.
    /// Returns only configuration errors.
    pub async fn connect_waiting(
        config: &StoreConfig,
        mut report: impl FnMut(&StoreError) + Send,
    ) -> StoreResult<StoreClient> {
        let mode = ConnectRetryMode::Daemon(&mut report);
        Ok(StoreClient::new(backend::connect(config, StoreLimits::from_environment(), mode).await?))
    }

    /// Fails if the datastore does not process a request within seconds.
    pub async fn probe(&self) -> StoreResult<()> {
        self.backend.probe().await
    }

    pub async fn get(&self, key: &StoreKey) -> StoreResult<StoreEntry> {
        self.backend.get(key).await
    }

    /// Returns the entry, or `None` only if the store itself reports that it does not exist. If the API server does not
    /// serve the kind, the response is about something else or the value is unreadable, absence is not proven and an
    /// error is returned.
    pub async fn look_up(&self, key: &StoreKey) -> StoreResult<Option<StoreEntry>> {
        self.backend.look_up(key).await
    }

    /// Returns all entries of a range.
    pub async fn list(&self, range: &KeyRange) -> StoreResult<EntryListing> {
        self.backend.list(range).await
    }

    /// Returns one page of the range; [`EntryListing::next`] is the start of the next one.
    pub async fn list_page(&self, range: &KeyRange, page: &PageRequest) -> StoreResult<EntryListing> {
        self.backend.list_page(range, page).await
    }

    /// Returns the keys of a range without their values.
    pub async fn list_keys(&self, range: &KeyRange) -> StoreResult<Vec<StoreKey>> {
        self.backend.list_keys(range).await
    }

    pub async fn create(&self, key: &StoreKey, value: &StoreValue) -> StoreResult<StoreEntry> {
        check_complete(key)?;
        self.backend.create(key, value).await
    }

    /// Updates an entry if it is still at the revision.
    pub async fn update(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        revision: &Revision,
    ) -> StoreResult<StoreEntry> {
        check_complete(key)?;
        self.backend.update(key, value, revision).await
    }

    /// Writes an entry unconditionally. With a time to live, the entry expires.
    pub async fn apply(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        ttl: Option<Duration>,
    ) -> StoreResult<StoreEntry> {
        check_complete(key)?;
        self.backend.apply(key, value, ttl).await
    }

    /// Creates an entry that expires, or replaces one that is still at the revision. Fails like [`StoreClient::create`]
    /// or [`StoreClient::update`].
    pub async fn write_expiring(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        replaced: Option<&Revision>,
        ttl: Duration,
    ) -> StoreResult<StoreEntry> {
        check_complete(key)?;
        self.backend.write_expiring(key, value, replaced, ttl).await
    }

    /// Deletes an entry and returns it. With a revision, deletes it only if it is still at that revision.
    pub async fn delete(&self, key: &StoreKey, revision: Option<&Revision>) -> StoreResult<StoreEntry> {
        check_complete(key)?;
        self.backend.delete(key, revision).await
    }

    pub fn capabilities(&self) -> BackendCapabilities {
        self.backend.capabilities()
    }

    /// Returns whether projectcalico.org/v3 objects are stored directly as users write them, so that no server
    /// validates an object against others.
    pub fn stores_v3_as_written(&self) -> bool {
        self.backend.stores_v3_as_written()
    }

    pub fn has_transactions(&self) -> bool {
        self.backend.transactions().is_some()
    }

    /// Returns a compactor of the backend's history; `None` if compaction is not up to the client.
    pub fn compactor(&self) -> Option<Box<dyn HistoryCompactor>> {
        self.backend.compaction()
    }

    /// Applies all changes or none, and returns the revision of the transaction. Fails on a backend without
    /// transactions.
    pub async fn transact(&self, changes: &[EntryChange]) -> StoreResult<Revision> {
        let Some(transactions) = self.backend.transactions() else {
            return Err(StoreError::NotSupported {
                operation: "Transaction",
                id: changes.first().map(|change| change.key().to_string()).unwrap_or_default(),
                reason: "this datastore changes one object at a time".into(),
            });
        };
        changes.iter().try_for_each(|change| check_complete(change.key()))?;
        transactions.commit(changes).await
    }

    /// Executes an operation, in one transaction if the store supports it.
    pub async fn carry_out(&self, operation: StoreOperation) -> StoreResult<OperationOutcome> {
        let Some(transactions) = self.backend.transactions() else {
            return self.carry_out_in_steps(&operation).await;
        };
        let changes = operation.fold();
        changes.iter().try_for_each(|change| check_complete(change.key()))?;
        transactions.carry_out(&changes).await
    }

    /// Executes an operation step by step, each as a compare-and-swap.
    pub async fn carry_out_in_steps(&self, operation: &StoreOperation) -> StoreResult<OperationOutcome> {
        one_by_one(self, operation).await
    }

    /// Watches a range: from the current state, with a snapshot first, or after a given revision.
    pub fn watch(&self, range: KeyRange, after: Option<Revision>) -> StoreWatch {
        self.backend.watch(range, WatchOptions { after, ..self.watch_options(ProgressReporting::Silent) })
    }

    /// Watches a range from the current state and also reports progress ([`StoreEvent::Reached`]).
    pub fn watch_with_progress(&self, range: KeyRange) -> StoreWatch {
        self.backend.watch(range, self.watch_options(ProgressReporting::Reported))
    }

    /// Like [`StoreClient::watch_with_progress`], for consumers that only forward entries: a value that the backend
    /// stores in encoded form is not decoded and arrives as [`StoreValue::Raw`].
    pub fn watch_undecoded(&self, range: KeyRange) -> StoreWatch {
        let options = WatchOptions { decodes: false, ..self.watch_options(ProgressReporting::Reported) };
        self.backend.watch(range, options)
    }

    fn watch_options(&self, progress: ProgressReporting) -> WatchOptions {
        WatchOptions { after: None, progress, decodes: true, recovered: self.recovered.clone() }
    }

    /// Parses a resourceVersion, if it is valid for this backend. A revision without an order is opaque: the server
    /// validates it.
    pub fn revision(&self, text: &str) -> StoreResult<Revision> {
        let ordered = self.capabilities().ordered_revisions;
        let revision: Option<Revision> = text.parse().ok();
        revision.filter(|revision| !ordered || revision.number().is_some()).ok_or_else(|| {
            let reason = if ordered { "invalid resource version: not a number" } else { "must not be empty" };
            StoreError::Validation(ValidationError::one("ResourceVersion", text, reason))
        })
    }
}

impl EntryChange {
    pub fn key(&self) -> &StoreKey {
        match self {
            EntryChange::Create { key, .. }
            | EntryChange::Update { key, .. }
            | EntryChange::Delete { key, .. }
            | EntryChange::Keep { key, .. } => key,
        }
    }
}

impl StoreEntry {
    /// Creates an entry. Resources also contain the revision, as their resourceVersion.
    pub(crate) fn new(key: StoreKey, mut value: StoreValue, revision: Revision) -> StoreEntry {
        if let StoreValue::Resource(resource) = &mut value {
            resource.metadata_mut().resource_version = revision.to_string();
        }
        StoreEntry { key, value, revision }
    }
}

/// Checks that no part of a key is missing: an incomplete key would name something else.
fn check_complete(key: &StoreKey) -> StoreResult<()> {
    if let StoreKey::Resource { kind, namespace, name } = key {
        if name.is_empty() {
            return Err(StoreError::InsufficientIdentifiers("name".into()));
        }
        if kind.is_namespaced() && namespace.is_empty() {
            return Err(StoreError::InsufficientIdentifiers("namespace".into()));
        }
    }
    Ok(())
}
