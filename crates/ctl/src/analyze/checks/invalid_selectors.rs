//! Finds selectors that cannot be parsed. They come into the store past the API, or from a newer version.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use serde_json::Value;
use tortie_model::selector::Selector;
use tortie_model::{Kind, Resource};

/// The name of the check.
pub const INVALID_SELECTOR_CHECK: &str = "selector-invalid";

/// Findings that an invalid selector causes. They name a wrong reason.
pub const CONSEQUENCES: [&str; 4] =
    ["policy-selects-nothing", "rule-matches-nothing", "pool-without-nodes", "peer-without-node"];

pub fn find_invalid_selectors(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut findings = Vec::new();
    for resource in subject.cluster.resources().filter(|resource| has_selectors(resource.kind())) {
        let mut invalid = Vec::new();
        collect_invalid(&resource.to_value()["spec"], "spec", &mut invalid);
        findings.extend(invalid.into_iter().map(|(path, text, error)| AnalysisFinding {
            object: resource.identify(),
            check: INVALID_SELECTOR_CHECK,
            reason: format!("{path} is no valid selector: {text:?}: {error}"),
            advice: format!("Correct the selector; until then {}.", describe_effect(resource, &path)),
        }));
    }
    findings
}

fn has_selectors(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::NetworkPolicy
            | Kind::GlobalNetworkPolicy
            | Kind::StagedNetworkPolicy
            | Kind::StagedGlobalNetworkPolicy
            | Kind::Profile
            | Kind::IPPool
            | Kind::BGPPeer
    )
}

/// Returns what an invalid selector at this path means.
fn describe_effect(resource: &Resource, path: &str) -> &'static str {
    let is_in_rule = path.starts_with("spec.ingress[") || path.starts_with("spec.egress[");
    match resource.kind() {
        Kind::IPPool => "no node uses the pool",
        Kind::BGPPeer => "no node has the session",
        _ if is_in_rule => "the rule fails closed: it allows nothing, and denies everything if it denies",
        _ => "the policy is not in force",
    }
}

/// Collects the selectors below a value that cannot be parsed: path, text and error.
fn collect_invalid(value: &Value, path: &str, invalid: &mut Vec<(String, String, String)>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                match value {
                    Value::String(text) if is_selector(key) && !text.is_empty() => {
                        if let Err(error) = Selector::parse(text) {
                            invalid.push((path, text.clone(), error.to_string()));
                        }
                    }
                    other => collect_invalid(other, &path, invalid),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_invalid(item, &format!("{path}[{index}]"), invalid);
            }
        }
        _ => {}
    }
}

/// Returns whether a field with this name is a selector, as `selector` and `nodeSelector` are.
fn is_selector(field: &str) -> bool {
    field == "selector" || field.ends_with("Selector")
}
