//! The state of the hub: all entries, in buckets, and a log of the latest changes, each encoded once for all clients.
//! Does no I/O.

mod bucket;
mod log;

pub use bucket::LedgerBucket;
pub use log::ChangeLogLimits;

use crate::protocol::{
    BUCKET_COUNT, ChangesMessage, DigestSum, FeedRecord, HubMessage, HubStoreStatus, MAX_RECORD_BYTES,
    RecordAction, RecordPayload, build_key_prefix, choose_bucket, find_class, find_range_class, to_record,
};
use bytes::Bytes;
use log::ChangeLog;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::{FeedEvent, KeyRange, Kind};
use tortie_sync::FeedMessage;

/// Maximum size of the records of a frame in bytes before compression; a larger record gets a separate frame.
pub(crate) const MAX_FRAME_RECORD_BYTES: usize = 1 << 20;

/// Distributes records to frames. Returns at least one frame, which may be empty.
fn split_into_frames(records: impl Iterator<Item = Arc<FeedRecord>>) -> Vec<Vec<Arc<FeedRecord>>> {
    let mut frames = Vec::new();
    let mut frame = Vec::new();
    let mut bytes = 0;
    for record in records {
        if bytes + record.size() > MAX_FRAME_RECORD_BYTES && !frame.is_empty() {
            frames.push(std::mem::take(&mut frame));
            bytes = 0;
        }
        bytes += record.size();
        frame.push(record);
    }
    frames.push(frame);
    frames
}

#[derive(Debug)]
pub struct HubLedger {
    epoch: u64,
    /// Sequence number of the last frame of the log.
    sequence: u64,
    buckets: Vec<Arc<LedgerBucket>>,
    log: ChangeLog,
    /// Classes that this hub watches.
    classes: BTreeSet<String>,
    /// For each class, the revision up to which all changes have been received.
    marks: BTreeMap<String, u64>,
    /// For each class with a mark, the revision that a client has seen after it has received the content of this ledger:
    /// the mark, or the last deletion if that is newer. An entry reveals its revision to the client, a missing one does not.
    content_marks: BTreeMap<String, u64>,
    status: HubStoreStatus,
    in_sync: bool,
    counts: LedgerCounts,
    batches: Vec<usize>,
}

/// Counters for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerCounts {
    pub entries: usize,
    pub updates: u64,
    /// Updates that changed nothing.
    pub skipped: u64,
    /// Entries of kinds that feeds do not carry; they are not sent to clients.
    pub unsuitable: u64,
    /// Entries larger than `MAX_RECORD_BYTES`, sent without their value.
    pub oversized: u64,
}

impl HubLedger {
    /// Creates an empty ledger. `epoch` must be random, so that no two hub processes share one.
    pub fn new(epoch: u64, ranges: &[KeyRange], limits: ChangeLogLimits) -> HubLedger {
        HubLedger {
            epoch,
            sequence: 0,
            buckets: (0..BUCKET_COUNT).map(|index| Arc::new(LedgerBucket::new(index))).collect(),
            log: ChangeLog::new(limits),
            classes: ranges.iter().filter_map(find_range_class).map(str::to_owned).collect(),
            marks: BTreeMap::new(),
            content_marks: BTreeMap::new(),
            status: HubStoreStatus::default(),
            in_sync: false,
            counts: LedgerCounts::default(),
            batches: Vec::new(),
        }
    }

    /// Applies events of the store's feed. Every resulting change is appended to the log, which advances the sequence
    /// number.
    pub fn apply_feed(&mut self, messages: impl IntoIterator<Item = FeedMessage>) {
        self.batches.clear();
        let mut records = Vec::new();
        for message in messages {
            match message {
                FeedMessage::Reached { range, revision } => {
                    // Revisions without a numeric order cannot be compared.
                    if let (Some(class), Some(number)) = (find_range_class(&range), revision.number()) {
                        self.flush(&mut records, None);
                        self.marks.insert(class.to_owned(), number);
                        self.content_marks.insert(class.to_owned(), number);
                    }
                }
                FeedMessage::Event(FeedEvent::InSync) => {
                    self.flush(&mut records, None);
                    self.in_sync = true;
                }
                FeedMessage::Event(FeedEvent::ConnectionLost { reason }) => {
                    let status = HubStoreStatus { trouble: Some(reason), failed_attempts: 0 };
                    self.flush(&mut records, Some(status));
                }
                FeedMessage::Event(FeedEvent::ConnectionBack { failed_attempts }) => {
                    self.flush(&mut records, Some(HubStoreStatus { trouble: None, failed_attempts }));
                }
                entry => {
                    let record = self.convert_entry(entry).map(Arc::new);
                    record.iter().for_each(|record| self.mark_deletion(record));
                    records.extend(record);
                }
            }
        }
        self.flush(&mut records, None);
    }

    /// Raises the content mark of the class if the record is a deletion.
    fn mark_deletion(&mut self, record: &FeedRecord) {
        if record.action() == RecordAction::Delete
            && let Ok(revision) = record.revision.parse::<u64>()
            && let Some(class) = find_class(&record.key)
            && let Some(mark) = self.content_marks.get_mut(&class)
        {
            *mark = revision.max(*mark);
        }
    }

    fn convert_entry(&mut self, entry: FeedMessage) -> Option<FeedRecord> {
        self.counts.updates += 1;
        let mut record = match to_record(entry) {
            Ok(record) => record?,
            Err(error) => {
                self.counts.unsuitable += 1;
                tracing::debug!(%error, "ignoring an entry that the hub protocol cannot carry");
                return None;
            }
        };
        if record.value.len() > MAX_RECORD_BYTES {
            self.counts.oversized += 1;
            record.reason = format!(
                "its {} bytes exceed the {MAX_RECORD_BYTES} bytes that a hub forwards",
                record.value.len()
            );
            record.action = RecordAction::Unreadable.into();
            record.value = Bytes::new();
        }
        Some(record)
    }

    /// Applies the records and the status to the ledger, in as many frames as the records need.
    fn flush(&mut self, records: &mut Vec<Arc<FeedRecord>>, status: Option<HubStoreStatus>) {
        let mut frames = split_into_frames(records.drain(..));
        let last = frames.pop().unwrap_or_default();
        for records in frames {
            self.apply_frame(records, None);
        }
        self.apply_frame(last, status);
    }

    /// Applies the records to their buckets and appends those that change something to the log.
    fn apply_frame(&mut self, mut records: Vec<Arc<FeedRecord>>, status: Option<HubStoreStatus>) {
        let sequence = if self.in_sync { self.sequence + 1 } else { 0 };
        records.retain(|record| {
            let bucket = Arc::make_mut(&mut self.buckets[choose_bucket(&record.key)]);
            let before = bucket.len();
            let changed = bucket.apply(record, sequence);
            if changed {
                self.counts.entries = self.counts.entries + bucket.len() - before;
            } else {
                self.counts.skipped += 1;
            }
            changed
        });
        let status = status.filter(|status| *status != self.status);
        if let Some(status) = &status {
            self.status = status.clone();
        }
        if !self.in_sync || (records.is_empty() && status.is_none()) {
            return;
        }
        self.sequence = sequence;
        self.batches.push(records.len());
        let records = RecordPayload::new(records.iter().map(Arc::as_ref));
        self.log.push(HubMessage::Changes(ChangesMessage { sequence, records, status }).frame());
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether the store has been read completely. Clients are served only then: before, a missing entry does
    /// not mean that it is absent from the store.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    pub fn status(&self) -> &HubStoreStatus {
        &self.status
    }

    pub fn counts(&self) -> LedgerCounts {
        self.counts
    }

    /// Returns the number of entries in each frame that the last batch of events appended to the log.
    pub fn batches(&self) -> &[usize] {
        &self.batches
    }

    /// Returns the number of entries of a kind. Scans all entries.
    pub fn count(&self, kind: Kind) -> usize {
        let begin = build_key_prefix(kind);
        self.buckets.iter().map(|bucket| bucket.count(&begin)).sum()
    }

    pub fn content_marks(&self) -> &BTreeMap<String, u64> {
        &self.content_marks
    }

    /// Returns a class that the client wants and that this hub does not watch.
    pub fn missing_class<'a>(&self, wanted: &'a [String]) -> Option<&'a str> {
        wanted.iter().find(|class| !self.classes.contains(*class)).map(String::as_str)
    }

    /// Returns whether the client has seen a revision that this hub has not received.
    pub fn is_behind(&self, marks: &BTreeMap<String, u64>) -> bool {
        marks.iter().any(|(class, seen)| self.marks.get(class).is_some_and(|received| received < seen))
    }

    pub fn bucket(&self, index: usize) -> Option<&Arc<LedgerBucket>> {
        self.buckets.get(index)
    }

    /// Returns the indexes of the buckets that differ from the client's.
    pub fn differing_buckets(&self, sums: &[DigestSum]) -> Vec<usize> {
        let pairs = self.buckets.iter().zip(sums);
        pairs.filter(|(bucket, sum)| bucket.sum() != **sum).map(|(bucket, _)| bucket.index()).collect()
    }

    /// Returns the frames after a sequence number, up to about `budget` bytes, or `None` if the log no longer holds
    /// all of them.
    pub fn frames_after(&self, sequence: u64, budget: usize) -> Option<Vec<Bytes>> {
        let missing = usize::try_from(self.sequence.checked_sub(sequence)?).ok()?;
        self.log.last(missing, budget)
    }

    pub fn log_bytes(&self) -> usize {
        self.log.bytes()
    }
}

#[cfg(test)]
mod tests;
