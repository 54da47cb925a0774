//! The controllers: what somebody has to do once in a cluster and not on every node.
//!
//! Each has a core without I/O: objects and the time in, actions out. What relies on an object being missing
//! passes the one gate of [`absence`]. [`lead`] is the loop around them, which runs in one
//! replica at a time ([`election`]). An action that failed is found again, because cores look at what there is and remember
//! nothing else.

pub mod absence;
pub mod balancer;
mod carrier;
mod compaction;
pub mod election;
mod http;
mod lead;
pub mod lifecycle;
pub mod metrics;
pub mod migration;
pub mod mirror;
pub mod node;
mod options;
pub mod policy_names;
mod run;
pub mod settings;
mod state;
pub mod write;

pub use options::ControllersArgs;
pub use run::{RunError, run};
pub use state::{Probe, check};
