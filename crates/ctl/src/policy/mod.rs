//! What policy does: `explain` says why one kind of traffic passes or not, `diff` what a change would do to all of it.
//!
//! Both read the store alone and judge with the evaluator that defines what a policy means, so no node has to run.
//! `cluster` is everything the store says, `party` who is meant by a name, `traffic` what is sent.

mod advice;
mod cluster;
mod diff;
mod explain;
mod party;
mod report;
mod section;
mod traffic;
mod words;

pub(crate) use cluster::{Cluster, Enforced};
pub use diff::{Diff, diff};
pub(crate) use diff::{changed, placed};
pub use explain::{Explain, Format, explain};
