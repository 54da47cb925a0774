//! patch: part of one object.

use super::parse_kind;
use crate::cli::{Global, Patch, PatchType};
use crate::failure::{Failure, Result};
use crate::namespace::{Asked, resolve};
use crate::patching;
use crate::session;
use crate::verbs::modify;
use serde_json::Value;
use std::io::Write;
use tortie_model::object::DecodeError;
use tortie_model::{Resource, codec};

pub async fn patch(args: &Patch, global: &Global, out: &mut dyn Write) -> Result<()> {
    let hit = |error: String| Failure::message(format!("hit error: {error}"));
    let kind = parse_kind(&args.kind).map_err(Failure::Message)?;
    if args.name.is_empty() {
        return Err(Failure::message("resource name may not be empty"));
    }
    let asked = Asked { namespace: args.namespace.namespace.as_deref(), all: false };
    let namespace = resolve(kind, "", asked).map_err(|error| hit(error.to_string()))?;
    let fragment = read(&args.patch, args.patch_type).map_err(hit)?;
    let store = session::connect(&args.connection, global).await?;
    modify(&store, (kind, &namespace, &args.name), |current| patched(current, &fragment, args.patch_type))
        .await
        .map_err(|error| hit(error.to_string()))?;
    writeln!(out, "Successfully patched 1 '{kind}' resource")?;
    Ok(())
}

/// The patch as typed: one object, or a list of operations.
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

/// Applies the patch to an object, which stays the object it is.
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

/// Refuses fields we do not know, except where they were there before: a newer version wrote those.
fn check_fields(mut before: Value, mut after: Value) -> std::result::Result<(), DecodeError> {
    loop {
        match Resource::from_user(after.clone()) {
            Err(DecodeError::UnknownField(path)) => {
                let known_before = take(&mut before, &path).is_some();
                if !known_before || take(&mut after, &path).is_none() {
                    return Err(DecodeError::UnknownField(path));
                }
            }
            other => return other.map(drop),
        }
    }
}

/// Removes what is at a path like `spec.ingress[0].sauce`.
fn take(value: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = match path.rsplit_once('.') {
        Some((parent, last)) => (find(value, parent)?, last),
        None => (value, path),
    };
    parent.as_object_mut()?.shift_remove(last)
}

fn find<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(value, |value, step| {
        let (key, indexes) = step.split_once('[').map_or((step, ""), |(key, rest)| (key, rest));
        let value = value.get_mut(key)?;
        indexes.split_terminator(']').try_fold(value, |value, index| {
            value.get_mut(index.trim_start_matches('[').parse::<usize>().ok()?)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_fields() {
        let mut value =
            json!({"spec": {"ingress": [{}, {"sauce": 1, "action": "Allow"}], "deep": [[{"x": 2}]]}, "y": 3});
        assert_eq!(take(&mut value, "spec.ingress[1].sauce"), Some(json!(1)));
        assert_eq!(take(&mut value, "spec.deep[0][0].x"), Some(json!(2)));
        assert_eq!(take(&mut value, "y"), Some(json!(3)));
        for path in ["spec.ingress[9].sauce", "spec.nosuch.x", "", "spec.ingress[1].sauce"] {
            assert_eq!(take(&mut value, path), None, "{path}");
        }
        assert_eq!(value, json!({"spec": {"ingress": [{}, {"action": "Allow"}], "deep": [[{}]]}}));
    }

    fn node(spec: Value) -> Resource {
        let object = json!({"kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "n"}, "spec": spec});
        Resource::from_store(tortie_model::Kind::Node, object).unwrap()
    }

    #[test]
    fn a_patch_brings_no_unknown_fields_and_drops_none() {
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
