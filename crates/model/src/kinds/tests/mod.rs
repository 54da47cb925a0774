//! Tests of every rule for policies, sets, tiers and profiles: rejected inputs with the error path, and
//! similar inputs that are accepted.

use crate::schema::json_schema;
use crate::schema::tests::admission::{disagreement, refusals};
use crate::{API_VERSION, Kind, Resource};
use serde_json::{Value, json};

mod policies;
mod rules;
mod schemas;

fn object(kind: &str, spec: Value) -> Value {
    let mut metadata = json!({"name": "x"});
    if kind != "GlobalNetworkPolicy" && Kind::from_name(kind).unwrap().is_namespaced() {
        metadata["namespace"] = json!("prod");
    }
    json!({"kind": kind, "apiVersion": API_VERSION, "metadata": metadata, "spec": spec})
}

fn with_defaults(value: &Value) -> Resource {
    let mut resource = Resource::from_user(value.clone()).unwrap_or_else(|e| panic!("{value}: {e}"));
    resource.set_defaults();
    resource
}

/// Returns path and reason of each validation error, after setting defaults.
fn failures_of(value: &Value) -> Vec<(String, String)> {
    match with_defaults(value).validate() {
        Ok(()) => Vec::new(),
        Err(error) => error.errors.into_iter().map(|e| (e.name, e.reason)).collect(),
    }
}

#[track_caller]
fn accepted(kind: &str, spec: Value) {
    let value = object(kind, spec);
    assert_eq!(failures_of(&value), [], "{value}");
    assert_eq!(disagreement(&value), None);
}

/// Asserts exactly one error, at `path`, whose reason contains `reason`.
#[track_caller]
fn refused(kind: &str, spec: Value, path: &str, reason: &str) {
    let value = object(kind, spec);
    let failures = failures_of(&value);
    assert!(
        failures.len() == 1 && failures[0].0 == path && failures[0].1.contains(reason),
        "{value}: expected {path} ({reason}), got {failures:?}"
    );
    assert_eq!(disagreement(&value), None);
}

const GNP: &str = "GlobalNetworkPolicy";
const NP: &str = "NetworkPolicy";
