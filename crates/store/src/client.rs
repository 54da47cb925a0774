//! Typed get, list, create, update, apply, delete and watch over keys, whatever the backend.

use crate::backend::{Backend, ConnectPatience, Limits, etcd};
use crate::page::{Continuation, Page};
use crate::watch::{Progress, Watch, WatchOptions};
use crate::{Config, Error, Outcome, Result, Revision};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tortie_model::{Key, KeyRange, ValidationError, Value};

/// A value as it stands in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: Key,
    pub value: Value,
    pub revision: Revision,
}

/// The entries of a range, or a page of them, at one revision. Values that cannot be read are set aside, never fatal.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub unreadable: Vec<Error>,
    pub revision: Revision,
    /// Where the next page begins; `None` at the end of the list.
    pub next: Option<Continuation>,
}

/// One step of a transaction; all happen or none does.
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
    /// Changes nothing, but the rest only happens if this entry still stands as it was read.
    Keep {
        key: Key,
        revision: Revision,
    },
}

/// What a watch reports to its consumer: a snapshot, then every later change once.
#[derive(Debug)]
// Nearly every event is a put: boxing it would cost an allocation each to make the rare ones smaller.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    Put(Entry),
    Delete {
        key: Key,
        revision: Revision,
    },
    /// The snapshot is complete up to this revision. Reported once.
    InSync(Revision),
    /// An entry was written with a value that cannot be read; the watch goes on.
    Unreadable {
        key: Key,
        revision: Revision,
        error: Error,
    },
    /// Only for a watch that was asked for it: everything up to this revision has been reported.
    Reached(Revision),
    /// Only for a watch from a revision the store no longer knows: forget what you know, a snapshot follows.
    Reset,
}

/// Cheap to clone; all clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    backend: Backend,
    /// Notified when a watch reaches the store again: the others need not wait for the end of their pause.
    recovered: Arc<Notify>,
}

/// Writes several entries at once. Only some backends can.
#[derive(Clone, Copy, Debug)]
pub struct Transactions<'a>(&'a etcd::Etcd);

impl Client {
    /// Checks the configuration. On the Kubernetes API, finds the API group in use and fails after some seconds if it
    /// cannot; other connections are opened when first needed.
    pub async fn connect(config: &Config) -> Result<Client> {
        Client::connect_with(config, Limits::from_environment()).await
    }

    pub async fn connect_with(config: &Config, limits: Limits) -> Result<Client> {
        Client::with_patience(config, limits, ConnectPatience::Command).await
    }

    /// The same for a daemon, which waits until the API group is known; each cause of the wait is reported once. Only an
    /// error of the configuration is returned.
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

    /// Returns the entry, or `None` only if the store itself reports that it does not exist. An API server that does not serve
    /// the kind, an answer that is about something else and a value that cannot be read are errors: no proof of absence.
    pub async fn look_up(&self, key: &Key) -> Result<Option<Entry>> {
        match &self.backend {
            Backend::Etcd(etcd) => match etcd.get(key).await {
                Err(Error::DoesNotExist { .. }) => Ok(None),
                found => found.map(Some),
            },
            Backend::Kubernetes(kubernetes) => kubernetes.look_up(key).await,
        }
    }

    /// The whole range.
    pub async fn list(&self, range: &KeyRange) -> Result<Listing> {
        match &self.backend {
            Backend::Etcd(etcd) => etcd.list(range).await,
            Backend::Kubernetes(kubernetes) => kubernetes.list(range).await,
        }
    }

    /// One page of the range; [`Listing::next`] leads to the one after it.
    pub async fn list_page(&self, range: &KeyRange, page: &Page) -> Result<Listing> {
        match &self.backend {
            Backend::Etcd(etcd) => etcd.list_page(range, page).await,
            Backend::Kubernetes(kubernetes) => kubernetes.list_page(range, page).await,
        }
    }

    /// The keys of a range without their values.
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

    /// Only if the entry still stands at the revision.
    pub async fn update(&self, key: &Key, value: &Value, revision: &Revision) -> Result<Entry> {
        complete(key)?;
        match &self.backend {
            Backend::Etcd(etcd) => etcd.update(key, value, revision).await,
            Backend::Kubernetes(kubernetes) => kubernetes.update(key, value, revision).await,
        }
    }

    /// Writes whatever stands there now; with a time to live the entry goes away by itself.
    pub async fn apply(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Entry> {
        complete(key)?;
        match &self.backend {
            Backend::Etcd(etcd) => etcd.apply(key, value, ttl).await,
            Backend::Kubernetes(kubernetes) => kubernetes.apply(key, value, ttl).await,
        }
    }

    /// Returns what was deleted; with a revision, only if the entry still stands at it.
    pub async fn delete(&self, key: &Key, revision: Option<&Revision>) -> Result<Entry> {
        complete(key)?;
        match &self.backend {
            Backend::Etcd(etcd) => etcd.delete(key, revision).await,
            Backend::Kubernetes(kubernetes) => kubernetes.delete(key, revision).await,
        }
    }

    /// Whether this is the Kubernetes API, where nodes, pods, namespaces and services are somebody else's.
    pub fn is_kubernetes(&self) -> bool {
        matches!(self.backend, Backend::Kubernetes(_))
    }

    /// Whether what people write is stored as they write it, so that nobody checks an object against others.
    pub fn stores_v3_as_written(&self) -> bool {
        match &self.backend {
            Backend::Etcd(_) => false,
            Backend::Kubernetes(kubernetes) => kubernetes.is_v3(),
        }
    }

    /// Whether nodes can say there how they and their endpoints are: it takes entries that go away by themselves.
    pub fn keeps_statuses(&self) -> bool {
        !self.is_kubernetes()
    }

    /// Transactions over several keys, where the backend has them.
    pub fn transactions(&self) -> Option<Transactions<'_>> {
        match &self.backend {
            Backend::Etcd(etcd) => Some(Transactions(etcd)),
            Backend::Kubernetes(_) => None,
        }
    }

    /// Has the backend forget its history; `None` where that is somebody else's work.
    pub fn compactor(&self) -> Option<etcd::Compactor> {
        match &self.backend {
            Backend::Etcd(etcd) => Some(etcd::Compactor::new(etcd.clone())),
            Backend::Kubernetes(_) => None,
        }
    }

    /// [`Transactions::commit`], or an error on a backend without transactions.
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

    /// From the present state (snapshot first), or from just after a revision already seen.
    pub fn watch(&self, range: KeyRange, after: Option<Revision>) -> Watch {
        self.start_watch(range, after, Progress::Silent)
    }

    /// From the present state; it also says up to where everything has been reported ([`Event::Reached`]).
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

    /// The revision in the text of a resourceVersion, if it can be one of this backend's.
    pub fn revision(&self, text: &str) -> Result<Revision> {
        match &self.backend {
            Backend::Etcd(_) => etcd::revision(text),
            // Opaque: the server judges it.
            Backend::Kubernetes(_) => text.parse().map_err(|_| {
                Error::Validation(ValidationError::one("ResourceVersion", text, "must not be empty"))
            }),
        }
    }
}

impl Transactions<'_> {
    /// All changes or none; the revision they happened at.
    pub async fn commit(&self, changes: &[Change]) -> Result<Revision> {
        for change in changes {
            complete(change.key())?;
        }
        self.0.commit(changes).await
    }

    /// [`Transactions::commit`], where it is no error that another writer was faster.
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
    /// Resources carry their revision.
    pub(crate) fn new(key: Key, mut value: Value, revision: Revision) -> Entry {
        if let Value::Resource(resource) = &mut value {
            resource.metadata_mut().resource_version = revision.to_string();
        }
        Entry { key, value, revision }
    }
}

/// A key with a part missing would name something else.
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
