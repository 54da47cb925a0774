//! `patch`: changes part of one object.

use super::parse_kind;
use crate::cli::{GlobalArgs, PatchArgs, PatchType};
use crate::failure::{CommandError, CommandResult};
use crate::namespace::{RequestedNamespace, resolve};
use crate::patching;
use crate::session;
use crate::verbs::modify;
use serde_json::Value;
use std::io::Write;
use tortie_model::object::DecodeError;
use tortie_model::{Resource, codec};

pub async fn patch(args: &PatchArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let hit = |error: String| CommandError::message(format!("hit error: {error}"));
    let kind = parse_kind(&args.kind).map_err(CommandError::Message)?;
    if args.name.is_empty() {
        return Err(CommandError::message("resource name may not be empty"));
    }
    let asked = RequestedNamespace { namespace: args.namespace.namespace.as_deref(), all: false };
    let namespace = resolve(kind, "", asked).map_err(|error| hit(error.to_string()))?;
    let fragment = read(&args.patch, args.patch_type).map_err(hit)?;
    let store = session::connect(&args.connection, global).await?;
    modify(&store, (kind, &namespace, &args.name), |current| patched(current, &fragment, args.patch_type))
        .await
        .map_err(|error| hit(error.to_string()))?;
    writeln!(out, "Successfully patched 1 '{kind}' resource")?;
    Ok(())
}

/// Parses the patch argument: one object, or a list of operations.
fn read(text: &str, patch_type: PatchType) -> std::result::Result<Value, String> {
    let documents =
        codec::documents(text.as_bytes()).map_err(|error| format!("the patch is not readable: {error}"))?;
    if patch_type == PatchType::Json {
        return Ok(Value::Array(documents));
    }
    match <[Value; 1]>::try_from(documents) {
        Ok([only]) => Ok(only),
        Err(documents) => Err(format!("the patch must be one object, not {}", documents.len())),
    }
}

/// Applies the patch to an object. A patch must not change the identity of the object.
fn patched(current: Resource, patch: &Value, patch_type: PatchType) -> std::result::Result<Resource, String> {
    let kind = current.kind();
    let before = current.to_value();
    let after = patching::apply(&before, patch.clone(), patch_type).map_err(|error| error.to_string())?;
    for at in ["/kind", "/apiVersion", "/metadata/name", "/metadata/namespace"] {
        if before.pointer(at) != after.pointer(at) {
            return Err(format!("a patch may not change {}", at.trim_start_matches('/').replace('/', ".")));
        }
    }
    check_fields(before, after.clone()).map_err(|error| error.to_string())?;
    Resource::from_store(kind, after).map_err(|error| error.to_string())
}

/// Rejects unknown fields, except those that the object had before: a newer version wrote them.
fn check_fields(before: Value, after: Value) -> std::result::Result<(), DecodeError> {
    let Err(error) = Resource::from_user(after) else { return Ok(()) };
    let DecodeError::UnknownField(fields) = &error else { return Err(error) };
    let known = match Resource::from_user(before) {
        Err(DecodeError::UnknownField(fields)) => fields.split(", ").map(without_indexes).collect(),
        _ => Vec::new(),
    };
    let new: Vec<_> = fields.split(", ").filter(|field| !known.contains(&without_indexes(field))).collect();
    if new.is_empty() { Ok(()) } else { Err(DecodeError::UnknownField(new.join(", "))) }
}

/// Removes list indexes from a path, because a patch may move list elements: `spec.ingress[0].sauce` ->
/// `spec.ingress.sauce`.
fn without_indexes(path: &str) -> String {
    path.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_without_indexes() {
        for (path, expected) in [("spec.a[12].b", "spec.a.b"), ("x", "x"), ("a[0][1]", "a"), ("a[0", "a0")] {
            assert_eq!(without_indexes(path), expected);
        }
    }

    fn node(spec: Value) -> Resource {
        let object = json!({"kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "n"}, "spec": spec});
        Resource::from_store(tortie_model::Kind::Node, object).unwrap()
    }

    #[test]
    fn patches_add_and_drop_no_unknown_fields() {
        let current = node(json!({"ofTomorrow": {"x": 1}}));
        let patch = |patch: Value| patched(current.clone(), &patch, PatchType::Strategic);
        let after = patch(json!({"spec": {"ipv4VXLANTunnelAddr": "10.0.0.1"}})).unwrap().to_value();
        assert_eq!(after["spec"]["ofTomorrow"], json!({"x": 1}));
        assert_eq!(after["spec"]["ipv4VXLANTunnelAddr"], "10.0.0.1");
        assert_eq!(
            patch(json!({"spec": {"typo": 1}})).unwrap_err(),
            "field in document is not recognized or is in the wrong location: spec.typo"
        );
    }

    #[test]
    fn a_patch_does_not_make_another_object() {
        for patch in [json!({"metadata": {"name": "m"}}), json!({"kind": "Tier"}), json!({"metadata": null})]
        {
            let error = patched(node(json!({})), &patch, PatchType::Merge).unwrap_err();
            assert!(error.starts_with("a patch may not change "), "{error}");
        }
    }

    #[test]
    fn patches_are_json_or_yaml() {
        assert_eq!(read("spec: {order: 5}", PatchType::Strategic), Ok(json!({"spec": {"order": 5}})));
        assert_eq!(read(r#"{"spec":{"order":5}}"#, PatchType::Merge), Ok(json!({"spec": {"order": 5}})));
        assert_eq!(
            read("- {op: remove, path: /spec/order}", PatchType::Json),
            Ok(json!([{"op": "remove", "path": "/spec/order"}]))
        );
        assert!(read("{", PatchType::Merge).unwrap_err().starts_with("the patch is not readable: "));
        assert_eq!(read("", PatchType::Merge).unwrap_err(), "the patch must be one object, not 0");
    }
}
