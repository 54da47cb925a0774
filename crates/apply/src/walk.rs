//! Compares, merges, prunes and validates values along a shape.

use crate::merge_schema::{ListMergeType, MergeSchema, ScalarKind};
use crate::path::{FieldPath, PathElement};
use crate::set::FieldSet;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The fields that differ between two values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldComparison {
    pub removed: FieldSet,
    pub modified: FieldSet,
    pub added: FieldSet,
}

impl FieldComparison {
    /// Returns the comparison without these fields and everything below them.
    pub fn without(&self, fields: &FieldSet) -> FieldComparison {
        FieldComparison {
            removed: self.removed.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            added: self.added.recursive_difference(fields),
        }
    }
}

/// The first value that a schema does not allow.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct SchemaViolation {
    pub path: FieldPath,
    pub problem: SchemaProblem,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SchemaProblem {
    #[error("expected {expected}, got {value}")]
    OtherType { expected: &'static str, value: Value },
    #[error("a set has elements that are neither strings, numbers nor booleans")]
    SetElement,
    #[error("a list with map keys has an element that is not an object")]
    KeyedElement,
    #[error("an element has none of the fields {}", .0.join(", "))]
    NoKey(Vec<String>),
    #[error("duplicate entries for key {0}")]
    DuplicateKey(PathElement),
    #[error("field not declared in schema")]
    UndeclaredField,
}

/// How a value of a shape is walked.
enum WalkKind<'a> {
    Leaf,
    List { keys: &'a [String], item: &'a MergeSchema },
    Map { fields: &'a BTreeMap<String, MergeSchema>, rest: &'a MergeSchema },
}

static NO_FIELDS: BTreeMap<String, MergeSchema> = BTreeMap::new();

/// Returns how one value, or two values to be merged, are walked. Values that are atomic, empty or do not match the
/// shape are leaves.
fn walk_kind<'a>(shape: &'a MergeSchema, values: [Option<&Value>; 2]) -> WalkKind<'a> {
    let given = values.into_iter().flatten().filter(|value| !value.is_null());
    let are_lists = given.clone().all(Value::is_array);
    let are_maps = given.clone().all(Value::is_object);
    let some_full = given.into_iter().any(|value| match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    });
    match shape {
        _ if !some_full => WalkKind::Leaf,
        MergeSchema::List { relation: ListMergeType::Set, item } if are_lists => {
            WalkKind::List { keys: &[], item }
        }
        MergeSchema::List { relation: ListMergeType::Map(keys), item } if are_lists => {
            WalkKind::List { keys, item }
        }
        MergeSchema::Map { fields, rest, atomic: false } if are_maps => {
            WalkKind::Map { fields, rest: rest.as_deref().unwrap_or(&MergeSchema::Any) }
        }
        MergeSchema::Any if are_maps => WalkKind::Map { fields: &NO_FIELDS, rest: &MergeSchema::Any },
        _ => WalkKind::Leaf,
    }
}

/// Returns whether two values are equal; numbers are compared by value, not by notation.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| equal(value, other)))
        }
        _ => a == b,
    }
}

/// Returns the identity of an element of a list, or an error if it has none.
fn identify_element(keys: &[String], item: &Value) -> Result<PathElement, SchemaProblem> {
    if keys.is_empty() {
        return match item {
            Value::Object(_) | Value::Array(_) | Value::Null => Err(SchemaProblem::SetElement),
            scalar => Ok(PathElement::Value(scalar.clone())),
        };
    }
    let Value::Object(fields) = item else { return Err(SchemaProblem::KeyedElement) };
    let mut key: Vec<(String, Value)> =
        keys.iter().filter_map(|name| Some((name.clone(), fields.get(name)?.clone()))).collect();
    if key.is_empty() {
        return Err(SchemaProblem::NoKey(keys.to_vec()));
    }
    key.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(PathElement::Key(key))
}

fn find_field_shape<'a>(
    fields: &'a BTreeMap<String, MergeSchema>,
    rest: &'a MergeSchema,
    name: &str,
) -> &'a MergeSchema {
    fields.get(name).unwrap_or(rest)
}

type IndexedElements<'v> = BTreeMap<PathElement, Vec<&'v Value>>;

/// Returns the identities of the elements of a list in their order, and the elements by identity. Elements without an
/// identity are left out.
fn index_elements<'v>(keys: &[String], list: Option<&'v Value>) -> (Vec<PathElement>, IndexedElements<'v>) {
    let mut order = Vec::new();
    let mut found = IndexedElements::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = identify_element(keys, item) {
            order.push(element.clone());
            found.entry(element).or_default().push(item);
        }
    }
    (order, found)
}

/// Returns the fields that are added, modified or removed in `new`.
pub fn compare(shape: &MergeSchema, old: &Value, new: &Value) -> FieldComparison {
    let mut found = FieldComparison::default();
    compare_at(&mut Vec::new(), shape, Some(old), Some(new), &mut found);
    found
}

fn compare_at(
    path: &mut Vec<PathElement>,
    shape: &MergeSchema,
    old: Option<&Value>,
    new: Option<&Value>,
    found: &mut FieldComparison,
) {
    match walk_kind(shape, [old, new]) {
        WalkKind::Leaf => {
            if let (Some(old), Some(new)) = (old, new)
                && !equal(old, new)
            {
                found.modified.insert(path);
            }
        }
        WalkKind::Map { fields, rest } => {
            let before = old.and_then(Value::as_object);
            let after = new.and_then(Value::as_object);
            let names = before.into_iter().flat_map(Map::keys);
            let news = after.into_iter().flat_map(Map::keys);
            let news = news.filter(|name| before.is_none_or(|before| !before.contains_key(*name)));
            for name in names.chain(news) {
                path.push(PathElement::field(name));
                let [old, new] = [before, after].map(|fields| fields.and_then(|fields| fields.get(name)));
                compare_at(path, find_field_shape(fields, rest, name), old, new, found);
                path.pop();
            }
        }
        WalkKind::List { keys, item } => compare_lists(path, keys, item, [old, new], found),
    }
    match (old, new) {
        (None, Some(_)) => found.added.insert(path),
        (Some(_), None) => found.removed.insert(path),
        _ => {}
    }
}

fn compare_lists(
    path: &mut Vec<PathElement>,
    keys: &[String],
    item: &MergeSchema,
    [old, new]: [Option<&Value>; 2],
    found: &mut FieldComparison,
) {
    let (mut order, before) = index_elements(keys, old);
    let (added, after) = index_elements(keys, new);
    order.extend(added.into_iter().filter(|element| !before.contains_key(element)));
    order.sort();
    order.dedup();
    for element in order {
        let [old, new] =
            [&before, &after].map(|items| items.get(&element).map_or([].as_slice(), Vec::as_slice));
        path.push(element);
        match (old, new) {
            ([], []) => {}
            ([] | [_], [] | [_]) => {
                compare_at(path, item, old.first().copied(), new.first().copied(), found);
            }
            // Elements with the same identity are compared as one value.
            ([_, _, ..], [_, _, ..]) => {
                if old.len() != new.len() || !old.iter().zip(new).all(|(old, new)| equal(old, new)) {
                    found.modified.insert(path);
                }
            }
            ([_, _, ..], _) => {
                if let Some(new) = new.first() {
                    compare_at(path, item, None, Some(new), found);
                }
                found.removed.insert(path);
            }
            _ => {
                if let Some(old) = old.first() {
                    compare_at(path, item, Some(old), None, found);
                }
                found.added.insert(path);
            }
        }
        path.pop();
    }
}

/// Returns every field that a value sets.
pub fn list_fields(shape: &MergeSchema, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    list_fields_at(&mut Vec::new(), shape, value, &mut set);
    set
}

fn list_fields_at(path: &mut Vec<PathElement>, shape: &MergeSchema, value: &Value, set: &mut FieldSet) {
    match walk_kind(shape, [Some(value), None]) {
        WalkKind::Leaf => {
            // An empty list or object that is not atomic sets no fields below it; as a field of an object it sets
            // that field.
            let is_nothing = match shape {
                MergeSchema::List { relation, .. } => *relation != ListMergeType::Atomic,
                MergeSchema::Map { atomic, .. } => !atomic,
                MergeSchema::Any => value.is_object() || value.is_null(),
                MergeSchema::Scalar(_) => false,
            };
            if !is_nothing {
                set.insert(path);
            }
        }
        WalkKind::Map { fields, rest } => {
            for (name, inner) in value.as_object().into_iter().flatten() {
                path.push(PathElement::field(name));
                list_fields_at(path, find_field_shape(fields, rest, name), inner, set);
                let is_empty = inner.is_null() || inner.as_object().is_some_and(Map::is_empty);
                if is_empty || !fields.contains_key(name) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        WalkKind::List { keys, item } => {
            let (_, found) = index_elements(keys, Some(value));
            for (element, items) in found {
                path.push(element);
                if let [only] = items.as_slice() {
                    list_fields_at(path, item, only, set);
                }
                set.insert(path);
                path.pop();
            }
        }
    }
}

/// Merges `new` over `old` without removing anything. Returns `None` if neither has a value.
pub fn merge(shape: &MergeSchema, old: Option<&Value>, new: Option<&Value>) -> Option<Value> {
    match walk_kind(shape, [old, new]) {
        WalkKind::Leaf => new.or(old).cloned(),
        WalkKind::Map { fields, rest } => {
            let before = old.and_then(Value::as_object);
            let after = new.and_then(Value::as_object);
            let mut merged = Map::new();
            let names = before.into_iter().flat_map(Map::keys).chain(after.into_iter().flat_map(Map::keys));
            for name in names {
                if merged.contains_key(name) {
                    continue;
                }
                let [old, new] = [before, after].map(|fields| fields.and_then(|fields| fields.get(name)));
                if let Some(value) = merge(find_field_shape(fields, rest, name), old, new) {
                    merged.insert(name.clone(), value);
                }
            }
            Some(Value::Object(merged))
        }
        WalkKind::List { keys, item } => Some(Value::Array(merge_lists(keys, item, old, new))),
    }
}

/// Merges two lists. Shared elements take the order of the new list; elements of the old list alone keep their place
/// among them.
fn merge_lists(keys: &[String], item: &MergeSchema, old: Option<&Value>, new: Option<&Value>) -> Vec<Value> {
    let (old_order, old_items) = index_elements(keys, old);
    let (new_order, new_items) = index_elements(keys, new);
    let mut shared = new_order.iter().filter(|element| old_items.contains_key(*element));
    let mut next_shared = shared.next();
    let mut merged = Vec::new();
    let mut done = BTreeSet::new();
    let mut left = 0;
    let mut right = 0;
    let olds = old.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let olds: Vec<&Value> = olds.iter().filter(|value| identify_element(keys, value).is_ok()).collect();
    while left < old_order.len() || right < new_order.len() {
        if let (Some(a), Some(b)) = (old_order.get(left), new_order.get(right)) {
            if a == b {
                done.insert(a);
                merged.extend(merge_element(item, &old_items, &new_items, b));
                (left, right) = (left + 1, right + 1);
                next_shared = shared.next();
                continue;
            }
            if new_items.contains_key(a) && next_shared.is_some_and(|next| next != a) {
                // Both lists have the element, but the new list has another shared element first.
                left += 1;
                continue;
            }
        }
        if let Some(a) = old_order.get(left) {
            if !new_items.contains_key(a) {
                merged.extend(merge(item, olds.get(left).copied(), None));
                left += 1;
                continue;
            } else if done.contains(a) {
                left += 1;
            }
        }
        if let Some(b) = new_order.get(right) {
            done.insert(b);
            merged.extend(merge_element(item, &old_items, &new_items, b));
            right += 1;
            if next_shared == Some(b) {
                next_shared = shared.next();
            }
        }
    }
    merged
}

/// Merges the elements of one identity. An old element whose identity occurs more than once is not merged with a new
/// value.
fn merge_element(
    item: &MergeSchema,
    old_items: &IndexedElements<'_>,
    new_items: &IndexedElements<'_>,
    element: &PathElement,
) -> Option<Value> {
    let old = match old_items.get(element).map(Vec::as_slice) {
        Some([only]) => Some(*only),
        _ => None,
    };
    merge(item, old, new_items.get(element).and_then(|items| items.first()).copied())
}

/// Returns the value without these fields, or `None` if nothing is left. A field that only loses its children stays
/// as a null: a manager may own the existence of the field.
pub fn remove(shape: &MergeSchema, value: &Value, fields: &FieldSet) -> Option<Value> {
    match walk_kind(shape, [Some(value), None]) {
        WalkKind::Leaf => Some(value.clone()),
        WalkKind::Map { fields: named, rest } => {
            let mut left = Map::new();
            for (name, inner) in value.as_object().into_iter().flatten() {
                let element = PathElement::field(name);
                if fields.members.contains(&element) {
                    continue;
                }
                let kept = match fields.below(&element) {
                    Some(below) => {
                        remove(find_field_shape(named, rest, name), inner, below).unwrap_or_default()
                    }
                    None => inner.clone(),
                };
                left.insert(name.clone(), kept);
            }
            (!left.is_empty()).then_some(Value::Object(left))
        }
        WalkKind::List { keys, item } => {
            let mut left = Vec::new();
            for inner in value.as_array().into_iter().flatten() {
                let Ok(element) = identify_element(keys, inner) else {
                    left.push(inner.clone());
                    continue;
                };
                if fields.members.contains(&element) {
                    continue;
                }
                match fields.below(&element) {
                    Some(below) => left.extend(remove(item, inner, below)),
                    None => left.push(inner.clone()),
                }
            }
            (!left.is_empty()).then_some(Value::Array(left))
        }
    }
}

/// Drops null fields, as Kubernetes does if the schema does not allow null.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, inner| !inner.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Checks that the shape allows a value.
pub fn validate(shape: &MergeSchema, value: &Value) -> Result<(), SchemaViolation> {
    let mut path = Vec::new();
    validate_at(&mut path, shape, value).map_err(|problem| SchemaViolation { path: FieldPath(path), problem })
}

/// Leaves the path of the rejected value in `path` if there is one.
fn validate_at(path: &mut Vec<PathElement>, shape: &MergeSchema, value: &Value) -> Result<(), SchemaProblem> {
    let (fits, expected) = match (shape, value) {
        (_, Value::Null) | (MergeSchema::Any, _) => return Ok(()),
        (MergeSchema::Scalar(ScalarKind::Text), value) => (value.is_string(), "a text"),
        (MergeSchema::Scalar(ScalarKind::Number), value) => (value.is_number(), "a number"),
        (MergeSchema::Scalar(ScalarKind::Flag), value) => (value.is_boolean(), "a boolean"),
        (MergeSchema::Scalar(ScalarKind::Either), value) => {
            (value.is_string() || value.is_number(), "a number or a text")
        }
        (MergeSchema::List { relation, item }, Value::Array(items)) => {
            let mut seen = BTreeSet::new();
            for (index, inner) in items.iter().enumerate() {
                let step = match relation {
                    ListMergeType::Atomic => PathElement::Index(index),
                    ListMergeType::Set => identify_element(&[], inner)?,
                    ListMergeType::Map(keys) => identify_element(keys, inner)?,
                };
                if !seen.insert(step.clone()) {
                    return Err(SchemaProblem::DuplicateKey(step));
                }
                path.push(step);
                validate_at(path, item, inner)?;
                path.pop();
            }
            return Ok(());
        }
        (MergeSchema::Map { fields, rest, .. }, Value::Object(inner)) => {
            for (name, value) in inner {
                path.push(PathElement::field(name));
                let shape = fields.get(name).or(rest.as_deref()).ok_or(SchemaProblem::UndeclaredField)?;
                validate_at(path, shape, value)?;
                path.pop();
            }
            return Ok(());
        }
        (MergeSchema::List { .. }, _) => (false, "list"),
        (MergeSchema::Map { .. }, _) => (false, "map"),
    };
    if fits { Ok(()) } else { Err(SchemaProblem::OtherType { expected, value: value.clone() }) }
}
