//! The interface of a datastore to the client, and its implementations. Each hides its protocol: typed keys and values,
//! opaque revisions, paged lists and watches from a revision cross the interface.

pub mod etcd;
pub(crate) mod kubernetes;

use crate::config::StoreTarget;
use crate::watch::{StoreWatch, WatchOptions};
use crate::{
    EntryChange, EntryListing, OperationOutcome, PageRequest, Revision, StoreConfig, StoreEntry, StoreError,
    StoreLimits, StoreResult,
};
use async_trait::async_trait;
#[doc(hidden)]
pub use kubernetes::read_objects;
pub use kubernetes::{ResponseError, orchestrator, rejected_responses};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tortie_model::{KeyRange, Kind, StoreKey, StoreValue};

/// A datastore. [`crate::StoreClient`] checks that keys are complete before it writes.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    fn capabilities(&self) -> BackendCapabilities;

    /// Returns whether projectcalico.org/v3 objects are stored directly as users write them, so that no server
    /// validates an object against others.
    fn stores_v3_as_written(&self) -> bool {
        false
    }

    /// Returns access to transactions over several keys, if the datastore has them.
    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }

    /// Returns a compactor of the history; `None` if compaction is not up to the client.
    fn compaction(&self) -> Option<Box<dyn HistoryCompactor>> {
        None
    }

    /// Fails if the datastore does not process a request within the timeout of a probe.
    async fn probe(&self) -> StoreResult<()>;

    async fn get(&self, key: &StoreKey) -> StoreResult<StoreEntry>;

    /// Returns the entry, or `None` only if the datastore itself reports that it does not exist.
    async fn look_up(&self, key: &StoreKey) -> StoreResult<Option<StoreEntry>> {
        match self.get(key).await {
            Err(StoreError::DoesNotExist { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    async fn list(&self, range: &KeyRange) -> StoreResult<EntryListing>;

    async fn list_page(&self, range: &KeyRange, page: &PageRequest) -> StoreResult<EntryListing>;

    async fn list_keys(&self, range: &KeyRange) -> StoreResult<Vec<StoreKey>> {
        Ok(self.list(range).await?.entries.into_iter().map(|entry| entry.key).collect())
    }

    async fn create(&self, key: &StoreKey, value: &StoreValue) -> StoreResult<StoreEntry>;

    async fn update(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        revision: &Revision,
    ) -> StoreResult<StoreEntry>;

    async fn apply(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        ttl: Option<Duration>,
    ) -> StoreResult<StoreEntry>;

    /// Creates an entry that expires, or replaces one that is still at the revision. Only for datastores with
    /// [`BackendCapabilities::expiring_entries`].
    async fn write_expiring(
        &self,
        key: &StoreKey,
        _value: &StoreValue,
        _replaced: Option<&Revision>,
        _ttl: Duration,
    ) -> StoreResult<StoreEntry> {
        Err(StoreError::NotSupported {
            operation: "Write",
            id: key.to_string(),
            reason: "entries of this datastore do not expire".into(),
        })
    }

    async fn delete(&self, key: &StoreKey, revision: Option<&Revision>) -> StoreResult<StoreEntry>;

    fn watch(&self, range: KeyRange, options: WatchOptions) -> StoreWatch;
}

/// Properties in which datastores differ and on which clients depend. They are known before the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendCapabilities {
    /// Revisions are numbers, and every write gets a greater one.
    pub ordered_revisions: bool,
    /// Entries can expire. Nodes need this to store the status of themselves and of their endpoints.
    pub expiring_entries: bool,
    /// Kinds whose objects are derived from nodes, namespaces and pods of Kubernetes, which creates and deletes them.
    pub derived_kinds: &'static [Kind],
    /// The nodes, pods, services and EndpointSlices of Kubernetes are entries.
    pub includes_kubernetes: bool,
    /// The datastore rejects objects of a namespace that does not exist or is terminating.
    pub checks_namespaces: bool,
    /// The datastore serves the whole cluster as its API server: clients poll it rarely.
    pub is_api_server: bool,
}

impl BackendCapabilities {
    pub fn derives(&self, kind: Kind) -> bool {
        self.derived_kinds.contains(&kind)
    }
}

/// Atomic changes of several entries.
#[async_trait]
pub trait Transactions: Send + Sync {
    /// Applies all changes or none. Returns the revision of the transaction.
    async fn commit(&self, changes: &[EntryChange]) -> StoreResult<Revision>;

    /// Like [`Transactions::commit`], but a lost race is an outcome instead of an error.
    async fn carry_out(&self, changes: &[EntryChange]) -> StoreResult<OperationOutcome>;
}

/// Removes old history of a datastore, in turns with all other compactors of the same datastore.
#[async_trait]
pub trait HistoryCompactor: Debug + Send {
    /// Compacts the history; to be called once per period. Returns the revision before which the history was removed;
    /// `None` if another compactor had the turn, or if this one has not run for a full period yet.
    async fn compact(&mut self) -> StoreResult<Option<Revision>>;
}

/// How long connecting retries, for backends that need a response first.
pub(crate) enum ConnectRetryMode<'a> {
    /// Retries for a few seconds, then the command fails.
    Command,
    /// Retries indefinitely; each cause of failure is reported once.
    Daemon(&'a mut (dyn FnMut(&StoreError) + Send)),
}

pub(crate) async fn connect(
    config: &StoreConfig,
    limits: StoreLimits,
    mode: ConnectRetryMode<'_>,
) -> StoreResult<Arc<dyn Backend>> {
    Ok(match config.target()? {
        StoreTarget::Etcd(target) => Arc::new(etcd::EtcdBackend::connect(&target, limits).await?),
        StoreTarget::Kubernetes(target) => {
            Arc::new(kubernetes::KubernetesBackend::connect(&target, limits, mode).await?)
        }
    })
}
