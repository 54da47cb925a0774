//! Position of a watch in the history of an etcd cluster, and the interpretation of watch responses there.

use super::entries::key_in;
use super::{convert_revision, number};
use crate::watch::follower::{WatchItem, WatchUpdate};
use crate::watch::source::WatchReport;
use bytes::Bytes;
use tortie_etcd_proto::etcdserverpb::{ResponseHeader, WatchResponse};
use tortie_etcd_proto::mvccpb::Event;
use tortie_etcd_proto::mvccpb::event::EventType;
use tortie_model::{KeyRange, Revision};

/// Watch ID of the responses to progress requests. etcd before 3.4.25 sends them ahead of queued events, so they only
/// prove that the server is alive, not that everything up to their revision was delivered.
const PROGRESS_WATCH_ID: i64 = -1;

#[derive(Debug)]
pub(crate) struct WatchPosition {
    /// All events up to this revision have been delivered.
    revision: i64,
    cluster_id: u64,
    /// Only grows, unless the store is restored to an older state.
    raft_term: u64,
}

/// Interpretation of a watch response.
#[derive(Debug, PartialEq)]
pub(crate) enum InterpretedResponse {
    Heard(WatchReport<Bytes>),
    /// The server closed the watch; reopen it at the same position.
    Closed(String),
}

impl InterpretedResponse {
    fn stale(reason: impl Into<String>) -> InterpretedResponse {
        InterpretedResponse::Heard(WatchReport::Stale(reason.into()))
    }
}

impl WatchPosition {
    pub fn new() -> WatchPosition {
        WatchPosition { revision: 0, cluster_id: 0, raft_term: 0 }
    }

    /// Restarts the position after a list of this cluster.
    pub fn listed(&mut self, cluster_id: u64) {
        self.cluster_id = cluster_id;
        self.raft_term = 0;
    }

    /// Sets the position at which a watch starts. Returns the start revision to request.
    pub fn open(&mut self, after: &Revision) -> i64 {
        self.revision = number(after);
        self.revision.saturating_add(1)
    }

    pub fn heard(&mut self, range: &KeyRange, response: WatchResponse) -> InterpretedResponse {
        let ResponseHeader { revision, cluster_id, raft_term, .. } = response.header.unwrap_or_default();
        if response.canceled && response.compact_revision > 0 {
            return InterpretedResponse::stale(format!("revision {} was compacted away", self.revision));
        }
        if response.canceled {
            return InterpretedResponse::Closed(response.cancel_reason);
        }
        if cluster_id != self.cluster_id {
            return InterpretedResponse::stale("the datastore was replaced by another");
        }
        if response.created && revision < self.revision {
            return InterpretedResponse::stale(format!(
                "the datastore went back from revision {} to {revision}",
                self.revision
            ));
        }
        if raft_term < self.raft_term {
            return InterpretedResponse::stale(format!(
                "the datastore went back from raft term {} to {raft_term}",
                self.raft_term
            ));
        }
        self.raft_term = raft_term;
        let delivered = self.revision;
        if response.events.is_empty() && !response.created && response.watch_id != PROGRESS_WATCH_ID {
            self.revision = self.revision.max(revision);
        }
        // etcd sends all events of a revision in one response, so that revision is complete afterwards.
        let mut updates = Vec::new();
        for event in response.events {
            if let Some(kv) = event.kv.as_ref().filter(|kv| kv.mod_revision > delivered) {
                self.revision = self.revision.max(kv.mod_revision);
                updates.extend(update(range, event));
            }
        }
        InterpretedResponse::Heard(WatchReport::Updates {
            updates,
            revision: convert_revision(self.revision),
        })
    }
}

fn update(range: &KeyRange, event: Event) -> Option<WatchUpdate<Bytes>> {
    let deleted = event.r#type() == EventType::Delete;
    let kv = event.kv?;
    let key = key_in(range, &kv.key)?;
    let revision = convert_revision(kv.mod_revision);
    Some(if deleted {
        WatchUpdate::Delete { key, revision }
    } else {
        WatchUpdate::Put(WatchItem { key, revision, value: kv.value })
    })
}

#[cfg(test)]
mod tests;
