//! The node's daemon: start-up, the loop from store to kernel, the CNI server, status, health and metrics.

mod bgp;
mod cni;
mod endpoint_files;
pub mod engine;
mod failpoint;
mod files;
mod health;
mod http;
pub mod install;
mod journal;
mod kube_condition;
mod liveness;
mod lock;
mod metrics;
mod node_status;
mod options;
mod public_keys;
mod queries;
mod reclaim;
mod recording;
mod replay;
mod run;
mod settings_file;
mod socket;
mod startup;
mod state;
mod status;
mod tasks;
mod tunnel_addresses;
mod wired;

/// Whether bytes are a request of a CNI plugin.
#[cfg(fuzzing)]
pub fn is_cni_request(bytes: &[u8]) -> bool {
    cni::is_request(bytes)
}

pub use health::{Health, Level, Part};
pub use options::NodeArgs;
pub use replay::{ReplayError, core as replay_core, replay, replay_from};
pub use run::{RunError, run};
