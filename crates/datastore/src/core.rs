//! The store without network, threads or clock: requests in, answers and changes out.

use super::batch::{Batch, Finished, LeaseChange, State};
use super::change::Commit;
use super::check;
use super::directory::{self, Identity, OpenError, Opened};
use super::fault::Fault;
use super::file::DataFile;
use super::index::Index;
use super::refusal::Refusal;
use super::snapshot::{Latest, Snapshot};
use super::txn;
use prost::Message;
use redb::Database;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tortie_etcd_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, TxnRequest, TxnResponse,
};

/// A request that changes the store, already checked for its form.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Grant { id: i64, ttl: i64 },
    Revoke { id: i64 },
    Compact { revision: i64 },
    Alarm { no_space: bool },
}

impl Write {
    /// About how much memory it takes while it waits.
    pub fn weight(&self) -> usize {
        match self {
            Write::Put(request) => request.key.len() + request.value.len(),
            Write::Delete(request) => request.key.len() + request.range_end.len(),
            Write::Txn(request) => request.encoded_len(),
            _ => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Put(PutResponse),
    Delete(DeleteRangeResponse),
    Txn(TxnResponse),
    /// Done, at this revision.
    Done {
        revision: i64,
    },
    Alarm {
        revision: i64,
        changed: bool,
    },
}

/// What a group of writes came to, all of it durable.
pub struct Applied {
    pub answers: Vec<Result<Answer, Refusal>>,
    pub commits: Vec<Commit>,
    pub lease_changes: Vec<LeaseChange>,
}

pub struct Core {
    database: Arc<Database>,
    place: Option<Place>,
    identity: Identity,
    state: State,
    index: Index,
    quota_bytes: u64,
    latest: Arc<Latest>,
}

struct Place {
    dir: PathBuf,
    file: DataFile,
}

/// How many old versions are removed along with one group of writes.
const SCRUB_BUDGET: usize = 1024;

impl Core {
    pub fn open(dir: &Path, quota_bytes: u64) -> Result<Core, OpenError> {
        let opened = directory::open(dir)?;
        Core::new(opened, dir, quota_bytes)
            .map_err(|fault| OpenError::Corrupt { dir: dir.to_owned(), reason: fault.to_string() })
    }

    pub fn in_memory() -> Result<Core, Fault> {
        Core::new(directory::in_memory()?, Path::new(""), u64::MAX)
    }

    fn new(opened: Opened, dir: &Path, quota_bytes: u64) -> Result<Core, Fault> {
        let Opened { database, file, identity, state, index } = opened;
        let database = Arc::new(database);
        let snapshot = Snapshot::take(&database, identity, state, index.clone())?;
        let latest = Arc::new(Latest::new(snapshot));
        let place = file.map(|file| Place { dir: dir.to_owned(), file });
        Ok(Core { database, place, identity, state, index, quota_bytes, latest })
    }

    /// Gone once nobody works on the database any more and its directory is free.
    pub fn lifetime(&self) -> Weak<Database> {
        Arc::downgrade(&self.database)
    }

    pub fn latest(&self) -> &Arc<Latest> {
        &self.latest
    }

    /// Applies a group of writes in order and makes them durable together. A fault means that none of them may be
    /// acknowledged, and that nothing more can be written.
    pub fn apply(&mut self, writes: &[Write]) -> Result<Applied, Fault> {
        let full = self.size()? > self.quota_bytes;
        let transaction = self.database.begin_write()?;
        let mut batch = Batch::new(&transaction, self.state, self.index.clone())?;
        batch.state.no_space |= full;
        let mut answers = Vec::with_capacity(writes.len());
        for write in writes {
            answers.push(apply_one(&mut batch, write)?);
        }
        batch.scrub(SCRUB_BUDGET)?;
        let Finished { state, index, commits, lease_changes } = batch.finish();
        if state == self.state && lease_changes.is_empty() {
            transaction.abort()?;
        } else {
            directory::write_state(&transaction, state)?;
            transaction.commit()?;
            self.state = state;
            self.index = index.clone();
            self.latest.set(Snapshot::take(&self.database, self.identity, state, index)?);
        }
        Ok(Applied { answers, commits, lease_changes })
    }

    /// Whether compaction still has versions to remove; `apply` removes some of them each time.
    pub fn is_scrubbing(&self) -> bool {
        self.state.scrubbed < self.state.compacted
    }

    /// Bytes the database takes up on disk.
    pub fn size(&self) -> Result<u64, Fault> {
        match &self.place {
            // The file is made longer well ahead of its use; only the blocks behind it count.
            Some(place) => Ok(place.file.file().metadata()?.blocks() * 512),
            None => Ok(self.state.in_use.max(0) as u64),
        }
    }

    /// Rewrites the database without its free pages. Readers go on with what they have.
    pub fn defragment(&mut self) -> Result<(), Fault> {
        let Some(place) = &mut self.place else { return Ok(()) };
        let (path, file) = directory::temporary(&place.dir)?;
        let swap = || -> Result<Database, Fault> {
            file.lock()?;
            let copy = self.latest.get().copy_to(file.try_clone()?)?;
            let database = directory::builder().create_with_backend(copy)?;
            directory::publish(&path, &place.dir)?;
            Ok(database)
        }();
        match swap {
            Ok(database) => {
                let database = Arc::new(database);
                place.file = DataFile::trusted(file);
                self.latest.set(Snapshot::take(&database, self.identity, self.state, self.index.clone())?);
                self.database = database;
                Ok(())
            }
            Err(fault) => {
                let _ = std::fs::remove_file(&path);
                Err(fault)
            }
        }
    }

    /// Where files that belong to the store may be made.
    pub fn dir(&self) -> Option<&Path> {
        self.place.as_ref().map(|place| place.dir.as_path())
    }
}

fn apply_one(batch: &mut Batch, write: &Write) -> Result<Result<Answer, Refusal>, Fault> {
    if batch.state.no_space && adds_data(write) {
        return Ok(Err(Refusal::NO_SPACE));
    }
    let outcome = match write {
        Write::Put(request) if !batch.has_lease(request)? => Err(Refusal::LEASE_NOT_FOUND),
        Write::Put(request) if !batch.has_kept(request)? => Err(Refusal::KEY_NOT_FOUND),
        Write::Put(request) => Ok(Answer::Put(batch.put(request)?)),
        Write::Delete(request) => Ok(Answer::Delete(batch.delete(request)?)),
        Write::Txn(request) => txn::write(batch, request)?.map(Answer::Txn),
        Write::Grant { id, ttl } => {
            batch.grant(*id, *ttl)?.map(|()| done(batch)).ok_or(Refusal::LEASE_EXISTS)
        }
        Write::Revoke { id } => batch.revoke(*id)?.map(|()| done(batch)).ok_or(Refusal::LEASE_NOT_FOUND),
        Write::Compact { revision } => compact(batch, *revision),
        Write::Alarm { no_space } => {
            let changed = std::mem::replace(&mut batch.state.no_space, *no_space) != *no_space;
            Ok(Answer::Alarm { revision: batch.revision(), changed })
        }
    };
    batch.seal();
    Ok(outcome)
}

fn done(batch: &Batch) -> Answer {
    Answer::Done { revision: batch.revision() }
}

fn adds_data(write: &Write) -> bool {
    match write {
        Write::Put(_) | Write::Grant { .. } => true,
        Write::Txn(request) => check::puts(request),
        _ => false,
    }
}

fn compact(batch: &mut Batch, revision: i64) -> Result<Answer, Refusal> {
    if revision <= batch.state.compacted {
        return Err(Refusal::COMPACTED);
    }
    if revision > batch.state.revision {
        return Err(Refusal::FUTURE_REVISION);
    }
    batch.state.compacted = revision;
    Ok(done(batch))
}
