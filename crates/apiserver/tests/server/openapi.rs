//! Validates the served OpenAPI v3 document, by the rules of OpenAPI 3.0 that such a document can violate and with a
//! third-party validator.

use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// Validates with kin-openapi, which is not built by Cargo.
#[track_caller]
pub fn is_valid_for_others(document: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/openapi/build");
    let validator = tortie_testkit::run(&mut Command::new(script));
    let judge = |document: &str| tortie_testkit::output(&mut Command::new(validator.trim()), document);
    let judged = judge(document);
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    // Verify that the validator detects errors: a path without its parameter is rejected.
    let spoilt = document.replace("\"name\":\"name\"", "\"name\":\"nome\"");
    assert_ne!(spoilt, document);
    assert!(!judge(&spoilt).status.success());
}

#[track_caller]
pub fn is_valid(document: &Value) {
    has_only(document, "the document", &["openapi", "info", "paths", "components"]);
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.0.")));
    for field in ["title", "version"] {
        assert!(document["info"][field].is_string(), "info.{field}");
    }
    let mut ids = BTreeSet::new();
    let paths = document["paths"].as_object().unwrap();
    for (path, item) in paths {
        has_only(item, path, &[&METHODS[..], &["parameters"]].concat());
        parameters_are_those_of_the_path(path, item);
        for (method, operation) in members(item).iter().filter(|(name, _)| METHODS.contains(&name.as_str())) {
            let place = format!("{method} {path}");
            let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{place} has no id"));
            assert!(ids.insert(id), "{id} stands twice");
            operation_is_described(&place, method, operation);
        }
    }
    // Collections and objects of 21 resources.
    assert_eq!(paths.len(), 42);
    references_lead_somewhere(document, document);
    for (name, schema) in members(&document["components"]["schemas"]) {
        schema_is_sound(name, schema);
    }
}

#[track_caller]
fn members(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("{value} is not an object"))
}

/// Checks that all fields are known or start with `x-`.
#[track_caller]
fn has_only(value: &Value, place: &str, known: &[&str]) {
    for name in members(value).keys() {
        assert!(known.contains(&name.as_str()) || name.starts_with("x-"), "{place} has {name:?}");
    }
}

/// Checks that the path parameters are exactly the names in braces, and required.
fn parameters_are_those_of_the_path(path: &str, item: &Value) {
    let in_path: BTreeSet<&str> =
        path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
    let mut declared = BTreeSet::new();
    for parameter in item["parameters"].as_array().unwrap() {
        assert_eq!((&parameter["in"], &parameter["required"]), (&"path".into(), &true.into()), "{path}");
        assert!(parameter["schema"].is_object(), "{path}: {parameter}");
        declared.insert(parameter["name"].as_str().unwrap());
    }
    assert_eq!(declared, in_path, "{path}");
}

fn operation_is_described(place: &str, method: &str, operation: &Value) {
    has_only(
        operation,
        place,
        &["operationId", "tags", "description", "parameters", "requestBody", "responses"],
    );
    let mut names = BTreeSet::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        assert_eq!(parameter["in"], "query", "{place}: {parameter}");
        assert!(names.insert(parameter["name"].as_str().unwrap()), "{place}: {parameter} stands twice");
        schema_is_sound(place, &parameter["schema"]);
    }
    let contents = |content: &Value| {
        assert!(!members(content).is_empty(), "{place}");
        members(content).values().for_each(|form| schema_is_sound(place, &form["schema"]));
    };
    let answers = members(&operation["responses"]);
    assert!(!answers.is_empty(), "{place} has no answers");
    for (code, answer) in answers {
        assert!(code.parse::<u16>().is_ok_and(|code| (100..600).contains(&code)), "{place}: {code}");
        assert!(answer["description"].is_string(), "{place}: {code}");
        contents(&answer["content"]);
    }
    match operation.get("requestBody") {
        Some(body) => contents(&body["content"]),
        None => assert!(!matches!(method, "post" | "put" | "patch"), "{place} takes nothing"),
    }
}

fn references_lead_somewhere(document: &Value, value: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference}"));
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            fields.values().for_each(|inner| references_lead_somewhere(document, inner));
        }
        Value::Array(items) => items.iter().for_each(|inner| references_lead_somewhere(document, inner)),
        _ => {}
    }
}

/// Checks semantic rules of a schema: arrays declare their items, required properties exist, defaults have the right
/// type.
fn schema_is_sound(path: &str, schema: &Value) {
    if schema.get("$ref").is_some() {
        // Fields beside a reference are ignored.
        assert_eq!(members(schema).len(), 1, "{path}: {schema}");
        return;
    }
    has_only(schema, path, SCHEMA_KEYWORDS);
    let form = schema.get("type").and_then(Value::as_str);
    if let Some(form) = form {
        let known = ["object", "array", "string", "integer", "number", "boolean"];
        assert!(known.contains(&form), "{path}: {form}");
    }
    assert!(form != Some("array") || schema.get("items").is_some(), "{path}: an array of what?");
    let properties = schema.get("properties").and_then(Value::as_object);
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        let name = name.as_str().unwrap_or_else(|| panic!("{path}: {name}"));
        assert!(
            properties.is_some_and(|all| all.contains_key(name)),
            "{path}: {name} is required and not there"
        );
    }
    if let Some(default) = schema.get("default") {
        let fits = match form {
            Some("object") | None => default.is_object() || form.is_none(),
            Some("array") => default.is_array(),
            Some("string") => default.is_string(),
            Some("boolean") => default.is_boolean(),
            _ => default.is_number(),
        };
        assert!(fits, "{path}: {default} is the default of {form:?}");
    }
    for (name, inner) in properties.into_iter().flatten() {
        schema_is_sound(&format!("{path}.{name}"), inner);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(keyword).filter(|inner| inner.is_object()) {
            schema_is_sound(&format!("{path}.{keyword}"), inner);
        }
    }
}

/// Keywords of a schema in OpenAPI 3.0.
const SCHEMA_KEYWORDS: &[&str] = &[
    "title",
    "description",
    "type",
    "format",
    "default",
    "enum",
    "nullable",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
];
