//! Counters of one flow in one bucket.

use super::intern::InternId;
use crate::proto;

/// Counters of a flow. Sums saturate at the largest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    pub packets_in: u64,
    pub packets_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub connections_started: u64,
    pub connections_completed: u64,
    pub connections_live: u64,
}

impl FlowCounters {
    /// Reads the counters of a flow whose values are not negative.
    pub fn from_flow(flow: &proto::Flow) -> FlowCounters {
        FlowCounters {
            packets_in: flow.packets_in.unsigned_abs(),
            packets_out: flow.packets_out.unsigned_abs(),
            bytes_in: flow.bytes_in.unsigned_abs(),
            bytes_out: flow.bytes_out.unsigned_abs(),
            connections_started: flow.num_connections_started.unsigned_abs(),
            connections_completed: flow.num_connections_completed.unsigned_abs(),
            connections_live: flow.num_connections_live.unsigned_abs(),
        }
    }

    pub fn add(&mut self, other: &FlowCounters) {
        self.packets_in = self.packets_in.saturating_add(other.packets_in);
        self.packets_out = self.packets_out.saturating_add(other.packets_out);
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(other.bytes_out);
        self.connections_started = self.connections_started.saturating_add(other.connections_started);
        self.connections_completed = self.connections_completed.saturating_add(other.connections_completed);
        self.connections_live = self.connections_live.saturating_add(other.connections_live);
    }

    /// Returns the packets of both directions, which order flows by activity.
    pub fn packets(&self) -> u64 {
        self.packets_in.saturating_add(self.packets_out)
    }

    pub fn write_to(&self, flow: &mut proto::Flow) {
        flow.packets_in = clamp(self.packets_in);
        flow.packets_out = clamp(self.packets_out);
        flow.bytes_in = clamp(self.bytes_in);
        flow.bytes_out = clamp(self.bytes_out);
        flow.num_connections_started = clamp(self.connections_started);
        flow.num_connections_completed = clamp(self.connections_completed);
        flow.num_connections_live = clamp(self.connections_live);
    }
}

/// Converts a counter to the protocol's signed type.
pub fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The counters and labels of one flow in one bucket.
#[derive(Clone, Copy, Debug)]
pub struct FlowSample {
    pub bucket: BucketNumber,
    pub source_labels: InternId,
    pub dest_labels: InternId,
    pub counters: FlowCounters,
}

/// Number of a bucket: its start in seconds since 1970, divided by the width of a bucket.
pub type BucketNumber = u32;
