//! Deletion of an object: immediately, or after its finalizers have been removed.

use crate::refusal::StatusError;
use crate::resources::ServedKind;
use crate::write::{read_finalizers, read_text_at};
use serde_json::{Value, json};

const ORPHAN_FINALIZER: &str = "orphan";
const FOREGROUND_FINALIZER: &str = "foregroundDeletion";

/// Handling of objects that the deleted one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletePropagation {
    /// Determined by the object's existing finalizers.
    Default,
    Orphan,
    Background,
    Foreground,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DeleteOptions {
    pub propagation: DeletePropagation,
    pub uid: String,
    pub resource_version: String,
    pub dry_run: bool,
    /// Whether the user wants to delete the object even if it is in use: `kubectl delete --force` sets a grace period of
    /// zero.
    pub force: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DeletionPlan {
    Now,
    /// The object as stored until its finalizers are removed.
    Later(Value),
    /// The object is already being deleted.
    Waiting,
}

impl DeleteOptions {
    /// Reads the options from the query and the body of a request.
    pub fn read(policy: &str, dry_run: bool, body: &[u8]) -> Result<DeleteOptions, StatusError> {
        let given = if body.is_empty() { json!({}) } else { crate::body::parse_document(body)? };
        let kind = read_text_at(&given, "/kind");
        if !kind.is_empty() && kind != "DeleteOptions" {
            return Err(StatusError::bad_request(format!(
                "the body of a deletion is DeleteOptions, not {kind}"
            )));
        }
        let policy = match read_text_at(&given, "/propagationPolicy") {
            "" => policy,
            given => given,
        };
        let orphans = given.get("orphanDependents").and_then(Value::as_bool);
        let propagation = match (policy, orphans) {
            ("", None) => DeletePropagation::Default,
            ("", Some(true)) | ("Orphan", None) => DeletePropagation::Orphan,
            ("", Some(false)) | ("Background", None) => DeletePropagation::Background,
            ("Foreground", None) => DeletePropagation::Foreground,
            _ => {
                return Err(StatusError::unprocessable(format!(
                    "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: {policy:?}: must be \
                     \"Foreground\", \"Background\" or \"Orphan\", without orphanDependents"
                )));
            }
        };
        let dry_run = match given.get("dryRun").and_then(Value::as_array).map(Vec::as_slice) {
            None | Some([]) => dry_run,
            Some([all]) if all == "All" => true,
            Some(_) => {
                return Err(StatusError::unprocessable(
                    "dryRun: Unsupported value: supported values: \"All\"",
                ));
            }
        };
        Ok(DeleteOptions {
            propagation,
            uid: read_text_at(&given, "/preconditions/uid").to_owned(),
            resource_version: read_text_at(&given, "/preconditions/resourceVersion").to_owned(),
            dry_run,
            force: given.get("gracePeriodSeconds").and_then(Value::as_i64) == Some(0),
        })
    }

    /// Checks the preconditions against the live object.
    pub fn check(&self, served: ServedKind, live: &Value) -> Result<(), StatusError> {
        let name = read_text_at(live, "/metadata/name");
        for (what, given, found) in [
            ("UID", self.uid.as_str(), read_text_at(live, "/metadata/uid")),
            (
                "ResourceVersion",
                self.resource_version.as_str(),
                read_text_at(live, "/metadata/resourceVersion"),
            ),
        ] {
            if !given.is_empty() && given != found {
                let why = format!(
                    "Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}"
                );
                return Err(StatusError::conflict(served, name, &why));
            }
        }
        Ok(())
    }
}

/// Plans the deletion. `now` is in RFC 3339 format.
pub fn plan_deletion(live: &Value, propagation: DeletePropagation, now: &str) -> DeletionPlan {
    let before = read_finalizers(live);
    let mut after = before.clone();
    if propagation != DeletePropagation::Default {
        after.retain(|name| name != ORPHAN_FINALIZER && name != FOREGROUND_FINALIZER);
    }
    match propagation {
        DeletePropagation::Orphan => after.push(ORPHAN_FINALIZER.to_owned()),
        DeletePropagation::Foreground => after.push(FOREGROUND_FINALIZER.to_owned()),
        DeletePropagation::Default | DeletePropagation::Background => {}
    }
    if after.is_empty() {
        return DeletionPlan::Now;
    }
    let deleting = !read_text_at(live, "/metadata/deletionTimestamp").is_empty();
    if deleting && before == after {
        return DeletionPlan::Waiting;
    }
    let mut object = live.clone();
    let metadata = &mut object["metadata"];
    metadata["finalizers"] = json!(after);
    if !deleting {
        metadata["deletionTimestamp"] = now.into();
        metadata["deletionGracePeriodSeconds"] = 0.into();
        let generation = metadata["generation"].as_i64().unwrap_or_default();
        metadata["generation"] = generation.saturating_add(1).into();
    }
    DeletionPlan::Later(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_hold_an_object_back() {
        let plain = json!({"metadata": {"name": "x", "generation": 1}});
        let now = "2026-03-01T10:20:30Z";
        assert_eq!(plan_deletion(&plain, DeletePropagation::Default, now), DeletionPlan::Now);
        assert_eq!(plan_deletion(&plain, DeletePropagation::Background, now), DeletionPlan::Now);
        let DeletionPlan::Later(held) = plan_deletion(&plain, DeletePropagation::Foreground, now) else {
            panic!()
        };
        assert_eq!(read_finalizers(&held), [FOREGROUND_FINALIZER]);
        assert_eq!(
            (&held["metadata"]["deletionTimestamp"], &held["metadata"]["generation"]),
            (&json!(now), &json!(2))
        );
        assert_eq!(plan_deletion(&held, DeletePropagation::Default, now), DeletionPlan::Waiting);
        assert_eq!(plan_deletion(&held, DeletePropagation::Background, now), DeletionPlan::Now);
        let mut own = plain;
        own["metadata"]["finalizers"] = json!(["a/b"]);
        assert!(matches!(plan_deletion(&own, DeletePropagation::Background, now), DeletionPlan::Later(_)));
    }

    #[test]
    fn options_come_from_the_body_and_the_query() {
        let read = |policy: &str, body: &str| DeleteOptions::read(policy, false, body.as_bytes());
        assert_eq!(read("", "").unwrap().propagation, DeletePropagation::Default);
        assert_eq!(read("Orphan", "").unwrap().propagation, DeletePropagation::Orphan);
        let options = read("", r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground","preconditions":{"uid":"u"},"dryRun":["All"]}"#).unwrap();
        assert_eq!(
            (options.propagation, options.uid.as_str(), options.dry_run),
            (DeletePropagation::Foreground, "u", true)
        );
        assert!(!options.force);
        assert!(read("", r#"{"gracePeriodSeconds":0}"#).unwrap().force);
        assert!(!read("", r#"{"gracePeriodSeconds":30}"#).unwrap().force);
        for bad in
            [r#"{"propagationPolicy":"Sideways"}"#, r#"{"dryRun":["Some"]}"#, "[1", r#"{"kind":"Tier"}"#]
        {
            assert!(read("", bad).is_err(), "{bad}");
        }
        let served = ServedKind::find("tiers").unwrap();
        let live = json!({"metadata": {"name": "t", "uid": "other", "resourceVersion": "5"}});
        assert_eq!(options.check(served, &live).unwrap_err().code(), 409);
    }
}
