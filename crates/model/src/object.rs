//! One resource of one kind: metadata, spec, status.

use crate::{API_VERSION, FieldError, Kind, ObjectMeta, ValidationError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::fmt::Debug;

/// What makes a spec type a kind.
pub trait Spec:
    Serialize + DeserializeOwned + Clone + Debug + Default + PartialEq + Send + Sync + 'static
{
    const KIND: Kind;
    type Status: Serialize + DeserializeOwned + Clone + Debug + Default + PartialEq + Send + Sync + 'static;

    /// Fills in what is stored when the user leaves it out.
    fn set_defaults(_object: &mut Object<Self>) {}

    /// Collects everything that is wrong beyond what the types already exclude.
    fn check(_object: &Object<Self>, _errors: &mut Vec<FieldError>) {}
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object<S: Spec> {
    pub metadata: ObjectMeta,
    pub spec: S,
    pub status: S::Status,
}

/// Why bytes are not a resource.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    #[error("unknown resource type ({kind}) and/or version ({version})")]
    UnknownKind { kind: String, version: String },
    #[error("field in document is not recognized or is in the wrong location: {0}")]
    UnknownField(String),
    #[error("{path}: {reason}")]
    Field { path: String, reason: String },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
struct Wire<S: Spec> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: S,
    #[serde(default)]
    status: S::Status,
}

impl<S: Spec> Object<S> {
    pub fn to_value(&self) -> Value {
        let wire = Wire::<S> {
            kind: S::KIND.name().to_owned(),
            api_version: API_VERSION.to_owned(),
            metadata: self.metadata.clone(),
            spec: self.spec.clone(),
            status: self.status.clone(),
        };
        serde_json::to_value(wire).unwrap_or_default()
    }

    pub fn from_user(value: Value) -> Result<Self, DecodeError> {
        Self::from_store(value)
    }

    pub fn from_store(value: Value) -> Result<Self, DecodeError> {
        let wire: Wire<S> = serde_path_to_error::deserialize(value)
            .map_err(|e| DecodeError::Field { path: e.path().to_string(), reason: e.inner().to_string() })?;
        Ok(Object { metadata: wire.metadata, spec: wire.spec, status: wire.status })
    }

    pub fn set_defaults(&mut self) {
        S::set_defaults(self);
    }

    pub fn validate(&self) -> Result<(), ValidationError> {
        let mut errors = Vec::new();
        S::check(self, &mut errors);
        if errors.is_empty() { Ok(()) } else { Err(ValidationError { errors }) }
    }
}
