//! OpenAPI documents of version 2 and 3 for the served resources, generated from the types.

use crate::resources::{API_VERSION, GROUP, SERVED_RESOURCES, ServedKind, VERSION};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// Prefix of schema references in documents of each version.
const V2_REFERENCE_PREFIX: &str = "#/definitions/";
const V3_REFERENCE_PREFIX: &str = "#/components/schemas/";

/// A document and the hash of its text.
pub struct OpenApiDocument {
    pub text: String,
    pub hash: String,
}

impl OpenApiDocument {
    fn new(value: &Value) -> OpenApiDocument {
        use sha2::Digest as _;
        let text = value.to_string();
        let hash = data_encoding::HEXUPPER.encode(&sha2::Sha512::digest(text.as_bytes()));
        OpenApiDocument { text, hash }
    }
}

pub static V2_DOCUMENT: LazyLock<OpenApiDocument> =
    LazyLock::new(|| OpenApiDocument::new(&build_v2_document()));
pub static V3_DOCUMENT: LazyLock<OpenApiDocument> =
    LazyLock::new(|| OpenApiDocument::new(&build_v3_document()));
/// `/openapi/v3`: the index of the documents.
pub static V3_INDEX: LazyLock<OpenApiDocument> = LazyLock::new(|| {
    let path = format!("apis/{GROUP}/{VERSION}");
    let url = format!("/openapi/v3/{path}?hash={}", V3_DOCUMENT.hash);
    OpenApiDocument::new(&json!({"paths": {path: {"serverRelativeURL": url}}}))
});

/// Returns the name of a kind's schema: `org.projectcalico.v3.Tier`.
fn format_schema_name(kind: &str) -> String {
    format!("org.projectcalico.{VERSION}.{kind}")
}

fn build_reference(prefix: &str, name: &str) -> Value {
    json!({"$ref": format!("{prefix}{name}")})
}

/// Returns all schemas, with references that start with `prefix`.
fn build_schemas(prefix: &str) -> Map<String, Value> {
    let mut all = Map::new();
    for served in SERVED_RESOURCES {
        let kind = served.kind.name();
        let mut object = served.schema().clone();
        object["description"] = format!("{kind} of {API_VERSION}.").into();
        if let Some(Value::Object(properties)) = object.get_mut("properties") {
            properties
                .insert("apiVersion".into(), describe_text("Version of the schema: projectcalico.org/v3."));
            properties.insert("kind".into(), describe_text(&format!("The kind: {kind}.")));
            let metadata = match prefix {
                V3_REFERENCE_PREFIX => {
                    json!({"default": {}, "allOf": [build_reference(prefix, &format!("{META}.ObjectMeta"))],
                    "description": "Standard metadata of the object."})
                }
                _ => build_reference(prefix, &format!("{META}.ObjectMeta")),
            };
            properties.insert("metadata".into(), metadata);
        }
        if prefix == V2_REFERENCE_PREFIX {
            remove_v3_keywords(&mut object);
        }
        object["x-kubernetes-group-version-kind"] =
            json!([{"group": GROUP, "version": VERSION, "kind": kind}]);
        all.insert(format_schema_name(kind), object);
        let list_kind = served.kind.list_name();
        all.insert(
            format_schema_name(&list_kind),
            json!({
                "type": "object", "description": format!("A list of {kind}."), "required": ["items"],
                "properties": {
                    "apiVersion": describe_text("Version of the schema: projectcalico.org/v3."),
                    "kind": describe_text(&format!("The kind: {list_kind}.")),
                    "metadata": build_reference(prefix, &format!("{META}.ListMeta")),
                    "items": {"type": "array", "items": build_reference(prefix, &format_schema_name(kind))},
                },
                "x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": list_kind}],
            }),
        );
    }
    for (name, schema) in build_common_schemas(prefix) {
        all.insert(format!("{META}.{name}"), schema);
    }
    all
}

fn describe_text(text: &str) -> Value {
    json!({"type": "string", "description": text})
}

/// Removes keywords that version 2 does not support: alternatives and Kubernetes validation rules.
fn remove_v3_keywords(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for keyword in ["allOf", "anyOf", "oneOf", "not", "nullable", "x-kubernetes-validations"] {
                fields.remove(keyword);
            }
            fields.values_mut().for_each(remove_v3_keywords);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_v3_keywords),
        _ => {}
    }
}

fn describe_number(description: &str) -> Value {
    json!({"type": "integer", "format": "int64", "description": description})
}

fn describe_text_map(description: &str) -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}, "description": description})
}

/// Returns the schemas of the Kubernetes types that ours refer to.
fn build_common_schemas(prefix: &str) -> Vec<(&'static str, Value)> {
    let [time, list_meta, fields, owner, managed] =
        ["Time", "ListMeta", "FieldsV1", "OwnerReference", "ManagedFieldsEntry"]
            .map(|name| build_reference(prefix, &format!("{META}.{name}")));
    vec![
        ("Time", json!({"type": "string", "format": "date-time", "description": "A time, in RFC 3339."})),
        ("FieldsV1", json!({"type": "object", "description": "A set of fields."})),
        (
            "OwnerReference",
            json!({"type": "object", "description": "An object that owns this one.",
            "required": ["apiVersion", "kind", "name", "uid"], "x-kubernetes-map-type": "atomic",
            "properties": {
                "apiVersion": describe_text("Version of the owner."), "kind": describe_text("Kind of the owner."),
                "name": describe_text("Name of the owner."), "uid": describe_text("UID of the owner."),
                "controller": {"type": "boolean", "description": "Whether the owner is the managing controller."},
                "blockOwnerDeletion": {"type": "boolean", "description": "Whether the owner's foreground deletion waits for this object."},
            }}),
        ),
        (
            "ManagedFieldsEntry",
            json!({"type": "object", "description": "Fields owned by one field manager.", "properties": {
                "manager": describe_text("Name of the field manager."), "operation": describe_text("Apply or Update."),
                "apiVersion": describe_text("Version of the schema that defines the fields."), "time": time,
                "fieldsType": describe_text("FieldsV1."), "fieldsV1": fields,
                "subresource": describe_text("Subresource through which the fields were written."),
            }}),
        ),
        (
            "ObjectMeta",
            json!({"type": "object", "description": "Metadata that every object has.", "properties": {
                "name": describe_text("Name, unique among objects of the kind in a namespace."),
                "generateName": describe_text("Prefix of a name that the server completes."),
                "namespace": describe_text("Namespace of the object."), "selfLink": describe_text("Deprecated; not set."),
                "uid": describe_text("Identity of the object. A later object of the same name has a different UID."),
                "resourceVersion": describe_text("Version of the object, for optimistic concurrency and watches."),
                "generation": describe_number("Incremented on every change of the spec."),
                "creationTimestamp": time, "deletionTimestamp": time,
                "deletionGracePeriodSeconds": describe_number("Time until the object is gone."),
                "labels": describe_text_map("Keys and values that selectors can match."),
                "annotations": describe_text_map("Arbitrary metadata that selectors cannot match."),
                "ownerReferences": {"type": "array", "items": owner, "description": "Objects that own this one.",
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
                    "x-kubernetes-patch-merge-key": "uid", "x-kubernetes-patch-strategy": "merge"},
                "finalizers": {"type": "array", "items": {"type": "string"}, "description": "Finalizers that must be removed before the object is deleted.",
                    "x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"},
                "managedFields": {"type": "array", "items": managed, "description": "Field managers and the fields that they own.",
                    "x-kubernetes-list-type": "atomic"},
            }}),
        ),
        (
            "ListMeta",
            json!({"type": "object", "description": "Metadata of a list.", "properties": {
                "continue": describe_text("Token of the next page."),
                "remainingItemCount": describe_number("Number of objects after this page."),
                "resourceVersion": describe_text("Version of the list."), "selfLink": describe_text("Deprecated; not set."),
            }}),
        ),
        (
            "Status",
            json!({"type": "object", "description": "Result of a request.", "properties": {
                "apiVersion": describe_text("v1"), "kind": describe_text("Status"), "metadata": list_meta,
                "status": describe_text("Success or Failure."), "message": describe_text("Description of the result."),
                "reason": describe_text("Machine-readable reason, one word."), "code": {"type": "integer", "format": "int32", "description": "The HTTP code."},
                "details": {"type": "object", "description": "The object concerned, and the causes."},
            }}),
        ),
        ("Patch", json!({"type": "object", "description": "A change of an object."})),
        ("DeleteOptions", json!({"type": "object", "description": "How an object is deleted."})),
    ]
}

/// An operation of a path.
struct PathOperation {
    method: &'static str,
    /// The verb of the operation in the vocabulary of Kubernetes.
    action: &'static str,
    /// Names of the schemas of the response and of the request body.
    response_schema: String,
    body_schema: Option<String>,
}

fn list_operations(served: ServedKind, collection: bool) -> Vec<PathOperation> {
    let kind = format_schema_name(served.kind.name());
    let list = format_schema_name(&served.kind.list_name());
    let status = format!("{META}.Status");
    let options = format!("{META}.DeleteOptions");
    let patch = format!("{META}.Patch");
    let all: &[(&'static str, &'static str, &str, Option<&str>)] = if collection {
        &[
            ("get", "list", &list, None),
            ("post", "post", &kind, Some(&kind)),
            ("delete", "deletecollection", &status, Some(&options)),
        ]
    } else {
        &[
            ("get", "get", &kind, None),
            ("put", "put", &kind, Some(&kind)),
            ("patch", "patch", &kind, Some(&patch)),
            ("delete", "delete", &status, Some(&options)),
        ]
    };
    let served = all.iter().filter(|(method, ..)| *method == "get" || !served.is_read_only());
    let operations = served.map(|(method, action, response_schema, body_schema)| PathOperation {
        method,
        action,
        response_schema: (*response_schema).to_owned(),
        body_schema: body_schema.map(str::to_owned),
    });
    operations.collect()
}

/// Returns the paths; `describe` renders each operation.
fn build_paths(
    parameter: fn(&str) -> Value,
    describe: fn(ServedKind, &PathOperation, String) -> Value,
) -> Map<String, Value> {
    let mut all = Map::new();
    for served in SERVED_RESOURCES {
        let plural = served.kind.plural();
        let [scope, scope_name] =
            if served.kind.is_namespaced() { ["namespaces/{namespace}/", "Namespaced"] } else { [""; 2] };
        let base = format!("/apis/{GROUP}/{VERSION}/{scope}{plural}");
        for (path, collection) in [(base.clone(), true), (format!("{base}/{{name}}"), false)] {
            let mut item = Map::new();
            for operation in list_operations(*served, collection) {
                let id = format!("{}{scope_name}{}", operation.action, served.kind.name());
                item.insert(operation.method.to_owned(), describe(*served, &operation, id));
            }
            let mut parameters = Vec::new();
            if served.kind.is_namespaced() {
                parameters.push(parameter("namespace"));
            }
            if !collection {
                parameters.push(parameter("name"));
            }
            item.insert("parameters".into(), parameters.into());
            all.insert(path, Value::Object(item));
        }
    }
    all
}

/// Returns the query parameters of an operation. Clients read them to learn which features the server supports.
fn list_query_parameters(action: &str) -> &'static [(&'static str, &'static str)] {
    const DRY_RUN: (&str, &str) = ("dryRun", "All: validate and return the result without storing it.");
    const MANAGER: (&str, &str) = ("fieldManager", "Name of the field manager.");
    const VALIDATION: (&str, &str) =
        ("fieldValidation", "Ignore, Warn or Strict: how unknown fields are handled.");
    const LABELS: (&str, &str) = ("labelSelector", "Only objects with these labels.");
    const FIELDS: (&str, &str) = ("fieldSelector", "Only objects with these fields.");
    match action {
        "list" => &[
            LABELS,
            FIELDS,
            ("limit", "Maximum number of objects in the response."),
            ("continue", "Token of the previous page."),
            ("resourceVersion", "Minimum revision of the list."),
            ("resourceVersionMatch", "NotOlderThan or Exact."),
            ("watch", "Whether to stream changes instead of returning a list."),
            ("allowWatchBookmarks", "Whether a watch also sends bookmarks."),
            ("sendInitialEvents", "Whether a watch starts with all existing objects."),
            ("timeoutSeconds", "Duration of a watch."),
        ],
        "post" | "put" => &[DRY_RUN, MANAGER, VALIDATION],
        "patch" => &[DRY_RUN, MANAGER, VALIDATION, ("force", "Take over fields that other managers own.")],
        "delete" => &[DRY_RUN, ("propagationPolicy", "Orphan, Background or Foreground.")],
        "deletecollection" => {
            &[DRY_RUN, LABELS, FIELDS, ("propagationPolicy", "Orphan, Background or Foreground.")]
        }
        _ => &[],
    }
}

fn build_group_version_kind(served: ServedKind) -> Value {
    json!({"group": GROUP, "version": VERSION, "kind": served.kind.name()})
}

fn build_v2_document() -> Value {
    json!({"swagger": "2.0", "info": {"title": "Calico", "version": VERSION}, "paths": build_paths(build_v2_path_parameter, describe_v2),
        "definitions": build_schemas(V2_REFERENCE_PREFIX)})
}

fn build_v2_path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "type": "string", "uniqueItems": true})
}

fn describe_v2(served: ServedKind, operation: &PathOperation, id: String) -> Value {
    let mut described = json!({
        "operationId": id, "tags": [format!("{GROUP}_{VERSION}")],
        "consumes": ["application/json", "application/yaml"], "produces": ["application/json", "application/yaml"],
        "responses": {"200": {"description": "OK", "schema": build_reference(V2_REFERENCE_PREFIX, &operation.response_schema)}},
        "x-kubernetes-action": operation.action, "x-kubernetes-group-version-kind": build_group_version_kind(served),
    });
    let mut parameters: Vec<Value> = list_query_parameters(operation.action)
        .iter()
        .map(|(name, text)| {
            json!({"name": name, "in": "query", "type": "string", "uniqueItems": true, "description": text})
        })
        .collect();
    if let Some(body_schema) = &operation.body_schema {
        let body = json!({"name": "body", "in": "body", "required": operation.method != "delete",
            "schema": build_reference(V2_REFERENCE_PREFIX, body_schema)});
        parameters.push(body);
    }
    described["parameters"] = parameters.into();
    described
}

fn build_v3_document() -> Value {
    json!({"openapi": "3.0.0", "info": {"title": "Calico", "version": VERSION}, "paths": build_paths(build_v3_path_parameter, describe_v3),
        "components": {"schemas": build_schemas(V3_REFERENCE_PREFIX)}})
}

fn build_v3_path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
}

fn describe_v3(served: ServedKind, operation: &PathOperation, id: String) -> Value {
    let content = json!({"application/json": {"schema": build_reference(V3_REFERENCE_PREFIX, &operation.response_schema)}});
    let mut described = json!({
        "operationId": id, "tags": [format!("{GROUP}_{VERSION}")],
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": operation.action, "x-kubernetes-group-version-kind": build_group_version_kind(served),
    });
    described["parameters"] = list_query_parameters(operation.action)
        .iter()
        .map(|(name, text)| {
            let schema = json!({"type": "string", "uniqueItems": true});
            json!({"name": name, "in": "query", "schema": schema, "description": text})
        })
        .collect();
    if let Some(body_schema) = &operation.body_schema {
        let forms: &[&str] = match operation.method {
            "patch" => &[
                "application/apply-patch+yaml",
                "application/json-patch+json",
                "application/merge-patch+json",
            ],
            _ => &["application/json"],
        };
        let content: Map<String, Value> = forms
            .iter()
            .map(|form| {
                ((*form).to_owned(), json!({"schema": build_reference(V3_REFERENCE_PREFIX, body_schema)}))
            })
            .collect();
        described["requestBody"] = json!({ "content": content });
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        for document in [build_v2_document(), build_v3_document()] {
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(found.len() > 100);
            for reference in found {
                let pointer = reference.trim_start_matches('#');
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
        }
    }

    #[test]
    fn rules_of_a_policy_are_described() {
        let document = build_v3_document();
        let policy = &document["components"]["schemas"]["org.projectcalico.v3.NetworkPolicy"];
        assert!(policy.pointer("/properties/spec/properties/ingress/items/properties/action").is_some());
        assert_eq!(policy["x-kubernetes-group-version-kind"][0]["kind"], "NetworkPolicy");
    }

    #[test]
    fn ids_of_operations_are_not_used_twice() {
        let document = build_v3_document();
        let mut ids: Vec<&str> = Vec::new();
        for path in document["paths"].as_object().unwrap().values() {
            ids.extend(
                path.as_object().unwrap().values().filter_map(|operation| operation["operationId"].as_str()),
            );
        }
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
