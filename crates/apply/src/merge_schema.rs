//! The merge rules of a schema.

use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum MergeSchema {
    /// The schema gives no rule: objects merge, lists do not.
    Any,
    Scalar(ScalarKind),
    List {
        relation: ListMergeType,
        item: Box<MergeSchema>,
    },
    /// An object with fields, a map, or both. If `rest` is `None`, only the named fields are allowed.
    Map {
        fields: BTreeMap<String, MergeSchema>,
        rest: Option<Box<MergeSchema>>,
        atomic: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    Text,
    Number,
    Flag,
    /// An integer or a string.
    Either,
}

/// How the elements of a list are identified when lists merge.
#[derive(Clone, Debug, PartialEq)]
pub enum ListMergeType {
    /// The list is one value.
    Atomic,
    Set,
    /// Elements are identified by these key fields.
    Map(Vec<String>),
}

impl MergeSchema {
    /// Returns the shape of an object of a kind, from its structural schema. The metadata has the shape of Kubernetes
    /// `ObjectMeta`, regardless of the schema.
    pub fn from_object_schema(schema: &Value) -> MergeSchema {
        let mut shape = MergeSchema::from_schema(schema);
        if let MergeSchema::Map { fields, .. } = &mut shape {
            fields.insert("apiVersion".into(), MergeSchema::Scalar(ScalarKind::Text));
            fields.insert("kind".into(), MergeSchema::Scalar(ScalarKind::Text));
            fields.insert("metadata".into(), metadata());
        }
        shape
    }

    /// Returns the shape of a structural schema.
    pub fn from_schema(schema: &Value) -> MergeSchema {
        if has_flag(schema, "x-kubernetes-int-or-string") {
            return MergeSchema::Scalar(ScalarKind::Either);
        }
        match text(schema, "type") {
            Some("string") => MergeSchema::Scalar(ScalarKind::Text),
            Some("integer" | "number") => MergeSchema::Scalar(ScalarKind::Number),
            Some("boolean") => MergeSchema::Scalar(ScalarKind::Flag),
            Some("array") => {
                let relation = match text(schema, "x-kubernetes-list-type") {
                    Some("set") => ListMergeType::Set,
                    Some("map") => {
                        let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                        let keys = keys.into_iter().flatten().filter_map(Value::as_str);
                        ListMergeType::Map(keys.map(str::to_owned).collect())
                    }
                    _ => ListMergeType::Atomic,
                };
                let item = schema.get("items").map_or(MergeSchema::Any, MergeSchema::from_schema);
                list(relation, item)
            }
            Some("object") => {
                let properties = schema.get("properties").and_then(Value::as_object);
                let fields: BTreeMap<String, MergeSchema> = properties
                    .into_iter()
                    .flatten()
                    .map(|(name, field)| (name.clone(), MergeSchema::from_schema(field)))
                    .collect();
                let keeps_unknown = has_flag(schema, "x-kubernetes-preserve-unknown-fields");
                let rest = match schema.get("additionalProperties") {
                    Some(Value::Bool(false)) => None,
                    Some(Value::Bool(true)) => Some(MergeSchema::Any),
                    Some(rest) => Some(MergeSchema::from_schema(rest)),
                    None if keeps_unknown || fields.is_empty() => Some(MergeSchema::Any),
                    None => None,
                };
                let atomic = text(schema, "x-kubernetes-map-type") == Some("atomic");
                MergeSchema::Map { fields, rest: rest.map(Box::new), atomic }
            }
            _ => MergeSchema::Any,
        }
    }
}

fn text<'a>(schema: &'a Value, keyword: &str) -> Option<&'a str> {
    schema.get(keyword).and_then(Value::as_str)
}

fn has_flag(schema: &Value, keyword: &str) -> bool {
    schema.get(keyword).and_then(Value::as_bool) == Some(true)
}

fn texts() -> MergeSchema {
    MergeSchema::Map {
        fields: BTreeMap::new(),
        rest: Some(Box::new(MergeSchema::Scalar(ScalarKind::Text))),
        atomic: false,
    }
}

fn object(fields: &[(&[&str], MergeSchema)], atomic: bool) -> MergeSchema {
    let mut named = BTreeMap::new();
    for (names, schema) in fields {
        named.extend(names.iter().map(|name| ((*name).to_owned(), schema.clone())));
    }
    MergeSchema::Map { fields: named, rest: None, atomic }
}

fn list(relation: ListMergeType, item: MergeSchema) -> MergeSchema {
    MergeSchema::List { relation, item: Box::new(item) }
}

/// Returns the schema of Kubernetes `ObjectMeta`.
fn metadata() -> MergeSchema {
    let text = MergeSchema::Scalar(ScalarKind::Text);
    let number = MergeSchema::Scalar(ScalarKind::Number);
    let flag = MergeSchema::Scalar(ScalarKind::Flag);
    let owner_texts = ["apiVersion", "kind", "name", "uid"];
    let owner = object(&[(&owner_texts, text.clone()), (&["controller", "blockOwnerDeletion"], flag)], true);
    let texts_of_server = ["selfLink", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"];
    object(
        &[
            (&["name", "generateName", "namespace"], text.clone()),
            (&texts_of_server, text.clone()),
            (&["generation", "deletionGracePeriodSeconds"], number),
            (&["labels", "annotations"], texts()),
            (&["ownerReferences"], list(ListMergeType::Map(vec!["uid".to_owned()]), owner)),
            (&["finalizers"], list(ListMergeType::Set, text)),
            (&["managedFields"], list(ListMergeType::Atomic, MergeSchema::Any)),
        ],
        false,
    )
}
