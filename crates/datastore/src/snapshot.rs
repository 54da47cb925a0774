//! The store as of one commit; all readers use it.

use super::auth::AuthState;
use super::batch::{LEASES, State, lease_keys};
use super::directory::{self, Identity};
use super::encoded::Encoded;
use super::fault::Fault;
use super::file::DataFile;
use super::index::Index;
use super::limits::{Allowance, MAX_WRITE_ANSWER_BYTES, READ_WORK, WRITE_WORK, Work};
use super::range;
use super::refusal::Refusal;
use super::txn;
use super::view::{HISTORY, LEASE_KEYS, View};
use redb::{
    Database, Durability, Key, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, Value,
};
use std::fs::File;
use std::sync::{Arc, PoisonError, RwLock};
use tortie_etcd_proto::etcdserverpb::{
    DeleteRangeRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

pub type History = ReadOnlyTable<(u64, u32), &'static [u8]>;

/// A consistent view of the store. It pins its pages in the file as long as it lives, so it must not be kept longer
/// than a request.
pub struct Snapshot {
    pub state: State,
    pub identity: Identity,
    pub auth: Arc<AuthState>,
    pub index: Index,
    pub history: History,
    transaction: ReadTransaction,
    /// Defragmentation replaces the database; readers finish on the one with which they started.
    _database: Arc<Database>,
}

impl Snapshot {
    pub fn take(
        database: &Arc<Database>,
        identity: Identity,
        state: State,
        auth: Arc<AuthState>,
        index: Index,
    ) -> Result<Snapshot, Fault> {
        let transaction = database.begin_read()?;
        Ok(Snapshot {
            state,
            identity,
            auth,
            index,
            history: transaction.open_table(HISTORY)?,
            transaction,
            _database: database.clone(),
        })
    }

    pub fn view<'t>(&'t self, work: &'t Work) -> View<'t, History> {
        View {
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
        allowance: &mut Allowance,
    ) -> Result<Result<RangeResponse, Refusal>, Fault> {
        range::range(&self.view(&Work::new(READ_WORK)), request, allowance)
    }

    /// Returns an encoded range in key order.
    pub fn encoded_range(
        &self,
        request: &RangeRequest,
        allowance: &mut Allowance,
    ) -> Result<Result<Encoded, Refusal>, Fault> {
        range::encoded(&self.view(&Work::new(READ_WORK)), self.identity, request, allowance)
    }

    /// Executes a read-only transaction.
    pub fn txn(
        &self,
        request: &TxnRequest,
        allowance: &mut Allowance,
    ) -> Result<Result<TxnResponse, Refusal>, Fault> {
        txn::read(&self.view(&Work::new(READ_WORK)), request, allowance)
    }

    pub fn leases(&self) -> Result<Vec<(i64, i64)>, Fault> {
        self.transaction
            .open_table(LEASES)?
            .range::<i64>(..)?
            .map(|row| row.map(|(id, ttl)| (id.value(), ttl.value())).map_err(Into::into))
            .collect()
    }

    /// Returns an error if the response to a deletion, including the deleted values, would be too large.
    pub fn measure_delete(&self, request: &DeleteRangeRequest) -> Result<Result<(), Refusal>, Fault> {
        let mut allowance = Allowance::new(MAX_WRITE_ANSWER_BYTES);
        let work = Work::new(WRITE_WORK);
        range::measure_delete(&self.view(&work), request, &mut allowance)?;
        Ok(self.view(&work).check_work().and(allowance.check()))
    }

    /// Returns the keys attached to a lease, in order.
    pub fn lease_keys(
        &self,
        id: i64,
        allowance: &mut Allowance,
    ) -> Result<Result<Vec<Vec<u8>>, Refusal>, Fault> {
        let keys = lease_keys(&self.transaction.open_table(LEASE_KEYS)?, id, |key| {
            allowance.take(range::KEY_VALUE_BYTES + key.len())
        })?;
        Ok(allowance.check().map(|()| keys))
    }

    /// Returns the approximate size of a copy of this state.
    pub fn copy_bytes(&self) -> u64 {
        // Pages are not completely full, and the inner nodes of the trees need some more.
        let in_use = self.state.in_use.max(0) as u64;
        in_use + in_use / 3 + (1 << 20)
    }

    /// Writes this state as a separate, compact database, which is durable on return.
    pub fn copy_to(&self, file: File) -> Result<DataFile, Fault> {
        let data = DataFile::trusted(file, None);
        let database = directory::builder().create_with_backend(data.clone())?;
        copy_table(&database, HISTORY, &self.history)?;
        copy_table(&database, LEASES, &self.transaction.open_table(LEASES)?)?;
        copy_table(&database, LEASE_KEYS, &self.transaction.open_table(LEASE_KEYS)?)?;
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
) -> Result<(), Fault> {
    const PIECE: usize = 4096;
    let mut rows = from.iter()?.peekable();
    loop {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut to = transaction.open_table(definition)?;
            for row in rows.by_ref().take(PIECE) {
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
pub struct Latest {
    snapshot: RwLock<Arc<Snapshot>>,
}

impl Latest {
    pub fn new(snapshot: Snapshot) -> Latest {
        Latest { snapshot: RwLock::new(Arc::new(snapshot)) }
    }

    pub fn get(&self) -> Arc<Snapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, snapshot: Snapshot) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }
}
