//! Failures of the storage below us, as opposed to refusals of a request.

/// The disk or what is written on it is not in order; no later write may be acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("the database failed: {0}")]
    Database(Box<redb::Error>),
    #[error("the database holds a record that cannot be read: the file is corrupt")]
    Record,
    #[error("{0}")]
    Io(#[from] std::io::Error),
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
