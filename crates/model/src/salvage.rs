//! Recovers the usable part of a stored entry that cannot be decoded as a whole.
//!
//! A field of the wrong type is removed and the rest is decoded again. Removing a field can make a policy
//! more permissive, so some fields are replaced with restrictive values instead, and if certain others are
//! unreadable the whole entry is rejected.

use crate::object::DecodeError;
use crate::value::ValueError;
use crate::{StoreKey, StoreValue};
use serde_json::{Value as Json, json};

/// Maximum number of fields to remove from one entry.
const MAX_REMOVED_FIELDS: usize = 32;

#[derive(Debug)]
pub struct SalvagedValue {
    pub value: StoreValue,
    /// The paths of the fields that are ignored.
    pub lost: Vec<String>,
}

/// Fields that decide which endpoints an object applies to. If absent they select everything, so an entry in
/// which one is unreadable is rejected.
const SELECTING_FIELDS: [&str; 5] = [
    "spec.selector",
    "spec.namespaceSelector",
    "spec.serviceAccountSelector",
    "spec.podSelector",
    "spec.node",
];

/// Decodes as much of an entry as possible; returns `None` if nothing of it is usable.
pub fn salvage(key: &StoreKey, text: &str) -> Option<SalvagedValue> {
    let mut json: Json = serde_json::from_str(text).ok()?;
    let mut lost = Vec::new();
    for _ in 0..MAX_REMOVED_FIELDS {
        match StoreValue::decode(key, json.to_string().as_bytes()) {
            Ok(value) => return Some(SalvagedValue { value, lost }),
            Err(ValueError::Resource(DecodeError::Field { path, .. })) => {
                leave_out(&mut json, &path)?;
                lost.push(path);
            }
            Err(_) => return None,
        }
    }
    None
}

/// Removes or replaces the field at `path`; returns `None` if the object is not usable without it.
fn leave_out(json: &mut Json, path: &str) -> Option<()> {
    if !path.starts_with("spec.") || SELECTING_FIELDS.iter().any(|whom| path.starts_with(whom)) {
        // Malformed metadata, such as labels and annotations, can be removed.
        return if path.starts_with("metadata.") { remove(json, &steps(path)) } else { None };
    }
    let steps = steps(path);
    match (steps.get(1), steps.get(2)) {
        // A Calico policy without `types` applies to both directions, a Kubernetes policy to those that its
        // rules imply.
        (Some(SalvagePathStep::Key("types" | "policyTypes")), _) => remove(json, &steps[..2]),
        (
            Some(SalvagePathStep::Key(direction @ ("ingress" | "egress"))),
            Some(SalvagePathStep::Index(index)),
        ) => {
            let rule = json.get_mut("spec")?.get_mut(direction)?.get_mut(index)?;
            *rule = closed(rule);
            Some(())
        }
        (Some(SalvagePathStep::Key(direction @ ("ingress" | "egress"))), _) => {
            *json.get_mut("spec")?.get_mut(direction)? = json!([{ "action": "Deny" }]);
            Some(())
        }
        _ => remove(json, &steps),
    }
}

/// Returns a restrictive replacement for an unreadable rule: an Allow, Pass or Log rule that matches nothing,
/// or else a rule that denies everything.
fn closed(rule: &Json) -> Json {
    match rule.get("action").and_then(Json::as_str) {
        Some(action @ ("Allow" | "Pass" | "Log")) => {
            json!({ "action": action, "ipVersion": 6, "source": { "nets": ["0.0.0.0/32"] } })
        }
        _ => json!({ "action": "Deny" }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SalvagePathStep<'a> {
    Key(&'a str),
    Index(usize),
}

/// Splits a path such as `spec.ingress[2].protocol` into steps.
fn steps(path: &str) -> Vec<SalvagePathStep<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (key, indexes) = part.split_once('[').unwrap_or((part, ""));
        steps.push(SalvagePathStep::Key(key));
        let indexes = indexes.split(['[', ']']).filter_map(|index| index.parse().ok());
        steps.extend(indexes.map(SalvagePathStep::Index));
    }
    steps
}

fn remove(json: &mut Json, steps: &[SalvagePathStep<'_>]) -> Option<()> {
    let (last, parents) = steps.split_last()?;
    let mut at = json;
    for step in parents {
        at = match step {
            SalvagePathStep::Key(key) => at.get_mut(key)?,
            SalvagePathStep::Index(index) => at.get_mut(index)?,
        };
    }
    match (at, last) {
        (Json::Object(fields), SalvagePathStep::Key(key)) => fields.remove(*key).map(|_| ()),
        (Json::Array(items), SalvagePathStep::Index(index)) if *index < items.len() => {
            items.remove(*index);
            Some(())
        }
        _ => None,
    }
}
