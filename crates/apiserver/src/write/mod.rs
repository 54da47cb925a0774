//! Computes the object to store from the live object and the submitted one. No I/O.

use crate::refusal::{StatusCause, StatusError};
use crate::request::FieldValidation;
use crate::resources::{API_VERSION, ServedKind};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use tortie_apply::{ApplyError, FieldManager, ManagedFields, equal};
use tortie_model::{DecodeError, Resource};

/// Metadata that only the server sets; submitted values are ignored.
const SERVER_SET_METADATA: [&str; 7] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// The author of a write and the validation mode.
#[derive(Clone, Copy, Debug)]
pub struct WriteAuthor<'a> {
    pub manager: &'a str,
    /// RFC 3339 format, whole seconds.
    pub now: &'a str,
    pub validation: FieldValidation,
}

/// The object that the path of a request addresses.
#[derive(Clone, Copy, Debug)]
pub struct WriteTarget<'a> {
    pub served: ServedKind,
    pub namespace: &'a str,
    /// Empty if the submitted object contains the name.
    pub name: &'a str,
    pub is_status: bool,
}

/// An object to store, and warnings for its author.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedWrite {
    pub resource: Resource,
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WriteOutcome {
    /// Nothing changes, so nothing is stored.
    Same,
    Changed(PreparedWrite),
    /// The last finalizer was removed from a terminating object: delete it.
    Gone,
}

impl WriteTarget<'_> {
    fn manager<'a>(&self, author: WriteAuthor<'a>) -> FieldManager<'a> {
        FieldManager {
            name: author.manager,
            api_version: API_VERSION,
            subresource: if self.is_status { "status" } else { "" },
            reset: self.served.reset_fields(self.is_status),
            now: author.now,
        }
    }

    /// Returns an empty object of the kind.
    fn empty_object(&self) -> Value {
        json!({"apiVersion": API_VERSION, "kind": self.served.kind.name()})
    }
}

/// Prepares a new object.
pub fn prepare_create(
    target: WriteTarget<'_>,
    mut submitted: Value,
    author: WriteAuthor<'_>,
) -> Result<PreparedWrite, StatusError> {
    complete_identity(target, &mut submitted)?;
    if !read_text_at(&submitted, "/metadata/resourceVersion").is_empty() {
        return Err(StatusError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let managed = read_managed_fields(&submitted, None);
    let (mut new, warnings) = decode_submitted(target, submitted, None, author.validation)?;
    clear_managed(&mut new);
    let managed = tortie_apply::update(
        target.served.merge_schema(),
        &target.empty_object(),
        &new,
        managed,
        target.manager(author),
    );
    finish_created(target, new, &managed, warnings)
}

fn finish_created(
    target: WriteTarget<'_>,
    mut new: Value,
    managed: &ManagedFields,
    warnings: Vec<String>,
) -> Result<PreparedWrite, StatusError> {
    if target.served.has_status() {
        remove_field(&mut new, "status");
    }
    if let Some(Value::Object(metadata)) = new.get_mut("metadata") {
        for field in SERVER_SET_METADATA {
            metadata.remove(field);
        }
        metadata.insert("generation".into(), 1.into());
        metadata.insert("managedFields".into(), managed.encode().into());
    }
    Ok(PreparedWrite { resource: convert_to_resource(target.served, new)?, warnings })
}

/// Computes the live object after an update or a patch. With `must_name_version`, a request without a resourceVersion
/// is rejected, because the version that it is based on is unknown.
pub fn prepare_update(
    target: WriteTarget<'_>,
    live: &Value,
    mut submitted: Value,
    author: WriteAuthor<'_>,
    must_name_version: bool,
) -> Result<WriteOutcome, StatusError> {
    let live = &strip_empty_status(live);
    complete_identity(target, &mut submitted)?;
    check_version(target, live, &submitted, must_name_version)?;
    let managed = read_managed_fields(&submitted, Some((live, target.is_status)));
    let (mut new, warnings) = decode_submitted(target, submitted, Some(live), author.validation)?;
    clear_managed(&mut new);
    let managed =
        tortie_apply::update(target.served.merge_schema(), live, &new, managed, target.manager(author));
    finish_updated(target, live, new, &managed, warnings)
}

/// Computes the object after a server-side apply; a new one if there is no live object.
pub fn prepare_apply(
    target: WriteTarget<'_>,
    live: Option<&Value>,
    mut config: Value,
    author: WriteAuthor<'_>,
    force: bool,
) -> Result<WriteOutcome, StatusError> {
    let version = read_text_at(&config, "/apiVersion");
    if version != API_VERSION {
        return Err(StatusError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {API_VERSION}"
        )));
    }
    if config.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    if author.manager.is_empty() {
        return Err(StatusError::unprocessable(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ));
    }
    complete_identity(target, &mut config)?;
    let nothing = target.empty_object();
    let live = live.map(strip_empty_status);
    let live = live.as_ref();
    match live {
        Some(live) => check_version(target, live, &config, false)?,
        None if target.is_status => return Err(StatusError::not_found(target.served, target.name)),
        None if !read_text_at(&config, "/metadata/uid").is_empty() => {
            return Err(StatusError::conflict(
                target.served,
                target.name,
                "uid mismatch: there is no such object",
            ));
        }
        None => {}
    }
    let managed = read_managed_fields(&nothing, live.map(|live| (live, true)));
    let before = live.unwrap_or(&nothing);
    let outcome = tortie_apply::apply(
        target.served.merge_schema(),
        before,
        &config,
        managed,
        target.manager(author),
        force,
    );
    let applied = outcome.map_err(|error| convert_apply_error(&error))?;
    let (mut new, warnings) = decode_submitted(target, applied.object, live, FieldValidation::Ignore)?;
    clear_managed(&mut new);
    match live {
        Some(live) => finish_updated(target, live, new, &applied.managed, warnings),
        None => finish_created(target, new, &applied.managed, warnings).map(WriteOutcome::Changed),
    }
}

fn convert_apply_error(error: &ApplyError) -> StatusError {
    match error {
        ApplyError::Shape(_) => StatusError::bad_request(error.to_string()),
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts.iter().map(|conflict| StatusCause {
                reason: "FieldManagerConflict",
                message: conflict.to_string(),
                field: conflict.path.to_string(),
            });
            StatusError::apply_conflict(error.to_string(), causes.collect())
        }
    }
}

/// Restores the parts of `new` that a write to this target cannot change.
fn finish_updated(
    target: WriteTarget<'_>,
    live: &Value,
    mut new: Value,
    managed: &ManagedFields,
    warnings: Vec<String>,
) -> Result<WriteOutcome, StatusError> {
    if target.is_status {
        let status = new.get("status").cloned();
        new = live.clone();
        replace_field(&mut new, "status", status);
    } else if target.served.has_status() {
        replace_field(&mut new, "status", live.get("status").cloned());
    }
    let changed = !equal(&strip_metadata(live), &strip_metadata(&new));
    let own = live.get("metadata").cloned().unwrap_or_default();
    if let Some(Value::Object(metadata)) = new.get_mut("metadata") {
        for field in SERVER_SET_METADATA {
            match own.get(field) {
                Some(value) => metadata.insert(field.into(), value.clone()),
                None => metadata.remove(field),
            };
        }
        if changed {
            let generation = own.get("generation").and_then(Value::as_i64).unwrap_or_default();
            metadata.insert("generation".into(), generation.saturating_add(1).into());
        }
        if managed.is_empty() {
            metadata.remove("managedFields");
        } else {
            metadata.insert("managedFields".into(), managed.encode().into());
        }
    }
    if equal(&strip_managed_times(live), &strip_managed_times(&new)) {
        return Ok(WriteOutcome::Same);
    }
    if own.get("deletionTimestamp").is_some() {
        let before: HashSet<String> = read_finalizers(live).into_iter().collect();
        let after = read_finalizers(&new);
        if let Some(added) = after.iter().find(|name| !before.contains(*name)) {
            let why = "no new finalizers can be added if the object is being deleted";
            let cause = StatusCause::invalid("metadata.finalizers", added, why);
            return Err(StatusError::invalid(target.served, target.name, vec![cause]));
        }
        if after.is_empty() {
            return Ok(WriteOutcome::Gone);
        }
    }
    Ok(WriteOutcome::Changed(PreparedWrite { resource: convert_to_resource(target.served, new)?, warnings }))
}

pub fn read_finalizers(object: &Value) -> Vec<String> {
    let listed = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    listed.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the object without metadata and status.
fn strip_metadata(object: &Value) -> Value {
    let mut wanted = object.clone();
    remove_field(&mut wanted, "metadata");
    remove_field(&mut wanted, "status");
    wanted
}

/// Removes the timestamps of managed fields, which alone are not a change.
fn strip_managed_times(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(Value::Array(entries)) = object.pointer_mut("/metadata/managedFields") {
        for entry in entries {
            remove_field(entry, "time");
        }
    }
    object
}

/// Checks that kind, version, name and namespace match the path, and fills in missing ones.
fn complete_identity(target: WriteTarget<'_>, object: &mut Value) -> Result<(), StatusError> {
    let kind = target.served.kind;
    for (field, expected, what) in [("apiVersion", API_VERSION, "API version"), ("kind", kind.name(), "kind")]
    {
        match read_text_at(object, &format!("/{field}")) {
            "" => object[field] = expected.into(),
            given if given == expected => {}
            given => {
                return Err(StatusError::bad_request(format!(
                    "the {what} in the data ({given}) does not match the expected {what} ({expected})"
                )));
            }
        }
    }
    match object.get("metadata") {
        Some(Value::Object(_)) => {}
        None | Some(Value::Null) => object["metadata"] = Value::Object(Map::new()),
        Some(_) => return Err(StatusError::bad_request("metadata is not an object")),
    }
    let namespace = read_text_at(object, "/metadata/namespace");
    if kind.is_namespaced() && namespace.is_empty() {
        object["metadata"]["namespace"] = target.namespace.into();
    } else if kind.is_namespaced() && namespace != target.namespace {
        return Err(StatusError::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request ({namespace:?}, {:?})",
            target.namespace
        )));
    }
    if target.name.is_empty() {
        return Ok(());
    }
    match read_text_at(object, "/metadata/name") {
        "" => object["metadata"]["name"] = target.name.into(),
        given if given == target.name => {}
        given => {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({})",
                target.name
            )));
        }
    }
    Ok(())
}

fn check_version(
    target: WriteTarget<'_>,
    live: &Value,
    submitted: &Value,
    must_be_named: bool,
) -> Result<(), StatusError> {
    let uid = read_text_at(submitted, "/metadata/uid");
    let live_uid = read_text_at(live, "/metadata/uid");
    if !uid.is_empty() && uid != live_uid {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {live_uid}");
        return Err(StatusError::conflict(target.served, target.name, &why));
    }
    match read_text_at(submitted, "/metadata/resourceVersion") {
        "" if must_be_named => {
            let cause =
                StatusCause::invalid("metadata.resourceVersion", "0", "must be specified for an update");
            Err(StatusError::invalid(target.served, target.name, vec![cause]))
        }
        "" => Ok(()),
        given if given == read_text_at(live, "/metadata/resourceVersion") => Ok(()),
        _ => Err(StatusError::modified(target.served, target.name)),
    }
}

/// Decodes the object through the types, sets defaults, and returns warnings about unknown fields.
fn decode_submitted(
    target: WriteTarget<'_>,
    submitted: Value,
    live: Option<&Value>,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), StatusError> {
    let name = read_text_at(&submitted, "/metadata/name").to_owned();
    let kind = target.served.kind;
    let (mut resource, mut unknown) = Resource::from_user_tolerant(submitted.clone())
        .map_err(|error| refuse_undecodable(target.served, &name, error))?;
    if let (Some(live), false) = (live, unknown.is_empty()) {
        // Unknown fields stored by a newer version are kept unless the request removes them.
        let (_, kept) = Resource::from_user_tolerant(live.clone())
            .map_err(|error| refuse_undecodable(target.served, &name, error))?;
        let kept: HashSet<&String> = kept.iter().collect();
        if unknown.iter().all(|field| kept.contains(field)) {
            resource = Resource::from_store(kind, submitted)
                .map_err(|error| refuse_undecodable(target.served, &name, error))?;
            unknown.clear();
        }
    }
    let warnings: Vec<String> = unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
    if validation == FieldValidation::Strict && !warnings.is_empty() {
        return Err(StatusError::bad_request(format!(
            "{kind} in version \"v3\" cannot be handled as a {kind}: strict decoding error: {}",
            warnings.join(", ")
        )));
    }
    resource.set_defaults();
    let warnings = if validation == FieldValidation::Ignore { Vec::new() } else { warnings };
    Ok((strip_empty_status(&resource.to_value()), warnings))
}

fn refuse_undecodable(served: ServedKind, name: &str, error: DecodeError) -> StatusError {
    match error {
        DecodeError::Field { path, reason } => {
            let cause = StatusCause { reason: "FieldValueTypeInvalid", message: reason, field: path };
            StatusError::invalid(served, name, vec![cause])
        }
        other => StatusError::bad_request(other.to_string()),
    }
}

/// Removes an empty status, which some kinds serialize and which is equivalent to none.
fn strip_empty_status(object: &Value) -> Value {
    let mut object = object.clone();
    if object.get("status").and_then(Value::as_object).is_some_and(Map::is_empty) {
        remove_field(&mut object, "status");
    }
    object
}

fn convert_to_resource(served: ServedKind, object: Value) -> Result<Resource, StatusError> {
    Resource::from_store(served.kind, object).map_err(|error| StatusError::internal(error.to_string()))
}

/// Returns the managed fields before a write. Submitted ones take precedence, so that they can be corrected, except
/// through a subresource; an empty list resets them all.
fn read_managed_fields(submitted: &Value, live: Option<(&Value, bool)>) -> ManagedFields {
    let only_live = live.is_some_and(|(_, only_live)| only_live);
    if let Some(entries) = find_managed_entries(submitted).filter(|_| !only_live) {
        if entries.is_empty() || entries == [json!({})] {
            return ManagedFields::default();
        }
        if let Ok(managed) = ManagedFields::decode(entries)
            && !managed.is_empty()
        {
            return managed;
        }
    }
    let entries = live.and_then(|(live, _)| find_managed_entries(live)).unwrap_or_default();
    ManagedFields::decode(entries).unwrap_or_default()
}

fn find_managed_entries(object: &Value) -> Option<&[Value]> {
    object.pointer("/metadata/managedFields").and_then(Value::as_array).map(Vec::as_slice)
}

fn clear_managed(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata") {
        remove_field(metadata, "managedFields");
    }
}

pub fn read_text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn remove_field(object: &mut Value, field: &str) {
    if let Value::Object(fields) = object {
        fields.shift_remove(field);
    }
}

fn replace_field(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object[field] = value,
        None => remove_field(object, field),
    }
}

#[cfg(test)]
mod tests;
