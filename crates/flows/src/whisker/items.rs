//! The JSON of flows and hints, as Whisker expects them. `tortie flows` prints the same.

use super::parameters::GLOBAL_NAMESPACE;
use crate::proto::{FilterType, Flow, PolicyHit, PolicyTrace};
use crate::ring::{NETWORK_NAMES, NO_NAMESPACE};
use jiff::Timestamp;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct FlowItem {
    pub start_time: String,
    pub end_time: String,
    pub action: &'static str,
    pub source_name: String,
    pub source_namespace: String,
    pub source_labels: String,
    pub dest_name: String,
    pub dest_namespace: String,
    pub dest_labels: String,
    pub protocol: String,
    pub dest_port: i64,
    pub reporter: &'static str,
    pub policies: PolicyItems,
    pub packets_in: i64,
    pub packets_out: i64,
    pub bytes_in: i64,
    pub bytes_out: i64,
}

#[derive(Debug, Serialize)]
pub struct PolicyItems {
    pub enforced: Vec<PolicyItem>,
    pub pending: Vec<PolicyItem>,
}

#[derive(Debug, Serialize)]
pub struct PolicyItem {
    pub kind: &'static str,
    pub name: String,
    pub namespace: String,
    pub tier: String,
    pub action: &'static str,
    pub policy_index: i64,
    pub rule_index: i64,
    pub trigger: Option<Box<PolicyItem>>,
}

#[derive(Debug, Serialize)]
pub struct HintItem {
    pub value: String,
}

impl FlowItem {
    pub fn new(flow: Flow) -> FlowItem {
        let key = flow.key.unwrap_or_default();
        let (action, reporter) = (key.action().as_str_name(), key.reporter().as_str_name());
        FlowItem {
            start_time: format_time(flow.start_time),
            end_time: format_time(flow.end_time),
            action,
            source_name: show_name(key.source_name),
            source_namespace: key.source_namespace,
            source_labels: flow.source_labels.join(" | "),
            dest_name: show_name(key.dest_name),
            dest_namespace: key.dest_namespace,
            dest_labels: flow.dest_labels.join(" | "),
            protocol: key.proto,
            dest_port: key.dest_port,
            reporter,
            policies: PolicyItems::new(key.policies.unwrap_or_default()),
            packets_in: flow.packets_in,
            packets_out: flow.packets_out,
            bytes_in: flow.bytes_in,
            bytes_out: flow.bytes_out,
        }
    }
}

impl PolicyItems {
    fn new(trace: PolicyTrace) -> PolicyItems {
        PolicyItems {
            enforced: trace.enforced_policies.into_iter().map(PolicyItem::new).collect(),
            pending: trace.pending_policies.into_iter().map(PolicyItem::new).collect(),
        }
    }
}

impl PolicyItem {
    fn new(hit: PolicyHit) -> PolicyItem {
        PolicyItem {
            kind: hit.kind().as_str_name(),
            action: hit.action().as_str_name(),
            name: hit.name,
            namespace: hit.namespace,
            tier: hit.tier,
            policy_index: hit.policy_index,
            rule_index: hit.rule_index,
            trigger: hit.trigger.map(|trigger| Box::new(PolicyItem::new(*trigger))),
        }
    }
}

impl HintItem {
    pub fn new(kind: FilterType, value: String) -> HintItem {
        let value = match kind {
            FilterType::SourceName | FilterType::DestName => show_name(value),
            FilterType::SourceNamespace | FilterType::DestNamespace | FilterType::PolicyNamespace
                if value.is_empty() || value == NO_NAMESPACE =>
            {
                GLOBAL_NAMESPACE.to_owned()
            }
            _ => value,
        };
        HintItem { value }
    }
}

/// Formats seconds since 1970 as RFC 3339.
fn format_time(seconds: i64) -> String {
    Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default()
}

fn show_name(stored: String) -> String {
    let shown = NETWORK_NAMES.iter().find(|(_, name)| *name == stored).map(|(shown, _)| *shown);
    shown.map_or(stored, str::to_owned)
}
