//! Typed get, list, create, update, apply, delete and watch over keys, independent of the backend.

use crate::backend::{ConnectRetryMode, StoreBackend, StoreLimits, etcd};
use crate::page::{PageContinuation, PageRequest};
use crate::watch::{ProgressReporting, StoreWatch, WatchOptions};
use crate::{OperationOutcome, Revision, StoreConfig, StoreError, StoreResult};
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
    backend: StoreBackend,
    /// Notified when a watch reaches the store again, so that the other watches retry immediately.
    recovered: Arc<Notify>,
}

/// Access to transactions over several entries, which only some backends have.
#[derive(Clone, Copy, Debug)]
pub struct StoreTransactions<'a>(&'a etcd::EtcdBackend);

impl StoreClient {
    /// Checks the configuration and creates a client. With the Kubernetes API, discovers the API group and fails after
    /// a few seconds if that is impossible. All other connections are opened on first use.
    pub async fn connect(config: &StoreConfig) -> StoreResult<StoreClient> {
        StoreClient::connect_with(config, StoreLimits::from_environment()).await
    }

    pub async fn connect_with(config: &StoreConfig, limits: StoreLimits) -> StoreResult<StoreClient> {
        StoreClient::with_patience(config, limits, ConnectRetryMode::Command).await
    }

    /// Like `connect`, but for daemons: waits until the API group is known and reports each cause of the delay once.
    /// Returns only configuration errors.
    pub async fn connect_waiting(
        config: &StoreConfig,
        mut report: impl FnMut(&StoreError) + Send,
    ) -> StoreResult<StoreClient> {
        let patience = ConnectRetryMode::Daemon(&mut report);
        StoreClient::with_patience(config, StoreLimits::from_environment(), patience).await
    }

    async fn with_patience(
        config: &StoreConfig,
        limits: StoreLimits,
        patience: ConnectRetryMode<'_>,
    ) -> StoreResult<StoreClient> {
        let backend = StoreBackend::connect(config, limits, patience).await?;
        Ok(StoreClient { backend, recovered: Arc::default() })
    }

    pub async fn get(&self, key: &StoreKey) -> StoreResult<StoreEntry> {
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.get(key).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.get(key).await,
        }
    }

    /// Returns the entry, or `None` only if the store itself reports that it does not exist. If the API server does not
    /// serve the kind, the response is about something else or the value is unreadable, absence is not proven and an
    /// error is returned.
    pub async fn look_up(&self, key: &StoreKey) -> StoreResult<Option<StoreEntry>> {
        match &self.backend {
            StoreBackend::Etcd(etcd) => match etcd.get(key).await {
                Err(StoreError::DoesNotExist { .. }) => Ok(None),
                found => found.map(Some),
            },
            StoreBackend::Kubernetes(kubernetes) => kubernetes.look_up(key).await,
        }
    }

    /// Returns all entries of a range.
    pub async fn list(&self, range: &KeyRange) -> StoreResult<EntryListing> {
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.list(range).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.list(range).await,
        }
    }

    /// Returns one page of the range; [`EntryListing::next`] is the start of the next one.
    pub async fn list_page(&self, range: &KeyRange, page: &PageRequest) -> StoreResult<EntryListing> {
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.list_page(range, page).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.list_page(range, page).await,
        }
    }

    /// Returns the keys of a range without their values.
    pub async fn list_keys(&self, range: &KeyRange) -> StoreResult<Vec<StoreKey>> {
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.list_keys(range).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.list_keys(range).await,
        }
    }

    pub async fn create(&self, key: &StoreKey, value: &StoreValue) -> StoreResult<StoreEntry> {
        complete(key)?;
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.create(key, value).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.create(key, value).await,
        }
    }

    /// Updates an entry if it is still at the revision.
    pub async fn update(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        revision: &Revision,
    ) -> StoreResult<StoreEntry> {
        complete(key)?;
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.update(key, value, revision).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.update(key, value, revision).await,
        }
    }

    /// Writes an entry unconditionally. With a time to live, the entry expires.
    pub async fn apply(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        ttl: Option<Duration>,
    ) -> StoreResult<StoreEntry> {
        complete(key)?;
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.apply(key, value, ttl).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.apply(key, value, ttl).await,
        }
    }

    /// Deletes an entry and returns it. With a revision, deletes it only if it is still at that revision.
    pub async fn delete(&self, key: &StoreKey, revision: Option<&Revision>) -> StoreResult<StoreEntry> {
        complete(key)?;
        match &self.backend {
            StoreBackend::Etcd(etcd) => etcd.delete(key, revision).await,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.delete(key, revision).await,
        }
    }

    /// Returns whether the backend is the Kubernetes API, where nodes, pods, namespaces and services belong to
    /// Kubernetes.
    pub fn is_kubernetes(&self) -> bool {
        matches!(self.backend, StoreBackend::Kubernetes(_))
    }

    /// Returns whether projectcalico.org/v3 objects are stored directly as users write them, so that no server
    /// validates an object against others.
    pub fn stores_v3_as_written(&self) -> bool {
        match &self.backend {
            StoreBackend::Etcd(_) => false,
            StoreBackend::Kubernetes(kubernetes) => kubernetes.is_v3(),
        }
    }

    /// Returns whether nodes can store the status of themselves and of their endpoints, which needs entries that
    /// expire.
    pub fn keeps_statuses(&self) -> bool {
        !self.is_kubernetes()
    }

    /// Returns access to transactions over several keys, if the backend has them.
    pub fn transactions(&self) -> Option<StoreTransactions<'_>> {
        match &self.backend {
            StoreBackend::Etcd(etcd) => Some(StoreTransactions(etcd)),
            StoreBackend::Kubernetes(_) => None,
        }
    }

    /// Returns a compactor of the backend's history; `None` if compaction is not up to the client.
    pub fn compactor(&self) -> Option<etcd::HistoryCompactor> {
        match &self.backend {
            StoreBackend::Etcd(etcd) => Some(etcd::HistoryCompactor::new(etcd.clone())),
            StoreBackend::Kubernetes(_) => None,
        }
    }

    /// Commits a transaction ([`StoreTransactions::commit`]); fails on a backend without transactions.
    pub async fn transact(&self, changes: &[EntryChange]) -> StoreResult<Revision> {
        match self.transactions() {
            Some(transactions) => transactions.commit(changes).await,
            None => Err(StoreError::NotSupported {
                operation: "Transaction",
                id: changes.first().map(|change| change.key().to_string()).unwrap_or_default(),
                reason: "this datastore changes one object at a time".into(),
            }),
        }
    }

    /// Watches a range: from the current state, with a snapshot first, or after a given revision.
    pub fn watch(&self, range: KeyRange, after: Option<Revision>) -> StoreWatch {
        self.start_watch(range, after, ProgressReporting::Silent)
    }

    /// Watches a range from the current state and also reports progress ([`StoreEvent::Reached`]).
    pub fn watch_with_progress(&self, range: KeyRange) -> StoreWatch {
        self.start_watch(range, None, ProgressReporting::Reported)
    }

    /// Like [`StoreClient::watch_with_progress`], for consumers that only forward entries: a value that the backend
    /// stores in encoded form is not decoded and arrives as [`StoreValue::Raw`].
    pub fn watch_undecoded(&self, range: KeyRange) -> StoreWatch {
        let StoreBackend::Etcd(etcd) = &self.backend else { return self.watch_with_progress(range) };
        let options = WatchOptions {
            after: None,
            progress: ProgressReporting::Reported,
            recovered: self.recovered.clone(),
            grace: etcd.absence_grace(),
        };
        StoreWatch::start(etcd.source(&range).undecoded(), range, options)
    }

    fn start_watch(
        &self,
        range: KeyRange,
        after: Option<Revision>,
        progress: ProgressReporting,
    ) -> StoreWatch {
        let recovered = self.recovered.clone();
        match &self.backend {
            StoreBackend::Etcd(etcd) => {
                let options = WatchOptions { after, progress, recovered, grace: etcd.absence_grace() };
                StoreWatch::start(etcd.source(&range), range, options)
            }
            StoreBackend::Kubernetes(kubernetes) => {
                let options = WatchOptions { after, progress, recovered, grace: kubernetes.absence_grace() };
                StoreWatch::start(kubernetes.source(&range), range, options)
            }
        }
    }

    /// Parses a resourceVersion, if it is valid for this backend.
    pub fn revision(&self, text: &str) -> StoreResult<Revision> {
        match &self.backend {
            StoreBackend::Etcd(_) => etcd::revision(text),
            // Opaque: kube-apiserver validates it.
            StoreBackend::Kubernetes(_) => text.parse().map_err(|_| {
                StoreError::Validation(ValidationError::one("ResourceVersion", text, "must not be empty"))
            }),
        }
    }
}

impl StoreTransactions<'_> {
    /// Applies all changes or none. Returns the revision of the transaction.
    pub async fn commit(&self, changes: &[EntryChange]) -> StoreResult<Revision> {
        for change in changes {
            complete(change.key())?;
        }
        self.0.commit(changes).await
    }

    /// Like [`StoreTransactions::commit`], but a lost race is an outcome instead of an error.
    pub(crate) async fn carry_out(&self, changes: &[EntryChange]) -> StoreResult<OperationOutcome> {
        for change in changes {
            complete(change.key())?;
        }
        self.0.carry_out(changes).await
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
fn complete(key: &StoreKey) -> StoreResult<()> {
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
