//! Options of the server.

use crate::access_log::AccessLogLevel;
use crate::check::CheckSettings;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The socket for Envoy, and its permissions.
    pub listen: PathBuf,
    pub listen_mode: u32,
    /// The policy-sync socket of the node.
    pub dial: PathBuf,
    pub check: CheckSettings,
    /// Time after which a replica without a connection is not used any more; `None` uses it for ever.
    pub stale_after: Option<Duration>,
    pub access_log: AccessLogLevel,
    pub max_connections: usize,
    /// Maximum size of one request of Envoy.
    pub max_request_bytes: usize,
    /// Memory limit of the policy of the workload.
    pub max_policy_bytes: usize,
    pub metrics: Option<SocketAddr>,
    /// Address of the HTTP server whose `/terminate` stops the process.
    pub terminate: Option<(String, u16)>,
}

/// Sockets and files of Dikastes.
pub const DEFAULT_LISTEN_PATH: &str = "/var/run/dikastes/dikastes.sock";
pub const DEFAULT_DIAL_PATH: &str = "/var/run/felix/nodeagent/socket";
pub const DEFAULT_LISTEN_MODE: u32 = 0o777;
pub const DEFAULT_MAX_CONNECTIONS: usize = 256;
pub const DEFAULT_MAX_REQUEST_BYTES: usize = 128 << 10;
pub const DEFAULT_MAX_POLICY_BYTES: usize = 256 << 20;
