//! Errors of the store, with Calico's wording.

use crate::backend::ResponseError;
use std::time::Duration;
use tortie_model::{Resource, StoreKey, ValidationError};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("resource already exists: {id} with error: {reason}")]
    AlreadyExists { id: String, reason: String, current: Option<Box<Resource>> },
    #[error("resource does not exist: {id} with error: {reason}")]
    DoesNotExist { id: String, reason: String },
    #[error("update conflict: {id}")]
    Conflict { id: String, current: Option<Box<Resource>> },
    #[error(transparent)]
    Validation(#[from] ValidationError),
    #[error("operation {operation} is not supported on {id}{}", suffix(.reason))]
    NotSupported { operation: &'static str, id: String, reason: String },
    #[error("connection is unauthorized: {0}")]
    Unauthorized(String),
    #[error("insufficient identifiers, missing '{0}'")]
    InsufficientIdentifiers(String),
    #[error("failed to parse value for key={key}; value={value}: {reason}")]
    Parse { key: String, value: String, reason: String },
    /// The requested revision is no longer available.
    #[error("{0} is too old for the datastore: list again from the beginning")]
    Expired(String),
    /// The endpoint is down, slow, or sends an invalid response. The text names the cause and the settings to check.
    #[error("{0}")]
    Datastore(String),
    /// The endpoint's response does not match the request.
    #[error(transparent)]
    Response(#[from] ResponseError),
    /// The endpoint responds, but a large share of the known objects is missing without having been deleted.
    #[error(
        "{missing} of {known} objects of {range} are missing from the datastore and were not deleted one by one: they stay in \
         force until all lists of {} s agree; check that the datastore is the right one and complete",
        .grace.as_secs()
    )]
    Absence { range: String, known: usize, missing: usize, grace: Duration },
    #[error("{0}")]
    Config(String),
}

impl StoreError {
    pub(crate) fn missing(key: &StoreKey) -> StoreError {
        StoreError::DoesNotExist { id: key.to_string(), reason: "key not found".into() }
    }

    /// Returns whether the datastore is unusable at present; the same request may succeed later.
    pub const fn is_outage(&self) -> bool {
        matches!(self, StoreError::Datastore(_) | StoreError::Response(_) | StoreError::Absence { .. })
    }

    /// Returns whether another client created, changed or deleted the entry first; the caller may read it again and
    /// retry.
    pub const fn is_lost_race(&self) -> bool {
        matches!(
            self,
            StoreError::AlreadyExists { .. } | StoreError::Conflict { .. } | StoreError::DoesNotExist { .. }
        )
    }
}

fn suffix(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}
