//! Encodes and decodes sets of fields as `fieldsV1` of `metadata.managedFields`.

use crate::managed::ManagedFieldsError;
use crate::path::PathElement;
use crate::set::FieldSet;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Key for the field itself, next to the keys of its children.
const SELF_KEY: &str = ".";

pub fn encode(set: &FieldSet) -> Value {
    Value::Object(encode_fields(set, false))
}

fn encode_fields(set: &FieldSet, is_member: bool) -> Map<String, Value> {
    let mut fields = Map::new();
    if is_member {
        fields.insert(SELF_KEY.to_owned(), Value::Object(Map::new()));
    }
    let elements: BTreeSet<&PathElement> = set.members.iter().chain(set.children.keys()).collect();
    for element in elements {
        let inner = match set.below(element) {
            Some(child) => encode_fields(child, set.members.contains(element)),
            None if set.members.contains(element) => Map::new(),
            None => continue,
        };
        fields.insert(element.encode(), Value::Object(inner));
    }
    fields
}

pub fn decode(fields: &Value) -> Result<FieldSet, ManagedFieldsError> {
    if fields.is_null() {
        return Ok(FieldSet::default());
    }
    decode_fields("fieldsV1", fields).map(|(set, _)| set)
}

/// Returns the set below a field, and whether the field itself is in the set.
fn decode_fields(name: &str, fields: &Value) -> Result<(FieldSet, bool), ManagedFieldsError> {
    let Value::Object(fields) = fields else {
        return Err(ManagedFieldsError::NotAnObject { name: name.to_owned(), value: fields.clone() });
    };
    let mut set = FieldSet::default();
    let mut is_member = false;
    for (name, inner) in fields {
        if name == SELF_KEY {
            is_member = true;
            continue;
        }
        let Some(element) = PathElement::decode(name)? else { continue };
        let (child, child_is_member) = decode_fields(name, inner)?;
        if child_is_member {
            set.members.insert(element.clone());
        }
        if !child.is_empty() {
            set.children.insert(element, child);
        }
    }
    let is_leaf = set.is_empty();
    Ok((set, is_member || is_leaf))
}
