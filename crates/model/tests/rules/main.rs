//! Tests of every rule for pools, BGP, endpoints, nodes and settings: rejected inputs with the error path,
//! and similar inputs that are accepted.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../src/schema/tests/admission.rs"]
mod admission;
mod bgp;
mod endpoints;
mod pools;
mod settings;

use serde_json::{Value, json};
use tortie_model::scalar::GoDuration;
use tortie_model::schema::{admission_policies, json_schema};
use tortie_model::{Kind, Resource};

fn object(kind: Kind, name: &str, spec: &Value) -> Value {
    let mut metadata = json!({"name": name});
    if kind.is_namespaced() {
        metadata["namespace"] = json!("prod");
    }
    json!({"kind": kind.name(), "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec})
}

fn read(kind: Kind, name: &str, spec: &Value) -> Resource {
    let object = object(kind, name, spec);
    let mut resource = Resource::from_user(object).unwrap_or_else(|error| panic!("{kind} {spec}: {error}"));
    resource.set_defaults();
    resource
}

/// Returns the paths of all validation errors. Asserts that each has a reason and that kube-apiserver would
/// reach the same verdict.
fn paths(kind: Kind, name: &str, spec: &Value) -> Vec<String> {
    assert_eq!(admission::disagreement(&object(kind, name, spec)), None);
    let Err(error) = read(kind, name, spec).validate() else { return Vec::new() };
    assert!(error.errors.iter().all(|error| !error.reason.is_empty()), "{error}");
    error.errors.into_iter().map(|error| error.name).collect()
}

/// Returns a spec with some fields replaced, or removed where the replacement is null.
fn with(base: &Value, change: &Value) -> Value {
    let mut spec = base.clone();
    for (key, value) in change.as_object().unwrap() {
        if value.is_null() {
            spec.as_object_mut().unwrap().remove(key);
        } else {
            spec[key] = value.clone();
        }
    }
    spec
}

/// Runs a table of changes to a spec that is valid without them.
#[track_caller]
fn table(kind: Kind, name: &str, base: Value, rows: &[(Value, &[&str])]) {
    assert_eq!(paths(kind, name, &base), [""; 0], "{kind} {base}");
    for (change, expected) in rows {
        let spec = with(&base, change);
        assert_eq!(paths(kind, name, &spec), *expected, "{kind} {spec}");
    }
}
