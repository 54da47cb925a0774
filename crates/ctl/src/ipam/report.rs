//! The report that `ipam check` writes and `ipam release` reads.

use crate::failure::{CommandError, CommandResult};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckReport {
    pub version: String,
    #[serde(rename = "clusterGUID")]
    pub cluster_guid: String,
    pub datastore_locked: bool,
    pub cluster_information_revision: String,
    pub cluster_type: String,
    /// By address.
    pub allocations: BTreeMap<String, Vec<AllocationEntry>>,
    pub leaked_handles: Vec<LeakedHandle>,
}

/// One allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllocationEntry {
    pub ip: String,
    pub handle: String,
    pub sequence_number: u64,
    pub pod: String,
    pub namespace: String,
    pub node: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub creation_timestamp: String,
    pub in_use: bool,
    pub borrowed: bool,
    pub cooling_down: bool,
    pub owners: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeakedHandle {
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "UID")]
    pub uid: String,
    #[serde(rename = "Revision")]
    pub revision: String,
}

/// The identity of an allocation across reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeakedAllocation {
    pub address: IpAddr,
    pub handle: String,
    pub sequence_number: u64,
}

impl CheckReport {
    pub fn read(file: &Path) -> CommandResult<CheckReport> {
        let read = std::fs::read(file).and_then(|text| Ok(serde_json::from_slice(&text)?));
        read.map_err(|error| {
            CommandError::context(format!("failed to read report {}", file.display()), error)
        })
    }

    pub fn write(&self, file: &Path) -> CommandResult<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text + "\n").map_err(|error| {
            CommandError::context(format!("failed to write report {}", file.display()), error)
        })
    }

    /// Returns the allocations that are neither in use nor cooling down.
    pub fn leaks(&self) -> impl Iterator<Item = LeakedAllocation> + '_ {
        self.allocations.values().flatten().filter(|entry| !entry.in_use && !entry.cooling_down).filter_map(
            |entry| {
                Some(LeakedAllocation {
                    address: entry.ip.parse().ok()?,
                    handle: entry.handle.clone(),
                    sequence_number: entry.sequence_number,
                })
            },
        )
    }
}
