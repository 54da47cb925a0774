//! The node's daemon: start-up, the loop from store to kernel, the CNI server, status, health and metrics.

mod bgp;
mod cni;
mod endpoint_files;
mod engine;
mod failpoint;
mod files;
mod http;
mod journal;
mod metrics;
mod node_status;
mod options;
mod queries;
mod run;
mod settings_file;
mod startup;
mod state;
mod status;

pub use options::NodeArgs;
pub use run::{RunError, run};
