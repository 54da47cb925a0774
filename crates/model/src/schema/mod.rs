//! Generates schemas from the types of the kinds: JSON schemas, the CRDs with which kube-apiserver stores
//! them, and the admission policies that accompany the CRDs.

pub(crate) mod forms;
pub(crate) mod patterns;
mod policies;

pub use policies::admission_policies;

use crate::columns::columns;
use crate::object::{ResourceSpec, StatusForm, TypedObject};
use crate::resource::schema_of;
use crate::{Kind, Scope};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::marker::PhantomData;

const API_GROUP: &str = "projectcalico.org";
const API_GROUP_VERSION: &str = "v3";

/// Returns the structural OpenAPI v3 schema of objects of a kind.
pub fn json_schema(kind: Kind) -> Value {
    schema_of(kind).0
}

/// Returns the CRDs of all kinds that Kubernetes stores as custom resources, in the order of the kind table.
pub fn crds() -> Vec<Value> {
    Kind::ALL.iter().copied().filter(|kind| has_crd(*kind)).map(crd).collect()
}

/// Returns the CRDs of the same kinds in `crd.projectcalico.org/v1`, where older installations and the
/// aggregated API server keep objects. They have no schema, because the writers validate the objects first.
pub fn storage_crds() -> Vec<Value> {
    Kind::ALL.iter().copied().filter(|kind| has_crd(*kind)).map(storage_crd).collect()
}

fn storage_crd(kind: Kind) -> Value {
    let mut crd = crd(kind);
    let (name, plural) = match kind {
        Kind::IPAMConfiguration => ("IPAMConfig", "ipamconfigs"),
        other => (other.name(), other.plural()),
    };
    let group = format!("crd.{API_GROUP}");
    crd["metadata"]["name"] = format!("{plural}.{group}").into();
    crd["spec"]["group"] = group.into();
    // Short names are reserved for the projectcalico.org/v3 kinds that users access.
    crd["spec"]["names"] = json!({"kind": name, "listKind": format!("{name}List"), "plural": plural,
        "singular": name.to_lowercase()});
    crd["spec"]["versions"] = json!([{"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]);
    crd
}

/// Returns whether a kind has a CRD. In Kubernetes the four listed kinds are derived from native objects.
fn has_crd(kind: Kind) -> bool {
    !matches!(kind, Kind::WorkloadEndpoint | Kind::Node | Kind::Profile | Kind::LiveMigration)
}

fn crd(kind: Kind) -> Value {
    let (schema, has_status) = schema_of(kind);
    let mut version = json!({
        "name": API_GROUP_VERSION,
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": printer_columns(kind),
    });
    if has_status {
        version["subresources"] = json!({"status": {}});
    }
    let mut names = json!({
        "kind": kind.name(),
        "listKind": kind.list_name(),
        "plural": kind.plural(),
        "singular": kind.name().to_lowercase(),
    });
    if !kind.short_names().is_empty() {
        names["shortNames"] = json!(kind.short_names());
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{API_GROUP}", kind.plural())},
        "spec": {
            "group": API_GROUP,
            "names": names,
            "scope": match kind.scope() {
                Scope::Cluster => "Cluster",
                Scope::Namespaced => "Namespaced",
            },
            "versions": [version],
        },
    })
}

/// Returns the columns that `kubectl get` shows. Kubernetes reads one field per column, so columns that count
/// elements or combine several fields are omitted.
fn printer_columns(kind: Kind) -> Value {
    let shown = columns(kind).iter().filter_map(|column| {
        let path = column.cell.pointer()?.replace('/', ".");
        Some(json!({"name": column.name, "type": "string", "jsonPath": path,
            "priority": i32::from(column.wide), "description": column.description}))
    });
    let age = json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"});
    shown.chain([age]).collect()
}

/// Returns the schema of the objects of one kind, and whether they have a status.
pub(crate) fn object<S: ResourceSpec>(_: PhantomData<TypedObject<S>>) -> (Value, bool) {
    let has_status = S::STATUS != StatusForm::Absent;
    let mut properties = json!({
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": metadata(S::KIND),
        "spec": part::<S>(),
    });
    if has_status {
        properties["status"] = part::<S::Status>();
    }
    let mut schema = json!({"type": "object", "properties": properties});
    let rules = S::object_rules();
    if !rules.is_empty() {
        schema["x-kubernetes-validations"] = json!(rules);
    }
    (schema, has_status)
}

/// Returns the schema of the metadata. Kubernetes validates metadata itself; a CRD schema may only restrict
/// the name further.
fn metadata(kind: Kind) -> Value {
    let pattern = match kind {
        Kind::Tier => patterns::whole(&patterns::label(63)),
        Kind::GlobalNetworkPolicy | Kind::StagedGlobalNetworkPolicy => {
            patterns::whole(&patterns::policy_name())
        }
        Kind::NetworkPolicy | Kind::StagedNetworkPolicy => {
            let generated = format!(r"(?:knp|ossg)\.default\.{}", patterns::dotted_name());
            patterns::whole(&format!("{}|{generated}", patterns::policy_name()))
        }
        _ => return json!({"type": "object"}),
    };
    json!({"type": "object", "properties": {"name": {"type": "string", "pattern": pattern}}})
}

fn part<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    make_structural(&mut schema);
    schema
}

/// Rewrites a schema into the structural form that CRDs require: no references, no nullable types and no
/// keywords that Kubernetes does not support.
pub(crate) fn make_structural(schema: &mut Value) {
    if schema.is_boolean() {
        *schema = json!({});
    }
    let Value::Object(fields) = schema else { return };
    for keyword in ["$schema", "$defs", "title"] {
        fields.remove(keyword);
    }
    drop_null(fields);
    if fields.get("default").is_some_and(|value| is_zero(value) || !is_within(value, fields)) {
        fields.remove("default");
    }
    // Other formats are Rust's names of integer sizes.
    let known = ["int32", "int64", "double", "float", "date-time"];
    if fields.get("format").is_some_and(|format| !known.iter().any(|known| format == known)) {
        fields.remove("format");
    }
    // Kubernetes does not validate numbers against their format.
    if fields.get("format") == Some(&json!("int32")) && fields.get("enum").is_none() {
        fields.entry("minimum").or_insert(json!(i32::MIN));
        fields.entry("maximum").or_insert(json!(i32::MAX));
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(make_structural);
    }
    drop_defaults_of_required(fields);
    if fields.get("additionalProperties") == Some(&json!(true)) {
        fields.remove("additionalProperties");
        fields.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(keyword) {
            make_structural(inner);
        }
    }
    let is_shaped = fields.contains_key("type") || fields.contains_key("x-kubernetes-int-or-string");
    if !is_shaped {
        fields.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
    }
}

/// Removes `null` from types, enums and `anyOf`: an unset field can only be expressed by omitting it.
fn drop_null(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(choices)) = fields.get("anyOf") else { return };
    let others: Vec<&Value> =
        choices.iter().filter(|choice| choice.get("type") != Some(&json!("null"))).collect();
    if let ([Value::Object(only)], true) = (others.as_slice(), others.len() < choices.len()) {
        let only = (*only).clone();
        fields.remove("anyOf");
        for (key, value) in only {
            fields.entry(key).or_insert(value);
        }
    }
}

/// Removes the defaults of required fields: otherwise Kubernetes would fill them in instead of requiring
/// them.
fn drop_defaults_of_required(fields: &mut Map<String, Value>) {
    let required = fields.get("required").cloned().unwrap_or_default();
    let Some(Value::Object(properties)) = fields.get_mut("properties") else { return };
    for name in required.as_array().into_iter().flatten().filter_map(Value::as_str) {
        if let Some(Value::Object(property)) = properties.get_mut(name) {
            property.remove("default");
        }
    }
}

/// Returns whether a value satisfies the bounds of its schema. kube-apiserver rejects the whole CRD if one
/// default does not.
fn is_within(value: &Value, schema: &Map<String, Value>) -> bool {
    if let Some(Value::Array(values)) = schema.get("enum")
        && !values.contains(value)
    {
        return false;
    }
    let (size, least, most) = match value {
        Value::Number(number) => (number.as_f64().unwrap_or_default(), "minimum", "maximum"),
        Value::String(text) => (text.chars().count() as f64, "minLength", "maxLength"),
        Value::Array(items) => (items.len() as f64, "minItems", "maxItems"),
        Value::Object(fields) => (fields.len() as f64, "minProperties", "maxProperties"),
        Value::Null | Value::Bool(_) => return true,
    };
    let least = schema.get(least).and_then(Value::as_f64);
    let most = schema.get(most).and_then(Value::as_f64);
    least.is_none_or(|least| size >= least) && most.is_none_or(|most| size <= most)
}

/// Returns whether a default equals the zero value that an omitted field has anyway.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
pub(crate) mod tests;
