//! The network layer: sockets, socket options and connections.

pub mod connection;
mod options;
pub mod sockets;
