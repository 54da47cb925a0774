//! The discovery documents of the API group.

use crate::resources::{API_VERSION, GROUP, SERVED_RESOURCES, ServedKind, VERSION};
use serde_json::{Value, json};

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const READ_VERBS: &[&str] = &["get", "list", "watch"];
const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

fn list_verbs(served: ServedKind) -> &'static [&'static str] {
    if served.is_read_only() { READ_VERBS } else { VERBS }
}

fn describe_group() -> Value {
    let version = json!({"groupVersion": API_VERSION, "version": VERSION});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

/// Returns the document of `/apis/projectcalico.org`.
pub fn build_api_group() -> Value {
    let mut group = describe_group();
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    group
}

/// Returns the document of `/apis`.
pub fn build_api_group_list() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [describe_group()]})
}

/// Returns the document of `/apis/projectcalico.org/v3`.
pub fn build_resource_list() -> Value {
    let mut resources = Vec::new();
    for served in SERVED_RESOURCES {
        let kind = served.kind;
        let mut resource = json!({
            "name": kind.plural(), "singularName": kind.name().to_lowercase(), "namespaced": kind.is_namespaced(),
            "kind": kind.name(), "verbs": list_verbs(*served),
        });
        if !served.short_names.is_empty() {
            resource["shortNames"] = json!(served.short_names);
        }
        resources.push(resource);
        if served.has_status() {
            resources.push(json!({
                "name": format!("{}/status", kind.plural()), "singularName": "", "namespaced": kind.is_namespaced(),
                "kind": kind.name(), "verbs": STATUS_VERBS,
            }));
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": resources})
}

/// Returns `/apis` as aggregated discovery in one document, for clients that support it.
pub fn build_aggregated_list() -> Value {
    let resources = SERVED_RESOURCES.iter().map(|served| {
        let response_kind = json!({"group": GROUP, "version": VERSION, "kind": served.kind.name()});
        let mut resource = json!({
            "resource": served.kind.plural(), "responseKind": response_kind,
            "scope": if served.kind.is_namespaced() { "Namespaced" } else { "Cluster" },
            "singularResource": served.kind.name().to_lowercase(), "verbs": list_verbs(*served),
        });
        if !served.short_names.is_empty() {
            resource["shortNames"] = json!(served.short_names);
        }
        if served.has_status() {
            resource["subresources"] =
                json!([{"subresource": "status", "responseKind": response_kind, "verbs": STATUS_VERBS}]);
        }
        resource
    });
    let resources: Vec<Value> = resources.collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": [{
        "metadata": {"name": GROUP, "creationTimestamp": null},
        "versions": [{"version": VERSION, "resources": resources, "freshness": "Current"}],
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_documents_say_the_same() {
        let plain = build_resource_list();
        let plain = plain["resources"].as_array().unwrap();
        let aggregated = build_aggregated_list();
        let resources = aggregated["items"][0]["versions"][0]["resources"].as_array().unwrap();
        assert_eq!(resources.len(), SERVED_RESOURCES.len());
        for resource in resources {
            let same = plain.iter().find(|plain| plain["name"] == resource["resource"]).unwrap();
            assert_eq!(same["verbs"], resource["verbs"]);
            assert_eq!(same.get("shortNames"), resource.get("shortNames"));
            let status = format!("{}/status", resource["resource"].as_str().unwrap());
            assert_eq!(
                plain.iter().any(|plain| plain["name"] == status),
                resource.get("subresources").is_some()
            );
        }
    }
}
