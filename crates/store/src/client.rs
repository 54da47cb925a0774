//! Typed get, list, create, update, apply, delete and watch over keys, independent of the backend.

use crate::backend::{Backend, ConnectPatience, Limits, etcd};
use crate::page::{Continuation, Page};
use crate::watch::{Progress, Watch, WatchOptions};
use crate::{Config, Error, Outcome, Result, Revision};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tortie_model::{Key, KeyRange, ValidationError, Value};

/// A stored value with its key and revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: Key,
    pub value: Value,
    pub revision: Revision,
}

/// The entries of a range, or a page of them, at one revision. Unreadable values are reported separately and are not
/// fatal.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub unreadable: Vec<Error>,
    pub revision: Revision,
    /// Start of the next page; `None` at the end of the list.
    pub next: Option<Continuation>,
}

/// A change in a transaction; all changes are applied or none.
#[derive(Clone, Debug)]
pub enum Change {
    Create {
        key: Key,
        value: Value,
    },
    Update {
        key: Key,
        value: Value,
        revision: Revision,
    },
    Delete {
        key: Key,
        revision: Revision,
    },
    /// Changes nothing, but makes the transaction fail if the entry is not at this revision any more.
    Keep {
        key: Key,
        revision: Revision,
    },
}

/// Event of a watch: a snapshot, then each later change once.
#[derive(Debug)]
// Nearly every event is a put: boxing it would cost an allocation each to make the rare variants smaller.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    Put(Entry),
    Delete {
        key: Key,
        revision: Revision,
    },
    /// The snapshot is complete up to this revision. Reported once.
    InSync(Revision),
    /// An entry was written with an unreadable value; the watch continues.
    Unreadable {
        key: Key,
        revision: Revision,
        error: Error,
    },
    /// Only for watches with progress: all changes up to this revision have been reported.
    Reached(Revision),
    /// Only for watches from a revision that the store no longer has: discard the state, a snapshot follows.
    Reset,
}

/// Client of a datastore. Cheap to clone; all clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    backend: Backend,
    /// Notified when a watch reaches the store again, so that the other watches retry immediately.
    recovered: Arc<Notify>,
}

/// Access to transactions over several entries, which only some backends have.
#[derive(Clone, Copy, Debug)]
pub struct Transactions<'a>(&'a etcd::Etcd);

impl Client {
    /// Checks the configuration and creates a client. With the Kubernetes API, discovers the API group and fails after
    /// a few seconds if that is impossible. All other connections are opened on first use.
    pub async fn connect(config: &Config) -> Result<Client> {
        Client::connect_with(config, Limits::from_environment()).await
    }

    pub async fn connect_with(config: &Config, limits: Limits) -> Result<Client> {
        Client::with_patience(config, limits, ConnectPatience::Command).await
    }

    /// Like `connect`, but for daemons: waits until the API group is known and reports each cause of the delay once.
    /// Returns only configuration errors.
    pub async fn connect_waiting(config: &Config, mut report: impl FnMut(&Error) + Send) -> Result<Client> {
        let patience = ConnectPatience::Daemon(&mut report);
        Client::with_patience(config, Limits::from_environment(), patience).await
    }

    async fn with_patience(config: &Config, limits: Limits, patience: ConnectPatience<'_>) -> Result<Client> {
        let backend = Backend::connect(config, limits, patience).await?;
        Ok(Client { backend, recovered: Arc::default() })
    }

    pub async fn get(&self, key: &Key) -> Result<Entry> {
        match &self.backend {
            Backend::Etcd(etcd) => etcd.get(key).await,
            Backend::Kubernetes(kubernetes) => kubernetes.get(key).await,
        }
    }

    /// Returns the entry, or `None` only if the store itself reports that it does not exist. If the API server does not
    /// serve the kind, the response is about something else or the value is unreadable, absence is not proven and an
    /// error is returned.
    pub async fn look_up(&self, key: &Key) -> Result<Option<Entry>> {
        match &self.backend {
            Backend::Etcd(etcd) => match etcd.get(key).await {
                Err(Error::DoesNotExist { .. }) => Ok(None),
                found => found.map(Some),
            },
            Backend::Kubernetes(kubernetes) => kubernetes.look_up(key).await,
        }
    }

    /// Returns all entries of a range.
    pub async fn list(&self, range: &KeyRange) -> Result<Listing> {
        match &self.backend {
            Backend::Etcd(etcd) => etcd.list(range).await,
            Backend::Kubernetes(kubernetes) => kubernetes.list(range).await,
        }
    }

    /// Returns one page of the range; [`Listing::next`] is the start of the next one.
    pub async fn list_page(&self, range: &KeyRange, page: &Page) -> Result<Listing> {
        match &self.backend {
            Backend::Etcd(etcd) => etcd.list_page(range, page).await,
            Backend::Kubernetes(kubernetes) => kubernetes.list_page(range, page).await,
        }
    }

    /// Returns the keys of a range without their values.
    pub async fn list_keys(&self, range: &KeyRange) -> Result<Vec<Key>> {
        match &self.backend {
            Backend::Etcd(etcd) => etcd.list_keys(range).await,
            Backend::Kubernetes(kubernetes) => kubernetes.list_keys(range).await,
        }
    }

    pub async fn create(&self, key: &Key, value: &Value) -> Result<Entry> {
        complete(key)?;
        match &self.backend {
            Backend::Etcd(etcd) => etcd.create(key, value).await,
            Backend::Kubernetes(kubernetes) => kubernetes.create(key, value).await,
        }
    }

    /// Updates an entry if it is still at the revision.
    pub async fn update(&self, key: &Key, value: &Value, revision: &Revision) -> Result<Entry> {
        complete(key)?;
        match &self.backend {
            Backend::Etcd(etcd) => etcd.update(key, value, revision).await,
            Backend::Kubernetes(kubernetes) => kubernetes.update(key, value, revision).await,
        }
    }

    /// Writes an entry unconditionally. With a time to live, the entry expires.
    pub async fn apply(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Entry> {
        complete(key)?;
        match &self.backend {
            Backend::Etcd(etcd) => etcd.apply(key, value, ttl).await,
            Backend::Kubernetes(kubernetes) => kubernetes.apply(key, value, ttl).await,
        }
    }

    /// Deletes an entry and returns it. With a revision, deletes it only if it is still at that revision.
    pub async fn delete(&self, key: &Key, revision: Option<&Revision>) -> Result<Entry> {
        complete(key)?;
        match &self.backend {
            Backend::Etcd(etcd) => etcd.delete(key, revision).await,
            Backend::Kubernetes(kubernetes) => kubernetes.delete(key, revision).await,
        }
    }

    /// Returns whether the backend is the Kubernetes API, where nodes, pods, namespaces and services belong to
    /// Kubernetes.
    pub fn is_kubernetes(&self) -> bool {
        matches!(self.backend, Backend::Kubernetes(_))
    }

    /// Returns whether projectcalico.org/v3 objects are stored directly as users write them, so that no server
    /// validates an object against others.
    pub fn stores_v3_as_written(&self) -> bool {
        match &self.backend {
            Backend::Etcd(_) => false,
            Backend::Kubernetes(kubernetes) => kubernetes.is_v3(),
        }
    }

    /// Returns whether nodes can store the status of themselves and of their endpoints, which needs entries that
    /// expire.
    pub fn keeps_statuses(&self) -> bool {
        !self.is_kubernetes()
    }

    /// Returns access to transactions over several keys, if the backend has them.
    pub fn transactions(&self) -> Option<Transactions<'_>> {
        match &self.backend {
            Backend::Etcd(etcd) => Some(Transactions(etcd)),
            Backend::Kubernetes(_) => None,
        }
    }

    /// Returns a compactor of the backend's history; `None` if compaction is not up to the client.
    pub fn compactor(&self) -> Option<etcd::Compactor> {
        match &self.backend {
            Backend::Etcd(etcd) => Some(etcd::Compactor::new(etcd.clone())),
            Backend::Kubernetes(_) => None,
        }
    }

    /// Commits a transaction ([`Transactions::commit`]); fails on a backend without transactions.
    pub async fn transact(&self, changes: &[Change]) -> Result<Revision> {
        match self.transactions() {
            Some(transactions) => transactions.commit(changes).await,
            None => Err(Error::NotSupported {
                operation: "Transaction",
                id: changes.first().map(|change| change.key().to_string()).unwrap_or_default(),
                reason: "this datastore changes one object at a time".into(),
            }),
        }
    }

    /// Watches a range: from the current state, with a snapshot first, or after a given revision.
    pub fn watch(&self, range: KeyRange, after: Option<Revision>) -> Watch {
        self.start_watch(range, after, Progress::Silent)
    }

    /// Watches a range from the current state and also reports progress ([`Event::Reached`]).
    pub fn watch_with_progress(&self, range: KeyRange) -> Watch {
        self.start_watch(range, None, Progress::Reported)
    }

    fn start_watch(&self, range: KeyRange, after: Option<Revision>, progress: Progress) -> Watch {
        let recovered = self.recovered.clone();
        match &self.backend {
            Backend::Etcd(etcd) => {
                let options = WatchOptions { after, progress, recovered, grace: etcd.absence_grace() };
                Watch::start(etcd.source(&range), range, options)
            }
            Backend::Kubernetes(kubernetes) => {
                let options = WatchOptions { after, progress, recovered, grace: kubernetes.absence_grace() };
                Watch::start(kubernetes.source(&range), range, options)
            }
        }
    }

    /// Parses a resourceVersion, if it is valid for this backend.
    pub fn revision(&self, text: &str) -> Result<Revision> {
        match &self.backend {
            Backend::Etcd(_) => etcd::revision(text),
            // Opaque: kube-apiserver validates it.
            Backend::Kubernetes(_) => text.parse().map_err(|_| {
                Error::Validation(ValidationError::one("ResourceVersion", text, "must not be empty"))
            }),
        }
    }
}

impl Transactions<'_> {
    /// Applies all changes or none. Returns the revision of the transaction.
    pub async fn commit(&self, changes: &[Change]) -> Result<Revision> {
        for change in changes {
            complete(change.key())?;
        }
        self.0.commit(changes).await
    }

    /// Like [`Transactions::commit`], but a lost race is an outcome instead of an error.
    pub(crate) async fn carry_out(&self, changes: &[Change]) -> Result<Outcome> {
        for change in changes {
            complete(change.key())?;
        }
        self.0.carry_out(changes).await
    }
}

impl Change {
    pub fn key(&self) -> &Key {
        match self {
            Change::Create { key, .. }
            | Change::Update { key, .. }
            | Change::Delete { key, .. }
            | Change::Keep { key, .. } => key,
        }
    }
}

impl Entry {
    /// Creates an entry. Resources also contain the revision, as their resourceVersion.
    pub(crate) fn new(key: Key, mut value: Value, revision: Revision) -> Entry {
        if let Value::Resource(resource) = &mut value {
            resource.metadata_mut().resource_version = revision.to_string();
        }
        Entry { key, value, revision }
    }
}

/// Checks that no part of a key is missing: an incomplete key would name something else.
fn complete(key: &Key) -> Result<()> {
    if let Key::Resource { kind, namespace, name } = key {
        if name.is_empty() {
            return Err(Error::InsufficientIdentifiers("name".into()));
        }
        if kind.is_namespaced() && namespace.is_empty() {
            return Err(Error::InsufficientIdentifiers("namespace".into()));
        }
    }
    Ok(())
}
