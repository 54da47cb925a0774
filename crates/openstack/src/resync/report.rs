//! The report of a resync, with the names of Calico's.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The objects that a resync compares. Without any id, all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResyncScope {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    pub full: bool,
}

/// Result of one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PhaseReport {
    pub total_ms: u64,
    pub etcd_read_ms: u64,
    pub neutron_read_ms: u64,
    pub compare_ms: u64,
    pub create_ms: u64,
    pub etcd_items: u64,
    pub neutron_items: u64,
    pub correct: u64,
    pub updated: u64,
    pub deleted: u64,
    pub created: u64,
    /// Entries that another client wrote after the resync had read them.
    #[serde(skip_serializing_if = "is_zero")]
    pub conflicts: u64,
    /// Objects that could not be translated. Their entries are kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub invalid: u64,
}

/// Result of a resync.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ResyncReport {
    pub scope: ResyncScope,
    pub phases: BTreeMap<String, PhaseReport>,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub finished_at: String,
    pub total_ms: u64,
    pub ok: bool,
    pub error: Option<String>,
    /// Objects that could not be translated; only the first ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
