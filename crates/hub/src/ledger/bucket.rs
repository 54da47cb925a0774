//! The entries of one bucket and their encoded frames. The ledger copies a bucket on write while a session still
//! holds it, so a held bucket never changes.

use super::split_into_frames;
use crate::protocol::{BucketMessage, DigestSum, FeedRecord, HubMessage, RecordAction, RecordPayload};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};

#[derive(Clone, Debug)]
pub struct LedgerBucket {
    index: usize,
    /// Sequence number of the last change in the bucket.
    changed: u64,
    sum: DigestSum,
    /// Sorted by key.
    entries: Vec<BucketEntry>,
    /// Encoded on first use and shared by all clients.
    frames: OnceLock<Arc<[Bytes]>>,
}

#[derive(Clone, Debug)]
struct BucketEntry {
    record: Arc<FeedRecord>,
    digest: u64,
}

impl LedgerBucket {
    pub fn new(index: usize) -> LedgerBucket {
        LedgerBucket {
            index,
            changed: 0,
            sum: DigestSum::default(),
            entries: Vec::new(),
            frames: OnceLock::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the size of all keys and values before compression.
    pub fn raw_bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.record.size()).sum()
    }

    /// Returns the number of entries whose key starts with `begin`.
    pub fn count(&self, begin: &str) -> usize {
        self.entries.iter().filter(|entry| entry.record.key.starts_with(begin)).count()
    }

    pub fn sum(&self) -> DigestSum {
        self.sum
    }

    /// Applies a record and returns whether it changed the bucket.
    pub fn apply(&mut self, record: &Arc<FeedRecord>, sequence: u64) -> bool {
        let position = self.entries.binary_search_by(|entry| entry.record.key.cmp(&record.key));
        match (position, record.action()) {
            (Err(_), RecordAction::Delete) => return false,
            (Ok(at), RecordAction::Delete) => {
                let entry = self.entries.remove(at);
                self.sum.remove(entry.digest);
            }
            (position, RecordAction::Put | RecordAction::Unreadable) => {
                let entry = BucketEntry { record: record.clone(), digest: record.digest() };
                match position {
                    Ok(at) if self.entries[at].digest == entry.digest => return false,
                    Ok(at) => {
                        self.sum.remove(self.entries[at].digest);
                        self.sum.add(entry.digest);
                        self.entries[at] = entry;
                    }
                    Err(at) => {
                        self.sum.add(entry.digest);
                        self.entries.insert(at, entry);
                    }
                }
            }
        }
        self.changed = sequence;
        self.frames = OnceLock::new();
        true
    }

    /// Returns the encoded content for clients, and whether this call had to encode it.
    pub fn frames(&self) -> (Arc<[Bytes]>, bool) {
        let mut encoded = false;
        let frames = self.frames.get_or_init(|| {
            encoded = true;
            self.encode()
        });
        (frames.clone(), encoded)
    }

    fn encode(&self) -> Arc<[Bytes]> {
        let frames = split_into_frames(self.entries.iter().map(|entry| entry.record.clone()));
        let last = frames.len() - 1;
        let mut encoded = Vec::with_capacity(frames.len());
        for (number, records) in frames.iter().enumerate() {
            let message = BucketMessage {
                index: self.index as u32,
                changed: self.changed,
                more: number < last,
                records: RecordPayload::new(records.iter().map(Arc::as_ref)),
            };
            encoded.push(HubMessage::Bucket(message).frame());
        }
        encoded.into()
    }
}
