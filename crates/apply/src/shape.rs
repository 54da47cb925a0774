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
    pub fn of_object(schema: &Value) -> MergeSchema {
        let mut shape = MergeSchema::of(schema);
        if let MergeSchema::Map { fields, .. } = &mut shape {
            fields.insert("apiVersion".into(), MergeSchema::Scalar(ScalarKind::Text));
            fields.insert("kind".into(), MergeSchema::Scalar(ScalarKind::Text));
            fields.insert("metadata".into(), metadata());
        }
        shape
    }

    /// Returns the shape of a structural schema.
    pub fn of(schema: &Value) -> MergeSchema {
        let says = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
        if schema.get("x-kubernetes-int-or-string").and_then(Value::as_bool) == Some(true) {
            return MergeSchema::Scalar(ScalarKind::Either);
        }
        match says("type") {
            Some("string") => MergeSchema::Scalar(ScalarKind::Text),
            Some("integer" | "number") => MergeSchema::Scalar(ScalarKind::Number),
            Some("boolean") => MergeSchema::Scalar(ScalarKind::Flag),
            Some("array") => {
                let relation = match says("x-kubernetes-list-type") {
                    Some("set") => ListMergeType::Set,
                    Some("map") => {
                        let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                        let keys = keys.into_iter().flatten().filter_map(Value::as_str);
                        ListMergeType::Map(keys.map(str::to_owned).collect())
                    }
                    _ => ListMergeType::Atomic,
                };
                let item = schema.get("items").map_or(MergeSchema::Any, MergeSchema::of);
                MergeSchema::List { relation, item: Box::new(item) }
            }
            Some("object") => {
                let properties = schema.get("properties").and_then(Value::as_object);
                let fields: BTreeMap<String, MergeSchema> = properties
                    .into_iter()
                    .flatten()
                    .map(|(name, field)| (name.clone(), MergeSchema::of(field)))
                    .collect();
                let keeps_unknown =
                    schema.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool) == Some(true);
                let rest = match schema.get("additionalProperties") {
                    Some(Value::Bool(false)) => None,
                    Some(Value::Bool(true)) => Some(MergeSchema::Any),
                    Some(rest) => Some(MergeSchema::of(rest)),
                    None if keeps_unknown || fields.is_empty() => Some(MergeSchema::Any),
                    None => None,
                };
                let atomic = says("x-kubernetes-map-type") == Some("atomic");
                MergeSchema::Map { fields, rest: rest.map(Box::new), atomic }
            }
            _ => MergeSchema::Any,
        }
    }
}

fn texts() -> MergeSchema {
    MergeSchema::Map {
        fields: BTreeMap::new(),
        rest: Some(Box::new(MergeSchema::Scalar(ScalarKind::Text))),
        atomic: false,
    }
}

fn object(fields: &[(&str, MergeSchema)], atomic: bool) -> MergeSchema {
    let fields = fields.iter().map(|(name, shape)| ((*name).to_owned(), shape.clone())).collect();
    MergeSchema::Map { fields, rest: None, atomic }
}

/// Returns the shape of Kubernetes `ObjectMeta`.
fn metadata() -> MergeSchema {
    let (text, number, flag) = (
        MergeSchema::Scalar(ScalarKind::Text),
        MergeSchema::Scalar(ScalarKind::Number),
        MergeSchema::Scalar(ScalarKind::Flag),
    );
    let owner = object(
        &[
            ("apiVersion", text.clone()),
            ("kind", text.clone()),
            ("name", text.clone()),
            ("uid", text.clone()),
            ("controller", flag.clone()),
            ("blockOwnerDeletion", flag),
        ],
        true,
    );
    let list = |relation, item| MergeSchema::List { relation, item: Box::new(item) };
    object(
        &[
            ("name", text.clone()),
            ("generateName", text.clone()),
            ("namespace", text.clone()),
            ("selfLink", text.clone()),
            ("uid", text.clone()),
            ("resourceVersion", text.clone()),
            ("generation", number.clone()),
            ("creationTimestamp", text.clone()),
            ("deletionTimestamp", text.clone()),
            ("deletionGracePeriodSeconds", number),
            ("labels", texts()),
            ("annotations", texts()),
            ("ownerReferences", list(ListMergeType::Map(vec!["uid".to_owned()]), owner)),
            ("finalizers", list(ListMergeType::Set, text)),
            ("managedFields", list(ListMergeType::Atomic, MergeSchema::Any)),
        ],
        false,
    )
}
