//! Recordings of the events of a node as JSON lines, so that a bug report can be replayed on another machine.
//!
//! The first line is the [`RecordingHeader`] with the initial state of the node. Each further line is one event with the time
//! since the start in microseconds, in the order in which the node's core handled them:
//!
//! ```text
//! {"recording":2,"node":"n1","environment":{},"settings":{},"held":[]}
//! {"at":1042,"event":{"put":{"key":{"kind":"Tier","name":"web"},"value":{...},"revision":"17"}}}
//! {"at":1100,"event":"inSync"}
//! ```
//!
//! A line whose event is `{"digest":"..."}` is not an event: it holds a digest of the result of the event before it,
//! so that a replay can verify that it produces the same result.
//!
//! [`json`] defines the form of feed events and entries. Recorders of other events use the same style.

pub mod json;
mod reader;
mod writer;

pub use json::RecordFormatError;
pub use reader::{RecordedLine, RecordingError, RecordingReader};
pub use writer::RecordingWriter;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Version of the recording format.
pub const RECORDING_VERSION: u32 = 2;

/// The configuration and state of a node before the first event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordingHeader {
    #[serde(rename = "recording")]
    pub version: u32,
    pub node: String,
    /// Environment variables of the process that are settings.
    pub environment: BTreeMap<String, String>,
    /// Settings from the configuration file of the host.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// BGP settings of the node, if BGP is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<RecordedBgp>,
    /// Workloads that were already attached: entries as [`json::entry_to_json`] writes them, without a value where
    /// the journal has none.
    #[serde(default)]
    pub held: Vec<Json>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedBgp {
    pub router_id: String,
    pub by_bird: bool,
}
