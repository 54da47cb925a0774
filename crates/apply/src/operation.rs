//! What a write does to an object and to the record of its owners.

use crate::conflict::{Conflict, message};
use crate::managed::{Managed, ManagerId, Operation, OwnedFields};
use crate::set::Set;
use crate::shape::Shape;
use crate::walk::{compare, drop_nulls, equal, merge, remove, set_of, validate};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Owns what was there before anybody's fields were recorded.
const BEFORE: &str = "before-first-apply";
/// Client-side apply keeps here what it applied last. Whoever moves from it to server-side apply with the same program does not conflict
/// with himself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const KUBECTL: &str = "kubectl";

/// Fields that belong to the server, whoever wrote them.
const NOBODYS: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// Who writes, and through what.
#[derive(Clone, Copy, Debug)]
pub struct Manager<'a> {
    pub name: &'a str,
    pub api_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// What writes through here do not change, such as the status of the object itself.
    pub reset: &'a Set,
    /// RFC 3339, whole seconds.
    pub now: &'a str,
}

/// The object after an apply and who owns its fields now.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub object: Value,
    pub managed: Managed,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApplyError {
    /// The configuration does not have the shape of the kind.
    #[error("failed to create typed patch object: {0}")]
    Shape(String),
    #[error("{}", message(.0))]
    Conflicts(Vec<Conflict>),
}

impl Manager<'_> {
    fn id(&self, operation: Operation) -> ManagerId {
        let name = if self.name.is_empty() { "unknown" } else { self.name };
        ManagerId {
            manager: name.to_owned(),
            operation,
            api_version: match operation {
                Operation::Apply => String::new(),
                Operation::Update => self.api_version.to_owned(),
            },
            subresource: self.subresource.to_owned(),
        }
    }
}

/// Who owns what once `live` has become `new` by an update. `live` is an object without anything but its kind if there was none.
pub fn update(shape: &Shape, live: &Value, new: &Value, mut managed: Managed, by: Manager<'_>) -> Managed {
    let existed = live.pointer("/metadata/uid").and_then(Value::as_str).is_some_and(|uid| !uid.is_empty());
    if managed.is_empty() && existed {
        // Nobody's fields were recorded, so nobody's are from now on, until somebody applies.
        return managed;
    }
    record(shape, live, new, &mut managed, by);
    managed.cap_updaters();
    managed
}

fn record(shape: &Shape, live: &Value, new: &Value, managed: &mut Managed, by: Manager<'_>) {
    managed.keep_version(by.api_version);
    let changes = compare(shape, live, new).without(by.reset);
    let written = changes.modified.union(&changes.added);
    managed.0.retain(|_, owned| {
        owned.set = owned.set.difference(&owned.set.intersection(&written)).difference(&changes.removed);
        !owned.set.is_empty()
    });
    let own = written.difference(&Set::of(NOBODYS));
    if own.is_empty() {
        return;
    }
    let owned = managed.0.entry(by.id(Operation::Update)).or_insert_with(|| OwnedFields {
        set: Set::default(),
        api_version: by.api_version.to_owned(),
        time: None,
    });
    owned.set = owned.set.union(&own);
    owned.time = Some(by.now.to_owned());
}

/// Merges an applied configuration into the live object. What the applier applied before and leaves out now goes away, unless
/// somebody else owns it. Fields of others whose values would change are conflicts, unless `force` takes them over.
pub fn apply(
    shape: &Shape,
    live: &Value,
    config: &Value,
    managed: Managed,
    by: Manager<'_>,
    force: bool,
) -> Result<Applied, ApplyError> {
    validate(shape, config).map_err(ApplyError::Shape)?;
    let mut managed = managed;
    if managed.is_empty() {
        let nothing = json!({"apiVersion": live["apiVersion"], "kind": live["kind"]});
        record(shape, &nothing, live, &mut managed, Manager { name: BEFORE, ..by });
    }
    let mut outcome = attempt(shape, live, config, managed.clone(), by, force);
    if let Err(ApplyError::Conflicts(conflicts)) = &mut outcome
        && by.name == KUBECTL
        && let Some(own) = last_applied(shape, live, by.api_version)
    {
        conflicts.retain(|conflict| !own.contains(&conflict.path.0));
        if conflicts.is_empty() {
            outcome = attempt(shape, live, config, managed, by, true);
        }
    }
    let mut applied = outcome?;
    if by.name == KUBECTL {
        refresh_last_applied(&mut applied.object, config);
    }
    Ok(applied)
}

fn attempt(
    shape: &Shape,
    live: &Value,
    config: &Value,
    mut managed: Managed,
    by: Manager<'_>,
    force: bool,
) -> Result<Applied, ApplyError> {
    managed.keep_version(by.api_version);
    let id = by.id(Operation::Apply);
    let merged = merge(shape, Some(live), Some(config)).unwrap_or_else(|| live.clone());
    let last = managed.0.get(&id).cloned();
    let set = set_of(shape, config).recursive_difference(by.reset);
    let time = last.as_ref().and_then(|last| last.time.clone());
    managed.0.insert(id.clone(), OwnedFields { set, api_version: by.api_version.to_owned(), time });
    let mut new = match &last {
        Some(last) if !last.set.is_empty() => prune(shape, &merged, &managed, &last.set),
        _ => merged,
    };
    settle(shape, live, &new, &mut managed, &id, by, force)?;
    drop_nulls(&mut new);
    let nobodys = Set::of(NOBODYS);
    if let Some(owned) = managed.0.get_mut(&id) {
        owned.set = owned.set.difference(&nobodys);
        if owned.set.is_empty() {
            managed.0.remove(&id);
        }
    }
    if equal(live, &new) {
        return Ok(Applied { object: live.clone(), managed });
    }
    if let Some(owned) = managed.0.get_mut(&id) {
        owned.time = Some(by.now.to_owned());
    }
    Ok(Applied { object: new, managed })
}

/// Takes from the other owners what the applier changes, or says that it may not.
fn settle(
    shape: &Shape,
    live: &Value,
    new: &Value,
    managed: &mut Managed,
    id: &ManagerId,
    by: Manager<'_>,
    force: bool,
) -> Result<(), ApplyError> {
    let changes = compare(shape, live, new).without(by.reset);
    let written = changes.modified.union(&changes.added);
    let mut conflicts = Vec::new();
    for (owner, owned) in managed.0.iter().filter(|(owner, _)| *owner != id) {
        for path in owned.set.intersection(&written).paths() {
            conflicts.push(Conflict { owner: owner.clone(), time: owned.time.clone(), path });
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }
    managed.0.retain(|owner, owned| {
        if owner != id {
            owned.set = owned.set.difference(&owned.set.intersection(&written)).difference(&changes.removed);
        }
        !owned.set.is_empty()
    });
    Ok(())
}

/// Removes what the applier had applied, did not apply this time, and nobody owns.
fn prune(shape: &Shape, merged: &Value, managed: &Managed, last: &Set) -> Value {
    let nothing = || Value::Object(Map::new());
    let last = last.with_named_fields(shape);
    let pruned = remove(shape, merged, &last).unwrap_or_else(nothing);
    let named = |value: &Value| set_of(shape, value).with_named_fields(shape);
    // What somebody owns comes back.
    let mut owned = Set::default();
    managed.0.values().for_each(|fields| owned.extend(&fields.set));
    let merged_set = named(merged);
    let kept = named(&pruned).union(&owned.with_named_fields(shape));
    let pruned = remove(shape, merged, &merged_set.difference(&kept)).unwrap_or_else(nothing);
    // So does what the applier had never owned.
    let gone = merged_set.difference(&named(&pruned)).intersection(&last);
    remove(shape, merged, &gone).unwrap_or_else(nothing)
}

/// What client-side apply set and nobody has changed since.
fn last_applied(shape: &Shape, live: &Value, api_version: &str) -> Option<Set> {
    let text = annotation(live)?;
    let config: Value = serde_json::from_str(text).ok()?;
    if config.get("apiVersion")?.as_str()? != api_version || validate(shape, &config).is_err() {
        return None;
    }
    let changes = compare(shape, &config, live);
    let set = set_of(shape, &config);
    Some(set.difference(&changes.modified).difference(&changes.added).difference(&changes.removed))
}

fn annotation(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str().filter(|text| !text.is_empty())
}

/// Client-side apply can be used again afterwards.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    }
    object["metadata"]["annotations"][LAST_APPLIED] = format!("{}\n", sorted(&config)).into();
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let names: BTreeSet<&String> = fields.keys().collect();
            Value::Object(names.into_iter().map(|name| (name.clone(), sorted(&fields[name]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
