#![doc = include_str!("../README.md")]

mod access_log;
mod check;
mod metrics;
mod options;
mod principal;
mod probe;
pub mod proto;
mod replica;
mod server;
mod set_assembly;
mod state;
mod sync_client;

pub use access_log::{AccessLog, AccessLogLevel};
pub use check::{
    CheckAttributes, CheckCause, CheckCode, CheckSettings, CheckVerdict, PolicyChecker, RequestFault,
    UnsyncedVerdict, decide,
};
pub use metrics::L7Metrics;
pub use options::{
    DEFAULT_DIAL_PATH, DEFAULT_LISTEN_MODE, DEFAULT_LISTEN_PATH, DEFAULT_MAX_CONNECTIONS,
    DEFAULT_MAX_POLICY_BYTES, DEFAULT_MAX_REQUEST_BYTES, ServeOptions,
};
pub use principal::ServiceAccountPrincipal;
pub use probe::{HealthProbe, ProbeError, TestRequest, ask_health, send_check};
pub use replica::{Replica, ReplicaChange, ReplicaError, prepare_changes};
pub use server::{L7Server, MAX_MESSAGE_BYTES, ServeError, run};
pub use state::{PolicyState, ReplicaAccess};
