//! Typed get, list, create, update, apply, delete, transact and watch over keys.

use crate::config::EndpointSource;
use crate::discovery;
use crate::etcd::{Cluster, Committed, Limits};
use crate::watch::Watch;
use crate::{Config, Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::response_op::Response;
use tortie_etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseOp,
};
use tortie_etcd_proto::mvccpb::KeyValue;
use tortie_model::{Key, KeyRange, Resource, Value};

/// etcd's modification revision.
pub type Revision = i64;

/// A value as it stands in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: Key,
    pub value: Value,
    pub revision: Revision,
}

/// The entries of a range at one revision. Values that cannot be read are set aside, never fatal.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub unreadable: Vec<Error>,
    pub revision: Revision,
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

/// What a watch tells its consumer: a snapshot, then every later change once.
#[derive(Debug)]
// Nearly every event is a put: boxing it would cost an allocation each to make the rare ones smaller.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    Put(Entry),
    Delete {
        key: Key,
        revision: Revision,
    },
    /// The snapshot is complete up to this revision. Told once.
    InSync(Revision),
    /// An entry was written with a value that cannot be read; the watch goes on.
    Unreadable {
        key: Key,
        error: Error,
    },
    /// Only for a watch from a revision the store no longer knows: forget what you know, a snapshot follows.
    Reset,
}

/// Cheap to clone; all clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    cluster: Arc<Cluster>,
}

impl Client {
    /// Checks the configuration; connections are opened when first needed.
    pub async fn connect(config: &Config) -> Result<Client> {
        Client::connect_with(config, Limits::default()).await
    }

    pub async fn connect_with(config: &Config, limits: Limits) -> Result<Client> {
        let target = config.target()?;
        let endpoints = match &target.endpoints {
            EndpointSource::Given(endpoints) => endpoints.clone(),
            EndpointSource::Srv(domain) => discovery::endpoints(domain, limits.dial).await?,
        };
        Ok(Client { cluster: Arc::new(Cluster::new(&target, &endpoints, limits)?) })
    }

    pub async fn get(&self, key: &Key) -> Result<Entry> {
        match self.cluster.get(&key.path()).await? {
            Some(kv) => entry(key.clone(), &kv.value, kv.mod_revision),
            None => Err(missing(key)),
        }
    }

    pub async fn list(&self, range: &KeyRange) -> Result<Listing> {
        let mut unreadable = Vec::new();
        let listed = self
            .cluster
            .list(&range.prefix(), None, false, |kv| {
                let key = Key::parse(std::str::from_utf8(&kv.key).ok()?).filter(|key| range.contains(key))?;
                entry(key, &kv.value, kv.mod_revision).map_err(|error| unreadable.push(error)).ok()
            })
            .await?;
        Ok(Listing { entries: listed.items, unreadable, revision: listed.revision })
    }

    /// The keys of a range without their values.
    pub async fn list_keys(&self, range: &KeyRange) -> Result<Vec<Key>> {
        let read =
            |kv: KeyValue| Key::parse(std::str::from_utf8(&kv.key).ok()?).filter(|key| range.contains(key));
        Ok(self.cluster.list(&range.prefix(), None, true, read).await?.items)
    }

    pub async fn create(&self, key: &Key, value: &Value) -> Result<Entry> {
        let path = path(key)?;
        let done =
            self.cluster.transact(vec![absent(&path)], vec![put(&path, value, 0)], vec![get(&path)]).await?;
        if !done.succeeded {
            let taken = found(&done, 0).next();
            return Err(exists(key, taken.as_ref()));
        }
        Ok(written(key, value, done.revision))
    }

    pub async fn update(&self, key: &Key, value: &Value, revision: Revision) -> Result<Entry> {
        let path = path(key)?;
        let compare = vec![unchanged(&path, revision)];
        let done = self.cluster.transact(compare, vec![put(&path, value, 0)], vec![get(&path)]).await?;
        if !done.succeeded {
            return Err(mismatch(key, found(&done, 0).next().as_ref()));
        }
        Ok(written(key, value, done.revision))
    }

    /// Writes whatever stands there now; with a time to live the entry goes away by itself.
    pub async fn apply(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Entry> {
        let path = path(key)?;
        let lease = match ttl {
            Some(ttl) => self.cluster.lease(ttl).await?,
            None => 0,
        };
        let request = PutRequest { key: path, value: value.encode().into(), lease, ..Default::default() };
        let revision = self.cluster.put(request).await?;
        Ok(written(key, value, revision))
    }

    /// Returns what was deleted.
    pub async fn delete(&self, key: &Key, revision: Option<Revision>) -> Result<Entry> {
        let path = path(key)?;
        let compare = revision.map(|revision| unchanged(&path, revision)).into_iter().collect();
        let delete = Request::RequestDeleteRange(DeleteRangeRequest {
            key: path.clone(),
            prev_kv: true,
            ..Default::default()
        });
        let done = self.cluster.transact(compare, vec![op(delete)], vec![get(&path)]).await?;
        match (done.succeeded, found(&done, 0).next()) {
            (true, Some(kv)) => entry(key.clone(), &kv.value, kv.mod_revision),
            (true, None) => Err(missing(key)),
            (false, kv) => Err(mismatch(key, kv.as_ref())),
        }
    }

    /// All changes or none; the revision they happened at.
    pub async fn transact(&self, changes: &[Change]) -> Result<Revision> {
        let mut compare = Vec::new();
        let mut success = Vec::new();
        let mut failure = Vec::new();
        for change in changes {
            let path = path(change.key())?;
            failure.push(get(&path));
            match change {
                Change::Create { value, .. } => {
                    compare.push(absent(&path));
                    success.push(put(&path, value, 0));
                }
                Change::Update { value, revision, .. } => {
                    compare.push(unchanged(&path, *revision));
                    success.push(put(&path, value, 0));
                }
                Change::Delete { revision, .. } => {
                    compare.push(unchanged(&path, *revision));
                    success.push(op(Request::RequestDeleteRange(DeleteRangeRequest {
                        key: path,
                        ..Default::default()
                    })));
                }
                Change::Keep { revision, .. } => compare.push(unchanged(&path, *revision)),
            }
        }
        let done = self.cluster.transact(compare, success, failure).await?;
        if done.succeeded {
            return Ok(done.revision);
        }
        for (index, change) in changes.iter().enumerate() {
            let stored = found(&done, index).next();
            let standing = stored.as_ref().map(|kv| kv.mod_revision);
            match change {
                Change::Create { key, .. } if standing.is_some() => return Err(exists(key, stored.as_ref())),
                Change::Update { key, revision, .. }
                | Change::Delete { key, revision }
                | Change::Keep { key, revision }
                    if standing != Some(*revision) =>
                {
                    return Err(mismatch(key, stored.as_ref()));
                }
                _ => {}
            }
        }
        Err(Error::Datastore("the datastore refused a transaction whose conditions hold".into()))
    }

    /// From the present state (snapshot first), or from just after a revision already seen.
    pub fn watch(&self, range: KeyRange, after: Option<Revision>) -> Watch {
        Watch::start(self.cluster.clone(), range, after)
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

/// Reads a stored value; resources carry their revision.
pub(crate) fn entry(key: Key, bytes: &[u8], revision: Revision) -> Result<Entry> {
    match Value::decode(&key, bytes) {
        Ok(value) => Ok(Entry { value: at_revision(value, revision), key, revision }),
        Err(error) => Err(Error::Parse {
            key: key.path(),
            value: String::from_utf8_lossy(bytes).into_owned(),
            reason: error.to_string(),
        }),
    }
}

fn at_revision(mut value: Value, revision: Revision) -> Value {
    if let Value::Resource(resource) = &mut value {
        resource.metadata_mut().resource_version = revision.to_string();
    }
    value
}

fn written(key: &Key, value: &Value, revision: Revision) -> Entry {
    Entry { key: key.clone(), value: at_revision(value.clone(), revision), revision }
}

/// The key's text; a key with a part missing would name something else.
fn path(key: &Key) -> Result<Bytes> {
    if let Key::Resource { kind, namespace, name } = key {
        if name.is_empty() {
            return Err(Error::InsufficientIdentifiers("name".into()));
        }
        if kind.is_namespaced() && namespace.is_empty() {
            return Err(Error::InsufficientIdentifiers("namespace".into()));
        }
    }
    Ok(key.path().into())
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn put(path: &Bytes, value: &Value, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest {
        key: path.clone(),
        value: value.encode().into(),
        lease,
        ..Default::default()
    }))
}

fn get(path: &Bytes) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key: path.clone(), ..Default::default() }))
}

fn absent(path: &Bytes) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Version.into(),
        key: path.clone(),
        target_union: Some(TargetUnion::Version(0)),
        ..Default::default()
    }
}

fn unchanged(path: &Bytes, revision: Revision) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: path.clone(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Default::default()
    }
}

/// The entries that the step of a transaction read or removed.
fn found(done: &Committed, step: usize) -> impl Iterator<Item = KeyValue> + use<> {
    let kvs = match done.responses.get(step) {
        Some(ResponseOp { response: Some(Response::ResponseRange(range)) }) => range.kvs.clone(),
        Some(ResponseOp { response: Some(Response::ResponseDeleteRange(deleted)) }) => {
            deleted.prev_kvs.clone()
        }
        _ => Vec::new(),
    };
    kvs.into_iter()
}

fn stored_resource(key: &Key, stored: Option<&KeyValue>) -> Option<Box<Resource>> {
    let kv = stored?;
    match entry(key.clone(), &kv.value, kv.mod_revision).ok()?.value {
        Value::Resource(resource) => Some(Box::new(resource)),
        _ => None,
    }
}

fn missing(key: &Key) -> Error {
    Error::DoesNotExist { id: key.to_string(), reason: "key not found".into() }
}

fn exists(key: &Key, stored: Option<&KeyValue>) -> Error {
    let revision = stored.map(|kv| kv.mod_revision).unwrap_or_default();
    Error::AlreadyExists {
        id: key.to_string(),
        reason: format!("key stands at revision {revision}"),
        current: stored_resource(key, stored),
    }
}

fn mismatch(key: &Key, stored: Option<&KeyValue>) -> Error {
    match stored {
        None => missing(key),
        Some(_) => Error::Conflict { id: key.to_string(), current: stored_resource(key, stored) },
    }
}
