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

pub use cluster::{EnforcedPlan, PolicyCluster};
pub use diff::{ChangeError, DiffArgs, DiffSummary, diff, load_for_change, summarize_change};
pub(crate) use diff::{apply_changes, resolve_namespaces};
pub use endpoint_lookup::{EndpointError, workload_name};
pub use explain::{ExplainArgs, ExplainQuestion, PolicyExplanation, ReportFormat, explain, explain_traffic};
pub use rule_text::describe_rule;
pub use traffic::{ExplainedTraffic, TrafficError};
