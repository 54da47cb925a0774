#![doc = include_str!("../README.md")]

mod acknowledged;
mod auth;
#[cfg(fuzzing)]
pub mod authority;
#[cfg(not(fuzzing))]
mod authority;
mod batch;
mod buffer;
mod change;
pub mod check;
mod connection;
pub mod core;
mod directory;
mod encoded;
mod fault;
#[cfg(test)]
mod faults;
mod file;
mod index;
mod lessor;
pub mod limits;
mod listener;
mod options;
mod range;
mod reader;
#[cfg(fuzzing)]
pub mod record;
#[cfg(not(fuzzing))]
mod record;
mod refusal;
mod room;
mod server;
mod service;
mod snapshot;
mod span;
mod tls;
mod txn;
mod view;
mod watch;
mod writer;
mod writes;

pub use directory::{OpenError, restore};
pub use fault::StorageFault;
pub use options::{AutoCompaction, ListenAddress, ListenError, StoreOptions};
pub use refusal::RequestRejection;
pub use server::{ServeError, StoreServer};
#[cfg(fuzzing)]
pub use tortie_tls::common_name;
pub use tortie_tls::{TlsError, TlsFiles};
