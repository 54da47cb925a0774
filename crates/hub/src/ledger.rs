//! What the hub knows: every entry, in buckets, and a log of the last changes, each encoded once for all clients.

mod bucket;
mod log;

pub use bucket::Bucket;
pub use log::Limits;

use crate::protocol::{
    BUCKETS, Changes, MOST_OF_RECORD, Payload, Record, Status, Sum, What, bucket_of, class_of_range,
    from_hub, key_of_kind, to_record,
};
use bytes::Bytes;
use log::Log;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::{FeedEvent, KeyRange, Kind};
use tortie_sync::Heard;

/// Records of a frame, in bytes before compression; one that is larger travels alone.
pub(crate) const FRAME: usize = 1 << 20;

#[derive(Debug)]
pub struct Ledger {
    epoch: u64,
    /// Of the last frame of the log.
    sequence: u64,
    buckets: Vec<Arc<Bucket>>,
    log: Log,
    /// What is followed.
    classes: BTreeSet<String>,
    /// For each class the revision up to which everything is here.
    marks: BTreeMap<String, u64>,
    status: Status,
    in_sync: bool,
    counts: Counts,
    batches: Vec<usize>,
}

/// For the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub entries: usize,
    pub updates: u64,
    /// Of them, those that changed nothing.
    pub skipped: u64,
    /// Entries that no node can be told of: of a kind that feeds do not carry.
    pub unsuitable: u64,
    /// Entries that are larger than what is passed on.
    pub oversized: u64,
}

impl Ledger {
    /// `epoch` is random: no two lives of hubs may have the same.
    pub fn new(epoch: u64, ranges: &[KeyRange], limits: Limits) -> Ledger {
        Ledger {
            epoch,
            sequence: 0,
            buckets: (0..BUCKETS).map(|index| Arc::new(Bucket::new(index))).collect(),
            log: Log::new(limits),
            classes: ranges.iter().filter_map(class_of_range).map(str::to_owned).collect(),
            marks: BTreeMap::new(),
            status: Status::default(),
            in_sync: false,
            counts: Counts::default(),
            batches: Vec::new(),
        }
    }

    /// Takes in what the store says. What it changes for clients goes to the log: whoever waits for the sequence number hears
    /// of it.
    pub fn hear(&mut self, words: impl IntoIterator<Item = Heard>) {
        self.batches.clear();
        let mut records = Vec::new();
        let mut bytes = 0;
        for word in words {
            match word {
                Heard::Reached { range, revision } => {
                    // What has no order in the store is not compared.
                    if let (Some(class), Some(number)) = (class_of_range(&range), revision.number()) {
                        self.flush(&mut records, None);
                        bytes = 0;
                        self.marks.insert(class.to_owned(), number);
                    }
                }
                Heard::Event(FeedEvent::InSync) => {
                    self.flush(&mut records, None);
                    self.in_sync = true;
                }
                Heard::Event(FeedEvent::ConnectionLost { reason }) => {
                    let status = Status { trouble: Some(reason), failed_attempts: 0 };
                    self.flush(&mut records, Some(status));
                }
                Heard::Event(FeedEvent::ConnectionBack { failed_attempts }) => {
                    self.flush(&mut records, Some(Status { trouble: None, failed_attempts }));
                }
                entry => {
                    if let Some(record) = self.record(&entry) {
                        let size = record.value.len() + record.key.len();
                        if bytes + size > FRAME {
                            self.flush(&mut records, None);
                            bytes = 0;
                        }
                        bytes += size;
                        records.push(record);
                    }
                }
            }
        }
        self.flush(&mut records, None);
    }

    fn record(&mut self, entry: &Heard) -> Option<Record> {
        self.counts.updates += 1;
        let mut record = match to_record(entry) {
            Ok(record) => record?,
            Err(error) => {
                self.counts.unsuitable += 1;
                tracing::debug!(%error, "an entry is not passed on");
                return None;
            }
        };
        if record.value.len() > MOST_OF_RECORD {
            self.counts.oversized += 1;
            record.reason = format!(
                "its {} bytes are more than the {MOST_OF_RECORD} that a hub passes on",
                record.value.len()
            );
            record.what = What::Unreadable.into();
            record.value = Bytes::new();
        }
        Some(record)
    }

    /// Makes the records part of what is known, and of the log what they change.
    fn flush(&mut self, records: &mut Vec<Record>, status: Option<Status>) {
        let sequence = if self.in_sync { self.sequence + 1 } else { 0 };
        let mut changed = Vec::with_capacity(records.len());
        for record in records.drain(..) {
            let record = Arc::new(record);
            let bucket = Arc::make_mut(&mut self.buckets[bucket_of(&record.key)]);
            let before = bucket.len();
            if bucket.apply(&record, sequence) {
                self.counts.entries = self.counts.entries + bucket.len() - before;
                changed.push(record);
            } else {
                self.counts.skipped += 1;
            }
        }
        let status = status.filter(|status| *status != self.status);
        if let Some(status) = &status {
            self.status = status.clone();
        }
        if !self.in_sync || (changed.is_empty() && status.is_none()) {
            return;
        }
        self.sequence = sequence;
        self.batches.push(changed.len());
        let records = Payload::of(changed.iter().map(|record| (**record).clone()).collect());
        self.log.push(from_hub::What::Changes(Changes { sequence, records, status }).frame());
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Nobody is served before: the absence of an entry would mean nothing.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    pub fn status(&self) -> &Status {
        &self.status
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How many entries each frame has that was made of what was heard last.
    pub fn batches(&self) -> &[usize] {
        &self.batches
    }

    /// Entries of a kind. Looks at all of them.
    pub fn count(&self, kind: Kind) -> usize {
        let begin = key_of_kind(kind);
        self.buckets.iter().map(|bucket| bucket.count(&begin)).sum()
    }

    pub fn marks(&self) -> &BTreeMap<String, u64> {
        &self.marks
    }

    /// What is wanted and not followed here.
    pub fn missing_class<'a>(&self, wanted: &'a [String]) -> Option<&'a str> {
        wanted.iter().find(|class| !self.classes.contains(*class)).map(String::as_str)
    }

    /// Whether somebody has heard of what has not been heard of here yet.
    pub fn is_behind(&self, marks: &BTreeMap<String, u64>) -> bool {
        marks.iter().any(|(class, heard)| self.marks.get(class).is_some_and(|here| here < heard))
    }

    pub fn bucket(&self, index: usize) -> Option<&Arc<Bucket>> {
        self.buckets.get(index)
    }

    /// The buckets that are not as somebody has them.
    pub fn differing(&self, sums: &[Sum]) -> Vec<usize> {
        let differs = |(index, sum): (usize, &Sum)| (self.buckets[index].sum() != *sum).then_some(index);
        sums.iter().take(BUCKETS).enumerate().filter_map(differs).collect()
    }

    /// The frames after a sequence number, up to about so many bytes; none if the log does not have all of them.
    pub fn after(&self, sequence: u64, budget: usize) -> Option<Vec<Bytes>> {
        let missing = usize::try_from(self.sequence.checked_sub(sequence)?).ok()?;
        self.log.last(missing, budget)
    }

    pub fn log_bytes(&self) -> usize {
        self.log.bytes()
    }
}

#[cfg(test)]
mod tests;
