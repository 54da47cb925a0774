#![doc = include_str!("../README.md")]

mod balance;
pub mod certificates;
pub mod client;
mod daemon;
mod frame_reader;
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
