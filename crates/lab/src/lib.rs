//! A whole cluster on one machine, to try things, to look for faults and to test on.
//!
//! Every node is a network namespace with a daemon of its own, every pod is one that the real CNI plugin wires, and a
//! further one holds the network between the nodes and the store's process. Nothing touches the host's own network.
//! What exists is found again by the names of the namespaces and by files written before anything is made, so that
//! [`down`] works after a crash too.

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
pub use error::{Error, Result};
