//! A group of writes in progress: applied in order to one database transaction, and invisible to readers until it is
//! committed.

use super::auth::AuthState;
use super::change::{KeyChange, RevisionCommit};
use super::history_record::{CommitRevision, HistoryEntry, KeyVersion, decode_history, encode_history};
use super::index::{LatestVersion, VersionIndex};
use super::key_span::KeySpan;
use super::limits::{
    MAX_HELD_BYTES, MAX_LEASES, MAX_WRITE_RESPONSE_BYTES, MAX_WRITE_WORK, ResponseAllowance, WorkBudget,
};
use super::range;
use super::rejection::RequestRejection;
use super::revision_view::{HISTORY_TABLE, LEASE_KEYS_TABLE, RevisionView};
use super::storage_fault::{RequestError, StorageFault};
use bytes::Bytes;
use redb::{ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use tortie_etcd_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    ResponseHeader,
};
use tortie_etcd_proto::mvccpb::KeyValue;

/// Maps a lease ID to its granted time to live in seconds.
pub const LEASES_TABLE: TableDefinition<i64, i64> = TableDefinition::new("leases");

/// Values that change with almost every write, stored together in one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreState {
    pub revision: i64,
    /// Revisions below this one can no longer be read.
    pub compacted: i64,
    /// Superseded versions up to this revision have been removed from the tables.
    pub collected: i64,
    /// Bytes of keys and values in the tables.
    pub in_use: i64,
    pub no_space: bool,
    /// Number of commits.
    pub sequence: u64,
}

/// A granted or revoked lease; passed to the lessor once it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    Granted { id: i64, ttl: i64 },
    Revoked { id: i64 },
}

type WritableHistory<'t> = Table<'t, (u64, u32), &'static [u8]>;
type LeaseTable<'t> = Table<'t, i64, i64>;
type LeaseKeyTable<'t> = Table<'t, (i64, &'static [u8]), ()>;

pub struct WriteBatch<'t> {
    transaction: &'t WriteTransaction,
    index: VersionIndex,
    history: WritableHistory<'t>,
    /// Opened on first use: most groups do not involve leases.
    leases: Option<LeaseTable<'t>>,
    lease_keys: Option<LeaseKeyTable<'t>>,
    pub state: StoreState,
    pub auth: Arc<AuthState>,
    /// Changes of the request that is being applied.
    open: Vec<Arc<KeyChange>>,
    /// Index in `open` of the first change of each key; filled once a request changes a key for the second time.
    first_changes: HashMap<Bytes, usize>,
    commits: Vec<RevisionCommit>,
    lease_changes: Vec<LeaseChange>,
    scratch: Vec<u8>,
    /// Bytes of previous values that the changes of this group hold.
    held: usize,
    /// Whether every change of the current request holds its previous value.
    is_whole: bool,
    /// Remaining number of versions that the current request may examine.
    pub work: WorkBudget,
}

/// The result of a group, to be published after its transaction is committed.
pub struct BatchResult {
    pub state: StoreState,
    pub auth: Arc<AuthState>,
    pub index: VersionIndex,
    pub commits: Vec<RevisionCommit>,
    pub lease_changes: Vec<LeaseChange>,
}

/// The newest version of a key, copied out of its page.
struct NewestVersion {
    at: CommitRevision,
    live: Option<KeyValue>,
}

impl<'t> WriteBatch<'t> {
    pub fn new(
        transaction: &'t WriteTransaction,
        state: StoreState,
        auth: Arc<AuthState>,
        index: VersionIndex,
    ) -> Result<WriteBatch<'t>, StorageFault> {
        Ok(WriteBatch {
            transaction,
            index,
            history: transaction.open_table(HISTORY_TABLE)?,
            leases: None,
            lease_keys: None,
            state,
            auth,
            open: Vec::new(),
            first_changes: HashMap::new(),
            commits: Vec::new(),
            lease_changes: Vec::new(),
            scratch: Vec::new(),
            held: 0,
            is_whole: true,
            work: WorkBudget::new(usize::MAX),
        })
    }

    /// Closes the tables, so that the transaction can be committed.
    pub fn finish(self) -> BatchResult {
        let WriteBatch { state, auth, index, commits, lease_changes, .. } = self;
        BatchResult { state, auth, index, commits, lease_changes }
    }

    /// Returns the revision that the current request sees: its own, once it has changed something.
    pub fn revision(&self) -> i64 {
        self.state.revision + i64::from(!self.open.is_empty())
    }

    /// Ends a request. Its changes, if any, become one revision.
    pub fn seal(&mut self) -> i64 {
        self.first_changes.clear();
        self.work.set(usize::MAX);
        if !self.open.is_empty() {
            self.state.revision += 1;
            let changes = std::mem::take(&mut self.open);
            let is_whole = std::mem::replace(&mut self.is_whole, true);
            self.commits.push(RevisionCommit { revision: self.state.revision, changes, is_whole });
        }
        self.state.revision
    }

    pub fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision(), ..Default::default() })
    }

    pub fn view(&self) -> RevisionView<'_, WritableHistory<'t>> {
        RevisionView {
            work: &self.work,
            index: &self.index,
            history: &self.history,
            revision: self.revision(),
            compacted: self.state.compacted,
        }
    }

    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, RequestError> {
        // The size of the response was checked before.
        range::range(&self.view(), request, &mut ResponseAllowance::new(usize::MAX))
    }

    /// Rejects a put that names a lease which does not exist.
    pub fn check_lease(&mut self, request: &PutRequest) -> Result<(), RequestError> {
        if request.lease != 0 && self.leases()?.get(request.lease)?.is_none() {
            return Err(RequestRejection::LEASE_NOT_FOUND.into());
        }
        Ok(())
    }

    /// Rejects a put that keeps the value or the lease of a key which does not exist.
    pub fn check_kept_key(&self, request: &PutRequest) -> Result<(), RequestRejection> {
        let keeps = request.ignore_value || request.ignore_lease;
        if keeps && self.index.get(&request.key).is_none_or(|latest| latest.deleted) {
            return Err(RequestRejection::KEY_NOT_FOUND);
        }
        Ok(())
    }

    pub fn put(&mut self, request: &PutRequest) -> Result<PutResponse, StorageFault> {
        let NewestVersion { at: previous, live } = self.newest(&request.key)?;
        let old_lease = live.as_ref().map_or(0, |kv| kv.lease);
        let at = self.next_revision();
        let kv = KeyValue {
            key: request.key.clone(),
            create_revision: live.as_ref().map_or(at.main, |kv| kv.create_revision),
            mod_revision: at.main,
            version: live.as_ref().map_or(0, |kv| kv.version) + 1,
            value: match &live {
                Some(old) if request.ignore_value => old.value.clone(),
                _ => request.value.clone(),
            },
            lease: if request.ignore_lease { old_lease } else { request.lease },
        };
        if old_lease != kv.lease {
            if old_lease != 0 {
                self.lease_keys()?.remove((old_lease, kv.key.as_ref()))?;
            }
            if kv.lease != 0 {
                self.lease_keys()?.insert((kv.lease, kv.key.as_ref()), ())?;
            }
        }
        let version = KeyVersion {
            at,
            deleted: false,
            created: kv.create_revision,
            version: kv.version,
            lease: kv.lease,
            value: &kv.value,
        };
        self.write_version(&HistoryEntry { key: &kv.key, previous, version })?;
        let answer = if request.prev_kv { live.clone() } else { None };
        let before = self.previous_of_transaction(live);
        self.push_change(KeyChange::put(kv, before));
        Ok(PutResponse { header: self.header(), prev_kv: answer })
    }

    /// Deletes a range. Rejects the request if it would delete too much at once, or if the response, which may
    /// contain the deleted values, would be too large.
    pub fn delete_within_limits(
        &mut self,
        request: &DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, RequestError> {
        let mut allowance = ResponseAllowance::new(MAX_WRITE_RESPONSE_BYTES);
        self.work.set(MAX_WRITE_WORK);
        range::measure_delete(&self.view(), request, &mut allowance)?;
        self.view().check_work()?;
        allowance.check()?;
        self.work.set(usize::MAX);
        Ok(self.delete(request)?)
    }

    pub fn delete(&mut self, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse, StorageFault> {
        let mut deletions = Vec::new();
        let mut room = MAX_HELD_BYTES.saturating_sub(self.held);
        let span = KeySpan::new(&request.key, &request.range_end);
        self.view().visit(&span, self.revision(), |key, version| {
            let key = Bytes::copy_from_slice(key);
            let kept = request.prev_kv || version.value.len() <= room;
            room = room.saturating_sub(version.value.len());
            let kv = if kept {
                version.key_value(key)
            } else {
                // The fields that are needed to delete it.
                KeyValue { key, lease: version.lease, ..Default::default() }
            };
            deletions.push((version.at, kv, kept));
            ControlFlow::Continue(())
        })?;
        let deleted = deletions.len() as i64;
        let mut prev_kvs = Vec::new();
        if request.prev_kv {
            prev_kvs.extend(deletions.iter().map(|(_, kv, _)| kv.clone()));
        }
        for (previous, kv, kept) in deletions {
            self.write_tombstone(previous, kv, kept)?;
        }
        Ok(DeleteRangeResponse { header: self.header(), deleted, prev_kvs })
    }

    pub fn grant(&mut self, id: i64, ttl: i64) -> Result<(), RequestError> {
        let leases = self.leases()?;
        if leases.get(id)?.is_some() {
            return Err(RequestRejection::LEASE_EXISTS.into());
        }
        if leases.len()? >= MAX_LEASES {
            return Err(RequestRejection::TOO_MANY_LEASES.into());
        }
        leases.insert(id, ttl)?;
        self.lease_changes.push(LeaseChange::Granted { id, ttl });
        Ok(())
    }

    /// Deletes the lease and its keys, in key order.
    pub fn revoke(&mut self, id: i64) -> Result<(), RequestError> {
        if self.leases()?.remove(id)?.is_none() {
            return Err(RequestRejection::LEASE_NOT_FOUND.into());
        }
        let keys = lease_keys(self.lease_keys()?, id, |_| true)?;
        for key in keys {
            if let NewestVersion { at, live: Some(kv) } = self.newest(&key)? {
                self.write_tombstone(at, kv, true)?;
            }
        }
        self.lease_changes.push(LeaseChange::Revoked { id });
        Ok(())
    }

    /// Removes some of the versions that compaction made unreachable.
    pub fn compact_step(&mut self, budget: usize) -> Result<(), StorageFault> {
        let StoreState { collected, compacted, .. } = self.state;
        if collected >= compacted {
            return Ok(());
        }
        let from = CommitRevision { main: collected + 1, sub: 0 }.key();
        let until = CommitRevision { main: compacted, sub: u32::MAX }.key();
        let mut superseded = Vec::new();
        let mut tombstones = Vec::new();
        let mut seen = 0;
        let mut last = collected;
        for row in self.history.range(from..=until)? {
            let (key, bytes) = row?;
            let at = CommitRevision::from_key(key.value());
            if seen >= budget && at.main != last {
                break;
            }
            seen += 1;
            last = at.main;
            let entry = decode_history(at, bytes.value())?;
            if entry.previous != CommitRevision::default() {
                superseded.push(entry.previous);
            }
            if entry.version.deleted {
                tombstones.push((at, entry.key.to_vec()));
            }
        }
        self.state.collected = if seen < budget { compacted } else { last };
        for at in superseded {
            self.remove_version(at)?;
        }
        for (at, key) in tombstones {
            self.remove_version(at)?;
            if self.index.get(&key).is_some_and(|newest| newest.at == at) {
                self.index.remove(&key);
            }
        }
        Ok(())
    }

    fn remove_version(&mut self, at: CommitRevision) -> Result<(), StorageFault> {
        if let Some(row) = self.history.remove(at.key())? {
            self.state.in_use -= row.value().len() as i64;
        }
        Ok(())
    }

    fn next_revision(&self) -> CommitRevision {
        CommitRevision {
            main: self.state.revision + 1,
            sub: u32::try_from(self.open.len()).unwrap_or(u32::MAX),
        }
    }

    fn newest(&self, key: &[u8]) -> Result<NewestVersion, StorageFault> {
        let Some(LatestVersion { at, deleted }) = self.index.get(key) else {
            return Ok(NewestVersion { at: CommitRevision::default(), live: None });
        };
        if deleted {
            return Ok(NewestVersion { at, live: None });
        }
        let guard = self.history.get(at.key())?.ok_or(StorageFault::Record)?;
        let version = decode_history(at, guard.value())?.version;
        Ok(NewestVersion { at, live: Some(version.key_value(Bytes::copy_from_slice(key))) })
    }

    /// Writes a tombstone. Without `has_value`, watchers get no previous value from it.
    fn write_tombstone(
        &mut self,
        previous: CommitRevision,
        kv: KeyValue,
        has_value: bool,
    ) -> Result<(), StorageFault> {
        let at = self.next_revision();
        let version = KeyVersion { at, deleted: true, created: 0, version: 0, lease: 0, value: &[] };
        self.write_version(&HistoryEntry { key: &kv.key, previous, version })?;
        if kv.lease != 0 {
            self.lease_keys()?.remove((kv.lease, kv.key.as_ref()))?;
        }
        let key = kv.key.clone();
        self.is_whole &= has_value;
        let before = self.previous_of_transaction(Some(kv).filter(|_| has_value));
        self.push_change(KeyChange::delete(key, at.main, before));
        Ok(())
    }

    fn push_change(&mut self, mut change: KeyChange) {
        self.held += change.previous.as_ref().map_or(0, |kv| kv.value.len());
        if self.held > MAX_HELD_BYTES {
            change.previous = None;
            self.is_whole = false;
        }
        if !self.first_changes.is_empty() {
            self.first_changes.entry(change.kv.key.clone()).or_insert(self.open.len());
        }
        self.open.push(Arc::new(change));
    }

    /// Returns the previous value of an event: the value before the whole transaction, not before this change.
    fn previous_of_transaction(&mut self, newest: Option<KeyValue>) -> Option<KeyValue> {
        let newest = newest?;
        if newest.mod_revision <= self.state.revision {
            return Some(newest);
        }
        if self.first_changes.is_empty() {
            for (position, change) in self.open.iter().enumerate() {
                self.first_changes.entry(change.kv.key.clone()).or_insert(position);
            }
        }
        let first = self.open.get(*self.first_changes.get(&newest.key)?)?;
        first.previous.clone()
    }

    fn write_version(&mut self, entry: &HistoryEntry) -> Result<(), StorageFault> {
        encode_history(entry, &mut self.scratch);
        self.state.in_use += self.scratch.len() as i64;
        self.history.insert(entry.version.at.key(), self.scratch.as_slice())?;
        self.index.set(entry.key, LatestVersion { at: entry.version.at, deleted: entry.version.deleted });
        Ok(())
    }

    fn leases(&mut self) -> Result<&mut LeaseTable<'t>, StorageFault> {
        match &mut self.leases {
            Some(table) => Ok(table),
            unopened => Ok(unopened.insert(self.transaction.open_table(LEASES_TABLE)?)),
        }
    }

    fn lease_keys(&mut self) -> Result<&mut LeaseKeyTable<'t>, StorageFault> {
        match &mut self.lease_keys {
            Some(table) => Ok(table),
            unopened => Ok(unopened.insert(self.transaction.open_table(LEASE_KEYS_TABLE)?)),
        }
    }
}

/// Returns the keys attached to a lease in order, until `take` returns false.
pub fn lease_keys(
    table: &impl ReadableTable<(i64, &'static [u8]), ()>,
    id: i64,
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<Vec<Vec<u8>>, StorageFault> {
    let mut keys = Vec::new();
    for row in table.range((id, &[][..])..)? {
        let (key, _) = row?;
        let (lease, key) = key.value();
        if lease != id || !take(key) {
            break;
        }
        keys.push(key.to_vec());
    }
    Ok(keys)
}
