//! Generates objects of every kind from the kind's own schema. Objects that decode can be validated, encoded
//! and decoded again, and kube-apiserver reaches the same verdict on them.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../src/schema/tests/admission.rs"]
mod admission;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use tortie_model::scalar::GoDuration;
use tortie_model::schema::{admission_policies, json_schema};
use tortie_model::{Kind, Resource, codec, schema};

/// Texts that are valid in some fields and invalid in others.
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

/// Texts that are invalid nearly everywhere, next to similar ones that are valid somewhere.
const WRONG_TEXTS: &[&str] = &[
    "role ==",
    "global()",
    "!has(x) && (a in {'b'})",
    "(has(x)",
    "tcp",
    "256",
    "65535",
    "65536",
    "800000",
    "2:1",
    "web",
    "WEB",
    "10.0.0.1/8",
    "0.0.0.0/0",
    "10.0.0.0/33",
    "10.0.0.0/08",
    "256.0.0.1",
    "fd00::1/8",
    "::/0",
    "::ffff:10.0.0.0/104",
    "[fd00::1]:179",
    "10.0.0.1:0",
    "65536:1",
    "1:2:4294967295",
    "-1s",
    "1d",
    "9999999h",
    "Auto",
    "eth*",
    "*",
    "sixteen-letters-",
    "a..b",
    "A",
    "TCP",
    "6",
    "^(eth.*",
    "/a?b",
    "/a",
    "AF44",
];

fn object(fields: &Value, depth: u32) -> BoxedStrategy<Value> {
    let fields: Vec<BoxedStrategy<(String, Option<Value>)>> = fields
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, schema)| {
            let key = key.clone();
            // Without this weight, large specs would never be sparse.
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
            // A text may be invalid for a duration or a port, but the schema has no field that the type
            // lacks.
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

fn examples() -> Vec<Value> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files.iter().flat_map(|file| codec::documents(&std::fs::read(file).unwrap()).unwrap()).collect()
}

#[test]
fn kubernetes_accepts_every_example() {
    let found: Vec<String> = examples().iter().filter_map(admission::disagreement).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Collects the paths of all leaf values of a schema; `*` is each element of a list.
fn leaves(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    match (schema["properties"].as_object(), schema.get("items")) {
        (Some(properties), _) => {
            properties.iter().for_each(|(key, inner)| leaves(inner, &format!("{path}/{key}"), found));
        }
        (None, Some(items)) => leaves(items, &format!("{path}/*"), found),
        (None, None) => found.push((path.to_owned(), schema.clone())),
    }
}

/// Returns valid and invalid values for a leaf.
fn candidates(schema: &Value) -> Vec<Value> {
    let texts = || TEXTS.iter().chain(WRONG_TEXTS).map(|text| json!(text));
    let bounds = ["minimum", "maximum"].into_iter().filter_map(|key| schema[key].as_i64());
    let numbers = bounds
        .flat_map(|bound| [bound - 1, bound, bound + 1])
        .chain([-1, 0, 1, 4, 5, 70_000])
        .map(Value::from);
    let mut values: Vec<Value> = schema["enum"].as_array().cloned().unwrap_or_default();
    match schema["type"].as_str() {
        Some("boolean") => values.extend([json!(true), json!(false)]),
        Some("integer" | "number") => values.extend(numbers),
        Some("string") => values.extend(texts().filter(|text| text != "")),
        _ if schema["x-kubernetes-int-or-string"] == true => {
            values.extend(texts().filter(|text| text != "").chain(numbers))
        }
        _ => {}
    }
    values
}

/// Returns a value that the schema accepts.
fn filler(schema: &Value) -> Value {
    let fits = |value: &Value| admission::refusals(schema, value).is_empty();
    candidates(schema).into_iter().find(fits).unwrap_or_else(|| match schema["type"].as_str() {
        Some("array") => json!([]),
        _ => json!({}),
    })
}

/// Sets the value at a path. Missing objects are created with their required fields.
fn plant(object: &mut Value, schema: &Value, path: &[&str], value: Value) {
    let Some((key, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    if *key == "*" {
        let list = match object {
            Value::Array(list) => list,
            other => {
                *other = json!([]);
                other.as_array_mut().unwrap()
            }
        };
        if list.is_empty() {
            list.push(Value::Null);
        }
        return plant(&mut list[0], &schema["items"], rest, value);
    }
    if !object.is_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        *object = required
            .map(|name| (name.to_owned(), filler(&schema["properties"][name])))
            .collect::<Map<_, _>>()
            .into();
    }
    plant(&mut object[*key], &schema["properties"][*key], rest, value);
}

type ExampleLeaves = Vec<(Value, Vec<(String, Value)>)>;

/// The examples, each with the leaves of its spec.
static PLACES: LazyLock<ExampleLeaves> = LazyLock::new(|| {
    let place = |example: Value| {
        let mut found = Vec::new();
        leaves(&schema_of(&example)["properties"]["spec"], "spec", &mut found);
        found.retain(|(_, schema)| !candidates(schema).is_empty());
        (example, found)
    };
    examples().into_iter().map(place).filter(|(_, found)| !found.is_empty()).collect()
});

fn schema_of(object: &Value) -> &'static Value {
    let kind = Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
    &SCHEMAS.iter().find(|(one, _)| *one == kind).unwrap().1
}

/// Returns an example with one value replaced.
fn with_planted(example: &Value, path: &str, value: Value) -> Value {
    let mut object = example.clone();
    plant(&mut object, schema_of(example), &path.split('/').collect::<Vec<_>>(), value);
    object
}

fn planted() -> impl Strategy<Value = Value> {
    (any::<Index>(), any::<Index>(), any::<Index>()).prop_map(|(example, leaf, value)| {
        let (example, leaves) = example.get(PLACES.as_slice());
        let (path, schema) = leaf.get(leaves.as_slice());
        with_planted(example, path, value.get(&candidates(schema)).clone())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn kubernetes_refuses_what_the_types_refuse(object in planted()) {
        prop_assert_eq!(admission::disagreement(&object), None);
    }
}
