//! Conversion of projectcalico.org/v3 resources to custom resources and back.
//!
//! In the group projectcalico.org/v3, an object is stored as users see it. In crd.projectcalico.org/v1, the metadata of
//! the resource is stored in an annotation, because the metadata of the custom resource serves the datastore: the
//! labels of users must not be selectable in the cluster.

use super::group::CalicoApiGroup;
use super::{text_at, uid};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use tortie_model::kinds::DEFAULT_TIER;
use tortie_model::meta::OwnerReference;
use tortie_model::value::{ValueError, is_renamed};
use tortie_model::{API_VERSION, Kind, ObjectMeta, Resource, StoreKey, StoreValue};

const METADATA_ANNOTATION: &str = "projectcalico.org/metadata";
/// Labels and annotations with these substrings are also set on the custom resource itself.
const KEPT_KEY_PARTS: [&str; 2] = ["projectcalico.org/", "operator.tigera.io/"];

/// Returns the object to store under `name`.
pub fn write(group: CalicoApiGroup, name: &str, resource: &Resource) -> Json {
    let kind = resource.kind();
    let mut object = resource.to_value();
    object["apiVersion"] = group.api_version().into();
    object["kind"] = group.kind_name(kind).into();
    let mut meta = resource.metadata().clone();
    meta.self_link.clear();
    if group == CalicoApiGroup::V1 {
        object["metadata"] = hidden_metadata(kind, name, meta);
        if kind == Kind::BlockAffinity {
            let deleted = object.pointer("/spec/deleted").and_then(Json::as_bool).unwrap_or_default();
            object["spec"]["deleted"] = deleted.to_string().into();
        }
    } else {
        meta.name = name.to_owned();
        // In this group kube-apiserver tracks field ownership itself.
        meta.managed_fields.clear();
        object["metadata"] = json!(meta);
    }
    object
}

fn hidden_metadata(kind: Kind, name: &str, mut meta: ObjectMeta) -> Json {
    let mut own = Map::new();
    own.insert("name".into(), name.into());
    for (field, value) in [("namespace", &meta.namespace), ("resourceVersion", &meta.resource_version)] {
        if !value.is_empty() {
            own.insert(field.into(), value.as_str().into());
        }
    }
    if !meta.uid.is_empty() {
        own.insert("uid".into(), uid::convert(&meta.uid).into());
    }
    let labels = filter_kept(&meta.labels);
    let mut annotations = filter_kept(&meta.annotations);
    meta.namespace.clear();
    meta.resource_version.clear();
    meta.uid.clear();
    if !is_renamed(kind) {
        meta.name.clear();
    }
    for owner in &mut meta.owner_references {
        regroup(owner, CalicoApiGroup::V3, CalicoApiGroup::V1);
    }
    annotations.insert(METADATA_ANNOTATION.into(), json!(meta).to_string().into());
    if !labels.is_empty() {
        own.insert("labels".into(), labels.into());
    }
    own.insert("annotations".into(), annotations.into());
    own.into()
}

fn filter_kept(map: &BTreeMap<String, String>) -> Map<String, Json> {
    let kept = map.iter().filter(|(key, _)| KEPT_KEY_PARTS.iter().any(|part| key.contains(part)));
    kept.map(|(key, value)| (key.clone(), value.as_str().into())).collect()
}

fn regroup(owner: &mut OwnerReference, from: CalicoApiGroup, to: CalicoApiGroup) {
    if owner.api_version == from.api_version() {
        owner.api_version = to.api_version().to_owned();
        owner.uid = uid::convert(&owner.uid);
    }
}

/// An object that cannot be decoded. The text is that of the resource, so that parts of it can be salvaged.
#[derive(Debug)]
pub struct UnreadableObject {
    pub text: String,
    pub error: ValueError,
}

/// Returns the key and the resource of a stored object.
pub fn read(
    group: CalicoApiGroup,
    kind: Kind,
    mut object: Json,
) -> (StoreKey, Result<StoreValue, UnreadableObject>) {
    let name = text_at(&object, "/metadata/name");
    let key = StoreKey::resource(kind, text_at(&object, "/metadata/namespace"), name);
    let tier = text_at(&object, "/spec/tier");
    let in_default_tier = tier.is_empty() || tier == DEFAULT_TIER;
    let mut meta = match serde_json::from_value::<ObjectMeta>(object["metadata"].clone()) {
        Ok(meta) => meta,
        Err(error) => {
            let unreadable = ValueError::Json(error.to_string());
            return (key, Err(UnreadableObject { text: object.to_string(), error: unreadable }));
        }
    };
    let mut unreadable = None;
    meta.managed_fields.clear();
    if group == CalicoApiGroup::V1 {
        meta.uid = uid::convert(&meta.uid);
        if let Some(stored) = meta.annotations.remove(METADATA_ANNOTATION) {
            let stored = serde_json::from_str::<ObjectMeta>(&stored).unwrap_or_else(|error| {
                unreadable = Some(ValueError::Json(format!("annotation {METADATA_ANNOTATION}: {error}")));
                ObjectMeta::default()
            });
            meta = shown_metadata(kind, meta, stored, in_default_tier);
        }
        for owner in &mut meta.owner_references {
            regroup(owner, CalicoApiGroup::V1, CalicoApiGroup::V3);
        }
    }
    if is_renamed(kind) {
        // The decoder in the model reads the name from this annotation.
        meta.annotations.insert(METADATA_ANNOTATION.into(), json!({ "name": meta.name }).to_string());
    }
    object["apiVersion"] = API_VERSION.into();
    object["kind"] = kind.name().into();
    object["metadata"] = json!(meta);
    let text = object.to_string();
    let value = match (StoreValue::decode(&key, text.as_bytes()), unreadable) {
        (Ok(value), None) => Ok(value),
        (Ok(_), Some(error)) | (Err(error), _) => Err(UnreadableObject { text, error }),
    };
    (key, value)
}

/// Merges the metadata that the user wrote with that of the custom resource; the former takes precedence.
fn shown_metadata(kind: Kind, own: ObjectMeta, mut meta: ObjectMeta, in_default_tier: bool) -> ObjectMeta {
    if meta.name.is_empty() {
        let legacy = is_renamed(kind) && in_default_tier;
        let short = own.name.strip_prefix("default.").filter(|short| legacy && !short.is_empty());
        meta.name = short.unwrap_or(&own.name).to_owned();
    }
    meta.namespace = own.namespace;
    meta.uid = own.uid;
    meta.resource_version = own.resource_version;
    if meta.creation_timestamp.is_none() {
        meta.creation_timestamp = own.creation_timestamp;
    }
    meta.deletion_timestamp = meta.deletion_timestamp.or(own.deletion_timestamp);
    for (key, value) in own.labels {
        meta.labels.entry(key).or_insert(value);
    }
    for (key, value) in own.annotations {
        meta.annotations.entry(key).or_insert(value);
    }
    meta
}

#[cfg(test)]
mod tests;
