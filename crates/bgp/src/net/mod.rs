//! The network: sockets, their options, connections.

pub mod connection;
mod options;
pub mod sockets;
