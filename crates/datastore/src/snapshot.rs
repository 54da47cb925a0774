//! The store as of one commit; all readers use it.

use super::auth::AuthState;
use super::batch::{LEASES_TABLE, StoreState, lease_keys};
use super::data_file::DataFile;
use super::directory::{self, StoreIdentity};
use super::index::VersionIndex;
use super::limits::{MAX_READ_WORK, MAX_WRITE_RESPONSE_BYTES, MAX_WRITE_WORK, ResponseAllowance, WorkBudget};
use super::range;
use super::range_encoder::EncodedRange;
use super::revision_view::{HISTORY_TABLE, LEASE_KEYS_TABLE, RevisionView};
use super::storage_fault::{RequestError, StorageFault};
use super::txn;
use redb::{
    Database, Durability, Key, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, Value,
};
use std::fs::File;
use std::sync::{Arc, PoisonError, RwLock};
use tortie_etcd_proto::etcdserverpb::{
    DeleteRangeRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

pub type SnapshotHistory = ReadOnlyTable<(u64, u32), &'static [u8]>;

/// A consistent view of the store. It pins its pages in the file as long as it lives, so it must not be kept longer
/// than a request.
pub struct StoreSnapshot {
    pub state: StoreState,
    pub identity: StoreIdentity,
    pub auth: Arc<AuthState>,
    pub index: VersionIndex,
    pub history: SnapshotHistory,
    transaction: ReadTransaction,
    /// Defragmentation replaces the database; readers finish on the one with which they started.
    _database: Arc<Database>,
}

impl StoreSnapshot {
    pub fn take(
        database: &Arc<Database>,
        identity: StoreIdentity,
        state: StoreState,
        auth: Arc<AuthState>,
        index: VersionIndex,
    ) -> Result<StoreSnapshot, StorageFault> {
        let transaction = database.begin_read()?;
        Ok(StoreSnapshot {
            state,
            identity,
            auth,
            index,
            history: transaction.open_table(HISTORY_TABLE)?,
            transaction,
            _database: database.clone(),
        })
    }

    pub fn view<'t>(&'t self, work: &'t WorkBudget) -> RevisionView<'t, SnapshotHistory> {
        RevisionView {
            work,
            index: &self.index,
            history: &self.history,
            revision: self.state.revision,
            compacted: self.state.compacted,
        }
    }

    pub fn range(
        &self,
        request: &RangeRequest,
        allowance: &mut ResponseAllowance,
    ) -> Result<RangeResponse, RequestError> {
        range::range(&self.view(&WorkBudget::new(MAX_READ_WORK)), request, allowance)
    }

    /// Returns an encoded range in key order.
    pub fn encoded_range(
        &self,
        request: &RangeRequest,
        allowance: &mut ResponseAllowance,
    ) -> Result<EncodedRange, RequestError> {
        range::encode_range(&self.view(&WorkBudget::new(MAX_READ_WORK)), self.identity, request, allowance)
    }

    /// Executes a read-only transaction.
    pub fn txn(
        &self,
        request: &TxnRequest,
        allowance: &mut ResponseAllowance,
    ) -> Result<TxnResponse, RequestError> {
        txn::read(&self.view(&WorkBudget::new(MAX_READ_WORK)), request, allowance)
    }

    pub fn leases(&self) -> Result<Vec<(i64, i64)>, StorageFault> {
        self.transaction
            .open_table(LEASES_TABLE)?
            .range::<i64>(..)?
            .map(|row| row.map(|(id, ttl)| (id.value(), ttl.value())).map_err(Into::into))
            .collect()
    }

    /// Returns an error if the response to a deletion, including the deleted values, would be too large.
    pub fn check_delete(&self, request: &DeleteRangeRequest) -> Result<(), RequestError> {
        let mut allowance = ResponseAllowance::new(MAX_WRITE_RESPONSE_BYTES);
        let work = WorkBudget::new(MAX_WRITE_WORK);
        range::measure_delete(&self.view(&work), request, &mut allowance)?;
        self.view(&work).check_work()?;
        Ok(allowance.check()?)
    }

    /// Returns the keys attached to a lease, in order.
    pub fn lease_keys(
        &self,
        id: i64,
        allowance: &mut ResponseAllowance,
    ) -> Result<Vec<Vec<u8>>, RequestError> {
        let keys = lease_keys(&self.transaction.open_table(LEASE_KEYS_TABLE)?, id, |key| {
            allowance.take(range::KEY_VALUE_OVERHEAD_BYTES + key.len())
        })?;
        allowance.check()?;
        Ok(keys)
    }

    /// Returns the approximate size of a copy of this state.
    pub fn copy_bytes(&self) -> u64 {
        // Pages are not completely full, and the inner nodes of the trees need some more.
        let in_use = self.state.in_use.max(0) as u64;
        in_use + in_use / 3 + (1 << 20)
    }

    /// Writes this state as a separate, compact database, which is durable on return.
    pub fn copy_to(&self, file: File) -> Result<DataFile, StorageFault> {
        let data = DataFile::trusted(file, None);
        let database = directory::builder().create_with_backend(data.clone())?;
        copy_table(&database, HISTORY_TABLE, &self.history)?;
        copy_table(&database, LEASES_TABLE, &self.transaction.open_table(LEASES_TABLE)?)?;
        copy_table(&database, LEASE_KEYS_TABLE, &self.transaction.open_table(LEASE_KEYS_TABLE)?)?;
        let transaction = database.begin_write()?;
        directory::write_identity(&transaction, self.identity)?;
        directory::write_state(&transaction, self.state)?;
        directory::write_auth(&transaction, &self.auth)?;
        transaction.commit()?;
        drop(database);
        data.file().sync_all()?;
        Ok(data)
    }
}

/// Copies a table in pieces, so that a large one does not have to fit into memory.
fn copy_table<K: Key + 'static, V: Value + 'static>(
    database: &Database,
    definition: TableDefinition<'static, K, V>,
    from: &ReadOnlyTable<K, V>,
) -> Result<(), StorageFault> {
    const ROWS_PER_TRANSACTION: usize = 4096;
    let mut rows = from.iter()?.peekable();
    loop {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut to = transaction.open_table(definition)?;
            for row in rows.by_ref().take(ROWS_PER_TRANSACTION) {
                let (key, value) = row?;
                to.insert(key.value(), value.value())?;
            }
        }
        transaction.commit()?;
        if rows.peek().is_none() {
            return Ok(());
        }
    }
}

/// The newest durable state.
pub struct LatestSnapshot {
    snapshot: RwLock<Arc<StoreSnapshot>>,
}

impl LatestSnapshot {
    pub fn new(snapshot: StoreSnapshot) -> LatestSnapshot {
        LatestSnapshot { snapshot: RwLock::new(Arc::new(snapshot)) }
    }

    pub fn get(&self) -> Arc<StoreSnapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, snapshot: StoreSnapshot) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }
}
