//! JSON patches and merge patches, within the limits of `tortie_apply`. Server-side apply is handled in `write`.

use crate::refusal::StatusError;
use serde_json::Value;
use tortie_apply::BoundedPatchError;

pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// A patched object is limited to the size of a request body.
const MAX_PATCHED_BYTES: usize = crate::body::MAX_BODY_BYTES;

#[derive(Clone, Debug)]
pub enum ObjectPatch {
    Json(json_patch::Patch),
    Merge(Value),
    /// A configuration for server-side apply.
    Apply(Value),
}

impl ObjectPatch {
    /// Parses the body of a request by its media type.
    pub fn read(media_type: &str, body: &[u8]) -> Result<ObjectPatch, StatusError> {
        match media_type {
            JSON_PATCH => serde_json::from_slice(body)
                .map(ObjectPatch::Json)
                .map_err(|error| StatusError::bad_request(format!("error decoding JSON patch: {error}"))),
            MERGE_PATCH => match serde_json::from_slice(body) {
                Ok(patch @ Value::Object(_)) => Ok(ObjectPatch::Merge(patch)),
                Ok(_) => Err(StatusError::bad_request("a merge patch must be a JSON object")),
                Err(error) => Err(StatusError::bad_request(format!("error decoding merge patch: {error}"))),
            },
            APPLY_PATCH => crate::body::parse_document(body).map(ObjectPatch::Apply),
            _ => Err(StatusError::unsupported_media_type(&[JSON_PATCH, MERGE_PATCH, APPLY_PATCH].join(", "))),
        }
    }

    /// Returns whether the patch creates the object if it does not exist.
    pub fn creates(&self) -> bool {
        matches!(self, ObjectPatch::Apply(_))
    }

    /// Returns the object after a JSON or merge patch.
    pub fn apply_to(&self, object: &Value) -> Result<Value, StatusError> {
        let patched = match self {
            ObjectPatch::Json(patch) => tortie_apply::apply_json_patch(object, &patch.0),
            ObjectPatch::Merge(patch) | ObjectPatch::Apply(patch) => {
                tortie_apply::apply_merge_patch(object, patch)
            }
        };
        let patched = patched.map_err(|error| match error {
            // 413, as kube-apiserver responds.
            BoundedPatchError::TooManyOperations(_) => StatusError::entity_too_large(error.to_string()),
            BoundedPatchError::Operation(_) => StatusError::unprocessable(format!(
                "the server rejected our request due to an error in our request: {error}"
            )),
            BoundedPatchError::CopiesTooLarge
            | BoundedPatchError::TooDeep
            | BoundedPatchError::TooManySteps => StatusError::unprocessable(error.to_string()),
        })?;
        if !patched.is_object() {
            return Err(StatusError::unprocessable("the result of the patch is not an object"));
        }
        if !tortie_apply::fits_json(&patched, MAX_PATCHED_BYTES) {
            return Err(StatusError::too_large(MAX_PATCHED_BYTES));
        }
        Ok(patched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patches_change_the_object() {
        let object = json!({"spec": {"order": 1, "nets": ["a", "b"]}});
        let patched = |form: &str, text: &str| ObjectPatch::read(form, text.as_bytes())?.apply_to(&object);
        assert_eq!(
            patched(MERGE_PATCH, r#"{"spec": {"order": null, "nets": ["c"]}}"#).unwrap(),
            json!({"spec": {"nets": ["c"]}})
        );
        assert_eq!(
            patched(JSON_PATCH, r#"[{"op": "test", "path": "/spec/order", "value": 1}, {"op": "add", "path": "/spec/nets/-", "value": "c"}]"#)
                .unwrap(),
            json!({"spec": {"order": 1, "nets": ["a", "b", "c"]}})
        );
        for (form, text, code) in [
            (JSON_PATCH, r#"[{"op": "test", "path": "/spec/order", "value": 2}]"#, 422),
            (JSON_PATCH, r#"[{"op": "remove", "path": "/spec/none"}]"#, 422),
            (JSON_PATCH, r#"{"op": "remove"}"#, 400),
            (JSON_PATCH, r#"[{"op": "remove", "path": ""}]"#, 422),
            (MERGE_PATCH, "[]", 400),
            (MERGE_PATCH, "{", 400),
            ("application/strategic-merge-patch+json", "{}", 415),
        ] {
            assert_eq!(patched(form, text).unwrap_err().code(), code, "{text}");
        }
    }

    #[test]
    fn patches_that_cost_too_much_are_refused() {
        let object = json!({"a": "x".repeat(1 << 20)});
        let refused = |form: &str, text: &str| ObjectPatch::read(form, text.as_bytes())?.apply_to(&object);
        let many = |operation: &str, count| format!("[{}]", vec![operation; count].join(","));
        let deep = |levels| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        for (form, text, code) in [
            (JSON_PATCH, many(r#"{"op":"test","path":"/b","value":1}"#, 10_001), 413),
            (JSON_PATCH, many(r#"{"op":"copy","from":"/a","path":"/a"}"#, 10_000), 422),
            (JSON_PATCH, many(r#"{"op":"copy","from":"","path":"/b"}"#, 40), 422),
            (JSON_PATCH, format!(r#"[{{"op":"add","path":"/b","value":{}}}]"#, deep(60)), 422),
            (MERGE_PATCH, deep(60), 422),
            (MERGE_PATCH, deep(1_000), 400),
            (APPLY_PATCH, deep(60), 400),
            (MERGE_PATCH, format!(r#"{{"b": "{}"}}"#, "x".repeat(2 << 20)), 413),
            // An alias for each of many copies of a large text.
            (APPLY_PATCH, format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a,".repeat(90_000)), 400),
        ] {
            assert_eq!(refused(form, &text).unwrap_err().code(), code, "{form} {:.80}", text);
        }
    }
}
