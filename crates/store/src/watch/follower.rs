//! What a watcher knows and what it makes of what it hears.
//!
//! It remembers the revision up to which everything has been told, and for every key the revision it was told
//! with. When history is lost (compaction, a store put back to an older state) that is enough to find out from a
//! new list what has changed, deletions included, without telling anything twice.

use std::collections::BTreeMap;
use tortie_etcd_proto::etcdserverpb::{ResponseHeader, WatchResponse};
use tortie_etcd_proto::mvccpb::event::EventType;
use tortie_etcd_proto::mvccpb::{Event, KeyValue};
use tortie_model::{Key, KeyRange};

/// The watch id of answers to progress requests. etcd before 3.4.25 sends these past events still queued, so they
/// show life but say nothing about what has been delivered.
const NO_WATCH: i64 = -1;

/// What to ask the store next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    List,
    /// The keys as they were at a revision the consumer has seen.
    ListKeys {
        revision: i64,
    },
    Watch {
        from: i64,
    },
}

/// What to tell the consumer.
#[derive(Debug, PartialEq)]
pub enum Change {
    Put {
        key: Key,
        kv: KeyValue,
    },
    Delete {
        key: Key,
        revision: i64,
    },
    InSync(i64),
    /// Forget everything: a snapshot follows.
    Reset,
}

/// What a response comes to.
#[derive(Debug, PartialEq)]
pub enum Heard {
    Changes(Vec<Change>),
    /// Our place in history is gone: list again.
    Stale(String),
    /// The server ended the watch; take it up again where we are.
    Closed(String),
}

#[derive(Debug, PartialEq)]
enum Phase {
    Listing,
    Resuming,
    Following,
}

#[derive(Debug)]
pub struct Follower {
    range: KeyRange,
    phase: Phase,
    /// Everything up to here has been told.
    revision: i64,
    /// Copies, not slices of responses: those would keep whole responses in memory.
    known: BTreeMap<Box<[u8]>, i64>,
    cluster_id: u64,
    /// Only grows, except in a store that was put back to an older state.
    raft_term: u64,
    in_sync: bool,
}

impl Follower {
    /// With `after`, the consumer knows the state at that revision and wants what came later.
    pub fn new(range: KeyRange, after: Option<i64>) -> Follower {
        Follower {
            range,
            phase: if after.is_some() { Phase::Resuming } else { Phase::Listing },
            revision: after.unwrap_or_default(),
            known: BTreeMap::new(),
            cluster_id: 0,
            raft_term: 0,
            in_sync: false,
        }
    }

    pub fn step(&self) -> Step {
        match self.phase {
            Phase::Listing => Step::List,
            Phase::Resuming => Step::ListKeys { revision: self.revision },
            Phase::Following => Step::Watch { from: self.revision.saturating_add(1) },
        }
    }

    /// The whole range as it stands: tells what differs from what is known.
    pub fn listed(&mut self, items: Vec<KeyValue>, revision: i64, cluster_id: u64) -> Vec<Change> {
        let mut before = std::mem::take(&mut self.known);
        let mut puts = Vec::new();
        for kv in items {
            let Some(key) = self.key(&kv.key) else { continue };
            let told = before.remove(&kv.key[..]);
            self.known.insert(kv.key[..].into(), kv.mod_revision);
            if told != Some(kv.mod_revision) {
                puts.push(Change::Put { key, kv });
            }
        }
        // Deletions first: a consumer never holds both an object and its replacement.
        let gone = before.keys().filter_map(|key| self.key(key));
        let mut changes: Vec<Change> = gone.map(|key| Change::Delete { key, revision }).collect();
        changes.append(&mut puts);
        self.follow(revision, cluster_id, &mut changes);
        changes
    }

    /// The keys at the revision the consumer has seen: nothing to tell yet.
    pub fn keys_listed(&mut self, items: Vec<KeyValue>, cluster_id: u64) -> Vec<Change> {
        let wanted = items.into_iter().filter(|kv| self.key(&kv.key).is_some());
        self.known = wanted.map(|kv| (kv.key[..].into(), kv.mod_revision)).collect();
        let mut changes = Vec::new();
        self.follow(self.revision, cluster_id, &mut changes);
        changes
    }

    /// The revision the consumer has seen is no longer (or not yet) in the store's history.
    pub fn revision_gone(&mut self) -> Vec<Change> {
        self.phase = Phase::Listing;
        self.known.clear();
        vec![Change::Reset]
    }

    fn follow(&mut self, revision: i64, cluster_id: u64, changes: &mut Vec<Change>) {
        self.phase = Phase::Following;
        self.revision = revision;
        self.cluster_id = cluster_id;
        self.raft_term = 0;
        if !self.in_sync {
            self.in_sync = true;
            changes.push(Change::InSync(revision));
        }
    }

    pub fn heard(&mut self, response: WatchResponse) -> Heard {
        let ResponseHeader { revision, cluster_id, raft_term, .. } = response.header.unwrap_or_default();
        if response.canceled && response.compact_revision > 0 {
            return self.stale(format!("revision {} was compacted away", self.revision));
        }
        if response.canceled {
            return Heard::Closed(response.cancel_reason);
        }
        if cluster_id != self.cluster_id {
            return self.stale("the datastore was replaced by another".into());
        }
        if response.created && revision < self.revision {
            return self
                .stale(format!("the datastore went back from revision {} to {revision}", self.revision));
        }
        if raft_term < self.raft_term {
            return self
                .stale(format!("the datastore went back from raft term {} to {raft_term}", self.raft_term));
        }
        self.raft_term = raft_term;
        if response.events.is_empty() {
            if !response.created && response.watch_id != NO_WATCH {
                self.revision = self.revision.max(revision);
            }
            return Heard::Changes(Vec::new());
        }
        // All events of one revision come in one response, so after it that revision is complete.
        let told = self.revision;
        let mut changes = Vec::new();
        for event in response.events {
            if let Some(kv) = event.kv.as_ref().filter(|kv| kv.mod_revision > told) {
                self.revision = self.revision.max(kv.mod_revision);
                changes.extend(self.change(event));
            }
        }
        Heard::Changes(changes)
    }

    fn change(&mut self, event: Event) -> Option<Change> {
        let deleted = event.r#type() == EventType::Delete;
        let kv = event.kv?;
        let key = self.key(&kv.key)?;
        if deleted {
            self.known.remove(&kv.key[..]);
            return Some(Change::Delete { key, revision: kv.mod_revision });
        }
        self.known.insert(kv.key[..].into(), kv.mod_revision);
        Some(Change::Put { key, kv })
    }

    fn stale(&mut self, reason: String) -> Heard {
        self.phase = Phase::Listing;
        Heard::Stale(reason)
    }

    fn key(&self, bytes: &[u8]) -> Option<Key> {
        let key = Key::parse(std::str::from_utf8(bytes).ok()?)?;
        self.range.contains(&key).then_some(key)
    }
}

#[cfg(test)]
mod tests;
