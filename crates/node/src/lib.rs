#![doc = include_str!("../README.md")]

mod attachment_reclaimer;
mod bgp;
mod cni;
mod decommission;
mod endpoint_correction;
mod endpoint_files;
pub mod engine;
mod failpoint;
mod feed;
mod files;
mod flow_records;
mod health;
mod http;
mod install;
mod journal;
mod kube_condition;
mod lock;
mod logs;
mod metrics;
mod network_warnings;
mod node_status;
mod options;
mod pending_endpoints;
mod policy_sync;
mod public_keys;
mod queries;
mod recording;
mod removal_detector;
mod replay;
mod run;
mod snapshot_guard;
mod socket;
mod startup;
mod state;
mod status;
mod tasks;
mod tunnel_addresses;

/// Returns whether the bytes parse as a request of a CNI plugin.
#[doc(hidden)]
pub fn is_cni_request(bytes: &[u8]) -> bool {
    cni::is_request(bytes)
}

/// Returns whether the bytes parse as the record of an attachment, and exercises the code that uses such a record.
#[doc(hidden)]
pub fn is_attachment(bytes: &[u8]) -> bool {
    attachment_reclaimer::is_attachment(bytes)
}

/// Parses the result of another plugin and renders it in a version of the CNI specification.
#[doc(hidden)]
pub fn convert_cni_result(bytes: &[u8], version: &str) -> Option<String> {
    let result = cni::CniResult::parse(&serde_json::from_slice(bytes).ok()?).ok()?;
    Some(result.render(version))
}

pub use decommission::{
    DecommissionError, FelixNotReady, LivePodHandling, PolicyHandover, await_felix, leave,
    read_interface_prefixes,
};
pub use health::{ComponentHealth, HealthLevel, NodeHealth};
pub use install::{CniFiles, FileRemoval, InstallError, RemovedFile, carry_over, is_readable_network};
pub use journal::{AttachmentRecord, read_attachments};
pub use logs::{LogControl, LogCounters, LogFileSettings, LogSettings};
pub use options::NodeArgs;
pub use replay::{ReplayError, build_core as replay_core, replay, replay_from};
pub use run::{NodeRunError, run};
pub use startup::{NODE_VARIABLES, NodeVariable, VariableGroup, is_node_variable};
