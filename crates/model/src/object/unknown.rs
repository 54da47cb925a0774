//! Preserves fields of stored objects that our types do not have: they are set aside on reading and restored
//! on writing, so that an older version never strips fields that a newer one stored.

use super::decode::FieldPathStep;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The unknown fields of one value and of its children.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct UnknownFields {
    fields: Map<String, Value>,
    children: BTreeMap<String, UnknownFields>,
    elements: BTreeMap<usize, UnknownInElement>,
}

/// Unknown fields inside a list element, together with the known part of that element. If the known part has
/// changed, the index may refer to a different element, so the unknown fields are not restored.
#[derive(Clone, Debug, PartialEq)]
struct UnknownInElement {
    known: Value,
    unknown: UnknownFields,
}

impl UnknownFields {
    /// Collects the values at `paths` of `original`; `known` is the object as our types serialise it.
    pub(super) fn collect(paths: &[Vec<FieldPathStep>], original: &Value, known: &Value) -> UnknownFields {
        let mut unknown = UnknownFields::default();
        for path in paths {
            unknown.add(path, original, known);
        }
        unknown
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == UnknownFields::default()
    }

    fn add(&mut self, path: &[FieldPathStep], original: &Value, known: &Value) {
        match path {
            [] => (),
            [FieldPathStep::Key(key)] => {
                if let Some(value) = original.get(key) {
                    self.fields.insert(key.clone(), value.clone());
                }
            }
            [FieldPathStep::Key(key), rest @ ..] => {
                if let Some(original) = original.get(key) {
                    let known = known.get(key).unwrap_or(&Value::Null);
                    self.children.entry(key.clone()).or_default().add(rest, original, known);
                }
            }
            [FieldPathStep::Index(index), rest @ ..] => {
                if let Some((original, known)) = original.get(index).zip(known.get(index)) {
                    self.elements
                        .entry(*index)
                        .or_insert_with(|| UnknownInElement {
                            known: known.clone(),
                            unknown: UnknownFields::default(),
                        })
                        .unknown
                        .add(rest, original, known);
                }
            }
        }
    }

    /// Restores the unknown fields in `value`, the object as our types serialise it now.
    pub(super) fn restore(&self, value: &mut Value) {
        for (index, element) in &self.elements {
            if let Some(value) = value.get_mut(index).filter(|value| **value == element.known) {
                element.unknown.restore(value);
            }
        }
        if self.fields.is_empty() && self.children.is_empty() {
            return;
        }
        let Value::Object(object) = value else { return };
        for (key, child) in &self.children {
            // An object that is omitted because it is empty is re-created to hold its unknown fields. A list
            // or a scalar is not.
            match object.get_mut(key) {
                Some(value) => child.restore(value),
                None if child.elements.is_empty() => {
                    let mut value = Value::Object(Map::new());
                    child.restore(&mut value);
                    object.insert(key.clone(), value);
                }
                None => (),
            }
        }
        for (key, field) in &self.fields {
            object.entry(key.clone()).or_insert_with(|| field.clone());
        }
    }
}
