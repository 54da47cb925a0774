#![doc = include_str!("../README.md")]

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
