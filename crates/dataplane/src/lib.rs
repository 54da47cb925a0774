//! Makes the kernel match the plan for links, routes and policy, and wires pods.
//!
//! The thinking (`reconcile`) is a state machine without I/O: plan and kernel events in, operations out. `kernel` is the
//! part that speaks netlink, `nft` does the same for policy, `engine` is the one task that owns all. What the kernel loses is restored; what is
//! not ours is not touched; nothing is removed before the first whole plan is known.

mod cut;

mod engine;
mod error;
mod failure;
mod faults;
mod kernel;
mod mtu;
mod netns;
mod nft;
pub mod pod;
mod reconcile;
mod reports;
mod socket_filter;
mod sysctl;
mod ways;

pub use crate::reconcile::WorkloadState;
pub use engine::{ApplyOutcome, Dataplane};
pub use error::{Error, Result};
pub use failure::{Concerns, Failure, KernelObject};
#[cfg(feature = "fault-injection")]
pub use faults::Faults;
pub use mtu::MtuChoice;
pub use netns::Netns;
pub use nft::{RuleCounter, TableStats, When, counters, remove_table};
pub use reports::{Report, Reports};
pub use ways::{Way, Ways};
