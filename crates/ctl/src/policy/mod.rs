//! Policy analysis: `explain` explains the verdict for one kind of traffic, `diff` computes the effect of a
//! change on all traffic.
//!
//! Both read only the store and use the reference evaluator of policies, so no node has to run. `cluster`
//! holds the resources of the store, `party` resolves names to endpoints, and `traffic` parses the traffic to
//! evaluate.

mod advice;
mod cluster;
mod diff;
mod explain;
mod party;
mod report;
mod section;
mod traffic;
mod words;

pub(crate) use cluster::{EnforcedPlan, PolicyCluster};
pub use diff::{DiffArgs, diff};
pub(crate) use diff::{changed, placed};
pub use explain::{ExplainArgs, ReportFormat, explain};
