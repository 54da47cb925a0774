#![doc = include_str!("../README.md")]

pub mod backend;
pub mod client;
pub mod config;
pub mod error;
pub mod operation;
pub mod page;
pub mod printable;
pub mod resources;
mod watch;

pub use backend::{
    Backend, BackendCapabilities, HistoryCompactor, ResponseError, Transactions, orchestrator,
    rejected_responses,
};
pub use client::{EntryChange, EntryListing, StoreClient, StoreEntry, StoreEvent};
pub use config::{StoreConfig, StoreLimits};
pub use error::StoreError;
pub use operation::{OperationOutcome, OperationRefusal, StoreOperation};
pub use page::{EntryLabelSelector, PageContinuation, PageRequest};
pub use resources::{ResourceClient, tier_of};
pub use tortie_model::Revision;
pub use watch::{
    Backoff, ListAbsence, StoreWatch, WatchConnection, WatchOptions, collection_prefix, distrusted_lists,
    guarded_collection, is_guarded,
};

pub type StoreResult<T> = std::result::Result<T, StoreError>;
