//! A group of writes in progress: applied in order to one database transaction, and invisible to readers until it is
//! committed.

use super::auth::AuthState;
use super::change::{KeyChange, RevisionCommit};
use super::fault::StorageFault;
use super::index::{LatestVersion, VersionIndex};
use super::limits::{
    MAX_HELD_BYTES, MAX_LEASES, MAX_WRITE_RESPONSE_BYTES, MAX_WRITE_WORK, ResponseAllowance, WorkBudget,
};
use super::range;
use super::record::{CommitRevision, HistoryEntry, KeyVersion, decode_history, encode_history};
use super::refusal::RequestRejection;
use super::span::KeySpan;
use super::view::{HISTORY_TABLE, LEASE_KEYS_TABLE, RevisionView};
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

    pub fn range(
        &self,
        request: &RangeRequest,
    ) -> Result<Result<RangeResponse, RequestRejection>, StorageFault> {
        // The size of the response was checked before.
        range::range(&self.view(), request, &mut ResponseAllowance::new(usize::MAX))
    }

    /// Returns whether the lease that a put names exists; true if it names none.
    pub fn has_lease(&mut self, request: &PutRequest) -> Result<bool, StorageFault> {
        Ok(request.lease == 0 || self.leases()?.get(request.lease)?.is_some())
    }

    /// Returns whether the key exists if a put keeps its value or lease; true if it keeps neither.
    pub fn has_kept(&self, request: &PutRequest) -> Result<bool, StorageFault> {
        let keeps = request.ignore_value || request.ignore_lease;
        Ok(!keeps || self.index.get(&request.key).is_some_and(|place| !place.deleted))
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
        self.write(&HistoryEntry { key: &kv.key, previous, version })?;
        let answer = if request.prev_kv { live.clone() } else { None };
        let before = self.before(live);
        self.push(KeyChange::put(kv, before));
        Ok(PutResponse { header: self.header(), prev_kv: answer })
    }

    /// Deletes a range. Rejects the request if it would delete too much at once, or if the response, which may
    /// contain the deleted values, would be too large.
    pub fn delete_within_limits(
        &mut self,
        request: &DeleteRangeRequest,
    ) -> Result<Result<DeleteRangeResponse, RequestRejection>, StorageFault> {
        let mut allowance = ResponseAllowance::new(MAX_WRITE_RESPONSE_BYTES);
        self.work.set(MAX_WRITE_WORK);
        range::measure_delete(&self.view(), request, &mut allowance)?;
        if let Err(refusal) = self.view().check_work().and(allowance.check()) {
            return Ok(Err(refusal));
        }
        self.work.set(usize::MAX);
        Ok(Ok(self.delete(request)?))
    }

    pub fn delete(&mut self, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse, StorageFault> {
        let mut deletions = Vec::new();
        let mut room = MAX_HELD_BYTES.saturating_sub(self.held);
        let span = KeySpan::new(&request.key, &request.range_end);
        self.view().visit(&span, self.revision(), |key, version| {
            let key = Bytes::copy_from_slice(key);
            let kept = request.prev_kv || version.value.len() <= room;
            room = room.saturating_sub(version.value.len());
            let kv = match kept {
                true => version.key_value(key),
                // The fields that are needed to delete it.
                false => KeyValue { key, lease: version.lease, ..Default::default() },
            };
            deletions.push((version.at, kv, kept));
            ControlFlow::Continue(())
        })?;
        let deleted = deletions.len() as i64;
        let prev_kvs = match request.prev_kv {
            true => deletions.iter().map(|(_, kv, _)| kv.clone()).collect(),
            false => Vec::new(),
        };
        for (previous, kv, kept) in deletions {
            self.write_tombstone(previous, kv, kept)?;
        }
        Ok(DeleteRangeResponse { header: self.header(), deleted, prev_kvs })
    }

    pub fn grant(&mut self, id: i64, ttl: i64) -> Result<Result<(), RequestRejection>, StorageFault> {
        let leases = self.leases()?;
        if leases.get(id)?.is_some() {
            return Ok(Err(RequestRejection::LEASE_EXISTS));
        }
        if leases.len()? >= MAX_LEASES {
            return Ok(Err(RequestRejection::TOO_MANY_LEASES));
        }
        leases.insert(id, ttl)?;
        self.lease_changes.push(LeaseChange::Granted { id, ttl });
        Ok(Ok(()))
    }

    /// Deletes the lease and its keys, in key order; `None` if the lease does not exist.
    pub fn revoke(&mut self, id: i64) -> Result<Option<()>, StorageFault> {
        if self.leases()?.remove(id)?.is_none() {
            return Ok(None);
        }
        let keys = lease_keys(self.lease_keys()?, id, |_| true)?;
        for key in keys {
            if let NewestVersion { at, live: Some(kv) } = self.newest(&key)? {
                self.write_tombstone(at, kv, true)?;
            }
        }
        self.lease_changes.push(LeaseChange::Revoked { id });
        Ok(Some(()))
    }

    /// Removes some of the versions that compaction made unreachable. Returns true when none is left.
    pub fn compact_step(&mut self, budget: usize) -> Result<bool, StorageFault> {
        let StoreState { collected, compacted, .. } = self.state;
        if collected >= compacted {
            return Ok(true);
        }
        let from = CommitRevision { main: collected + 1, sub: 0 }.key();
        let until = CommitRevision { main: compacted, sub: u32::MAX }.key();
        let mut superseded = Vec::new();
        let mut tombstones = Vec::new();
        let (mut seen, mut last) = (0, collected);
        for row in self.history.range(from..=until)? {
            let (key, bytes) = row?;
            let at = CommitRevision::from_key(key.value());
            if seen >= budget && at.main != last {
                break;
            }
            (seen, last) = (seen + 1, at.main);
            let entry = decode_history(at, bytes.value())?;
            if entry.previous != CommitRevision::default() {
                superseded.push(entry.previous);
            }
            if entry.version.deleted {
                tombstones.push((at, entry.key.to_vec()));
            }
        }
        let done = seen < budget;
        self.state.collected = if done { compacted } else { last };
        for at in superseded {
            self.forget(at)?;
        }
        for (at, key) in tombstones {
            self.forget(at)?;
            if self.index.get(&key).is_some_and(|newest| newest.at == at) {
                self.index.remove(&key);
            }
        }
        Ok(self.state.collected >= compacted)
    }

    fn forget(&mut self, at: CommitRevision) -> Result<(), StorageFault> {
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
        self.write(&HistoryEntry { key: &kv.key, previous, version })?;
        if kv.lease != 0 {
            self.lease_keys()?.remove((kv.lease, kv.key.as_ref()))?;
        }
        let key = kv.key.clone();
        self.is_whole &= has_value;
        let before = self.before(Some(kv).filter(|_| has_value));
        self.push(KeyChange::delete(key, at.main, before));
        Ok(())
    }

    fn push(&mut self, mut change: KeyChange) {
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
    fn before(&mut self, newest: Option<KeyValue>) -> Option<KeyValue> {
        let newest = newest?;
        if newest.mod_revision <= self.state.revision {
            return Some(newest);
        }
        if self.first_changes.is_empty() {
            for (place, change) in self.open.iter().enumerate() {
                self.first_changes.entry(change.kv.key.clone()).or_insert(place);
            }
        }
        let first = self.open.get(*self.first_changes.get(&newest.key)?)?;
        first.previous.clone()
    }

    fn write(&mut self, entry: &HistoryEntry) -> Result<(), StorageFault> {
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
