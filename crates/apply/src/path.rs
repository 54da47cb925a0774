//! Paths from an object to one of its fields.

use crate::managed::ManagedFieldsError;
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// One step of a path. The ordering is the order of the fields in `fieldsV1`.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field of an object, or a key of a map.
    Field(String),
    /// An element of a list with map keys, identified by its key fields; sorted by name.
    Key(Vec<(String, Value)>),
    /// An element of a set.
    Value(Value),
    /// An element of a list by its index. Decoded, but never generated.
    Index(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(pub Vec<PathElement>);

impl PathElement {
    pub fn field(name: &str) -> PathElement {
        PathElement::Field(name.to_owned())
    }

    /// Returns the encoding in `fieldsV1`: `f:spec`, `k:{"uid":"x"}`, `v:"10.0.0.0/8"`, `i:3`.
    pub fn encode(&self) -> String {
        match self {
            PathElement::Field(name) => format!("f:{name}"),
            PathElement::Key(fields) => {
                let map: Map<String, Value> = fields.iter().cloned().collect();
                format!("k:{}", Value::Object(map))
            }
            PathElement::Value(value) => format!("v:{value}"),
            PathElement::Index(index) => format!("i:{index}"),
        }
    }

    /// Decodes an element. Returns `Ok(None)` for a kind of element that only newer versions know.
    pub fn decode(text: &str) -> Result<Option<PathElement>, ManagedFieldsError> {
        let element = match text.split_once(':') {
            Some(("f", name)) => Some(PathElement::field(name)),
            Some(("v", json)) => serde_json::from_str(json).ok().map(PathElement::Value),
            Some(("k", json)) => {
                let key: Option<BTreeMap<String, Value>> = serde_json::from_str(json).ok();
                key.map(|key| PathElement::Key(key.into_iter().collect()))
            }
            Some(("i", index)) => index.parse().ok().map(PathElement::Index),
            Some((kind, _)) if kind.len() == 1 => return Ok(None),
            _ => None,
        };
        element.map(Some).ok_or_else(|| ManagedFieldsError::PathElement(text.to_owned()))
    }

    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &PathElement) -> Ordering {
        match (self, other) {
            (PathElement::Field(a), PathElement::Field(b)) => a.cmp(b),
            (PathElement::Index(a), PathElement::Index(b)) => a.cmp(b),
            (PathElement::Value(a), PathElement::Value(b)) => compare_values(a, b),
            (PathElement::Key(a), PathElement::Key(b)) => {
                for ((name, value), (other_name, other_value)) in a.iter().zip(b) {
                    let order = name.cmp(other_name).then_with(|| compare_values(value, other_value));
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// Compares numbers by value, regardless of whether they were written as integers, and other values by their text.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => a.to_string().cmp(&b.to_string()),
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &PathElement) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &PathElement) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

/// The form in messages: `.spec.nets[="10.0.0.0/8"]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", fields.join(","))
            }
            PathElement::Value(value) => write!(f, "[={value}]"),
            PathElement::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| write!(f, "{element}"))
    }
}
