//! The datastore client: one typed, versioned interface to all backends.
//!
//! `client` reads and writes keys and values through a [`backend`]; `resources` adds the semantics of
//! projectcalico.org/v3 for each kind.

pub mod backend;
pub mod client;
pub mod config;
pub mod error;
pub mod operation;
pub mod page;
pub mod printable;
pub mod resources;
mod watch;

pub use backend::etcd::Compactor;
pub use backend::{Limits, ResponseError, orchestrator, rejected_responses};
pub use client::{Change, Client, Entry, Event, Listing, Transactions};
pub use config::Config;
pub use error::Error;
pub use operation::{Operation, Outcome, Refusal};
pub use page::{Continuation, LabelSelector, Page};
pub use resources::{Resources, tier_of};
pub use tortie_model::Revision;
pub use watch::{
    Absence, Backoff, Connection, Watch, collection_prefix, distrusted_lists, guarded_collection, is_guarded,
};

pub type Result<T> = std::result::Result<T, Error>;
