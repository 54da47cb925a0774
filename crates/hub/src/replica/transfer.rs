//! Buckets that are coming. Nothing of them counts before all are there: half of it would be a state that never was. Only the
//! first snapshot is passed on as it comes, since no node acts on it before it is complete. What is not finished is bounded.

use super::holding::Holding;
use crate::protocol::{self, BUCKETS, ProtocolError, Record, Status, What, bucket_of};

/// One bucket while parts of it are missing: a thousandth of everything, and more than a few of the largest entries.
pub const MAX_BUCKET_BYTES: usize = 32 << 20;
/// All buckets of one comparison, as much as the node does not have yet.
pub const MAX_TRANSFER_BYTES: usize = 512 << 20;

#[derive(Debug)]
pub struct Transfer {
    /// Of the hub; with the transfer the client knows everything up to it.
    pub sequence: u64,
    /// How the hub reaches the store.
    pub status: Status,
    /// The bucket whose last part is not here yet.
    partial: Option<Partial>,
    pub buckets: Vec<Received>,
    /// What the buckets hold.
    bytes: usize,
}

#[derive(Debug)]
struct Partial {
    index: usize,
    records: Vec<Record>,
    bytes: usize,
}

/// How a complete bucket differs from the one that the client has.
#[derive(Debug)]
pub struct Received {
    pub index: usize,
    pub changed: u64,
    pub gone: Vec<String>,
    pub news: Vec<Record>,
    /// What the news hold in memory.
    pub bytes: usize,
}

impl Transfer {
    pub fn new(sequence: u64, status: Status) -> Transfer {
        Transfer { sequence, status, partial: None, buckets: Vec::new(), bytes: 0 }
    }

    /// Whether no bucket is in the middle of its parts.
    pub fn is_whole(&self) -> bool {
        self.partial.is_none()
    }

    /// Takes in a part; the bucket, if it was the last one.
    pub fn receive(
        &mut self,
        bucket: &protocol::Bucket,
        holdings: &[Holding],
    ) -> Result<Option<Received>, ProtocolError> {
        let index = usize::try_from(bucket.index).unwrap_or(usize::MAX);
        let holding = holdings.get(index).ok_or(ProtocolError::Unexpected("a bucket that there is not"))?;
        if self.buckets.len() >= BUCKETS {
            return Err(ProtocolError::Unexpected("more buckets than there are"));
        }
        let mut records = bucket.records.records()?;
        if records.iter().any(|record| bucket_of(&record.key) != index || record.what() == What::Delete) {
            return Err(ProtocolError::Unexpected("a bucket with something that does not belong there"));
        }
        // Values are parts of the content they came in, which is held as a whole.
        let bytes = bucket.records.raw_bytes().saturating_add(records.len() * size_of::<Record>());
        let mut partial = self.partial.take().unwrap_or(Partial { index, records: Vec::new(), bytes: 0 });
        if partial.index != index {
            return Err(ProtocolError::Unexpected("a bucket in the middle of another"));
        }
        partial.bytes = partial.bytes.saturating_add(bytes);
        if partial.bytes > MAX_BUCKET_BYTES {
            return Err(ProtocolError::Oversized { what: "bucket", limit: MAX_BUCKET_BYTES });
        }
        partial.records.append(&mut records);
        if bucket.more {
            self.partial = Some(partial);
            return Ok(None);
        }
        let gone = holding.absent_from(&partial.records);
        let news: Vec<Record> = partial.records.into_iter().filter(|record| !holding.has(record)).collect();
        let bytes = if news.is_empty() { 0 } else { partial.bytes };
        Ok(Some(Received { index, changed: bucket.changed, gone, news, bytes }))
    }

    /// Keeps a bucket until the transfer is complete.
    pub fn keep(&mut self, received: Received) -> Result<(), ProtocolError> {
        self.bytes = self.bytes.saturating_add(received.bytes);
        if self.bytes > MAX_TRANSFER_BYTES {
            return Err(ProtocolError::Oversized { what: "transfer", limit: MAX_TRANSFER_BYTES });
        }
        self.buckets.push(received);
        Ok(())
    }
}
