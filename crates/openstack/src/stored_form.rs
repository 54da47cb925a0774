//! The stored form of resources that Calico's driver for OpenStack writes.
//!
//! It differs from the form of `calicoctl`: policies have neither defaults nor the annotation with their name, and empty
//! lists of rules are present. Resources are therefore written as raw JSON that contains exactly the driver's fields.

use serde_json::{Map, Value, json};
use tortie_model::kinds::TIER_LABEL;
use tortie_model::{Kind, Resource, StoreValue};

/// Returns whether the stored resource differs from the desired one in a field that the driver owns: labels and
/// annotations if the desired resource has any, and the spec.
pub fn differs(stored: &Resource, desired: &Resource) -> bool {
    let (old, new) = (stored.metadata(), desired.metadata());
    if !new.labels.is_empty() && old.labels != new.labels {
        return true;
    }
    if !new.annotations.is_empty() && old.annotations != new.annotations {
        return true;
    }
    stored.to_value().get("spec") != desired.to_value().get("spec")
}

/// Returns the value of a new resource.
pub fn encode_new(desired: &Resource, uid: &str, created: &str) -> StoreValue {
    let mut value = encode_spec(desired);
    let metadata = desired.metadata();
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(metadata.name));
    fields.insert("namespace".to_owned(), json!(metadata.namespace));
    fields.insert("uid".to_owned(), json!(uid));
    fields.insert("creationTimestamp".to_owned(), json!(created));
    set_own_fields(&mut fields, desired);
    value.insert("metadata".to_owned(), Value::Object(fields));
    encode(value)
}

/// Returns the value of a resource that replaces a stored one: the metadata is kept except for the driver's labels and
/// annotations.
pub fn encode_update(stored: &Resource, desired: &Resource) -> StoreValue {
    let mut value = encode_spec(desired);
    let mut fields = match stored.to_value() {
        Value::Object(mut stored) => stored.remove("metadata").unwrap_or_default(),
        _ => Value::Null,
    };
    if let Value::Object(fields) = &mut fields {
        fields.remove("resourceVersion");
        if stored.kind() == Kind::NetworkPolicy {
            remove_tier_label(fields);
        }
        set_own_fields(fields, desired);
    }
    value.insert("metadata".to_owned(), fields);
    encode(value)
}

/// Removes the label that decoding adds to policies.
fn remove_tier_label(fields: &mut Map<String, Value>) {
    if let Some(Value::Object(labels)) = fields.get_mut("labels") {
        labels.remove(TIER_LABEL);
        if labels.is_empty() {
            fields.remove("labels");
        }
    }
}

fn set_own_fields(fields: &mut Map<String, Value>, desired: &Resource) {
    let metadata = desired.metadata();
    if !metadata.labels.is_empty() {
        fields.insert("labels".to_owned(), json!(metadata.labels));
    }
    if !metadata.annotations.is_empty() {
        fields.insert("annotations".to_owned(), json!(metadata.annotations));
    }
}

/// Returns the resource without metadata, and with the empty lists that the driver writes.
fn encode_spec(desired: &Resource) -> Map<String, Value> {
    let mut value = match desired.to_value() {
        Value::Object(value) => value,
        _ => Map::new(),
    };
    value.remove("metadata");
    if desired.kind() == Kind::NetworkPolicy
        && let Some(Value::Object(spec)) = value.get_mut("spec")
    {
        for list in ["ingress", "egress"] {
            spec.entry(list).or_insert_with(|| json!([]));
        }
    }
    value
}

fn encode(value: Map<String, Value>) -> StoreValue {
    StoreValue::Raw(Value::Object(value).to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::StoreKey;

    fn read(kind: Kind, value: &StoreValue) -> (Value, Resource) {
        let StoreValue::Raw(bytes) = value else { panic!("{value:?}") };
        let key = StoreKey::resource(kind, "openstack", "ossg.default.sg1");
        let Ok(StoreValue::Resource(resource)) = StoreValue::decode(&key, bytes) else { panic!("{value:?}") };
        (serde_json::from_slice(bytes).unwrap(), resource)
    }

    fn policy(selector: &str) -> Resource {
        let value = json!({"metadata": {"name": "ossg.default.sg1", "namespace": "openstack"}, "spec": {"selector": selector}});
        Resource::from_store(Kind::NetworkPolicy, value).unwrap()
    }

    #[test]
    fn policies_have_only_the_drivers_fields() {
        let (written, stored) =
            read(Kind::NetworkPolicy, &encode_new(&policy("has(a)"), "u1", "2026-03-01T10:20:30Z"));
        let metadata = json!({"name": "ossg.default.sg1", "namespace": "openstack", "uid": "u1",
            "creationTimestamp": "2026-03-01T10:20:30Z"});
        let mut expected = json!({"kind": "NetworkPolicy", "apiVersion": "projectcalico.org/v3", "metadata": metadata,
            "spec": {"selector": "has(a)", "ingress": [], "egress": []}});
        assert_eq!(written, expected);
        assert!(!differs(&stored, &policy("has(a)")));
        assert!(differs(&stored, &policy("has(b)")));
        expected["spec"]["selector"] = json!("has(b)");
        assert_eq!(read(Kind::NetworkPolicy, &encode_update(&stored, &policy("has(b)"))).0, expected);
    }

    #[test]
    fn updates_keep_metadata_of_others() {
        let stored = json!({"metadata": {"name": "e", "namespace": "openstack", "uid": "u1", "finalizers": ["x"],
            "labels": {"old": "1"}, "annotations": {"old": "1"}}, "spec": {"mac": "fa:16:3e:00:00:01"}});
        let stored = Resource::from_store(Kind::WorkloadEndpoint, stored).unwrap();
        let desired = json!({"metadata": {"labels": {"new": "1"}}, "spec": {"mac": "fa:16:3e:00:00:02"}});
        let desired = Resource::from_store(Kind::WorkloadEndpoint, desired).unwrap();
        let (written, _) = read(Kind::WorkloadEndpoint, &encode_update(&stored, &desired));
        assert_eq!(
            written["metadata"],
            json!({"name": "e", "namespace": "openstack", "uid": "u1", "finalizers": ["x"], "labels": {"new": "1"},
                "annotations": {"old": "1"}})
        );
        assert_eq!(written["spec"], json!({"mac": "fa:16:3e:00:00:02"}));
    }
}
