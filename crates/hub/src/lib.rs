//! The hub: keeps one set of watches on the datastore and forwards their feed to any number of nodes.
//!
//! Three parts without I/O hold the logic: the [`ledger`] (state of the hub), a [`session`] (what one client still
//! has to receive) and the [`replica`] (state of a client and the events it emits to its node). [`protocol`] defines
//! their messages. [`server`] and [`client`] exchange these over the network.

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

pub use daemon::{HubRunError, run};
pub use settings::{DEFAULT_TYPHA_CONFIG_FILE, HubSettingError, HubSettings};

#[cfg(test)]
mod simulation;
