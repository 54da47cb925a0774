//! Status conditions in the format of Kubernetes.

use crate::scalar::is_default;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A status condition. As in Calico, fields without `skip_serializing_if` are always written.
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
