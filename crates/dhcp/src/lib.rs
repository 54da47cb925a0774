#![doc = include_str!("../README.md")]

pub mod codec;
mod error;
pub mod lease;
mod metrics;
mod options;
mod port;
mod rate_limit;
pub mod respond;
mod server;
pub mod table;

pub use error::DhcpError;
pub use options::DhcpOptions;
pub use server::{run, run_until};
