//! Failures of the storage layer, as opposed to the rejection of a request.

use super::disk_space;
use super::rejection::RequestRejection;
use std::path::PathBuf;
use tonic::Status;

/// The disk or the data on it is defective; no later write may be acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum StorageFault {
    #[error("the database failed: {0}")]
    Database(Box<redb::Error>),
    #[error("the database holds a record that cannot be read: the file is corrupt")]
    Record,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{needed} bytes are needed in {dir} and {available} are available")]
    NoRoom { dir: PathBuf, needed: u64, available: u64 },
}

impl StorageFault {
    /// Returns whether the disk is full; data that was durable before is not affected then.
    pub fn is_full(&self) -> bool {
        match self {
            StorageFault::Database(error) => {
                matches!(error.as_ref(), redb::Error::Io(error) if disk_space::is_full(error))
            }
            StorageFault::Io(error) => disk_space::is_full(error),
            StorageFault::NoRoom { .. } => true,
            StorageFault::Record => false,
        }
    }

    /// Returns the status of a request that failed and left the store unchanged.
    pub fn into_status(self, outcome: &str) -> Status {
        if self.is_full() {
            return Status::resource_exhausted(format!(
                "etcdserver: {outcome}: {self}; make room and try again"
            ));
        }
        Status::internal(format!("etcdserver: {outcome}: {self}"))
    }
}

/// Reason why a request was not executed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Rejected(#[from] RequestRejection),
    #[error(transparent)]
    Storage(#[from] StorageFault),
}

macro_rules! from_redb {
    ($($error:ty),*) => {
        $(impl From<$error> for StorageFault {
            fn from(error: $error) -> StorageFault {
                StorageFault::Database(Box::new(error.into()))
            }
        }

        impl From<$error> for RequestError {
            fn from(error: $error) -> RequestError {
                StorageFault::from(error).into()
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
