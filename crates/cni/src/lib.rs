#![doc = include_str!("../README.md")]

mod error;
mod log_file;
mod request;
mod serve;
mod socket;

pub use error::{CniError, code};
pub use request::{CniPlugin, FORWARDED_VARIABLES, MAX_CONFIG_BYTES, SUPPORTED_VERSIONS};
pub use serve::run;
pub use socket::{DEFAULT_SOCKET, SOCKET_KEY, SOCKET_VARIABLE};

/// The executable of both plugins (built from `program.rs`), which the node installs into the runtime's CNI binary
/// directory. It is linked statically, so it needs nothing from the host but its kernel, and it starts in a fraction
/// of the time that the `tortie` binary takes.
pub const PLUGIN_EXECUTABLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/program"));
