//! Recordings: what happened to a node, as JSON lines, so that a bug report can be replayed without its machine.
//!
//! The first line is the [`Header`], what the node was before anything happened. Each further line is one event with the time
//! since the start in microseconds, in the order in which the node's core took them:
//!
//! ```text
//! {"recording":1,"node":"n1","environment":{},"settings":{},"held":[]}
//! {"at":1042,"event":{"put":{"key":{"kind":"Tier","name":"web"},"value":{...},"revision":"17"}}}
//! {"at":1100,"event":"inSync"}
//! ```
//!
//! A line whose event is `{"digest":"..."}` is no event: it sums up what the event before it led to, so that a replay can tell
//! whether it does the same.
//!
//! [`json`] has the form of the feed's events and of entries; whoever records other events writes them in the same way.

pub mod json;
mod reader;
mod writer;

pub use json::FormatError;
pub use reader::{Line, ReadError, Reader};
pub use writer::Recorder;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Of this format.
pub const VERSION: u32 = 1;

/// What a node was before anything happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    #[serde(rename = "recording")]
    pub version: u32,
    pub node: String,
    /// Variables of the process that are settings.
    pub environment: BTreeMap<String, String>,
    /// Settings from the file of the host.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// How the node speaks BGP, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<BgpHeader>,
    /// Workloads that were attached before: entries as [`json::entry_to_json`] writes them, without a value where the
    /// journal has none.
    #[serde(default)]
    pub held: Vec<Json>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpHeader {
    pub router_id: String,
    pub by_bird: bool,
}
