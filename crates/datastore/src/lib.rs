#![doc = include_str!("../README.md")]

mod acknowledged;
mod auth;
#[doc(hidden)]
mod batch;
mod buffer_pool;
mod change;
mod connection;
pub mod core;
mod data_file;
mod directory;
#[cfg(test)]
mod disk_fault_tests;
mod disk_space;
mod history_reader;
#[doc(hidden)]
pub mod history_record;
mod index;
mod key_span;
mod lessor;
pub mod limits;
mod listener;
mod options;
mod range;
mod range_encoder;
mod rejection;
mod revision_view;
mod server;
mod service;
mod snapshot;
mod storage_fault;
mod tls;
mod txn;
mod txn_writes;
pub mod validate;
mod watch;
mod writer;

pub use directory::{OpenError, restore};
pub use options::{AutoCompaction, ListenAddress, ListenError, StoreOptions};
pub use rejection::RequestRejection;
pub use server::{ServeError, StoreServer};
pub use storage_fault::{RequestError, StorageFault};
#[doc(hidden)]
pub use tortie_tls::common_name;
pub use tortie_tls::{TlsError, TlsFiles};
