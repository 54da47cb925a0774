//! Policy analysis: `explain` explains the verdict for one kind of traffic, `diff` computes the effect of a
//! change on all traffic.
//!
//! Both read only the store and use the reference evaluator of policies, so no node has to run. `cluster`
//! holds the resources of the store, `endpoint_lookup` resolves names to endpoints, and `traffic` parses the
//! traffic to evaluate.

mod advice;
mod cluster;
mod diff;
mod endpoint_lookup;
mod explain;
mod namespace_labels;
mod proxy_request;
mod report;
mod rule_text;
mod section;
mod service;
mod traffic;

pub(crate) use cluster::{EnforcedPlan, PolicyCluster};
pub use diff::{ChangeError, DiffArgs, diff};
pub(crate) use diff::{apply_changes, resolve_namespaces};
pub use endpoint_lookup::EndpointError;
pub use explain::{ExplainArgs, ReportFormat, explain};
