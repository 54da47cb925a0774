//! Failures of the storage below us, as opposed to refusals of a request.

use super::room;
use std::path::PathBuf;
use tonic::Status;

/// The disk or what is written on it is not in order; no later write may be acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("the database failed: {0}")]
    Database(Box<redb::Error>),
    #[error("the database holds a record that cannot be read: the file is corrupt")]
    Record,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{needed} bytes are needed in {dir} and {available} are available")]
    NoRoom { dir: PathBuf, needed: u64, available: u64 },
}

impl Fault {
    /// Whether the disk is full; nothing that was durable before is in question then.
    pub fn is_full(&self) -> bool {
        match self {
            Fault::Database(error) => {
                matches!(error.as_ref(), redb::Error::Io(error) if room::is_full(error))
            }
            Fault::Io(error) => room::is_full(error),
            Fault::NoRoom { .. } => true,
            Fault::Record => false,
        }
    }

    /// For a request that could not be carried out and left the store as it was.
    pub fn into_status(self, outcome: &str) -> Status {
        match self.is_full() {
            true => {
                Status::resource_exhausted(format!("etcdserver: {outcome}: {self}; make room and try again"))
            }
            false => Status::internal(format!("etcdserver: {outcome}: {self}")),
        }
    }
}

macro_rules! from_redb {
    ($($error:ty),*) => {
        $(impl From<$error> for Fault {
            fn from(error: $error) -> Fault {
                Fault::Database(Box::new(error.into()))
            }
        })*
    };
}

from_redb!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::DatabaseError,
    redb::SetDurabilityError
);
