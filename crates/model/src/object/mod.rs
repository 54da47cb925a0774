//! A resource of one kind: metadata, spec and status.

mod decode;
mod unknown;

use crate::validation::FieldChecker;
use crate::{API_VERSION, Kind, ObjectMeta, ValidationError};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::fmt::Debug;

use decode::{decode, print};
use unknown::UnknownFields;

/// The traits that every part of an object implements.
pub trait ObjectPart:
    Serialize + DeserializeOwned + JsonSchema + Clone + Debug + Default + PartialEq + Send + Sync + 'static
{
}

impl<T> ObjectPart for T where
    T: Serialize
        + DeserializeOwned
        + JsonSchema
        + Clone
        + Debug
        + Default
        + PartialEq
        + Send
        + Sync
        + 'static
{
}

/// When the JSON of an object contains a `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusForm {
    /// Never: the kind has no status; use [`NoStatus`] as its type.
    Absent,
    /// Only if the status is not empty.
    WhenSet,
    /// Always, even if the status is empty.
    Always,
}

/// A spec type together with its kind, status type, defaults and rules.
pub trait ResourceSpec: ObjectPart {
    const KIND: Kind;
    type Status: ObjectPart;
    const STATUS: StatusForm = StatusForm::Absent;

    /// Sets the defaults that are stored for omitted fields.
    fn set_defaults(_object: &mut TypedObject<Self>) {}

    /// Reports all violations that the types do not already exclude. `at` is the root of the object.
    fn check(object: &TypedObject<Self>, at: &FieldChecker<'_>) {
        object.spec.check_spec(&at.field("spec"));
    }

    /// Reports the violations inside the spec, whose position is `at`.
    fn check_spec(&self, _at: &FieldChecker<'_>) {}

    /// Returns CEL rules that refer to more than one part of the object.
    fn object_rules() -> Vec<Value> {
        Vec::new()
    }
}

/// The status of kinds without one: a status in the input is treated as an unknown field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NoStatus {}

impl<'de> Deserialize<'de> for NoStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_ignored_any(serde::de::IgnoredAny).map(|_| NoStatus {})
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypedObject<S: ResourceSpec> {
    pub metadata: ObjectMeta,
    pub spec: S,
    pub status: S::Status,
    /// Fields that were read from the store and that the types do not have.
    unknown: Option<Box<UnknownFields>>,
}

/// Reasons why a value cannot be decoded into a resource.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    #[error("unknown resource type ({kind}) and/or version ({version})")]
    UnknownKind { kind: String, version: String },
    #[error("field in document is not recognized or is in the wrong location: {0}")]
    UnknownField(String),
    #[error("{path}: {reason}")]
    Field { path: String, reason: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
struct DecodedObject<S: ResourceSpec> {
    #[serde(default, rename = "kind")]
    _kind: String,
    #[serde(default, rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: S,
    #[serde(default)]
    status: S::Status,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase", bound = "")]
struct EncodedObject<'a, S: ResourceSpec> {
    kind: &'static str,
    api_version: &'static str,
    metadata: &'a ObjectMeta,
    spec: &'a S,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a S::Status>,
}

impl<S: ResourceSpec> TypedObject<S> {
    pub fn new(metadata: ObjectMeta, spec: S) -> Self {
        TypedObject { metadata, spec, ..TypedObject::default() }
    }

    /// Returns the object as JSON, with the fields in the order in which Calico writes them.
    pub fn to_value(&self) -> Value {
        let mut value = self.known_value();
        if let Some(unknown) = &self.unknown {
            unknown.restore(&mut value);
        }
        value
    }

    fn known_value(&self) -> Value {
        let written = EncodedObject {
            kind: S::KIND.name(),
            api_version: API_VERSION,
            metadata: &self.metadata,
            spec: &self.spec,
            status: match S::STATUS {
                StatusForm::Absent => None,
                StatusForm::WhenSet => Some(&self.status).filter(|status| **status != S::Status::default()),
                StatusForm::Always => Some(&self.status),
            },
        };
        // Cannot fail: map keys are strings and numbers are finite.
        serde_json::to_value(written).unwrap_or_default()
    }

    /// Decodes user input. Unknown fields are an error that lists all of them.
    pub fn from_user(value: Value) -> Result<Self, DecodeError> {
        let (read, unknown) = decode::<DecodedObject<S>>(&value)?;
        if !unknown.is_empty() {
            let fields: Vec<String> = unknown.iter().map(|path| print(path)).collect();
            return Err(DecodeError::UnknownField(fields.join(", ")));
        }
        Ok(TypedObject { metadata: read.metadata, spec: read.spec, status: read.status, unknown: None })
    }

    /// Decodes user input. Unknown fields are dropped and returned as a list of paths.
    pub fn from_user_tolerant(value: Value) -> Result<(Self, Vec<String>), DecodeError> {
        let (read, unknown) = decode::<DecodedObject<S>>(&value)?;
        let unknown = unknown.iter().map(|path| print(path)).collect();
        Ok((
            TypedObject { metadata: read.metadata, spec: read.spec, status: read.status, unknown: None },
            unknown,
        ))
    }

    /// Decodes a stored object. Unknown fields are kept and written back.
    pub fn from_store(value: Value) -> Result<Self, DecodeError> {
        let (read, paths) = decode::<DecodedObject<S>>(&value)?;
        let mut object =
            TypedObject { metadata: read.metadata, spec: read.spec, status: read.status, unknown: None };
        if !paths.is_empty() {
            let unknown = UnknownFields::collect(&paths, &value, &object.known_value());
            object.unknown = Some(unknown).filter(|unknown| !unknown.is_empty()).map(Box::new);
        }
        Ok(object)
    }

    /// Sets the defaults that are stored for omitted fields.
    pub fn set_defaults(&mut self) {
        S::set_defaults(self);
    }

    /// Checks every rule of the kind and returns all violations together.
    pub fn validate(&self) -> Result<(), ValidationError> {
        FieldChecker::run(|at| {
            self.metadata.check(S::KIND, &at.field("metadata"));
            S::check(self, at);
        })
    }
}

#[cfg(test)]
mod tests;
