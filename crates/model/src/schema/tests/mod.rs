pub(crate) mod admission;

use super::*;
use crate::Resource;
use crate::codec::{documents, to_yaml};
use crate::scalar::GoDuration;

/// Keywords that a structural schema may have.
const KEYWORDS: &[&str] = &[
    "type",
    "format",
    "description",
    "default",
    "enum",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "pattern",
    "nullable",
    "anyOf",
    "allOf",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

fn check(path: &str, schema: &Value, problems: &mut Vec<String>) {
    let Value::Object(fields) = schema else {
        problems.push(format!("{path}: {schema} is not an object"));
        return;
    };
    for keyword in fields.keys().filter(|keyword| !KEYWORDS.contains(&keyword.as_str())) {
        problems.push(format!("{path}: {keyword}"));
    }
    let preserves = fields.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
    let int_or_string = fields.get("x-kubernetes-int-or-string") == Some(&json!(true));
    let has_content = preserves
        || path.starts_with(".metadata")
        || fields.contains_key("properties")
        || fields.contains_key("additionalProperties");
    match fields.get("type").map(|name| name.as_str()) {
        Some(Some("object")) if !has_content => problems.push(format!("{path}: object of nothing")),
        Some(Some("object")) => (),
        Some(Some("array")) if !fields.contains_key("items") => {
            problems.push(format!("{path}: array of nothing"))
        }
        Some(Some("string" | "integer" | "number" | "boolean" | "array")) => (),
        Some(other) => problems.push(format!("{path}: type {other:?}")),
        None if !preserves && !int_or_string => problems.push(format!("{path}: no type")),
        None => (),
    }
    for choices in ["anyOf", "allOf"] {
        let is_choice = !int_or_string || choices == "allOf";
        let nested = fields.get(choices).and_then(Value::as_array).into_iter().flatten();
        nested.filter(|_| is_choice).for_each(|inner| check_nested(path, inner, schema, problems));
    }
    if let Some(Value::Object(properties)) = fields.get("properties") {
        properties.iter().for_each(|(key, schema)| check(&format!("{path}.{key}"), schema, problems));
        for required in fields.get("required").and_then(Value::as_array).into_iter().flatten() {
            if !properties.contains_key(required.as_str().unwrap_or_default()) {
                problems.push(format!("{path}: requires {required}, which it does not have"));
            }
        }
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get(keyword) {
            check(&format!("{path}.{keyword}"), schema, problems);
        }
    }
    let types = fields.get("enum").and_then(Value::as_array).into_iter().flatten();
    if types.clone().any(Value::is_null) {
        problems.push(format!("{path}: null in enum"));
    }
}

/// Checks a schema nested in `allOf` or `anyOf`: it must not mention fields that the outer schema does not
/// have, and may only contain keywords that restrict values.
fn check_nested(path: &str, nested: &Value, schema: &Value, problems: &mut Vec<String>) {
    const VALUES: [&str; 10] = [
        "anyOf",
        "allOf",
        "enum",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "pattern",
        "properties",
    ];
    for keyword in nested.as_object().into_iter().flat_map(Map::keys) {
        if keyword != "required" && !VALUES.contains(&keyword.as_str()) {
            problems.push(format!("{path}: {keyword} in a nested schema"));
        }
    }
    for choices in ["anyOf", "allOf"] {
        nested[choices]
            .as_array()
            .into_iter()
            .flatten()
            .for_each(|inner| check_nested(path, inner, schema, problems));
    }
    for (key, inner) in nested["properties"].as_object().into_iter().flatten() {
        match schema["properties"].get(key) {
            Some(schema) => check_nested(&format!("{path}.{key}"), inner, schema, problems),
            None => problems.push(format!("{path}: {key} is in a nested schema only")),
        }
    }
    if let Some(items) = nested.get("items") {
        check_nested(path, items, &schema["items"], problems);
    }
}

#[test]
fn every_schema_is_structural() {
    let mut problems = Vec::new();
    for kind in Kind::ALL.iter().copied() {
        let mut own = Vec::new();
        check("", &json_schema(kind), &mut own);
        problems.extend(own.into_iter().map(|problem| format!("{kind}{problem}")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Collects every nested schema that has a default, with its path.
fn with_defaults(path: &str, schema: &Value, found: &mut Vec<(String, Value)>) {
    if schema.get("default").is_some() {
        found.push((path.to_owned(), schema.clone()));
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        with_defaults(&format!("{path}.{key}"), inner, found);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(keyword) {
            with_defaults(&format!("{path}.{keyword}"), inner, found);
        }
    }
}

/// Otherwise kube-apiserver rejects the CRD.
#[test]
fn every_default_obeys_its_own_schema() {
    let mut seen = 0;
    for kind in Kind::ALL.iter().copied() {
        let mut found = Vec::new();
        with_defaults("", &json_schema(kind), &mut found);
        seen += found.len();
        for (path, schema) in found {
            let (value, fields) = (&schema["default"], schema.as_object().unwrap());
            assert!(is_within(value, fields), "{kind}{path}: the default {value} is outside of {schema}");
        }
    }
    assert!(seen > 0, "there are defaults");
    let operation = &json_schema(Kind::BGPFilter)["properties"]["spec"]["properties"]["exportV4"]["items"]["properties"]
        ["operations"]["items"]["properties"];
    assert_eq!(
        operation["setPriority"]["properties"]["value"],
        json!({"type": "integer", "format": "int64", "minimum": 1, "maximum": 2147483646})
    );
}

#[test]
fn what_must_be_given_has_no_default() {
    let mut schema = json!({"type": "object", "required": ["a"], "properties":
        {"a": {"type": "integer", "default": 5}, "b": {"type": "integer", "default": 5}}});
    make_structural(&mut schema);
    assert_eq!(schema["properties"]["a"], json!({"type": "integer"}));
    assert_eq!(schema["properties"]["b"], json!({"type": "integer", "default": 5}));
}

#[test]
fn values_are_held_against_bounds() {
    for (value, schema, within) in [
        (json!(0), json!({"minimum": 1}), false),
        (json!(1), json!({"minimum": 1, "maximum": 1}), true),
        (json!(2), json!({"maximum": 1}), false),
        (json!("ab"), json!({"maxLength": 1}), false),
        (json!("é"), json!({"maxLength": 1}), true),
        (json!([1]), json!({"minItems": 2}), false),
        (json!({}), json!({"minProperties": 1}), false),
        (json!("a"), json!({"enum": ["b"]}), false),
        (json!("b"), json!({"enum": ["b"]}), true),
        (json!(true), json!({}), true),
    ] {
        assert_eq!(is_within(&value, schema.as_object().unwrap()), within, "{value} in {schema}");
    }
}

#[test]
fn crds_are_named_and_scoped_by_the_table() {
    let crds = crds();
    let names: Vec<&str> = crds.iter().filter_map(|crd| crd["spec"]["names"]["kind"].as_str()).collect();
    assert_eq!(names.len(), Kind::ALL.len() - 4);
    for absent in ["WorkloadEndpoint", "Node", "Profile", "LiveMigration"] {
        assert!(!names.contains(&absent));
    }
    let policy = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == "NetworkPolicy").unwrap();
    assert_eq!(policy["metadata"]["name"], "networkpolicies.projectcalico.org");
    assert_eq!(policy["spec"]["scope"], "Namespaced");
    assert_eq!(
        policy["spec"]["names"],
        json!({"kind": "NetworkPolicy", "listKind": "NetworkPolicyList", "plural": "networkpolicies",
               "singular": "networkpolicy", "shortNames": ["cnp", "caliconetworkpolicy"]})
    );
    assert_eq!(policy["spec"]["versions"][0].get("subresources"), None);
    let tier = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == "Tier").unwrap();
    assert_eq!(tier["spec"]["versions"][0]["subresources"], json!({"status": {}}));
    let columns = |crd: &Value, field: &str| -> Vec<Value> {
        let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
        columns.iter().map(|column| column[field].clone()).collect()
    };
    assert_eq!(columns(policy, "name"), ["Tier", "Order", "Selector", "Age"]);
    assert_eq!(columns(policy, "jsonPath")[..2], [".spec.tier", ".spec.order"]);
    assert_eq!(columns(policy, "priority")[..2], [0, 1]);
    for crd in &crds {
        assert_eq!(documents(to_yaml(crd).as_bytes()).unwrap(), std::slice::from_ref(crd));
    }
}

/// `kubectl apply` stores the whole object in an annotation of the object.
#[test]
fn crds_fit_into_an_annotation() {
    const MAX_ANNOTATION_BYTES: usize = 262_144;
    for crd in crds() {
        let size = crd.to_string().len();
        assert!(size < MAX_ANNOTATION_BYTES / 2, "{} has {size} bytes", crd["metadata"]["name"]);
    }
}

#[test]
fn schemas_say_what_the_types_say() {
    let schema = json_schema(Kind::GlobalNetworkPolicy);
    let spec = &schema["properties"]["spec"]["properties"];
    assert_eq!((&spec["tier"]["type"], &spec["tier"]["default"]), (&json!("string"), &json!("default")));
    assert_eq!(spec["order"]["type"], "number");
    assert_eq!(spec["types"]["items"], json!({"type": "string", "enum": ["Ingress", "Egress"]}));
    assert_eq!((&spec["types"]["minItems"], &spec["types"]["maxItems"]), (&json!(1), &json!(2)));
    assert_eq!(spec["types"]["x-kubernetes-list-type"], "set");
    assert_eq!(spec["selector"]["maxLength"], 1024);
    assert_eq!(spec["ingress"]["maxItems"], 1024);
    let rule = &spec["ingress"]["items"];
    assert_eq!(rule["required"], json!(["action"]));
    assert_eq!(rule["properties"]["action"]["enum"], json!(["Allow", "Deny", "Log", "Pass"]));
    assert_eq!(
        rule["properties"]["ipVersion"],
        json!({"type": "integer", "format": "int64", "enum": [4, 6]})
    );
    assert_eq!(rule["properties"]["icmp"]["properties"]["type"]["maximum"], 254);
    assert_eq!(rule["properties"]["protocol"]["x-kubernetes-int-or-string"], true);
    assert_eq!(
        rule["properties"]["source"]["properties"]["ports"]["items"]["x-kubernetes-int-or-string"],
        true
    );
    assert!(rule["x-kubernetes-validations"].as_array().is_some_and(|rules| rules.len() >= 5));
    let annotations = &rule["properties"]["metadata"]["properties"]["annotations"];
    assert_eq!(annotations["additionalProperties"], json!({"type": "string"}));
    assert!(schema["properties"].get("status").is_none());
    let tier = json_schema(Kind::Tier);
    let rules: Vec<&str> = tier["x-kubernetes-validations"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|rule| rule["rule"].as_str())
        .collect();
    assert_eq!(rules.len(), 3);
    assert!(rules[1].starts_with(
        "self.metadata.name != 'default' || (has(self.spec.order) && self.spec.order == 1000000.0"
    ));
}
