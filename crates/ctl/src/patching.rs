//! Applies patches to an object's JSON, so that unknown fields are preserved.

use crate::cli::PatchType;
use serde_json::{Map, Value};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectPatchError {
    #[error("a {0} patch must be {1}")]
    Shape(&'static str, &'static str),
    #[error("invalid JSON patch: {0}")]
    Operations(String),
    #[error("the patch cannot be applied: {0}")]
    Failed(String),
    #[error("unknown value '{0}' for $patch: use replace, merge or delete")]
    Directive(String),
    #[error("directive {0} must be a list of {1}")]
    DirectiveShape(String, &'static str),
    #[error("{0} is in the patch but not in its $retainKeys list")]
    NotRetained(String),
    #[error("directive {0} is not supported: lists have no merge key here, give the whole list instead")]
    Unsupported(String),
}

type PatchResult<T> = std::result::Result<T, ObjectPatchError>;

/// Returns the object after the patch.
pub fn apply(object: &Value, patch: Value, patch_type: PatchType) -> PatchResult<Value> {
    match (patch_type, patch) {
        (PatchType::Json, patch @ Value::Array(_)) => {
            let operations: json_patch::Patch =
                serde_json::from_value(patch).map_err(|e| ObjectPatchError::Operations(e.to_string()))?;
            tortie_apply::apply_json_patch(object, &operations.0)
                .map_err(|error| ObjectPatchError::Failed(error.to_string()))
        }
        (PatchType::Json, _) => Err(ObjectPatchError::Shape("json", "a list of operations")),
        (PatchType::Merge, patch @ Value::Object(_)) => tortie_apply::apply_merge_patch(object, &patch)
            .map_err(|error| ObjectPatchError::Failed(error.to_string())),
        (PatchType::Merge, _) => Err(ObjectPatchError::Shape("merge", "an object")),
        (PatchType::Strategic, Value::Object(patch)) => {
            merge_maps(into_map(object.clone()), patch).map(Value::Object)
        }
        (PatchType::Strategic, _) => Err(ObjectPatchError::Shape("strategic merge", "an object")),
    }
}

const PATCH_DIRECTIVE: &str = "$patch";
const RETAIN_KEYS_DIRECTIVE: &str = "$retainKeys";
const DELETE_FROM_LIST_DIRECTIVE: &str = "$deleteFromPrimitiveList/";

fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn merge_maps(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
) -> PatchResult<Map<String, Value>> {
    match patch.shift_remove(PATCH_DIRECTIVE) {
        None => {}
        Some(Value::String(s)) if s == "merge" => {}
        Some(Value::String(s)) if s == "replace" => original.clear(),
        Some(Value::String(s)) if s == "delete" => return Ok(Map::new()),
        Some(other) => return Err(ObjectPatchError::Directive(crate::output::go::value(&other))),
    }
    if let Some(retain) = patch.shift_remove(RETAIN_KEYS_DIRECTIVE) {
        retain_keys(&mut original, &patch, retain)?;
    }
    for (key, change) in patch {
        if let Some(list) = key.strip_prefix(DELETE_FROM_LIST_DIRECTIVE) {
            let Value::Array(gone) = change else {
                return Err(ObjectPatchError::DirectiveShape(key, "values"));
            };
            if let Some(Value::Array(items)) = original.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key.starts_with('$') {
            return Err(ObjectPatchError::Unsupported(key));
        }
        match change {
            Value::Null => {
                original.shift_remove(&key);
            }
            Value::Object(change) => {
                let deletes = change.get(PATCH_DIRECTIVE).is_some_and(|v| v == "delete");
                let current = original.get_mut(&key).map(Value::take).unwrap_or_default();
                let merged = merge_maps(into_map(current), change)?;
                if deletes {
                    original.shift_remove(&key);
                } else {
                    original.insert(key, Value::Object(merged));
                }
            }
            Value::Array(items) => {
                original.insert(key, Value::Array(remove_replace_directives(items)?));
            }
            scalar => {
                original.insert(key, scalar);
            }
        }
    }
    Ok(original)
}

fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    retain: Value,
) -> PatchResult<()> {
    let names: Option<Vec<&str>> =
        retain.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
    let Some(retain) = names else {
        return Err(ObjectPatchError::DirectiveShape(RETAIN_KEYS_DIRECTIVE.to_owned(), "field names"));
    };
    if let Some(key) = patch.keys().find(|k| !k.starts_with('$') && !retain.contains(&k.as_str())) {
        return Err(ObjectPatchError::NotRetained(key.clone()));
    }
    original.retain(|key, _| retain.contains(&key.as_str()));
    Ok(())
}

/// Returns the list that replaces the original. Lists in a patch always replace the whole list; Kubernetes
/// tools make this explicit with an element that contains only `$patch: replace`, which is removed.
fn remove_replace_directives(items: Vec<Value>) -> PatchResult<Vec<Value>> {
    let mut kept = Vec::with_capacity(items.len());
    for item in items {
        match item.get(PATCH_DIRECTIVE) {
            None => kept.push(item),
            Some(directive) if directive == "replace" => {}
            Some(directive) => {
                return Err(ObjectPatchError::Unsupported(format!(
                    "$patch: {}",
                    crate::output::go::value(directive)
                )));
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn object() -> Value {
        json!({
            "metadata": {"name": "p", "labels": {"a": "1", "b": "2"}},
            "spec": {"order": 10, "types": ["Ingress"], "egress": [{"action": "Allow"}], "new": {"field": 1}},
        })
    }

    fn patched(patch_type: PatchType, patch: Value) -> Value {
        apply(&object(), patch, patch_type).unwrap()
    }

    #[test]
    fn strategic_merges_maps_and_replaces_lists() {
        let result = patched(
            PatchType::Strategic,
            json!({"metadata": {"labels": {"b": null, "c": "3"}}, "spec": {"types": ["Egress"], "order": 20}}),
        );
        assert_eq!(result["metadata"], json!({"name": "p", "labels": {"a": "1", "c": "3"}}));
        assert_eq!(
            result["spec"],
            json!({"order": 20, "types": ["Egress"], "egress": [{"action": "Allow"}], "new": {"field": 1}})
        );
    }

    #[test]
    fn strategic_directives() {
        let cases = [
            (
                json!({"metadata": {"labels": {"$patch": "replace", "z": "9"}}}),
                "/metadata/labels",
                json!({"z": "9"}),
            ),
            (json!({"metadata": {"labels": {"$patch": "delete"}}}), "/metadata", json!({"name": "p"})),
            (
                json!({"metadata": {"labels": {"$retainKeys": ["b"], "b": "3"}}}),
                "/metadata/labels",
                json!({"b": "3"}),
            ),
            (json!({"spec": {"$deleteFromPrimitiveList/types": ["Ingress"]}}), "/spec/types", json!([])),
            (
                json!({"spec": {"egress": [{"$patch": "replace"}, {"action": "Deny"}]}}),
                "/spec/egress",
                json!([{"action": "Deny"}]),
            ),
            (json!({"spec": {"fresh": {"a": null, "b": {"c": 1}}}}), "/spec/fresh", json!({"b": {"c": 1}})),
        ];
        for (patch, at, expected) in cases {
            assert_eq!(patched(PatchType::Strategic, patch.clone()).pointer(at), Some(&expected), "{patch}");
        }
    }

    #[test]
    fn strategic_directives_that_make_no_sense_are_refused() {
        for (patch, message) in [
            (
                json!({"spec": {"$patch": "explode"}}),
                "unknown value 'explode' for $patch: use replace, merge or delete",
            ),
            (
                json!({"spec": {"$setElementOrder/egress": []}}),
                "directive $setElementOrder/egress is not supported: lists have no merge key here, give the whole list instead",
            ),
            (
                json!({"spec": {"$retainKeys": ["order"], "types": []}}),
                "types is in the patch but not in its $retainKeys list",
            ),
            (json!(["x"]), "a strategic merge patch must be an object"),
        ] {
            assert_eq!(apply(&object(), patch, PatchType::Strategic).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn merge_is_rfc_7386() {
        let result =
            patched(PatchType::Merge, json!({"spec": {"order": null, "new": {"more": 2}, "types": []}}));
        assert_eq!(
            result["spec"],
            json!({"types": [], "egress": [{"action": "Allow"}], "new": {"field": 1, "more": 2}})
        );
        assert!(apply(&object(), json!(1), PatchType::Merge).is_err());
    }

    #[test]
    fn json_is_rfc_6902() {
        let result = patched(
            PatchType::Json,
            json!([
                {"op": "test", "path": "/spec/order", "value": 10},
                {"op": "add", "path": "/spec/egress/-", "value": {"action": "Deny"}},
                {"op": "remove", "path": "/metadata/labels/a"},
            ]),
        );
        assert_eq!(result["spec"]["egress"], json!([{"action": "Allow"}, {"action": "Deny"}]));
        assert_eq!(result["metadata"]["labels"], json!({"b": "2"}));
    }

    #[test]
    fn a_failed_operation_says_which() {
        let patch = json!([{"op": "test", "path": "/spec/order", "value": 11}]);
        let error = apply(&object(), patch, PatchType::Json).unwrap_err().to_string();
        assert!(
            error.starts_with("the patch cannot be applied: ") && error.contains("/spec/order"),
            "{error}"
        );
        let patch = json!([{"op": "fly", "path": "/spec/order"}]);
        let error = apply(&object(), patch, PatchType::Json).unwrap_err().to_string();
        assert!(error.starts_with("invalid JSON patch: "), "{error}");
        let error = apply(&object(), json!({}), PatchType::Json).unwrap_err().to_string();
        assert_eq!(error, "a json patch must be a list of operations");
    }

    #[test]
    fn copies_without_end_are_refused() {
        let copies: Vec<Value> = (0..40)
            .map(|number| json!({"op": "copy", "from": "/spec", "path": format!("/spec/{number}")}))
            .collect();
        let error = apply(&object(), copies.into(), PatchType::Json).unwrap_err().to_string();
        assert!(error.starts_with("the patch cannot be applied: "), "{error}");
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3i64).prop_map(Value::from),
            "[ab]".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn json_object() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-d]", json_value(), 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        /// Without merge keys and directives, a strategic merge is a JSON merge.
        #[test]
        fn strategic_without_directives_is_merge(object in json_object(), patch in json_object()) {
            prop_assert_eq!(
                apply(&object, patch.clone(), PatchType::Strategic),
                apply(&object, patch, PatchType::Merge)
            );
        }

        #[test]
        fn no_patch_panics(object in json_value(), patch in json_value(), key in r"\$(patch|retainKeys|deleteFromPrimitiveList/a|x)") {
            for patch_type in [PatchType::Strategic, PatchType::Json, PatchType::Merge] {
                let _ = apply(&object, json!({&key: patch, "a": {&key: patch}}), patch_type);
                let _ = apply(&object, json!([{"op": "add", "path": "/a", "value": patch}]), patch_type);
            }
        }
    }
}
