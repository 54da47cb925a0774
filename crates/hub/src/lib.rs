//! The hub: it keeps one set of watches on the datastore and passes their feed on to any number of nodes.
//!
//! Three parts without I/O decide everything: the [`ledger`] (what the hub knows), a [`session`] (what one client still has
//! to get) and the [`replica`] (what a client knows, and what it tells its node). [`protocol`] is the form of what they say to each
//! other. [`server`] and [`client`] carry it over the network.

mod balance;
pub mod certificates;
pub mod client;
mod daemon;
mod frames;
pub mod ledger;
pub mod protocol;
pub mod replica;
pub mod server;
pub mod session;
mod settings;
pub mod tls;

pub use daemon::{RunError, run};
pub use settings::{DEFAULT_FILE, SettingError, Settings};

#[cfg(test)]
mod simulation;
