//! The controllers: tasks that run once per cluster and not on every node.
//!
//! Each has a core without I/O: objects and the time in, actions out. Actions that rely on an object being missing
//! must pass the check in [`absence`]. [`lead`] is the loop around the cores, which runs in one replica at a time
//! ([`election`]). A failed action is found again, because cores derive actions from current state only.

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
pub use run::{ControllersRunError, run};
pub use state::{ProbeKind, check};
