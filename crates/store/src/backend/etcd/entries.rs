//! Implementation of `Backend` for etcd: operations on single entries and on ranges.

use super::compaction::EtcdCompactor;
use super::kv::{TransactionResult, after};
use super::source::EtcdSource;
use super::{CAPABILITIES, EtcdBackend, convert_revision, keys, number};
use crate::backend::{Backend, BackendCapabilities, HistoryCompactor, Transactions};
use crate::page::{PageContinuation, PageRequest};
use crate::watch::{StoreWatch, WatchOptions};
use crate::{EntryListing, Revision, StoreEntry, StoreError, StoreResult};
use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::response_op::Response;
use tortie_etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseOp,
};
use tortie_etcd_proto::mvccpb::KeyValue;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};

#[async_trait]
impl Backend for EtcdBackend {
    fn capabilities(&self) -> BackendCapabilities {
        CAPABILITIES
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }

    fn compaction(&self) -> Option<Box<dyn HistoryCompactor>> {
        Some(Box::new(EtcdCompactor::new(self.clone())))
    }

    fn watch(&self, range: KeyRange, options: WatchOptions) -> StoreWatch {
        let source = EtcdSource::new(self.cluster.clone(), range.clone(), options.decodes);
        StoreWatch::start(source, range, self.cluster.limits.absence_grace, options)
    }

    async fn probe(&self) -> StoreResult<()> {
        let key = keys::path(&StoreKey::resource(Kind::ClusterInformation, "", "default"));
        match self.cluster.probe(&key).await {
            // The server responded; whether this user may read the key is irrelevant.
            Ok(()) | Err(StoreError::Unauthorized(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn get(&self, key: &StoreKey) -> StoreResult<StoreEntry> {
        match self.cluster.get(&keys::path(key)).await? {
            Some(kv) => read(key.clone(), &kv.value, kv.mod_revision),
            None => Err(StoreError::missing(key)),
        }
    }

    async fn list(&self, range: &KeyRange) -> StoreResult<EntryListing> {
        let mut unreadable = Vec::new();
        let listed = self
            .cluster
            .list(&keys::prefix(range), None, false, |kv| {
                let key = key_in(range, &kv.key)?;
                read(key, &kv.value, kv.mod_revision).map_err(|error| unreadable.push(error)).ok()
            })
            .await?;
        Ok(EntryListing {
            entries: listed.items,
            unreadable,
            revision: convert_revision(listed.revision),
            next: None,
        })
    }

    /// Returns one page of a range. etcd does not support label selectors, so entries that are not selected are dropped
    /// here.
    async fn list_page(&self, range: &KeyRange, page: &PageRequest) -> StoreResult<EntryListing> {
        let prefix = keys::prefix(range);
        let mut place = match &page.after {
            Some(continuation) => ListPosition::read(continuation, &prefix)?,
            None => ListPosition { revision: 0, start: Bytes::from(prefix.clone()) },
        };
        let limit = page.limit.get();
        let mut entries = Vec::new();
        let mut unreadable = Vec::new();
        loop {
            // Only with a selector, request more entries than needed: most of them are likely to be dropped.
            let wanted = i64::try_from(limit - entries.len()).unwrap_or(i64::MAX);
            let wanted =
                if page.labels.is_empty() { wanted } else { wanted.max(self.cluster.limits.first_page) };
            let answer = match self.cluster.page(&prefix, place.start.clone(), place.revision, wanted).await {
                Err(StoreError::Expired(_)) => {
                    return Err(StoreError::Expired(format!(
                        "the list of {range} that the continuation belongs to"
                    )));
                }
                answer => answer?,
            };
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
                return Ok(EntryListing {
                    entries,
                    unreadable,
                    revision: convert_revision(place.revision),
                    next,
                });
            }
        }
    }

    async fn list_keys(&self, range: &KeyRange) -> StoreResult<Vec<StoreKey>> {
        let prefix = keys::prefix(range);
        Ok(self.cluster.list(&prefix, None, true, |kv| key_in(range, &kv.key)).await?.items)
    }

    async fn create(&self, key: &StoreKey, value: &StoreValue) -> StoreResult<StoreEntry> {
        let path = path(key);
        let done =
            self.cluster.transact(vec![absent(&path)], vec![put(&path, value, 0)], vec![get(&path)]).await?;
        if !done.succeeded {
            let taken = found(&done, 0).next();
            return Err(exists(key, taken.as_ref()));
        }
        Ok(written(key, value, done.revision))
    }

    async fn update(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        revision: &Revision,
    ) -> StoreResult<StoreEntry> {
        let path = path(key);
        let compare = vec![unchanged(&path, revision)];
        let done = self.cluster.transact(compare, vec![put(&path, value, 0)], vec![get(&path)]).await?;
        if !done.succeeded {
            return Err(mismatch(key, found(&done, 0).next().as_ref()));
        }
        Ok(written(key, value, done.revision))
    }

    async fn apply(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        ttl: Option<Duration>,
    ) -> StoreResult<StoreEntry> {
        let path = path(key);
        let lease = match ttl {
            Some(ttl) => self.cluster.lease(ttl).await?,
            None => 0,
        };
        let request = PutRequest { key: path, value: value.encode().into(), lease, ..Default::default() };
        let revision = self.cluster.put(request).await?;
        Ok(written(key, value, revision))
    }

    async fn write_expiring(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        replaced: Option<&Revision>,
        ttl: Duration,
    ) -> StoreResult<StoreEntry> {
        let path = path(key);
        let lease = self.cluster.lease(ttl).await?;
        let compare = vec![replaced.map_or_else(|| absent(&path), |revision| unchanged(&path, revision))];
        let done = self.cluster.transact(compare, vec![put(&path, value, lease)], vec![get(&path)]).await?;
        let stored = found(&done, 0).next();
        match (done.succeeded, replaced) {
            (true, _) => Ok(written(key, value, done.revision)),
            (false, None) => Err(exists(key, stored.as_ref())),
            (false, Some(_)) => Err(mismatch(key, stored.as_ref())),
        }
    }

    async fn delete(&self, key: &StoreKey, revision: Option<&Revision>) -> StoreResult<StoreEntry> {
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
            (true, None) => Err(StoreError::missing(key)),
            (false, kv) => Err(mismatch(key, kv.as_ref())),
        }
    }
}

/// Position of a page in a list.
struct ListPosition {
    revision: i64,
    /// The first key of the next page.
    start: Bytes,
}

impl ListPosition {
    fn write(&self) -> PageContinuation {
        PageContinuation(format!("{} {}", self.revision, String::from_utf8_lossy(&self.start)))
    }

    fn read(continuation: &PageContinuation, prefix: &str) -> StoreResult<ListPosition> {
        let text = &continuation.0;
        let place = text.split_once(' ').and_then(|(revision, start)| {
            let revision = revision.parse().ok().filter(|revision| *revision > 0)?;
            start
                .starts_with(prefix)
                .then(|| ListPosition { revision, start: Bytes::copy_from_slice(start.as_bytes()) })
        });
        place.ok_or_else(|| continuation.invalid())
    }
}

/// Parses a key; `None` if it is outside of the range.
pub(super) fn key_in(range: &KeyRange, bytes: &[u8]) -> Option<StoreKey> {
    keys::parse(std::str::from_utf8(bytes).ok()?).filter(|key| range.contains(key))
}

/// Decodes a stored value.
pub(super) fn read(key: StoreKey, bytes: &[u8], revision: i64) -> StoreResult<StoreEntry> {
    match StoreValue::decode(&key, bytes) {
        Ok(value) => Ok(StoreEntry::new(key, value, convert_revision(revision))),
        Err(error) => Err(StoreError::Parse {
            key: keys::path(&key),
            value: String::from_utf8_lossy(bytes).into_owned(),
            reason: error.to_string(),
        }),
    }
}

fn written(key: &StoreKey, value: &StoreValue, revision: i64) -> StoreEntry {
    StoreEntry::new(key.clone(), value.clone(), convert_revision(revision))
}

pub(super) fn path(key: &StoreKey) -> Bytes {
    keys::path(key).into()
}

pub(super) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(super) fn put(path: &Bytes, value: &StoreValue, lease: i64) -> RequestOp {
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
pub(super) fn found(done: &TransactionResult, step: usize) -> impl Iterator<Item = KeyValue> + use<> {
    let kvs = match done.responses.get(step) {
        Some(ResponseOp { response: Some(Response::ResponseRange(range)) }) => range.kvs.clone(),
        Some(ResponseOp { response: Some(Response::ResponseDeleteRange(deleted)) }) => {
            deleted.prev_kvs.clone()
        }
        _ => Vec::new(),
    };
    kvs.into_iter()
}

fn decode_resource(key: &StoreKey, stored: Option<&KeyValue>) -> Option<Box<Resource>> {
    let kv = stored?;
    match read(key.clone(), &kv.value, kv.mod_revision).ok()?.value {
        StoreValue::Resource(resource) => Some(Box::new(resource)),
        _ => None,
    }
}

pub(super) fn exists(key: &StoreKey, stored: Option<&KeyValue>) -> StoreError {
    let revision = stored.map(|kv| kv.mod_revision).unwrap_or_default();
    StoreError::AlreadyExists {
        id: key.to_string(),
        reason: format!("key stands at revision {revision}"),
        current: decode_resource(key, stored),
    }
}

pub(super) fn mismatch(key: &StoreKey, stored: Option<&KeyValue>) -> StoreError {
    match stored {
        None => StoreError::missing(key),
        Some(_) => StoreError::Conflict { id: key.to_string(), current: decode_resource(key, stored) },
    }
}
