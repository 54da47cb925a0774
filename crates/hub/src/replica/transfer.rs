//! Buckets of a snapshot or comparison while they arrive. They are applied only when all have arrived, because some
//! of them without the others would be a state that the store never had. Only the first snapshot is forwarded as it
//! arrives, since no node acts on it before it is complete. The memory of an unfinished transfer is bounded.

use super::bucket::ReplicaBucket;
use crate::protocol::{
    BUCKET_COUNT, BucketMessage, FeedRecord, HubStoreStatus, ProtocolError, RecordAction, choose_bucket,
};

/// Limit for a bucket of which parts are still missing. A bucket has about a thousandth of all entries; the limit
/// leaves room for several entries of the maximum size.
pub const MAX_BUCKET_BYTES: usize = 32 << 20;
/// Limit for all buckets of one transfer. Only buckets with entries that the node does not have yet are counted.
pub const MAX_TRANSFER_BYTES: usize = 512 << 20;

#[derive(Debug)]
pub struct BucketTransfer {
    /// Sequence number of the hub; after the transfer the client has everything up to it.
    pub sequence: u64,
    /// Connection state between the hub and the store.
    pub status: HubStoreStatus,
    /// Bucket whose last part has not arrived.
    partial: Option<PartialBucket>,
    pub buckets: Vec<ReceivedBucket>,
    /// Memory held by the buckets.
    bytes: usize,
}

#[derive(Debug)]
struct PartialBucket {
    index: usize,
    records: Vec<FeedRecord>,
    bytes: usize,
}

/// Difference between a complete bucket and the client's.
#[derive(Debug)]
pub struct ReceivedBucket {
    pub index: usize,
    /// Sequence number of the last change of the bucket on the hub.
    pub changed: u64,
    pub deleted: Vec<String>,
    pub changed_records: Vec<FeedRecord>,
    /// Memory held by `changed_records`.
    pub bytes: usize,
}

impl BucketTransfer {
    pub fn new(sequence: u64, status: HubStoreStatus) -> BucketTransfer {
        BucketTransfer { sequence, status, partial: None, buckets: Vec::new(), bytes: 0 }
    }

    /// Returns whether no bucket is waiting for further parts.
    pub fn has_no_partial_bucket(&self) -> bool {
        self.partial.is_none()
    }

    /// Adds a part. Returns the bucket if this was its last part.
    pub fn receive(
        &mut self,
        bucket: &BucketMessage,
        own_buckets: &[ReplicaBucket],
    ) -> Result<Option<ReceivedBucket>, ProtocolError> {
        let index = usize::try_from(bucket.index).unwrap_or(usize::MAX);
        let own = own_buckets.get(index).ok_or(ProtocolError::Unexpected("a bucket index out of range"))?;
        if self.buckets.len() >= BUCKET_COUNT {
            return Err(ProtocolError::Unexpected("more buckets than exist"));
        }
        let mut records = bucket.records.records()?;
        if records
            .iter()
            .any(|record| choose_bucket(&record.key) != index || record.action() == RecordAction::Delete)
        {
            return Err(ProtocolError::Unexpected("a bucket with a record that does not belong to it"));
        }
        // Values are slices of the decompressed content, which stays allocated as a whole.
        let bytes = bucket.records.raw_bytes().saturating_add(records.len() * size_of::<FeedRecord>());
        let mut partial =
            self.partial.take().unwrap_or(PartialBucket { index, records: Vec::new(), bytes: 0 });
        if partial.index != index {
            return Err(ProtocolError::Unexpected(
                "a part of a bucket before the last part of another bucket",
            ));
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
        let deleted = own.keys_missing_from(&partial.records);
        let changed_records: Vec<FeedRecord> =
            partial.records.into_iter().filter(|record| !own.has(record)).collect();
        let bytes = if changed_records.is_empty() { 0 } else { partial.bytes };
        Ok(Some(ReceivedBucket { index, changed: bucket.changed, deleted, changed_records, bytes }))
    }

    /// Stores a bucket until the transfer is complete.
    pub fn store_bucket(&mut self, received: ReceivedBucket) -> Result<(), ProtocolError> {
        self.bytes = self.bytes.saturating_add(received.bytes);
        if self.bytes > MAX_TRANSFER_BYTES {
            return Err(ProtocolError::Oversized { what: "transfer", limit: MAX_TRANSFER_BYTES });
        }
        self.buckets.push(received);
        Ok(())
    }
}
