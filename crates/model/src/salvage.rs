//! What can be used of an entry that cannot be read as it is.
//!
//! A field with a value of the wrong type is left out, and the rest is read again. What a policy would mean without a field
//! is not always closed, so some fields are not left out but replaced, and without others nothing is used.

use crate::object::DecodeError;
use crate::value::ValueError;
use crate::{Key, Value};
use serde_json::{Value as Json, json};

/// So many fields of one entry are left out at most.
const MOST: usize = 32;

#[derive(Debug)]
pub struct Salvaged {
    pub value: Value,
    /// The paths of the fields that are not used.
    pub lost: Vec<String>,
}

/// Without these nobody knows whom an object is about: absent, they mean everybody.
const WHOM: [&str; 5] = [
    "spec.selector",
    "spec.namespaceSelector",
    "spec.serviceAccountSelector",
    "spec.podSelector",
    "spec.node",
];

/// None if nothing of it can be used.
pub fn salvage(key: &Key, text: &str) -> Option<Salvaged> {
    let mut json: Json = serde_json::from_str(text).ok()?;
    let mut lost = Vec::new();
    for _ in 0..MOST {
        match Value::decode(key, json.to_string().as_bytes()) {
            Ok(value) => return Some(Salvaged { value, lost }),
            Err(ValueError::Resource(DecodeError::Field { path, .. })) => {
                leave_out(&mut json, &path)?;
                lost.push(path);
            }
            Err(_) => return None,
        }
    }
    None
}

/// None if the object cannot be used without the field.
fn leave_out(json: &mut Json, path: &str) -> Option<()> {
    if !path.starts_with("spec.") || WHOM.iter().any(|whom| path.starts_with(whom)) {
        // Metadata that is not what it should be: labels, annotations.
        return if path.starts_with("metadata.") { remove(json, &steps(path)) } else { None };
    }
    let steps = steps(path);
    match (steps.get(1), steps.get(2)) {
        // Directions that cannot be read are both.
        (Some(Step::Key("types" | "policyTypes")), _) => remove(json, &steps[..2]),
        (Some(Step::Key(direction @ ("ingress" | "egress"))), Some(Step::Index(index))) => {
            let rule = json.get_mut("spec")?.get_mut(direction)?.get_mut(index)?;
            *rule = closed(rule);
            Some(())
        }
        (Some(Step::Key(direction @ ("ingress" | "egress"))), _) => {
            *json.get_mut("spec")?.get_mut(direction)? = json!([{ "action": "Deny" }]);
            Some(())
        }
        _ => remove(json, &steps),
    }
}

/// A rule that cannot be read: one that allows, passes or logs matches nothing, any other denies everything.
fn closed(rule: &Json) -> Json {
    match rule.get("action").and_then(Json::as_str) {
        Some(action @ ("Allow" | "Pass" | "Log")) => {
            json!({ "action": action, "ipVersion": 6, "source": { "nets": ["0.0.0.0/32"] } })
        }
        _ => json!({ "action": "Deny" }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// `spec.ingress[2].protocol` in steps.
fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (key, indexes) = part.split_once('[').unwrap_or((part, ""));
        steps.push(Step::Key(key));
        let indexes = indexes.split(['[', ']']).filter_map(|index| index.parse().ok());
        steps.extend(indexes.map(Step::Index));
    }
    steps
}

fn remove(json: &mut Json, steps: &[Step<'_>]) -> Option<()> {
    let (last, parents) = steps.split_last()?;
    let mut at = json;
    for step in parents {
        at = match step {
            Step::Key(key) => at.get_mut(key)?,
            Step::Index(index) => at.get_mut(index)?,
        };
    }
    match (at, last) {
        (Json::Object(fields), Step::Key(key)) => fields.remove(*key).map(|_| ()),
        (Json::Array(items), Step::Index(index)) if *index < items.len() => {
            items.remove(*index);
            Some(())
        }
        _ => None,
    }
}
