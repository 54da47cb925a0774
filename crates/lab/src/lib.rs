//! Runs a whole cluster on one machine, for experiments, debugging and tests.
//!
//! Every node is a network namespace with its own daemon, every pod is a network namespace connected by the real CNI
//! plugin, and another namespace holds the network between the nodes and the datastore process. The host's own network
//! is not changed. The lab finds its parts by namespace names and by files written before anything is created, so that
//! [`down`] also works after a crash.

mod bgp;
mod bird;
mod cli;
mod cluster;
mod cni;
mod demo;
mod down;
mod encap;
mod enter;
mod error;
mod fabric;
mod files;
mod hub;
mod kube;
mod logs;
mod names;
mod netns;
mod node;
mod place;
mod pod;
mod process;
mod routes;
mod sessions;
mod status;
mod store;
mod top;
mod topology;
mod up;

pub use cli::{LabArgs, run};
pub use error::{LabError, LabResult};
