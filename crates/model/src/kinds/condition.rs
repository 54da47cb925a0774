//! Conditions in a status, in Kubernetes' form.

use crate::scalar::is_default;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One thing that is or is not so. Fields that are not marked are always written, as the reference does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    #[serde(skip_serializing_if = "is_default")]
    pub observed_generation: i64,
    /// RFC 3339.
    pub last_transition_time: Option<String>,
    pub reason: String,
    pub message: String,
}
