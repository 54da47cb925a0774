//! The node's daemon: start-up, the loop from store to kernel, the CNI server, status, health and metrics.

mod cni;
mod engine;
mod failpoint;
mod files;
mod http;
mod journal;
mod metrics;
mod options;
mod run;
mod startup;
mod state;
mod status;
mod sync;

pub use options::NodeArgs;
pub use run::{RunError, run};
