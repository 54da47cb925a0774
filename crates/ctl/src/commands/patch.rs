//! `patch`: changes part of one object.

use super::parse_kind;
use crate::cli::{GlobalArgs, PatchArgs, PatchType};
use crate::failure::{CommandError, CommandResult};
use crate::field_names::match_fields;
use crate::namespace::{NamespaceError, RequestedNamespace, resolve};
use crate::patching::{self, ObjectPatchError};
use crate::session;
use crate::suggestion::{find_similar_fields, without_indexes};
use crate::verbs::{VerbError, modify};
use serde_json::Value;
use std::io::Write;
use tortie_model::codec::{self, CodecError};
use tortie_model::object::DecodeError;
use tortie_model::{Kind, Resource};

#[derive(Debug, thiserror::Error)]
enum PatchError {
    #[error("the patch is not readable: {0}")]
    Unreadable(#[from] CodecError),
    #[error("the patch must be one object, not {0}")]
    NotOneObject(usize),
    #[error("a patch may not change {0}")]
    ChangedIdentity(String),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Patch(#[from] ObjectPatchError),
    #[error("{error}{}", suggest_fields(*.kind, .error))]
    Decode { kind: Kind, error: DecodeError },
    #[error(transparent)]
    Verb(#[from] VerbError),
}

/// Returns the text to append to an error about unknown fields: `; did you mean spec.cidr?`, or nothing.
fn suggest_fields(kind: Kind, error: &DecodeError) -> String {
    let DecodeError::UnknownField(fields) = error else { return String::new() };
    let meant = find_similar_fields(kind, fields);
    meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default()
}

pub async fn patch(args: &PatchArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let kind = parse_kind(&args.kind)?;
    if args.name.is_empty() {
        return Err(CommandError::EmptyName);
    }
    let parsed = parse_args(kind, args).map_err(|error| CommandError::context("hit error", error))?;
    let (namespace, mut patch) = parsed;
    // The operations of a JSON patch name fields in paths, which Go compares exactly.
    if args.patch_type != PatchType::Json {
        match_fields(kind, &mut patch);
    }
    let store = session::connect(&args.connection, global).await?;
    modify(&store, (kind, &namespace, &args.name), |current| apply_patch(current, &patch, args.patch_type))
        .await
        .map_err(|error| CommandError::context("hit error", error))?;
    writeln!(out, "Successfully patched 1 '{kind}' resource")?;
    Ok(())
}

/// Returns the namespace of the object, and the patch.
fn parse_args(kind: Kind, args: &PatchArgs) -> Result<(String, Value), PatchError> {
    let namespace = resolve(kind, "", RequestedNamespace::from(&args.namespace))?;
    Ok((namespace, parse_patch(&args.patch, args.patch_type)?))
}

/// Parses the patch argument: one object, or a list of operations.
fn parse_patch(text: &str, patch_type: PatchType) -> Result<Value, PatchError> {
    let documents = codec::documents(text.as_bytes())?;
    if patch_type == PatchType::Json {
        return Ok(Value::Array(documents));
    }
    match <[Value; 1]>::try_from(documents) {
        Ok([only]) => Ok(only),
        Err(documents) => Err(PatchError::NotOneObject(documents.len())),
    }
}

/// Applies the patch to an object. A patch must not change the identity of the object.
fn apply_patch(current: Resource, patch: &Value, patch_type: PatchType) -> Result<Resource, PatchError> {
    let kind = current.kind();
    let before = current.to_value();
    let after = patching::apply(&before, patch.clone(), patch_type)?;
    for at in ["/kind", "/apiVersion", "/metadata/name", "/metadata/namespace"] {
        if before.pointer(at) != after.pointer(at) {
            return Err(PatchError::ChangedIdentity(at.trim_start_matches('/').replace('/', ".")));
        }
    }
    check_fields(before, after.clone())
        .and_then(|()| Resource::from_store(kind, after))
        .map_err(|error| PatchError::Decode { kind, error })
}

/// Rejects unknown fields, except those that the object had before: a newer version wrote them. Paths are compared
/// without list indexes, because a patch may move list elements.
fn check_fields(before: Value, after: Value) -> Result<(), DecodeError> {
    let Err(error) = Resource::from_user(after) else { return Ok(()) };
    let DecodeError::UnknownField(fields) = &error else { return Err(error) };
    let known = match Resource::from_user(before) {
        Err(DecodeError::UnknownField(fields)) => fields.split(", ").map(without_indexes).collect(),
        _ => Vec::new(),
    };
    let new: Vec<_> = fields.split(", ").filter(|field| !known.contains(&without_indexes(field))).collect();
    if new.is_empty() { Ok(()) } else { Err(DecodeError::UnknownField(new.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(spec: Value) -> Resource {
        let object = json!({"kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "n"}, "spec": spec});
        Resource::from_store(tortie_model::Kind::Node, object).unwrap()
    }

    #[test]
    fn patches_add_and_drop_no_unknown_fields() {
        let current = node(json!({"ofTomorrow": {"x": 1}}));
        let patch = |patch: Value| apply_patch(current.clone(), &patch, PatchType::Strategic);
        let after = patch(json!({"spec": {"ipv4VXLANTunnelAddr": "10.0.0.1"}})).unwrap().to_value();
        assert_eq!(after["spec"]["ofTomorrow"], json!({"x": 1}));
        assert_eq!(after["spec"]["ipv4VXLANTunnelAddr"], "10.0.0.1");
        assert_eq!(
            patch(json!({"spec": {"typo": 1}})).unwrap_err().to_string(),
            "field in document is not recognized or is in the wrong location: spec.typo"
        );
        let error = patch(json!({"spec": {"ipv4VXLANTunelAddr": "10.0.0.1"}})).unwrap_err().to_string();
        assert!(error.ends_with("; did you mean spec.ipv4VXLANTunnelAddr?"), "{error}");
    }

    #[test]
    fn a_patch_does_not_make_another_object() {
        for patch in [json!({"metadata": {"name": "m"}}), json!({"kind": "Tier"}), json!({"metadata": null})]
        {
            let error = apply_patch(node(json!({})), &patch, PatchType::Merge).unwrap_err().to_string();
            assert!(error.starts_with("a patch may not change "), "{error}");
        }
    }

    #[test]
    fn patches_are_json_or_yaml() {
        let order = json!({"spec": {"order": 5}});
        assert_eq!(parse_patch("spec: {order: 5}", PatchType::Strategic).unwrap(), order);
        assert_eq!(parse_patch(r#"{"spec":{"order":5}}"#, PatchType::Merge).unwrap(), order);
        assert_eq!(
            parse_patch("- {op: remove, path: /spec/order}", PatchType::Json).unwrap(),
            json!([{"op": "remove", "path": "/spec/order"}])
        );
        let error = |text: &str| parse_patch(text, PatchType::Merge).unwrap_err().to_string();
        assert!(error("{").starts_with("the patch is not readable: "));
        assert_eq!(error(""), "the patch must be one object, not 0");
    }
}
