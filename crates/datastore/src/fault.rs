//! Failures of the storage layer, as opposed to the rejection of a request.

use super::room;
use std::path::PathBuf;
use tonic::Status;

/// The disk or the data on it is defective; no later write may be acknowledged.
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
    /// Returns whether the disk is full; data that was durable before is not affected then.
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

    /// Returns the status of a request that failed and left the store unchanged.
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
