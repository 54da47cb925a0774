//! JSON patches and merge patches. Configurations that are applied are the business of `write`.

use crate::refusal::Refusal;
use serde_json::Value;

pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// A patch with more operations is refused: each may copy the whole object.
const MAX_OPERATIONS: usize = 10_000;
/// What a patch makes may not be larger than what can be sent.
const MAX_RESULT: usize = crate::body::LIMIT;

#[derive(Clone, Debug)]
pub enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    /// A configuration, to be applied.
    Apply(Value),
}

impl Patch {
    /// Reads the body of a request by its media type.
    pub fn read(media_type: &str, body: &[u8]) -> Result<Patch, Refusal> {
        match media_type {
            JSON_PATCH => {
                let patch: json_patch::Patch = serde_json::from_slice(body)
                    .map_err(|error| Refusal::bad_request(format!("error decoding JSON patch: {error}")))?;
                if patch.0.len() > MAX_OPERATIONS {
                    let found = patch.0.len();
                    return Err(Refusal::unprocessable(format!(
                        "the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {found}"
                    )));
                }
                Ok(Patch::Json(patch))
            }
            MERGE_PATCH => match serde_json::from_slice(body) {
                Ok(patch @ Value::Object(_)) => Ok(Patch::Merge(patch)),
                Ok(_) => Err(Refusal::bad_request("a merge patch is an object")),
                Err(error) => Err(Refusal::bad_request(format!("error decoding merge patch: {error}"))),
            },
            APPLY_PATCH => crate::body::document(body).map(Patch::Apply),
            _ => Err(Refusal::unsupported_media_type(&[JSON_PATCH, MERGE_PATCH, APPLY_PATCH].join(", "))),
        }
    }

    /// The object as a JSON or merge patch makes it.
    pub fn onto(&self, object: &Value) -> Result<Value, Refusal> {
        let mut patched = object.clone();
        match self {
            Patch::Json(patch) => {
                json_patch::patch(&mut patched, &patch.0).map_err(|error| {
                    Refusal::unprocessable(format!(
                        "the server rejected our request due to an error in our request: {error}"
                    ))
                })?;
            }
            Patch::Merge(patch) | Patch::Apply(patch) => json_patch::merge(&mut patched, patch),
        }
        if !patched.is_object() {
            return Err(Refusal::unprocessable("the patch leaves no object"));
        }
        if patched.to_string().len() > MAX_RESULT {
            return Err(Refusal::too_large(MAX_RESULT));
        }
        Ok(patched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patches_do_what_they_say() {
        let object = json!({"spec": {"order": 1, "nets": ["a", "b"]}});
        let patched = |form: &str, text: &str| Patch::read(form, text.as_bytes())?.onto(&object);
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
            assert_eq!(patched(form, text).unwrap_err().code, code, "{text}");
        }
    }

    #[test]
    fn a_patch_has_a_limit() {
        let one = r#"{"op":"add","path":"/x","value":1}"#;
        let many = format!("[{}]", vec![one; MAX_OPERATIONS + 1].join(","));
        assert_eq!(Patch::read(JSON_PATCH, many.as_bytes()).unwrap_err().code, 422);
        // Copies of copies would grow without end.
        let text = "x".repeat(1 << 20);
        let copies = r#"[{"op":"copy","from":"/a","path":"/b"},{"op":"copy","from":"/a","path":"/c"},{"op":"copy","from":"/a","path":"/d"}]"#;
        let refusal =
            Patch::read(JSON_PATCH, copies.as_bytes()).unwrap().onto(&json!({ "a": text })).unwrap_err();
        assert_eq!(refusal.code, 413);
    }
}
