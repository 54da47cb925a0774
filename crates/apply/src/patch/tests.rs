use super::*;
use serde_json::json;

fn patched(object: &Value, operations: Value) -> Result<Value, BoundedPatchError> {
    let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
    apply_json_patch(object, &patch.0)
}

fn copy(from: &str, path: &str) -> Value {
    json!({"op": "copy", "from": from, "path": path})
}

/// Returns `levels` nested lists.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!([inner]))
}

#[test]
fn operations_apply_in_order() {
    let object = json!({"nets": ["a", "b"], "order": 1});
    let operations = json!([
        {"op": "test", "path": "/order", "value": 1},
        {"op": "add", "path": "/nets/0", "value": "c"},
        {"op": "move", "from": "/nets/2", "path": "/last"},
        {"op": "copy", "from": "/last", "path": "/nets/-"},
        {"op": "replace", "path": "/order", "value": 2},
        {"op": "remove", "path": "/nets/1"},
    ]);
    assert_eq!(patched(&object, operations).unwrap(), json!({"nets": ["c", "b"], "order": 2, "last": "b"}));
    let failed = patched(
        &object,
        json!([{"op": "test", "path": "/order", "value": 1}, {"op": "remove", "path": "/x"}]),
    );
    assert!(failed.unwrap_err().to_string().starts_with("operation '/1' failed at path '/x'"));
}

#[test]
fn doubling_copies_are_refused() {
    // Each operation doubles the result of the one before: 2^40 bytes.
    let operations: Vec<Value> = (0..40).map(|number| copy("", &format!("/{number}"))).collect();
    let refused = patched(&json!({"a": "x".repeat(100)}), operations.into());
    assert!(matches!(refused, Err(BoundedPatchError::CopiesTooLarge | BoundedPatchError::TooDeep)));
    // Copies to the same path, so that the object stays small.
    let object = json!({"a": "x".repeat(1 << 20), "b": 1});
    let copies = |count| vec![copy("/a", "/b"); count];
    assert!(patched(&object, copies(2).into()).is_ok());
    assert!(matches!(patched(&object, copies(10_000).into()), Err(BoundedPatchError::CopiesTooLarge)));
}

#[test]
fn copied_bytes_are_counted_exactly() {
    // The two bytes are the quotes.
    let object = json!({"a": "x".repeat(MAX_COPIED_BYTES / 2 - 2), "b": "c"});
    let copies = [copy("/a", "/d"), copy("/a", "/e")];
    assert!(patched(&object, copies.to_vec().into()).is_ok());
    let [first, second] = copies;
    let refused = patched(&object, json!([first, second, copy("/b", "/f")]));
    assert!(matches!(refused, Err(BoundedPatchError::CopiesTooLarge)));
}

#[test]
fn nesting_is_bounded_for_every_operation() {
    let object = json!({"a": {}, "deep": nested(MAX_PATCHED_DEPTH - 1)});
    let add = |levels| json!([{"op": "add", "path": "/x", "value": nested(levels)}]);
    assert!(patched(&object, add(MAX_PATCHED_DEPTH - 1)).is_ok());
    for operations in [
        add(MAX_PATCHED_DEPTH),
        json!([{"op": "replace", "path": "/a", "value": nested(MAX_PATCHED_DEPTH)}]),
        json!([copy("/deep", "/a/x")]),
        json!([{"op": "move", "from": "/deep", "path": "/a/x"}]),
    ] {
        assert!(
            matches!(patched(&object, operations.clone()), Err(BoundedPatchError::TooDeep)),
            "{operations}"
        );
    }
    // Each copy is nested in the one before.
    let operations: Vec<Value> = (1..1_000).map(|level| copy("/a", &"/a".repeat(level + 1))).collect();
    assert!(matches!(patched(&json!({"a": {}}), operations.into()), Err(BoundedPatchError::TooDeep)));
    assert!(apply_merge_patch(&object, &json!({"x": nested(MAX_PATCHED_DEPTH - 1)})).is_ok());
    let refused = apply_merge_patch(&object, &json!({"x": nested(MAX_PATCHED_DEPTH)}));
    assert!(matches!(refused, Err(BoundedPatchError::TooDeep)));
}

#[test]
fn operations_are_bounded() {
    let test = json!({"op": "test", "path": "/a", "value": 1});
    let object = json!({"a": 1});
    assert!(patched(&object, vec![test.clone(); MAX_PATCH_OPERATIONS].into()).is_ok());
    let refused = patched(&object, vec![test; MAX_PATCH_OPERATIONS + 1].into());
    assert!(matches!(refused, Err(BoundedPatchError::TooManyOperations(10_001))));
}

#[test]
fn work_on_long_lists_is_bounded() {
    let object = json!({"a": vec![1; 500_000]});
    let operations = |operation: Value| -> Value { vec![operation; 1_000].into() };
    for operation in [
        json!({"op": "add", "path": "/a/0", "value": 1}),
        json!({"op": "remove", "path": "/a/0"}),
        json!({"op": "move", "from": "/a", "path": "/a"}),
    ] {
        let refused = patched(&object, operations(operation.clone()));
        assert!(matches!(refused, Err(BoundedPatchError::TooManySteps)), "{operation}");
    }
    let append = json!({"op": "add", "path": "/a/-", "value": 1});
    assert!(patched(&object, operations(append)).is_ok());
}
