//! The keys of the kernel that have a record, so that later counts and connections find it, and the live connections with the
//! counters that have been recorded. Both are bounded.

use super::view::KnownPlace;
use crate::proto::{Flow, FlowKey};
use prost::Message;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tortie_plan::flow::{ConnectionTuple, FlowCounters, FlowDecision, FlowTuple};

/// Estimated memory of a key besides its records and causes, and of a record besides its encoded length.
const KEY_BYTES: usize = 400;
const RECORD_BYTES: usize = 600;

/// The fields of a record that do not change: its key and its labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowTemplate {
    pub key: FlowKey,
    pub source_labels: Vec<String>,
    pub dest_labels: Vec<String>,
}

impl FlowTemplate {
    /// Returns a flow without counters.
    pub fn start(&self, now: i64) -> Flow {
        Flow {
            key: Some(self.key.clone()),
            start_time: now,
            end_time: now,
            source_labels: self.source_labels.clone(),
            dest_labels: self.dest_labels.clone(),
            ..Flow::default()
        }
    }

    fn estimate_bytes(&self) -> usize {
        let labels = self.source_labels.iter().chain(&self.dest_labels);
        RECORD_BYTES + self.key.encoded_len() + labels.map(|label| label.len() + 24).sum::<usize>()
    }
}

/// A key of the kernel with its records.
#[derive(Clone, Debug)]
pub struct KeyEntry {
    pub id: u64,
    pub decision: FlowDecision,
    /// The first connection that is known, and its path through the node.
    pub connection: Option<ConnectionTuple>,
    pub path: Option<(KnownPlace, KnownPlace)>,
    /// The record of the source's and of the destination's side. None while the policy that decided is not known.
    pub records: [Option<Arc<FlowTemplate>>; 2],
    /// The revision of the policy under which the records were made.
    pub revision: u64,
    /// First packets that were recorded before the kernel counted them.
    pub credited: u64,
    /// Counted while there are no records yet, since this time.
    pub waiting: u64,
    pub waiting_since: Option<i64>,
    pub seen: i64,
    bytes: usize,
}

impl KeyEntry {
    pub fn new(decision: FlowDecision, now: i64) -> KeyEntry {
        KeyEntry {
            id: 0,
            decision,
            connection: None,
            path: None,
            records: [None, None],
            revision: 0,
            credited: 0,
            waiting: 0,
            waiting_since: None,
            seen: now,
            bytes: 0,
        }
    }
}

/// Keys by the fields of their packets. A tuple has several keys if policy changed.
#[derive(Debug, Default)]
pub struct KeyTable {
    tuples: HashMap<FlowTuple, Vec<KeyEntry>>,
    /// The records, each once, with the number of keys that use it.
    records: HashMap<Arc<FlowTemplate>, usize>,
    next_id: u64,
    len: usize,
    bytes: usize,
}

impl KeyTable {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the estimated memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn find(&mut self, tuple: &FlowTuple, decision: &FlowDecision) -> Option<&mut KeyEntry> {
        self.tuples.get_mut(tuple)?.iter_mut().find(|entry| entry.decision == *decision)
    }

    pub fn has(&self, tuple: &FlowTuple, decision: &FlowDecision) -> bool {
        self.tuples.get(tuple).is_some_and(|entries| entries.iter().any(|entry| entry.decision == *decision))
    }

    pub fn find_id(&mut self, tuple: &FlowTuple, id: u64) -> Option<&mut KeyEntry> {
        self.tuples.get_mut(tuple)?.iter_mut().find(|entry| entry.id == id)
    }

    /// Returns the allowed key that a connection was opened under: the one that the connection opened, else the newest.
    pub fn find_connection(&mut self, connection: &ConnectionTuple) -> Option<&mut KeyEntry> {
        let entries = self.tuples.get_mut(&connection.flow)?;
        // Some kernels do not report the destination before DNAT when a connection is opened.
        let is_own = |known: &ConnectionTuple| known.source_port == connection.source_port;
        let own = entries
            .iter()
            .position(|entry| entry.decision.allowed && entry.connection.as_ref().is_some_and(is_own));
        let newest = || entries.iter().rposition(|entry| entry.decision.allowed);
        let position = own.or_else(newest)?;
        entries.get_mut(position)
    }

    /// Adds a key and returns its identity.
    pub fn insert(&mut self, tuple: FlowTuple, mut entry: KeyEntry) -> u64 {
        self.next_id += 1;
        entry.id = self.next_id;
        let mut records = std::mem::take(&mut entry.records);
        records = records.map(|record| record.map(|record| self.hold(record)));
        entry.records = records;
        entry.bytes = KEY_BYTES;
        self.bytes += entry.bytes;
        self.len += 1;
        self.tuples.entry(tuple).or_default().push(entry);
        self.next_id
    }

    /// Replaces the records of a key.
    pub fn set_records(
        &mut self,
        tuple: &FlowTuple,
        id: u64,
        records: [Option<Arc<FlowTemplate>>; 2],
        revision: u64,
    ) {
        let records = records.map(|record| record.map(|record| self.hold(record)));
        let Some(entry) = self.find_id(tuple, id) else {
            records.into_iter().flatten().for_each(|record| self.release(&record));
            return;
        };
        let old = std::mem::replace(&mut entry.records, records);
        entry.revision = revision;
        old.into_iter().flatten().for_each(|record| self.release(&record));
    }

    fn hold(&mut self, record: Arc<FlowTemplate>) -> Arc<FlowTemplate> {
        if let Some((known, _)) = self.records.get_key_value(&record) {
            let known = known.clone();
            if let Some(count) = self.records.get_mut(&record) {
                *count += 1;
            }
            return known;
        }
        self.bytes += record.estimate_bytes();
        self.records.insert(record.clone(), 1);
        record
    }

    fn release(&mut self, record: &Arc<FlowTemplate>) {
        let Some(count) = self.records.get_mut(record) else { return };
        *count -= 1;
        if *count == 0 {
            self.records.remove(record);
            self.bytes -= record.estimate_bytes();
        }
    }

    /// Removes the keys that were last seen before `oldest` and wait for nothing.
    pub fn expire(&mut self, oldest: i64) {
        let mut gone: Vec<KeyEntry> = Vec::new();
        self.tuples.retain(|_, entries| {
            gone.extend(entries.extract_if(.., |entry| entry.seen < oldest && entry.waiting_since.is_none()));
            !entries.is_empty()
        });
        self.len -= gone.len();
        for entry in gone {
            self.bytes -= entry.bytes;
            entry.records.iter().flatten().for_each(|record| self.release(record));
        }
    }

    /// Returns the keys that wait for records.
    pub fn waiting(&self) -> Vec<(FlowTuple, u64)> {
        let entries =
            self.tuples.iter().flat_map(|(tuple, entries)| entries.iter().map(|entry| (*tuple, entry)));
        entries
            .filter(|(_, entry)| entry.waiting_since.is_some())
            .map(|(tuple, entry)| (tuple, entry.id))
            .collect()
    }
}

/// A live connection.
#[derive(Clone, Copy, Debug)]
pub struct LiveConnection {
    /// The key under which it was opened.
    pub key: Option<u64>,
    /// The counters that have been recorded.
    pub sent: FlowCounters,
    pub received: FlowCounters,
    /// The read of all connections that contained it last.
    pub round: u64,
}

/// The live connections that the kernel has listed.
#[derive(Debug, Default)]
pub struct ConnectionTable {
    live: HashMap<ConnectionTuple, LiveConnection>,
    round: u64,
}

impl ConnectionTable {
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Returns the keys of all connections, each once.
    pub fn list_keys(&self) -> BTreeSet<(FlowTuple, u64)> {
        self.live.iter().filter_map(|(connection, live)| Some((connection.flow, live.key?))).collect()
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    pub fn get_mut(&mut self, connection: &ConnectionTuple) -> Option<&mut LiveConnection> {
        self.live.get_mut(connection)
    }

    pub fn insert(&mut self, connection: ConnectionTuple, live: LiveConnection) {
        self.live.insert(connection, live);
    }

    pub fn remove(&mut self, connection: &ConnectionTuple) -> Option<LiveConnection> {
        self.live.remove(connection)
    }

    /// Ends a read of all connections. Returns the connections that two reads in succession did not contain: the event of
    /// their end was lost.
    pub fn finish_round(&mut self) -> Vec<(ConnectionTuple, LiveConnection)> {
        let round = self.round;
        self.round += 1;
        let lost = self.live.extract_if(|_, connection| connection.round + 1 < round);
        lost.collect()
    }
}
