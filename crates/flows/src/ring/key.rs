//! The compact form of a flow's key, its conversion from and to the protocol, and the limits of a flow's content.

use super::intern::{InternId, InternTable};
use crate::proto;
use prost::Message;

/// Limits of one flow. Names in Kubernetes have at most 253 bytes, labels 380.
const MAX_NAME_BYTES: usize = 1024;
const MAX_LABELS: usize = 512;
const MAX_POLICY_HITS: usize = 256;

/// Separates labels in an interned label set. Labels that contain it are rejected.
const LABEL_SEPARATOR: u8 = b'\n';

/// Name of both ends of the flows that replace folded keys. Their endpoint types are unspecified, so they equal no flow
/// of a node.
pub const FOLDED_NAME: &str = "other";

/// The reason why a flow is not recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowRejection {
    #[error("the update has no {0}")]
    Missing(&'static str),
    #[error("start_time {start} is outside the recorded time from {oldest} to {end}")]
    OutsideRing { start: i64, oldest: i64, end: i64 },
    #[error("{field}: {value} is not from 0 to {max}")]
    OutOfRange { field: &'static str, value: i64, max: i64 },
    #[error("{field} has {length} bytes, more than {MAX_NAME_BYTES}")]
    TooLong { field: &'static str, length: usize },
    #[error("{field} has {count} entries, more than {max}")]
    TooMany { field: &'static str, count: usize, max: usize },
    #[error("{field} contains a line break")]
    LineBreak { field: &'static str },
    #[error("a trigger of a policy hit has a trigger")]
    NestedTrigger,
}

/// Key of a flow; names and the policy trace are interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub source_name: InternId,
    pub source_namespace: InternId,
    pub dest_name: InternId,
    pub dest_namespace: InternId,
    pub service_name: InternId,
    pub service_namespace: InternId,
    pub service_port_name: InternId,
    pub protocol: InternId,
    /// In the table of traces; the others are in the table of names.
    pub trace: InternId,
    pub dest_port: u16,
    pub service_port: u16,
    pub source_type: u8,
    pub dest_type: u8,
    pub reporter: u8,
    pub action: u8,
}

/// Checks everything of a flow that `FlowKey::acquire` and the label sets rely on.
pub fn check_flow(flow: &proto::Flow) -> Result<&proto::FlowKey, FlowRejection> {
    let key = flow.key.as_ref().ok_or(FlowRejection::Missing("key"))?;
    for (field, value) in [
        ("source_name", &key.source_name),
        ("source_namespace", &key.source_namespace),
        ("dest_name", &key.dest_name),
        ("dest_namespace", &key.dest_namespace),
        ("dest_service_name", &key.dest_service_name),
        ("dest_service_namespace", &key.dest_service_namespace),
        ("dest_service_port_name", &key.dest_service_port_name),
        ("proto", &key.proto),
    ] {
        check_length(field, value)?;
    }
    for (field, value, max) in [
        ("dest_port", key.dest_port, i64::from(u16::MAX)),
        ("dest_service_port", key.dest_service_port, i64::from(u16::MAX)),
        ("source_type", i64::from(key.source_type), i64::from(u8::MAX)),
        ("dest_type", i64::from(key.dest_type), i64::from(u8::MAX)),
        ("reporter", i64::from(key.reporter), i64::from(u8::MAX)),
        ("action", i64::from(key.action), i64::from(u8::MAX)),
        ("packets_in", flow.packets_in, i64::MAX),
        ("packets_out", flow.packets_out, i64::MAX),
        ("bytes_in", flow.bytes_in, i64::MAX),
        ("bytes_out", flow.bytes_out, i64::MAX),
        ("num_connections_started", flow.num_connections_started, i64::MAX),
        ("num_connections_completed", flow.num_connections_completed, i64::MAX),
        ("num_connections_live", flow.num_connections_live, i64::MAX),
    ] {
        if !(0..=max).contains(&value) {
            return Err(FlowRejection::OutOfRange { field, value, max });
        }
    }
    for (field, labels) in [("source_labels", &flow.source_labels), ("dest_labels", &flow.dest_labels)] {
        check_labels(field, labels)?;
    }
    if let Some(trace) = &key.policies {
        check_trace(trace)?;
    }
    Ok(key)
}

fn check_length(field: &'static str, value: &str) -> Result<(), FlowRejection> {
    if value.len() > MAX_NAME_BYTES {
        return Err(FlowRejection::TooLong { field, length: value.len() });
    }
    Ok(())
}

fn check_labels(field: &'static str, labels: &[String]) -> Result<(), FlowRejection> {
    if labels.len() > MAX_LABELS {
        return Err(FlowRejection::TooMany { field, count: labels.len(), max: MAX_LABELS });
    }
    for label in labels {
        check_length(field, label)?;
        if label.as_bytes().contains(&LABEL_SEPARATOR) {
            return Err(FlowRejection::LineBreak { field });
        }
    }
    Ok(())
}

fn check_trace(trace: &proto::PolicyTrace) -> Result<(), FlowRejection> {
    for (field, hits) in
        [("enforced_policies", &trace.enforced_policies), ("pending_policies", &trace.pending_policies)]
    {
        if hits.len() > MAX_POLICY_HITS {
            return Err(FlowRejection::TooMany { field, count: hits.len(), max: MAX_POLICY_HITS });
        }
        for hit in hits {
            check_hit(hit)?;
            if let Some(trigger) = &hit.trigger {
                check_hit(trigger)?;
                if trigger.trigger.is_some() {
                    return Err(FlowRejection::NestedTrigger);
                }
            }
        }
    }
    Ok(())
}

fn check_hit(hit: &proto::PolicyHit) -> Result<(), FlowRejection> {
    check_length("namespace of a policy", &hit.namespace)?;
    check_length("name of a policy", &hit.name)?;
    check_length("tier of a policy", &hit.tier)
}

impl FlowKey {
    /// Interns the key of a flow that `check_flow` has accepted. `scratch` is any buffer.
    pub fn acquire(
        key: &proto::FlowKey,
        names: &mut InternTable,
        traces: &mut InternTable,
        scratch: &mut Vec<u8>,
    ) -> FlowKey {
        scratch.clear();
        if let Some(trace) = &key.policies {
            trace.encode_raw(scratch);
        }
        FlowKey {
            source_name: names.acquire(key.source_name.as_bytes()),
            source_namespace: names.acquire(key.source_namespace.as_bytes()),
            dest_name: names.acquire(key.dest_name.as_bytes()),
            dest_namespace: names.acquire(key.dest_namespace.as_bytes()),
            service_name: names.acquire(key.dest_service_name.as_bytes()),
            service_namespace: names.acquire(key.dest_service_namespace.as_bytes()),
            service_port_name: names.acquire(key.dest_service_port_name.as_bytes()),
            protocol: names.acquire(key.proto.as_bytes()),
            trace: traces.acquire(scratch),
            dest_port: key.dest_port as u16,
            service_port: key.dest_service_port as u16,
            source_type: key.source_type as u8,
            dest_type: key.dest_type as u8,
            reporter: key.reporter as u8,
            action: key.action as u8,
        }
    }

    /// Returns the key that replaces folded flows with the reporter and the action of this one. Values that the
    /// protocol does not define count as unspecified, so that there are few such keys.
    pub fn folded(&self) -> proto::FlowKey {
        let reporter = proto::Reporter::try_from(i32::from(self.reporter)).unwrap_or_default();
        let action = proto::Action::try_from(i32::from(self.action)).unwrap_or_default();
        proto::FlowKey {
            source_name: FOLDED_NAME.to_owned(),
            dest_name: FOLDED_NAME.to_owned(),
            reporter: reporter.into(),
            action: action.into(),
            ..proto::FlowKey::default()
        }
    }

    /// Returns whether this is a key that replaces folded flows. Their number is small, so they are never folded.
    pub fn is_folded(&self, names: &InternTable) -> bool {
        let rest = FlowKey { reporter: 0, action: 0, ..*self };
        let is_defined = proto::Reporter::try_from(i32::from(self.reporter)).is_ok()
            && proto::Action::try_from(i32::from(self.action)).is_ok();
        let name = self.source_name;
        is_defined && rest == FlowKey::with_names(name) && names.text(name) == FOLDED_NAME
    }

    /// Returns a key with only the names of both ends.
    fn with_names(name: InternId) -> FlowKey {
        let empty = InternId::EMPTY;
        FlowKey {
            source_name: name,
            source_namespace: empty,
            dest_name: name,
            dest_namespace: empty,
            service_name: empty,
            service_namespace: empty,
            service_port_name: empty,
            protocol: empty,
            trace: empty,
            dest_port: 0,
            service_port: 0,
            source_type: 0,
            dest_type: 0,
            reporter: 0,
            action: 0,
        }
    }

    pub fn release(&self, names: &mut InternTable, traces: &mut InternTable) {
        for name in self.names() {
            names.release(name);
        }
        traces.release(self.trace);
    }

    fn names(&self) -> [InternId; 8] {
        [
            self.source_name,
            self.source_namespace,
            self.dest_name,
            self.dest_namespace,
            self.service_name,
            self.service_namespace,
            self.service_port_name,
            self.protocol,
        ]
    }

    pub fn to_proto(self, names: &InternTable, traces: &InternTable) -> proto::FlowKey {
        let text = |id| names.text(id).to_owned();
        proto::FlowKey {
            source_name: text(self.source_name),
            source_namespace: text(self.source_namespace),
            source_type: self.source_type.into(),
            dest_name: text(self.dest_name),
            dest_namespace: text(self.dest_namespace),
            dest_type: self.dest_type.into(),
            dest_port: self.dest_port.into(),
            dest_service_name: text(self.service_name),
            dest_service_namespace: text(self.service_namespace),
            dest_service_port_name: text(self.service_port_name),
            dest_service_port: self.service_port.into(),
            proto: text(self.protocol),
            reporter: self.reporter.into(),
            action: self.action.into(),
            policies: Some(decode_trace(traces.get(self.trace))),
        }
    }
}

/// Decodes an interned trace.
pub fn decode_trace(bytes: &[u8]) -> proto::PolicyTrace {
    proto::PolicyTrace::decode(bytes).unwrap_or_default()
}

/// Writes a label set to `scratch`: sorted, without duplicates, joined by line breaks.
pub fn encode_labels(labels: &[String], scratch: &mut Vec<u8>) {
    scratch.clear();
    let is_sorted = labels.windows(2).all(|pair| pair[0] < pair[1]);
    let mut sorted: Vec<&str> = Vec::new();
    if !is_sorted {
        sorted = labels.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        sorted.dedup();
    }
    let count = if is_sorted { labels.len() } else { sorted.len() };
    for position in 0..count {
        if position > 0 {
            scratch.push(LABEL_SEPARATOR);
        }
        let label = if is_sorted { labels[position].as_str() } else { sorted[position] };
        scratch.extend_from_slice(label.as_bytes());
    }
}

/// Returns the labels of an interned set, sorted.
pub fn split_labels(set: &str) -> impl Iterator<Item = &str> {
    set.split(char::from(LABEL_SEPARATOR)).filter(|label| !label.is_empty())
}
