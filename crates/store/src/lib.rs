//! The store: one typed, versioned client over the backends.
//!
//! `client` moves keys and values; `resources` adds what projectcalico.org/v3 promises about each kind on top of it.

pub mod client;
pub mod config;
mod discovery;
pub mod error;
mod etcd;
pub mod resources;
mod watch;

pub use client::{Change, Client, Entry, Event, Listing, Revision};
pub use config::Config;
pub use error::Error;
pub use etcd::Limits;
pub use resources::Resources;
pub use watch::{Connection, Watch};

pub type Result<T> = std::result::Result<T, Error>;
