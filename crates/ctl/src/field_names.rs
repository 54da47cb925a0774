//! Matches the field names of documents without regard to case, as Go's JSON decoder does: `loadbalancer` means
//! `loadBalancer`.

use serde_json::{Map, Value};
use tortie_model::{Kind, schema};

/// The fields of metadata. The schemas leave them to Kubernetes.
const METADATA_FIELDS: [&str; 14] = [
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Returns the schema of a kind, with the fields of its metadata.
pub fn schema_with_metadata(kind: Kind) -> Value {
    let mut schema = schema::json_schema(kind);
    let fields = METADATA_FIELDS.map(|field| (field.to_owned(), Value::Object(Map::new())));
    schema["properties"]["metadata"]["properties"] = Value::Object(Map::from_iter(fields));
    schema
}

/// Renames the fields of a document that differ from those of its kind only in case. Returns whether any did.
pub fn match_document(document: &mut Value) -> bool {
    let Value::Object(fields) = &mut *document else { return false };
    let renamed = rename(fields, |key| {
        ["kind", "apiVersion"].into_iter().find(|known| known.eq_ignore_ascii_case(key)).map(str::to_owned)
    });
    let kind = document.get("kind").and_then(Value::as_str).and_then(Kind::from_name);
    kind.is_some_and(|kind| match_fields(kind, document)) || renamed
}

/// Renames the fields of an object, or of a part of one such as a patch, that differ from those of the kind only in
/// case. Returns whether any did.
pub fn match_fields(kind: Kind, object: &mut Value) -> bool {
    match_schema(object, &schema_with_metadata(kind))
}

fn match_schema(value: &mut Value, schema: &Value) -> bool {
    match value {
        Value::Array(items) => {
            let mut renamed = false;
            for item in items {
                renamed |= match_schema(item, &schema["items"]);
            }
            renamed
        }
        Value::Object(fields) => {
            let Some(properties) = schema["properties"].as_object() else { return false };
            let renamed = rename(fields, |key| {
                let known = properties.keys().find(|known| known.eq_ignore_ascii_case(key));
                known.filter(|known| *known != key).cloned()
            });
            fields.iter_mut().fold(renamed, |renamed, (key, value)| {
                properties.get(key).is_some_and(|schema| match_schema(value, schema)) || renamed
            })
        }
        _ => false,
    }
}

/// Renames fields. A field stays as it is if the object has its new name already: which of the two is meant is unknown.
fn rename(fields: &mut Map<String, Value>, new_name: impl Fn(&str) -> Option<String>) -> bool {
    let renames: Vec<(String, String)> = fields
        .keys()
        .filter_map(|key| Some((key.clone(), new_name(key)?)))
        .filter(|(_, new)| !fields.contains_key(new))
        .collect();
    let mut renamed = false;
    for (old, new) in renames {
        if fields.contains_key(&new) {
            continue;
        }
        if let Some(value) = fields.remove(&old) {
            fields.insert(new, value);
            renamed = true;
        }
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_match_in_any_case() {
        let mut document = json!({
            "APIVersion": "projectcalico.org/v3", "Kind": "KubeControllersConfiguration",
            "metadata": {"Name": "default", "labels": {"App": "x"}},
            "spec": {"controllers": {"loadbalancer": {"assignips": "AllServices"}, "NODE": {"hostendpoint": {
                "templates": [{"generatename": "a", "interfacecidrs": ["10.0.0.0/8"]}]}}}},
        });
        assert!(match_document(&mut document));
        assert_eq!(
            document,
            json!({
                "apiVersion": "projectcalico.org/v3", "kind": "KubeControllersConfiguration",
                "metadata": {"name": "default", "labels": {"App": "x"}},
                "spec": {"controllers": {"loadBalancer": {"assignIPs": "AllServices"}, "node": {"hostEndpoint": {
                    "templates": [{"generateName": "a", "interfaceCIDRs": ["10.0.0.0/8"]}]}}}},
            })
        );
        assert!(!match_document(&mut document), "nothing is left to rename");
    }

    #[test]
    fn staged_policies_match_too() {
        let mut document = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "StagedNetworkPolicy", "metadata": {"name": "a"},
            "spec": {"StagedAction": "Set", "Selector": "all()", "ingress": [{"Action": "Allow"}]},
        });
        assert!(match_document(&mut document));
        assert_eq!(
            document["spec"],
            json!({"stagedAction": "Set", "selector": "all()", "ingress": [{"action": "Allow"}]})
        );
    }

    #[test]
    fn ambiguous_fields_are_left_alone() {
        let mut pool = json!({"kind": "IPPool", "spec": {"cidr": "10.0.0.0/8", "CIDR": "11.0.0.0/8"}});
        assert!(!match_document(&mut pool));
        let mut pool = json!({"kind": "IPPool", "spec": {"Cidr": "10.0.0.0/8", "CIDR": "11.0.0.0/8"}});
        assert!(match_document(&mut pool));
        assert_eq!(pool["spec"].as_object().unwrap().len(), 2, "one of them is an unknown field");
    }
}
