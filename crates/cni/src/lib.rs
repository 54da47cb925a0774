//! The front ends of the CNI plugins `calico` and `calico-ipam`.
//!
//! A container runtime starts one of these for every container, so it does as little as it can: it reads the request,
//! passes it to the node's daemon over a Unix socket and prints the answer. It has no dependencies and keeps no state.

mod error;
mod request;
mod serve;
mod socket;

pub use error::{CniError, code};
pub use request::{LIMIT, Plugin, SUPPORTED_VERSIONS, VARIABLES};
pub use serve::run;
pub use socket::{DEFAULT_SOCKET, SOCKET_KEY, SOCKET_VARIABLE};

/// Both plugins as a program of their own (`program.rs`), to be installed where runtimes look for it. It depends on nothing of
/// the host but its kernel, and starts in a fraction of the time that all of Tortie takes.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/program"));
