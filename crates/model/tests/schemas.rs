//! Objects of every kind, made up from the kind's own schema: what is read can be checked, written and read again.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use tortie_model::{Kind, Resource, schema};

/// Texts that are right somewhere and wrong elsewhere.
const TEXTS: &[&str] = &[
    "",
    "a",
    "default",
    "1m30s",
    "10.0.0.0/8",
    "10.0.0.1",
    "fd00::/8",
    "fd00::1",
    "65000:1",
    "eth0",
    "all()",
    "has(x)",
    "EF",
    "80",
    "1:2",
    "2026-03-01T10:20:30Z",
    "ee:ee:ee:ee:ee:ee",
    "Enabled",
    "10.0.0.1:179",
    "x y",
    "host:n1",
];

fn object(fields: &Value, depth: u32) -> BoxedStrategy<Value> {
    let fields: Vec<BoxedStrategy<(String, Option<Value>)>> = fields
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, schema)| {
            let key = key.clone();
            // Large specs would never be sparse otherwise.
            prop_oneof![2 => Just(None), 1 => value(schema, depth + 1).prop_map(Some)]
                .prop_map(move |value| (key.clone(), value))
                .boxed()
        })
        .collect();
    fields
        .prop_map(|fields| {
            Value::Object(
                fields.into_iter().filter_map(|(key, value)| value.map(|value| (key, value))).collect(),
            )
        })
        .boxed()
}

fn value(schema: &Value, depth: u32) -> BoxedStrategy<Value> {
    if let Some(names) = schema["enum"].as_array() {
        return select(names.clone()).boxed();
    }
    let bound = |key: &str, otherwise: i64| schema[key].as_i64().unwrap_or(otherwise);
    let text = || select(TEXTS).prop_map(Value::from);
    match schema["type"].as_str() {
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("integer") => {
            let (min, max) = (bound("minimum", i32::MIN.into()), bound("maximum", i32::MAX.into()));
            prop_oneof![min..=max, Just(min), Just(max)].prop_map(Value::from).boxed()
        }
        Some("number") => (-1e6..1e6f64).prop_map(Value::from).boxed(),
        Some("string") => text().boxed(),
        Some("array") => {
            prop::collection::vec(value(&schema["items"], depth + 1), 0..3).prop_map(Value::from).boxed()
        }
        Some("object") if schema.get("properties").is_some() => object(&schema["properties"], depth),
        Some("object") => {
            let inner = schema
                .get("additionalProperties")
                .map_or_else(|| Just(json!(1)).boxed(), |s| value(s, depth + 1));
            prop::collection::vec((select(TEXTS), inner), 0..3)
                .prop_map(|fields| {
                    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>()
                })
                .prop_map(Value::from)
                .boxed()
        }
        _ => prop_oneof![text(), any::<u16>().prop_map(Value::from)].boxed(),
    }
}

static SCHEMAS: LazyLock<Vec<(Kind, Value)>> =
    LazyLock::new(|| Kind::ALL.iter().map(|kind| (*kind, schema::json_schema(*kind))).collect());

fn document() -> impl Strategy<Value = (Kind, Value)> {
    any::<Index>().prop_flat_map(|index| {
        let (kind, schema) = index.get(SCHEMAS.as_slice());
        let spec = value(&schema["properties"]["spec"], 0);
        let status = schema["properties"].get("status").map_or_else(|| Just(None).boxed(), |s| value(s, 0).prop_map(Some).boxed());
        (spec, status).prop_map(|(spec, status)| {
            let mut object = json!({
                "kind": kind.name(), "apiVersion": "projectcalico.org/v3", "metadata": {"name": "x"}, "spec": spec
            });
            if let Some(status) = status {
                object["status"] = status;
            }
            (*kind, object)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn objects_by_their_schema((kind, document) in document()) {
        match Resource::from_user(document.clone()) {
            // A text may be wrong where a duration or a port stands, but the schema has no field that the type lacks.
            Err(error) => prop_assert!(!error.to_string().contains("not recognized"), "{error}\n{document}"),
            Ok(mut resource) => {
                resource.set_defaults();
                let once = resource.clone();
                resource.set_defaults();
                prop_assert_eq!(&resource, &once, "defaults are filled in once");
                prop_assert_eq!(Resource::from_user(resource.to_value()), Ok(resource.clone()));
                prop_assert_eq!(Resource::from_store(kind, resource.to_value()), Ok(resource.clone()));
                let _ = resource.validate();
            }
        }
    }
}
