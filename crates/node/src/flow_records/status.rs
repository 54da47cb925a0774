//! Counters and memory of flow records, for `tortie flows status`, health and metrics.

use serde_json::{Value, json};
use tortie_flows::record::{FlowRecorder, RecorderStats};
use tortie_flows::{FlowCollector, PushState};

/// The state of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowRecordStatus {
    pub stats: RecorderStats,
    /// Keys and live connections that are followed, and their estimated memory.
    pub keys: usize,
    pub connections: usize,
    pub key_bytes: usize,
    /// Flows of the last hour and their estimated memory; flows that were combined because of its limit.
    pub flows: usize,
    pub flow_bytes: usize,
    pub folded: u64,
    /// Flows that could not be recorded.
    pub rejected: u64,
    pub push: Option<PushState>,
}

impl FlowRecordStatus {
    pub fn new(
        recorder: &FlowRecorder,
        collector: &FlowCollector,
        push: Option<PushState>,
    ) -> FlowRecordStatus {
        let (keys, connections, key_bytes) = recorder.sizes();
        let (flows, flow_bytes, folded) =
            collector.read(|ring| (ring.keys(), ring.bytes(), ring.folded_keys()));
        FlowRecordStatus {
            stats: recorder.stats().clone(),
            keys,
            connections,
            key_bytes,
            flows,
            flow_bytes,
            folded,
            rejected: collector.metrics().dropped.get(),
            push,
        }
    }

    /// Returns the warning for the health page. `problem` is one of the settings.
    pub fn warning(&self, problem: Option<&str>) -> Option<String> {
        let mut warnings: Vec<String> = problem.map(str::to_owned).into_iter().collect();
        let RecorderStats { agreements, disagreements, last_disagreement, .. } = &self.stats;
        if *disagreements > 0 {
            let decided = agreements + disagreements;
            let last = last_disagreement.as_deref().unwrap_or_default();
            warnings.push(format!(
                "the kernel decided {disagreements} of {decided} flows differently than the plan says, last {last}; report this"
            ));
        }
        if let Some(error) = self.push.as_ref().and_then(|push| push.error.as_ref()) {
            warnings.push(format!(
                "flows are not sent to the collector: {error}; the node keeps them for an hour"
            ));
        }
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// Returns the status as the query socket sends it.
    pub fn to_json(&self) -> Value {
        let RecorderStats {
            events,
            allowed,
            denied,
            other_allowed,
            other_denied,
            agreements,
            disagreements,
            last_disagreement,
            unidentified,
            established,
            refused,
            unanswered,
            unjoined,
            forgotten_keys,
            forgotten_connections,
            lost_openings,
            lost_endings,
            lost_receiver,
            lost_reads,
        } = &self.stats;
        let push = self.push.as_ref().map(|push| {
            json!({
                "connected": push.connected,
                "sent": push.sent,
                "sentAgain": push.sent_again,
                "confirmed": push.receipts,
                "lostBuckets": push.lost_buckets,
                "error": push.error,
            })
        });
        json!({
            "events": events,
            "allowedConnections": allowed,
            "deniedPackets": denied,
            "countedOnly": {"allowedConnections": other_allowed, "deniedPackets": other_denied},
            "evaluation": {"agreements": agreements, "disagreements": disagreements, "last": last_disagreement,
                "unidentified": unidentified},
            "endedConnections": {"established": established, "refused": refused, "unanswered": unanswered,
                "unknown": unjoined},
            "lost": {"openings": lost_openings, "endings": lost_endings, "receiver": lost_receiver,
                "reads": lost_reads, "keys": forgotten_keys, "connections": forgotten_connections,
                "rejected": self.rejected},
            "memory": {"flows": self.flows, "flowBytes": self.flow_bytes, "foldedFlows": self.folded,
                "keys": self.keys, "connections": self.connections, "keyBytes": self.key_bytes},
            "collector": push,
        })
    }
}
