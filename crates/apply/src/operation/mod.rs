//! Applies updates and server-side applies to an object and to the record of its field owners.

use crate::conflict::{ApplyConflict, describe_conflicts};
use crate::managed::{ManagedFields, ManagerId, ManagerOperation, OwnedFields};
use crate::merge_schema::MergeSchema;
use crate::set::FieldSet;
use crate::walk::{SchemaViolation, compare, drop_nulls, equal, list_fields, merge, remove, validate};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Manager that owns the fields of an object that has no managedFields at its first server-side apply.
const BEFORE_FIRST_APPLY_MANAGER: &str = "before-first-apply";
/// Annotation in which client-side apply keeps the configuration that it applied last. A user who moves from it to
/// server-side apply with the same program must not conflict with the fields that the user set before.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
const KUBECTL_MANAGER: &str = "kubectl";

/// Fields that belong to the server and have no owner.
const SERVER_OWNED_FIELDS: &[&[&str]] = &[
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

/// The manager that writes, and how.
#[derive(Clone, Copy, Debug)]
pub struct FieldManager<'a> {
    pub name: &'a str,
    pub api_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Fields that this write does not change, such as the status in a write to the object itself.
    pub reset: &'a FieldSet,
    /// In RFC 3339 format, whole seconds.
    pub now: &'a str,
}

/// The object after an apply, and the owners of its fields.
#[derive(Clone, Debug, PartialEq)]
pub struct ApplyResult {
    pub object: Value,
    pub managed: ManagedFields,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApplyError {
    /// The configuration does not match the schema of the kind.
    #[error("failed to create typed patch object: {0}")]
    Shape(#[from] SchemaViolation),
    #[error("{}", describe_conflicts(.0))]
    Conflicts(Vec<ApplyConflict>),
}

impl FieldManager<'_> {
    fn id(&self, operation: ManagerOperation) -> ManagerId {
        let name = if self.name.is_empty() { "unknown" } else { self.name };
        ManagerId {
            manager: name.to_owned(),
            operation,
            api_version: match operation {
                ManagerOperation::Apply => String::new(),
                ManagerOperation::Update => self.api_version.to_owned(),
            },
            subresource: self.subresource.to_owned(),
        }
    }
}

/// Returns the field owners after an update from `live` to `new`. For a new object, `live` holds only its apiVersion
/// and kind.
pub fn update(
    shape: &MergeSchema,
    live: &Value,
    new: &Value,
    mut managed: ManagedFields,
    by: FieldManager<'_>,
) -> ManagedFields {
    let existed = live.pointer("/metadata/uid").and_then(Value::as_str).is_some_and(|uid| !uid.is_empty());
    if managed.is_empty() && existed {
        // Objects without managedFields stay untracked until the first server-side apply.
        return managed;
    }
    record_update(shape, live, new, &mut managed, by);
    managed.cap_updaters();
    managed
}

fn record_update(
    shape: &MergeSchema,
    live: &Value,
    new: &Value,
    managed: &mut ManagedFields,
    by: FieldManager<'_>,
) {
    managed.keep_version(by.api_version);
    let changes = compare(shape, live, new).without(by.reset);
    let written = changes.modified.union(&changes.added);
    managed.0.retain(|_, owned| {
        owned.set = owned.set.difference(&owned.set.intersection(&written)).difference(&changes.removed);
        !owned.set.is_empty()
    });
    let own = written.difference(&FieldSet::from_names(SERVER_OWNED_FIELDS));
    if own.is_empty() {
        return;
    }
    let owned = managed.0.entry(by.id(ManagerOperation::Update)).or_insert_with(|| OwnedFields {
        set: FieldSet::default(),
        api_version: by.api_version.to_owned(),
        time: None,
    });
    owned.set = owned.set.union(&own);
    owned.time = Some(by.now.to_owned());
}

/// Merges an applied configuration into the live object. Fields that the applier applied before and leaves out now
/// are removed, unless another manager owns them. Changed values of fields with other owners are conflicts, unless
/// `force` takes the fields over.
pub fn apply(
    shape: &MergeSchema,
    live: &Value,
    config: &Value,
    mut managed: ManagedFields,
    by: FieldManager<'_>,
    force: bool,
) -> Result<ApplyResult, ApplyError> {
    validate(shape, config)?;
    if managed.is_empty() {
        let nothing = json!({"apiVersion": live["apiVersion"], "kind": live["kind"]});
        record_update(
            shape,
            &nothing,
            live,
            &mut managed,
            FieldManager { name: BEFORE_FIRST_APPLY_MANAGER, ..by },
        );
    }
    let mut outcome = try_apply(shape, live, config, managed.clone(), by, force);
    if let Err(ApplyError::Conflicts(conflicts)) = &mut outcome
        && by.name == KUBECTL_MANAGER
        && let Some(own) = read_last_applied(shape, live, by.api_version)
    {
        conflicts.retain(|conflict| !own.contains(&conflict.path.0));
        if conflicts.is_empty() {
            outcome = try_apply(shape, live, config, managed, by, true);
        }
    }
    let mut applied = outcome?;
    if by.name == KUBECTL_MANAGER {
        refresh_last_applied(&mut applied.object, config);
    }
    Ok(applied)
}

fn try_apply(
    shape: &MergeSchema,
    live: &Value,
    config: &Value,
    mut managed: ManagedFields,
    by: FieldManager<'_>,
    force: bool,
) -> Result<ApplyResult, ApplyError> {
    managed.keep_version(by.api_version);
    let id = by.id(ManagerOperation::Apply);
    let merged = merge(shape, Some(live), Some(config)).unwrap_or_else(|| live.clone());
    let last = managed.0.get(&id).cloned();
    let set = list_fields(shape, config).recursive_difference(by.reset);
    let time = last.as_ref().and_then(|last| last.time.clone());
    managed.0.insert(id.clone(), OwnedFields { set, api_version: by.api_version.to_owned(), time });
    let mut new = match &last {
        Some(last) if !last.set.is_empty() => prune(shape, &merged, &managed, &last.set),
        _ => merged,
    };
    take_over_fields(shape, live, &new, &mut managed, &id, by, force)?;
    drop_nulls(&mut new);
    if let Some(owned) = managed.0.get_mut(&id) {
        owned.set = owned.set.difference(&FieldSet::from_names(SERVER_OWNED_FIELDS));
        if owned.set.is_empty() {
            managed.0.remove(&id);
        }
    }
    if equal(live, &new) {
        return Ok(ApplyResult { object: live.clone(), managed });
    }
    if let Some(owned) = managed.0.get_mut(&id) {
        owned.time = Some(by.now.to_owned());
    }
    Ok(ApplyResult { object: new, managed })
}

/// Removes fields that the applier changes from the sets of the other owners, or returns the conflicts.
fn take_over_fields(
    shape: &MergeSchema,
    live: &Value,
    new: &Value,
    managed: &mut ManagedFields,
    id: &ManagerId,
    by: FieldManager<'_>,
    force: bool,
) -> Result<(), ApplyError> {
    let changes = compare(shape, live, new).without(by.reset);
    let written = changes.modified.union(&changes.added);
    let mut conflicts = Vec::new();
    for (owner, owned) in managed.0.iter().filter(|(owner, _)| *owner != id) {
        for path in owned.set.intersection(&written).paths() {
            conflicts.push(ApplyConflict { owner: owner.clone(), time: owned.time.clone(), path });
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

/// Removes fields that the applier applied before, did not apply this time, and no other manager owns.
fn prune(shape: &MergeSchema, merged: &Value, managed: &ManagedFields, last: &FieldSet) -> Value {
    let last = last.with_named_fields(shape);
    let pruned = remove_or_empty(shape, merged, &last);
    // Restore fields that have an owner.
    let mut owned = FieldSet::default();
    managed.0.values().for_each(|fields| owned.extend(&fields.set));
    let merged_set = list_fields(shape, merged).with_named_fields(shape);
    let kept = list_fields(shape, &pruned).union(&owned).with_named_fields(shape);
    let pruned = remove_or_empty(shape, merged, &merged_set.difference(&kept));
    // Restore fields that the applier never owned.
    let left = list_fields(shape, &pruned).with_named_fields(shape);
    remove_or_empty(shape, merged, &merged_set.difference(&left).intersection(&last))
}

fn remove_or_empty(shape: &MergeSchema, value: &Value, fields: &FieldSet) -> Value {
    remove(shape, value, fields).unwrap_or_else(|| json!({}))
}

/// Returns the fields that client-side apply set and no client has changed since.
fn read_last_applied(shape: &MergeSchema, live: &Value, api_version: &str) -> Option<FieldSet> {
    let text = find_last_applied_text(live)?;
    let config: Value = serde_json::from_str(text).ok()?;
    if config.get("apiVersion")?.as_str()? != api_version || validate(shape, &config).is_err() {
        return None;
    }
    let changes = compare(shape, &config, live);
    let set = list_fields(shape, &config);
    Some(set.difference(&changes.modified).difference(&changes.added).difference(&changes.removed))
}

fn find_last_applied_text(object: &Value) -> Option<&str> {
    object
        .get("metadata")?
        .get("annotations")?
        .get(LAST_APPLIED_ANNOTATION)?
        .as_str()
        .filter(|text| !text.is_empty())
}

/// Updates the annotation of client-side apply, so that the client can return to it.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    if find_last_applied_text(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED_ANNOTATION);
    }
    object["metadata"]["annotations"][LAST_APPLIED_ANNOTATION] = format!("{}\n", sort_fields(&config)).into();
}

fn sort_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let names: BTreeSet<&String> = fields.keys().collect();
            Value::Object(names.into_iter().map(|name| (name.clone(), sort_fields(&fields[name]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sort_fields).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
