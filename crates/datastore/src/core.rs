//! The store without network, threads or clock. Its inputs are requests; its outputs are responses and changes.

use super::acknowledged::{AcknowledgedFile, CommitMark};
use super::auth::{AuthChange, AuthState};
use super::batch::{BatchResult, LeaseChange, StoreState, WriteBatch};
use super::change::RevisionCommit;
use super::data_file::DataFile;
use super::directory::{self, OpenError, OpenedStore, StoreFiles, StoreIdentity};
use super::disk_space::{self, SpaceCheckCache};
use super::index::VersionIndex;
use super::rejection::RequestRejection;
use super::snapshot::{LatestSnapshot, StoreSnapshot};
use super::storage_fault::{RequestError, StorageFault};
use super::txn;
use super::validate;
use prost::Message;
use redb::Database;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tortie_etcd_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, TxnRequest, TxnResponse,
};

/// A request that changes the store and has already been validated.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteRequest {
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Grant { id: i64, ttl: i64 },
    Revoke { id: i64 },
    Compact { revision: i64 },
    Alarm { no_space: bool },
    Auth(AuthChange),
}

impl WriteRequest {
    /// Returns the approximate memory usage while the request is queued.
    pub fn weight(&self) -> usize {
        match self {
            WriteRequest::Put(request) => request.key.len() + request.value.len(),
            WriteRequest::Delete(request) => request.key.len() + request.range_end.len(),
            WriteRequest::Txn(request) => request.encoded_len(),
            _ => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum WriteResponse {
    Put(PutResponse),
    Delete(DeleteRangeResponse),
    Txn(TxnResponse),
    /// Success at this revision.
    Done {
        revision: i64,
    },
    Alarm {
        revision: i64,
        changed: bool,
    },
}

/// The result of a group of writes, all of them durable.
pub struct AppliedWrites {
    pub answers: Vec<Result<WriteResponse, RequestRejection>>,
    pub commits: Vec<RevisionCommit>,
    pub lease_changes: Vec<LeaseChange>,
}

pub struct StoreCore {
    database: Arc<Database>,
    files: Option<StoreFiles>,
    identity: StoreIdentity,
    state: StoreState,
    auth: Arc<AuthState>,
    index: VersionIndex,
    quota_bytes: u64,
    latest: Arc<LatestSnapshot>,
    plenty: SpaceCheckCache,
    /// Whether the last commit failed for lack of disk space in spite of the reserve.
    starved: bool,
}

/// Number of old versions that are removed together with one group of writes.
const COMPACTED_VERSIONS_PER_COMMIT: usize = 1024;

impl StoreCore {
    pub fn open(dir: &Path, quota_bytes: u64) -> Result<StoreCore, OpenError> {
        let opened = directory::open(dir)?;
        StoreCore::new(opened, quota_bytes)
            .map_err(|fault| OpenError::Corrupt { dir: dir.to_owned(), reason: fault.to_string() })
    }

    pub fn in_memory() -> Result<StoreCore, StorageFault> {
        StoreCore::new(directory::in_memory()?, u64::MAX)
    }

    fn new(opened: OpenedStore, quota_bytes: u64) -> Result<StoreCore, StorageFault> {
        let OpenedStore { database, files, identity, state, auth, index } = opened;
        let database = Arc::new(database);
        let snapshot = StoreSnapshot::take(&database, identity, state, auth.clone(), index.clone())?;
        let latest = Arc::new(LatestSnapshot::new(snapshot));
        let plenty = SpaceCheckCache::default();
        let starved = false;
        Ok(StoreCore { database, files, identity, state, auth, index, quota_bytes, latest, plenty, starved })
    }

    /// Returns a reference that expires once no reader uses the database any more and its directory is unlocked.
    pub fn lifetime(&self) -> Weak<Database> {
        Arc::downgrade(&self.database)
    }

    pub fn latest(&self) -> &Arc<LatestSnapshot> {
        &self.latest
    }

    /// Applies a group of writes in order and makes them durable together. A fault means that none of them may be
    /// acknowledged and that the store can no longer be written.
    pub fn apply(&mut self, writes: &[WriteRequest]) -> Result<AppliedWrites, StorageFault> {
        self.starved = false;
        match self.commit(writes) {
            Err(fault) if fault.is_full() => {
                tracing::error!(
                    "a commit ran out of disk space in spite of the check: {fault}; reopening the database"
                );
                self.reopen()?;
                self.starved = true;
                let answers = writes.iter().map(|_| Err(RequestRejection::NO_SPACE)).collect();
                Ok(AppliedWrites { answers, commits: Vec::new(), lease_changes: Vec::new() })
            }
            outcome => outcome,
        }
    }

    fn commit(&mut self, writes: &[WriteRequest]) -> Result<AppliedWrites, StorageFault> {
        let shortage = self.shortage(writes)?;
        let transaction = self.database.begin_write()?;
        let mut batch = WriteBatch::new(&transaction, self.state, self.auth.clone(), self.index.clone())?;
        if let Some(shortage) = &shortage
            && !batch.state.no_space
        {
            batch.state.no_space = true;
            tracing::warn!("{shortage}: writes are rejected; free space, then run `etcdctl alarm disarm`");
        }
        let mut answers = Vec::with_capacity(writes.len());
        for write in writes {
            let outcome = apply_one(&mut batch, write);
            batch.seal();
            answers.push(match outcome {
                Ok(response) => Ok(response),
                Err(RequestError::Rejected(rejection)) => Err(rejection),
                Err(RequestError::Storage(fault)) => return Err(fault),
            });
        }
        batch.compact_step(COMPACTED_VERSIONS_PER_COMMIT)?;
        let BatchResult { mut state, auth, index, commits, lease_changes } = batch.finish();
        let auth_changed = !Arc::ptr_eq(&auth, &self.auth);
        if state == self.state && lease_changes.is_empty() && !auth_changed {
            transaction.abort()?;
        } else {
            state.sequence += 1;
            directory::write_state(&transaction, state)?;
            if auth_changed {
                directory::write_auth(&transaction, &auth)?;
            }
            transaction.commit()?;
            if let Some(acknowledged) = self.acknowledged() {
                acknowledged.record(CommitMark::new(self.identity, state.sequence, state.revision));
            }
            self.state = state;
            self.auth = auth.clone();
            self.index = index.clone();
            self.latest.set(StoreSnapshot::take(&self.database, self.identity, state, auth, index)?);
        }
        Ok(AppliedWrites { answers, commits, lease_changes })
    }

    /// Returns why a group that adds data cannot be written, or `None` if it can.
    fn shortage(&mut self, writes: &[WriteRequest]) -> Result<Option<String>, StorageFault> {
        let mut adding = writes.iter().filter(|write| adds_data(write)).peekable();
        if adding.peek().is_none() {
            return Ok(None);
        }
        let bytes = adding.map(|write| write.weight() as u64).sum();
        let now = Instant::now();
        if self.plenty.covers(bytes, now) {
            return Ok(None);
        }
        let size = self.size()?;
        if size > self.quota_bytes {
            return Ok(Some(format!("the store takes up {size} bytes, its quota is {}", self.quota_bytes)));
        }
        let Some(files) = &self.files else { return Ok(None) };
        let is_whole = files.reserve.hold();
        let available = disk_space::available(&files.dir)?;
        if !is_whole || !disk_space::suffices(available, bytes) {
            let dir = files.dir.display();
            return Ok(Some(format!("the disk of {dir} is full ({available} bytes available)")));
        }
        self.plenty.found(available.min(self.quota_bytes - size), now);
        Ok(None)
    }

    /// Continues from the state on disk, with the NOSPACE alarm raised.
    fn reopen(&mut self) -> Result<(), StorageFault> {
        let Some(files) = &mut self.files else { return Err(StorageFault::Record) };
        let OpenedStore { database, identity, mut state, auth, index, .. } = directory::reopen(files)?;
        state.no_space = true;
        let database = Arc::new(database);
        self.latest.set(StoreSnapshot::take(&database, identity, state, auth.clone(), index.clone())?);
        self.database = database;
        self.state = state;
        self.auth = auth;
        self.index = index;
        Ok(())
    }

    /// Returns the record of acknowledged commits.
    pub fn acknowledged(&self) -> Option<&Arc<AcknowledgedFile>> {
        self.files.as_ref()?.acknowledged.as_ref()
    }

    /// Returns whether compaction still has versions to remove; `apply` removes some of them each time. If the disk
    /// had no space even for that, compaction waits for the next write, because reopening the database repeatedly
    /// would not help.
    pub fn is_compacting(&self) -> bool {
        self.state.collected < self.state.compacted && !self.starved
    }

    /// Returns the size of the database on disk in bytes.
    pub fn size(&self) -> Result<u64, StorageFault> {
        match &self.files {
            // The file is extended well before it is used; only its allocated blocks count.
            Some(files) => Ok(files.file.file().metadata()?.blocks() * 512),
            None => Ok(self.state.in_use.max(0) as u64),
        }
    }

    /// Rewrites the database without its free pages. Readers continue with their snapshot. The inner error leaves the
    /// store unchanged; the outer one means that the store can no longer be written.
    pub fn defragment(&mut self) -> Result<Result<(), StorageFault>, StorageFault> {
        let Some(files) = &mut self.files else { return Ok(Ok(())) };
        let (file, database) = match compact_copy(files, &self.latest.get()) {
            Ok(copy) => copy,
            Err(fault) => return Ok(Err(fault)),
        };
        // From here on the old file has no name: whatever happens, it must not be written any more.
        directory::sync(&files.dir)?;
        let database = Arc::new(database);
        files.file = file;
        self.latest.set(StoreSnapshot::take(
            &database,
            self.identity,
            self.state,
            self.auth.clone(),
            self.index.clone(),
        )?);
        self.database = database;
        Ok(Ok(()))
    }

    /// Returns the directory in which the store may create files.
    pub fn dir(&self) -> Option<&Path> {
        self.files.as_ref().map(|files| files.dir.as_path())
    }
}

/// Creates a compact copy of the newest state and puts it in place of the database.
fn compact_copy(files: &StoreFiles, latest: &StoreSnapshot) -> Result<(DataFile, Database), StorageFault> {
    disk_space::require(&files.dir, latest.copy_bytes())?;
    let (path, file) = directory::temporary(&files.dir)?;
    let copied = fill_copy(&path, file, files, latest);
    if copied.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    copied
}

fn fill_copy(
    path: &Path,
    file: File,
    files: &StoreFiles,
    latest: &StoreSnapshot,
) -> Result<(DataFile, Database), StorageFault> {
    file.lock()?;
    latest.copy_to(file.try_clone()?)?;
    let data = DataFile::trusted(file, Some(files.reserve.clone()));
    let database = directory::builder().create_with_backend(data.clone())?;
    directory::put_in_place(path, &files.dir)?;
    Ok((data, database))
}

fn apply_one(batch: &mut WriteBatch, write: &WriteRequest) -> Result<WriteResponse, RequestError> {
    if batch.state.no_space && adds_data(write) {
        return Err(RequestRejection::NO_SPACE.into());
    }
    match write {
        WriteRequest::Put(request) => {
            batch.check_lease(request)?;
            batch.check_kept_key(request)?;
            return Ok(WriteResponse::Put(batch.put(request)?));
        }
        WriteRequest::Delete(request) => {
            return Ok(WriteResponse::Delete(batch.delete_within_limits(request)?));
        }
        WriteRequest::Txn(request) => return Ok(WriteResponse::Txn(txn::write(batch, request)?)),
        WriteRequest::Alarm { no_space } => {
            let changed = std::mem::replace(&mut batch.state.no_space, *no_space) != *no_space;
            return Ok(WriteResponse::Alarm { revision: batch.revision(), changed });
        }
        WriteRequest::Grant { id, ttl } => batch.grant(*id, *ttl)?,
        WriteRequest::Revoke { id } => batch.revoke(*id)?,
        WriteRequest::Compact { revision } => compact(batch, *revision)?,
        WriteRequest::Auth(change) => batch.auth = Arc::new(batch.auth.apply(change)?),
    }
    Ok(WriteResponse::Done { revision: batch.revision() })
}

fn adds_data(write: &WriteRequest) -> bool {
    match write {
        WriteRequest::Put(_) | WriteRequest::Grant { .. } => true,
        WriteRequest::Txn(request) => validate::adds_data(request),
        _ => false,
    }
}

fn compact(batch: &mut WriteBatch, revision: i64) -> Result<(), RequestRejection> {
    if revision <= batch.state.compacted {
        return Err(RequestRejection::COMPACTED);
    }
    if revision > batch.state.revision {
        return Err(RequestRejection::FUTURE_REVISION);
    }
    batch.state.compacted = revision;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_LEASES, MAX_WRITE_WORK};
    use tortie_etcd_proto::etcdserverpb::RequestOp;
    use tortie_etcd_proto::etcdserverpb::request_op::Request;

    fn delete(key: &str, range_end: &str) -> DeleteRangeRequest {
        DeleteRangeRequest {
            key: key.to_owned().into(),
            range_end: range_end.to_owned().into(),
            prev_kv: false,
        }
    }

    #[test]
    fn too_many_keys_are_not_deleted_at_once() {
        let mut core = StoreCore::in_memory().unwrap();
        let put = |number: usize| {
            let key = format!("{}/{number}", number % 2).into();
            WriteRequest::Put(PutRequest { key, ..Default::default() })
        };
        let puts: Vec<WriteRequest> = (0..MAX_WRITE_WORK + 1).map(put).collect();
        assert!(core.apply(&puts).unwrap().answers.iter().all(Result::is_ok));
        let within = RequestOp { request: Some(Request::RequestDeleteRange(delete("0/", "2"))) };
        let txn = TxnRequest { success: vec![within], ..Default::default() };
        let revision = core.latest().get().state.revision;
        let applied = core.apply(&[WriteRequest::Delete(delete("0/", "2")), WriteRequest::Txn(txn)]).unwrap();
        assert_eq!(
            applied.answers,
            [Err(RequestRejection::TOO_MUCH_WORK), Err(RequestRejection::TOO_MUCH_WORK)]
        );
        assert_eq!(core.latest().get().state.revision, revision, "what is refused changes nothing");
        // It succeeds in parts.
        for (from, to) in [("0/", "1"), ("1/", "2")] {
            let applied = core.apply(&[WriteRequest::Delete(delete(from, to))]).unwrap();
            assert!(applied.answers[0].is_ok() && !applied.commits[0].changes.is_empty());
        }
    }

    #[test]
    fn there_are_not_more_leases_than_fit() {
        let mut core = StoreCore::in_memory().unwrap();
        let grants: Vec<WriteRequest> =
            (1..=MAX_LEASES as i64 + 1).map(|id| WriteRequest::Grant { id, ttl: 60 }).collect();
        let mut answers = core.apply(&grants).unwrap().answers;
        assert_eq!(answers.pop(), Some(Err(RequestRejection::TOO_MANY_LEASES)));
        assert!(answers.iter().all(Result::is_ok));
        // A revoked lease makes room for another.
        let answers = core
            .apply(&[WriteRequest::Revoke { id: 7 }, WriteRequest::Grant { id: -7, ttl: 60 }])
            .unwrap()
            .answers;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
}
