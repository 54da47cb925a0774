//! Operations on single entries and on ranges.

use super::kv::{Committed, after, is_compacted};
use super::{Etcd, keys, number, opaque};
use crate::page::{Continuation, Page};
use crate::{Entry, Error, Listing, Result, Revision};
use bytes::Bytes;
use std::time::Duration;
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::response_op::Response;
use tortie_etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseOp,
};
use tortie_etcd_proto::mvccpb::KeyValue;
use tortie_model::{Key, KeyRange, Resource, ValidationError, Value};

impl Etcd {
    pub(crate) async fn get(&self, key: &Key) -> Result<Entry> {
        match self.cluster.get(&keys::path(key)).await? {
            Some(kv) => read(key.clone(), &kv.value, kv.mod_revision),
            None => Err(missing(key)),
        }
    }

    pub(crate) async fn list(&self, range: &KeyRange) -> Result<Listing> {
        let mut unreadable = Vec::new();
        let listed = self
            .cluster
            .list(&keys::prefix(range), None, false, |kv| {
                let key = key_in(range, &kv.key)?;
                read(key, &kv.value, kv.mod_revision).map_err(|error| unreadable.push(error)).ok()
            })
            .await?;
        Ok(Listing { entries: listed.items, unreadable, revision: opaque(listed.revision), next: None })
    }

    /// Returns one page of a range. etcd does not support label selectors, so entries that are not selected are dropped
    /// here.
    pub(crate) async fn list_page(&self, range: &KeyRange, page: &Page) -> Result<Listing> {
        let prefix = keys::prefix(range);
        let mut place = match &page.after {
            Some(continuation) => Place::read(continuation, &prefix)?,
            None => Place { revision: 0, start: Bytes::from(prefix.clone()) },
        };
        let limit = page.limit.get();
        let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
        loop {
            // Only with a selector, request more entries than needed: most of them are likely to be dropped.
            let wanted = i64::try_from(limit - entries.len()).unwrap_or(i64::MAX);
            let wanted =
                if page.labels.is_empty() { wanted } else { wanted.max(self.cluster.limits.first_page) };
            let asked = self.cluster.page(&prefix, place.start.clone(), place.revision, wanted).await;
            let answer = asked.map_err(|error| match is_compacted(&error) {
                true => Error::Expired(format!("the list of {range} that the continuation belongs to")),
                false => error,
            })?;
            place.revision = answer.revision;
            let mut more = answer.more;
            let mut kvs = answer.kvs.into_iter();
            for kv in kvs.by_ref() {
                place.start = after(&kv.key);
                let Some(key) = key_in(range, &kv.key) else { continue };
                match read(key, &kv.value, kv.mod_revision) {
                    Ok(entry) if page.labels.selects(&entry.value) => {
                        entries.push(entry);
                    }
                    Ok(_) => {}
                    Err(error) => unreadable.push(error),
                }
                if entries.len() == limit {
                    break;
                }
            }
            more |= kvs.next().is_some();
            if !more || entries.len() == limit {
                let next = more.then(|| place.write());
                return Ok(Listing { entries, unreadable, revision: opaque(place.revision), next });
            }
        }
    }

    pub(crate) async fn list_keys(&self, range: &KeyRange) -> Result<Vec<Key>> {
        let read = |kv: KeyValue| key_in(range, &kv.key);
        Ok(self.cluster.list(&keys::prefix(range), None, true, read).await?.items)
    }

    pub(crate) async fn create(&self, key: &Key, value: &Value) -> Result<Entry> {
        let path = path(key);
        let done =
            self.cluster.transact(vec![absent(&path)], vec![put(&path, value, 0)], vec![get(&path)]).await?;
        if !done.succeeded {
            let taken = found(&done, 0).next();
            return Err(exists(key, taken.as_ref()));
        }
        Ok(written(key, value, done.revision))
    }

    pub(crate) async fn update(&self, key: &Key, value: &Value, revision: &Revision) -> Result<Entry> {
        let path = path(key);
        let compare = vec![unchanged(&path, revision)];
        let done = self.cluster.transact(compare, vec![put(&path, value, 0)], vec![get(&path)]).await?;
        if !done.succeeded {
            return Err(mismatch(key, found(&done, 0).next().as_ref()));
        }
        Ok(written(key, value, done.revision))
    }

    pub(crate) async fn apply(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Entry> {
        let path = path(key);
        let lease = match ttl {
            Some(ttl) => self.cluster.lease(ttl).await?,
            None => 0,
        };
        let request = PutRequest { key: path, value: value.encode().into(), lease, ..Default::default() };
        let revision = self.cluster.put(request).await?;
        Ok(written(key, value, revision))
    }

    pub(crate) async fn delete(&self, key: &Key, revision: Option<&Revision>) -> Result<Entry> {
        let path = path(key);
        let compare = revision.map(|revision| unchanged(&path, revision)).into_iter().collect();
        let delete = Request::RequestDeleteRange(DeleteRangeRequest {
            key: path.clone(),
            prev_kv: true,
            ..Default::default()
        });
        let done = self.cluster.transact(compare, vec![op(delete)], vec![get(&path)]).await?;
        match (done.succeeded, found(&done, 0).next()) {
            (true, Some(kv)) => read(key.clone(), &kv.value, kv.mod_revision),
            (true, None) => Err(missing(key)),
            (false, kv) => Err(mismatch(key, kv.as_ref())),
        }
    }
}

/// Position of a page in a list.
struct Place {
    revision: i64,
    /// The first key of the next page.
    start: Bytes,
}

impl Place {
    fn write(&self) -> Continuation {
        Continuation(format!("{} {}", self.revision, String::from_utf8_lossy(&self.start)))
    }

    fn read(continuation: &Continuation, prefix: &str) -> Result<Place> {
        let text = &continuation.0;
        let place = text.split_once(' ').and_then(|(revision, start)| {
            let revision = revision.parse().ok().filter(|revision| *revision > 0)?;
            start
                .starts_with(prefix)
                .then(|| Place { revision, start: Bytes::copy_from_slice(start.as_bytes()) })
        });
        place.ok_or_else(|| {
            Error::Validation(ValidationError::one("continue", text, "not the continuation of this list"))
        })
    }
}

/// Parses a key; `None` if it is outside of the range.
pub(super) fn key_in(range: &KeyRange, bytes: &[u8]) -> Option<Key> {
    keys::parse(std::str::from_utf8(bytes).ok()?).filter(|key| range.contains(key))
}

/// Decodes a stored value.
pub(super) fn read(key: Key, bytes: &[u8], revision: i64) -> Result<Entry> {
    match Value::decode(&key, bytes) {
        Ok(value) => Ok(Entry::new(key, value, opaque(revision))),
        Err(error) => Err(Error::Parse {
            key: keys::path(&key),
            value: String::from_utf8_lossy(bytes).into_owned(),
            reason: error.to_string(),
        }),
    }
}

fn written(key: &Key, value: &Value, revision: i64) -> Entry {
    Entry::new(key.clone(), value.clone(), opaque(revision))
}

pub(super) fn path(key: &Key) -> Bytes {
    keys::path(key).into()
}

pub(super) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(super) fn put(path: &Bytes, value: &Value, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest {
        key: path.clone(),
        value: value.encode().into(),
        lease,
        ..Default::default()
    }))
}

pub(super) fn get(path: &Bytes) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key: path.clone(), ..Default::default() }))
}

pub(super) fn absent(path: &Bytes) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Version.into(),
        key: path.clone(),
        target_union: Some(TargetUnion::Version(0)),
        ..Default::default()
    }
}

pub(super) fn unchanged(path: &Bytes, revision: &Revision) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: path.clone(),
        target_union: Some(TargetUnion::ModRevision(number(revision))),
        ..Default::default()
    }
}

/// Returns the entries that an operation of a transaction has read or deleted.
pub(super) fn found(done: &Committed, step: usize) -> impl Iterator<Item = KeyValue> + use<> {
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
    match read(key.clone(), &kv.value, kv.mod_revision).ok()?.value {
        Value::Resource(resource) => Some(Box::new(resource)),
        _ => None,
    }
}

fn missing(key: &Key) -> Error {
    Error::DoesNotExist { id: key.to_string(), reason: "key not found".into() }
}

pub(super) fn exists(key: &Key, stored: Option<&KeyValue>) -> Error {
    let revision = stored.map(|kv| kv.mod_revision).unwrap_or_default();
    Error::AlreadyExists {
        id: key.to_string(),
        reason: format!("key stands at revision {revision}"),
        current: stored_resource(key, stored),
    }
}

pub(super) fn mismatch(key: &Key, stored: Option<&KeyValue>) -> Error {
    match stored {
        None => missing(key),
        Some(_) => Error::Conflict { id: key.to_string(), current: stored_resource(key, stored) },
    }
}
