#![doc = include_str!("../README.md")]

pub mod absence;
mod action_executor;
pub mod balancer;
mod cluster_claim;
mod compaction;
pub mod election;
mod http;
mod leader_loop;
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
pub use state::{ProbeError, ProbeKind, check};
