//! The merge rules of a schema.

use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// The schema gives no rule: objects merge, lists do not.
    Any,
    Scalar(Scalar),
    List {
        relation: Relation,
        item: Box<Shape>,
    },
    /// An object with fields, a map, or both. If `rest` is `None`, only the named fields are allowed.
    Map {
        fields: BTreeMap<String, Shape>,
        rest: Option<Box<Shape>>,
        atomic: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Text,
    Number,
    Flag,
    /// An integer or a string.
    Either,
}

/// How the elements of a list are identified when lists merge.
#[derive(Clone, Debug, PartialEq)]
pub enum Relation {
    /// The list is one value.
    Atomic,
    Set,
    /// Elements are identified by these key fields.
    Map(Vec<String>),
}

impl Shape {
    /// Returns the shape of an object of a kind, from its structural schema. The metadata has the shape of Kubernetes
    /// `ObjectMeta`, regardless of the schema.
    pub fn of_object(schema: &Value) -> Shape {
        let mut shape = Shape::of(schema);
        if let Shape::Map { fields, .. } = &mut shape {
            fields.insert("apiVersion".into(), Shape::Scalar(Scalar::Text));
            fields.insert("kind".into(), Shape::Scalar(Scalar::Text));
            fields.insert("metadata".into(), metadata());
        }
        shape
    }

    /// Returns the shape of a structural schema.
    pub fn of(schema: &Value) -> Shape {
        let says = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
        if schema.get("x-kubernetes-int-or-string").and_then(Value::as_bool) == Some(true) {
            return Shape::Scalar(Scalar::Either);
        }
        match says("type") {
            Some("string") => Shape::Scalar(Scalar::Text),
            Some("integer" | "number") => Shape::Scalar(Scalar::Number),
            Some("boolean") => Shape::Scalar(Scalar::Flag),
            Some("array") => {
                let relation = match says("x-kubernetes-list-type") {
                    Some("set") => Relation::Set,
                    Some("map") => {
                        let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                        let keys = keys.into_iter().flatten().filter_map(Value::as_str);
                        Relation::Map(keys.map(str::to_owned).collect())
                    }
                    _ => Relation::Atomic,
                };
                let item = schema.get("items").map_or(Shape::Any, Shape::of);
                Shape::List { relation, item: Box::new(item) }
            }
            Some("object") => {
                let properties = schema.get("properties").and_then(Value::as_object);
                let fields: BTreeMap<String, Shape> = properties
                    .into_iter()
                    .flatten()
                    .map(|(name, field)| (name.clone(), Shape::of(field)))
                    .collect();
                let keeps_unknown =
                    schema.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool) == Some(true);
                let rest = match schema.get("additionalProperties") {
                    Some(Value::Bool(false)) => None,
                    Some(Value::Bool(true)) => Some(Shape::Any),
                    Some(rest) => Some(Shape::of(rest)),
                    None if keeps_unknown || fields.is_empty() => Some(Shape::Any),
                    None => None,
                };
                let atomic = says("x-kubernetes-map-type") == Some("atomic");
                Shape::Map { fields, rest: rest.map(Box::new), atomic }
            }
            _ => Shape::Any,
        }
    }
}

fn texts() -> Shape {
    Shape::Map { fields: BTreeMap::new(), rest: Some(Box::new(Shape::Scalar(Scalar::Text))), atomic: false }
}

fn object(fields: &[(&str, Shape)], atomic: bool) -> Shape {
    let fields = fields.iter().map(|(name, shape)| ((*name).to_owned(), shape.clone())).collect();
    Shape::Map { fields, rest: None, atomic }
}

/// Returns the shape of Kubernetes `ObjectMeta`.
fn metadata() -> Shape {
    let (text, number, flag) =
        (Shape::Scalar(Scalar::Text), Shape::Scalar(Scalar::Number), Shape::Scalar(Scalar::Flag));
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
    let list = |relation, item| Shape::List { relation, item: Box::new(item) };
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
            ("ownerReferences", list(Relation::Map(vec!["uid".to_owned()]), owner)),
            ("finalizers", list(Relation::Set, text)),
            ("managedFields", list(Relation::Atomic, Shape::Any)),
        ],
        false,
    )
}
