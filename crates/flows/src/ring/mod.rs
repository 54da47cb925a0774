//! The flows of the last hour in memory: keys with one series of samples each, and buckets that list the keys with data in
//! them. Reads no clock and does no I/O: the caller passes the time.

mod filter;
mod hints;
mod intern;
mod key;
mod query;
mod sample;
mod statistics;
mod window;

pub use filter::{FilterError, NETWORK_NAMES, NO_NAMESPACE, check_filter};
pub use hints::HintError;
pub use key::{FOLDED_NAME, FlowRejection};
pub use query::{FlowPage, FlowQuery, FlowRef, MAX_RESULT_BYTES, PageRequest, QueryError};
pub use sample::BucketNumber;
pub use statistics::StatisticsQuery;
pub use window::{TimeWindow, resolve_time};

use crate::proto;
use hashbrown::{DefaultHashBuilder, HashTable};
use intern::{InternId, InternTable};
use key::{FlowKey, check_flow, encode_labels, split_labels};
use sample::{FlowCounters, FlowSample};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Number of complete buckets that are kept: one hour with buckets of 15 seconds.
pub const HISTORY_BUCKETS: u32 = 240;
/// All buckets: the history, the current one, and one for nodes whose clock is ahead.
const RING_BUCKETS: u32 = HISTORY_BUCKETS + 2;
/// Distance from the current bucket of the newest one that is assumed to be complete: nodes report a bucket after it ends.
pub const COMPLETE_DISTANCE: u32 = 2;

/// Estimated memory of a key besides its samples and names, and of the reference of a bucket to a key.
const KEY_BYTES: usize = size_of::<FlowSlot>() + 16;
const BUCKET_KEY_BYTES: usize = 2 * size_of::<u32>();
/// Estimated memory of an allocation besides its content.
const ALLOCATION_BYTES: usize = 16;

#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Width of a bucket in seconds.
    pub window: u32,
    /// Limit of the estimated memory. Above it, the least active keys are folded.
    pub max_bytes: usize,
}

#[derive(Debug)]
pub struct FlowRing {
    options: RingOptions,
    /// The bucket of the present time. It never decreases.
    current: BucketNumber,
    names: InternTable,
    traces: InternTable,
    labels: InternTable,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    slots: Vec<FlowSlot>,
    free: Vec<u32>,
    /// From the oldest bucket to the future one.
    buckets: VecDeque<FlowBucket>,
    next_flow_id: i64,
    sample_bytes: usize,
    bucket_keys: usize,
    folded_keys: u64,
    scratch: Vec<u8>,
}

/// A key and its samples, or an unused place without samples.
#[derive(Debug)]
struct FlowSlot {
    key: FlowKey,
    id: i64,
    /// The first and the last bucket with a sample.
    first: BucketNumber,
    last: BucketNumber,
    /// Packets in all samples.
    activity: u64,
    /// In the order of buckets.
    samples: Vec<FlowSample>,
}

#[derive(Debug, Default)]
struct FlowBucket {
    /// Slots with a sample in this bucket.
    slots: Vec<u32>,
    /// Number of changes of `slots`.
    version: u64,
    snapshot: Weak<BucketSnapshot>,
}

/// The flows that a bucket had at one time. Flows that were removed or folded later are skipped by their identity.
#[derive(Debug)]
pub struct BucketSnapshot {
    pub bucket: BucketNumber,
    pub flows: Vec<FlowRef>,
    version: u64,
}

/// Result of recording a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedFlow {
    /// The bucket had already been complete, so live streams do not contain the flow.
    pub was_complete: bool,
    /// Keys that were folded to stay below the memory limit.
    pub folded_keys: usize,
}

impl FlowRing {
    pub fn new(options: RingOptions, now: i64) -> FlowRing {
        let mut ring = FlowRing {
            options: RingOptions { window: options.window.max(1), ..options },
            current: 0,
            names: InternTable::new(),
            traces: InternTable::new(),
            labels: InternTable::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            slots: Vec::new(),
            free: Vec::new(),
            buckets: (0..RING_BUCKETS).map(|_| FlowBucket::default()).collect(),
            next_flow_id: 1,
            sample_bytes: 0,
            bucket_keys: 0,
            folded_keys: 0,
            scratch: Vec::new(),
        };
        ring.current = ring.bucket_at(now).max(HISTORY_BUCKETS);
        ring
    }

    /// Returns the width of a bucket in seconds.
    pub fn window(&self) -> i64 {
        i64::from(self.options.window)
    }

    /// Returns the bucket of the present time.
    pub fn current(&self) -> BucketNumber {
        self.current
    }

    /// Returns the oldest bucket.
    pub fn oldest(&self) -> BucketNumber {
        self.current - HISTORY_BUCKETS
    }

    /// Returns the end of the newest bucket that is assumed to be complete.
    pub fn complete_end(&self) -> BucketNumber {
        self.current + 1 - COMPLETE_DISTANCE
    }

    pub fn keys(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns how many keys have been folded so far.
    pub fn folded_keys(&self) -> u64 {
        self.folded_keys
    }

    /// Returns the estimated memory.
    pub fn bytes(&self) -> usize {
        self.keys() * KEY_BYTES
            + self.sample_bytes
            + self.bucket_keys * BUCKET_KEY_BYTES
            + self.names.bytes()
            + self.traces.bytes()
            + self.labels.bytes()
    }

    /// Returns the bucket of a time.
    pub fn bucket_at(&self, seconds: i64) -> BucketNumber {
        let number = seconds.max(0) / self.window();
        // The last numbers are unused so that the end of the ring can be represented.
        u32::try_from(number).unwrap_or(u32::MAX).min(u32::MAX - 2)
    }

    pub fn start_of(&self, bucket: BucketNumber) -> i64 {
        i64::from(bucket) * self.window()
    }

    /// Moves the ring to the present time and drops buckets that are older than the history. Returns the number of new buckets.
    pub fn advance(&mut self, now: i64) -> u32 {
        let target = self.bucket_at(now).max(self.current);
        let steps = target - self.current;
        for _ in 0..steps.min(RING_BUCKETS) {
            self.drop_oldest();
            self.buckets.push_back(FlowBucket::default());
            self.current += 1;
        }
        self.current = target;
        steps
    }

    fn drop_oldest(&mut self) {
        let oldest = self.oldest();
        let Some(bucket) = self.buckets.pop_front() else { return };
        self.bucket_keys -= bucket.slots.len();
        for position in bucket.slots {
            let slot = &mut self.slots[position as usize];
            let expired = slot.samples.iter().take_while(|sample| sample.bucket <= oldest).count();
            for sample in slot.samples.drain(..expired) {
                slot.activity = slot.activity.saturating_sub(sample.counters.packets());
                self.labels.release(sample.source_labels);
                self.labels.release(sample.dest_labels);
            }
            match slot.samples.first() {
                Some(sample) => slot.first = sample.bucket,
                None => self.remove_slot(position),
            }
        }
    }

    /// Removes a key whose samples are gone.
    fn remove_slot(&mut self, position: u32) {
        let slot = &mut self.slots[position as usize];
        let samples = std::mem::take(&mut slot.samples);
        self.sample_bytes -= estimate_samples(samples.capacity());
        slot.id = 0;
        let key = slot.key;
        if let Ok(entry) = self.index.find_entry(self.hasher.hash_one(key), |known| *known == position) {
            entry.remove();
        }
        key.release(&mut self.names, &mut self.traces);
        self.free.push(position);
    }

    /// Records a flow in the bucket of its start time.
    pub fn add(&mut self, flow: &proto::Flow, now: i64) -> Result<RecordedFlow, FlowRejection> {
        let key = check_flow(flow)?;
        self.advance(now);
        let bucket = self.bucket_at(flow.start_time);
        let end = self.current + 2;
        if flow.start_time < 0 || !(self.oldest()..end).contains(&bucket) {
            return Err(FlowRejection::OutsideRing {
                start: flow.start_time,
                oldest: self.start_of(self.oldest()),
                end: self.start_of(end),
            });
        }
        let was_complete = bucket < self.complete_end();
        let mut scratch = std::mem::take(&mut self.scratch);
        let position = self.find_or_insert(key, &mut scratch);
        encode_labels(&flow.source_labels, &mut scratch);
        let source_labels = self.labels.acquire(&scratch);
        encode_labels(&flow.dest_labels, &mut scratch);
        let dest_labels = self.labels.acquire(&scratch);
        self.scratch = scratch;
        let counters = FlowCounters::from_flow(flow);
        self.add_sample(position, FlowSample { bucket, source_labels, dest_labels, counters });
        Ok(RecordedFlow { was_complete, folded_keys: self.enforce_limit() })
    }

    /// Returns the slot of a key.
    fn find_or_insert(&mut self, key: &proto::FlowKey, scratch: &mut Vec<u8>) -> u32 {
        let key = FlowKey::acquire(key, &mut self.names, &mut self.traces, scratch);
        let hash = self.hasher.hash_one(key);
        let slots = &self.slots;
        if let Some(found) = self.index.find(hash, |position| slots[*position as usize].key == key) {
            let found = *found;
            key.release(&mut self.names, &mut self.traces);
            return found;
        }
        let id = self.next_flow_id;
        self.next_flow_id += 1;
        let slot = FlowSlot { key, id, first: 0, last: 0, activity: 0, samples: Vec::new() };
        let position = match self.free.pop() {
            Some(position) => {
                self.slots[position as usize] = slot;
                position
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.index.insert_unique(hash, position, |position| hasher.hash_one(slots[*position as usize].key));
        position
    }

    /// Adds a sample to a slot, or adds its counters to the sample of the same bucket. Takes over the references of the
    /// sample to its labels.
    fn add_sample(&mut self, position: u32, sample: FlowSample) {
        let slot = &mut self.slots[position as usize];
        slot.activity = slot.activity.saturating_add(sample.counters.packets());
        let place = match slot.samples.last() {
            Some(last) if last.bucket >= sample.bucket => {
                slot.samples.partition_point(|known| known.bucket < sample.bucket)
            }
            _ => slot.samples.len(),
        };
        if let Some(known) = slot.samples.get_mut(place)
            && known.bucket == sample.bucket
        {
            known.counters.add(&sample.counters);
            intersect(&mut self.labels, &mut known.source_labels, sample.source_labels);
            intersect(&mut self.labels, &mut known.dest_labels, sample.dest_labels);
            return;
        }
        let before = slot.samples.capacity();
        if slot.samples.len() == before {
            // Grow by half instead of doubling: most keys have few samples.
            slot.samples.reserve_exact((before / 2).max(1));
        }
        slot.samples.insert(place, sample);
        self.sample_bytes += estimate_samples(slot.samples.capacity()) - estimate_samples(before);
        slot.first = slot.samples[0].bucket;
        slot.last = slot.samples[slot.samples.len() - 1].bucket;
        let bucket = (sample.bucket + HISTORY_BUCKETS - self.current) as usize;
        self.buckets[bucket].slots.push(position);
        self.buckets[bucket].version += 1;
        self.bucket_keys += 1;
    }

    /// Folds the least active keys into the keys named `other` while the estimated memory exceeds the limit. Returns the
    /// number of folded keys.
    fn enforce_limit(&mut self) -> usize {
        if self.bytes() <= self.options.max_bytes {
            return 0;
        }
        // Fold more than necessary, so that the search for the least active keys is rare.
        let target = self.options.max_bytes - self.options.max_bytes / 8;
        let mut candidates: Vec<(u64, BucketNumber, u32)> = Vec::with_capacity(self.keys());
        for (position, slot) in self.slots.iter().enumerate() {
            if !slot.samples.is_empty() && !slot.key.is_folded(&self.names) {
                candidates.push((slot.activity, slot.last, position as u32));
            }
        }
        candidates.sort_unstable();
        let mut folded = vec![false; self.slots.len()];
        let mut count = 0;
        for (_, _, position) in candidates {
            if self.bytes() <= target {
                break;
            }
            folded[position as usize] = true;
            count += 1;
            self.fold_slot(position);
        }
        // A slot that was folded may have been used again for a folding key, which its buckets list again.
        let slots = &self.slots;
        self.bucket_keys = 0;
        let oldest = self.current - HISTORY_BUCKETS;
        for (offset, bucket) in self.buckets.iter_mut().enumerate() {
            let number = oldest + offset as u32;
            bucket.slots.sort_unstable();
            bucket.slots.dedup();
            bucket.slots.retain(|position| {
                let slot = &slots[*position as usize];
                !folded[*position as usize]
                    || slot.samples.binary_search_by_key(&number, |sample| sample.bucket).is_ok()
            });
            bucket.version += 1;
            self.bucket_keys += bucket.slots.len();
        }
        self.folded_keys += count as u64;
        count
    }

    /// Adds the samples of a key to the folding key of its verdict and removes it.
    fn fold_slot(&mut self, position: u32) {
        let slot = &mut self.slots[position as usize];
        let samples = std::mem::take(&mut slot.samples);
        self.sample_bytes -= estimate_samples(samples.capacity());
        let folded_key = slot.key.folded();
        self.bucket_keys = self.bucket_keys.saturating_sub(samples.len());
        self.remove_slot(position);
        let mut scratch = std::mem::take(&mut self.scratch);
        let target = self.find_or_insert(&folded_key, &mut scratch);
        self.scratch = scratch;
        for sample in samples {
            self.labels.release(sample.source_labels);
            self.labels.release(sample.dest_labels);
            let labels = InternId::EMPTY;
            self.add_sample(target, FlowSample { source_labels: labels, dest_labels: labels, ..sample });
        }
    }

    /// Returns the flows that a bucket has now. Streams that ask at the same time share one snapshot.
    pub fn snapshot_bucket(&mut self, bucket: BucketNumber) -> Option<Arc<BucketSnapshot>> {
        let place = bucket.checked_sub(self.oldest())?;
        let slots = &self.slots;
        let found = self.buckets.get_mut(place as usize)?;
        if let Some(snapshot) = found.snapshot.upgrade()
            && snapshot.version == found.version
        {
            return Some(snapshot);
        }
        let flows = found
            .slots
            .iter()
            .map(|position| FlowRef { slot: *position, id: slots[*position as usize].id })
            .collect();
        let snapshot = Arc::new(BucketSnapshot { bucket, flows, version: found.version });
        found.snapshot = Arc::downgrade(&snapshot);
        Some(snapshot)
    }

    fn samples_in(&self, slot: &FlowSlot, buckets: &Range<BucketNumber>) -> Range<usize> {
        let begin = if slot.first >= buckets.start {
            0
        } else {
            slot.samples.partition_point(|sample| sample.bucket < buckets.start)
        };
        let end = if slot.last < buckets.end {
            slot.samples.len()
        } else {
            slot.samples.partition_point(|sample| sample.bucket < buckets.end)
        };
        begin..end.max(begin)
    }
}

fn estimate_samples(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { capacity * size_of::<FlowSample>() + ALLOCATION_BYTES }
}

/// Replaces `known` by the labels that both sets have, and releases `other`.
fn intersect(labels: &mut InternTable, known: &mut InternId, other: InternId) {
    if *known != other {
        let common = common_labels(labels, *known, other);
        let old = std::mem::replace(known, labels.acquire(common.as_bytes()));
        labels.release(old);
    }
    labels.release(other);
}

fn common_labels(labels: &InternTable, one: InternId, two: InternId) -> String {
    let two: Vec<&str> = split_labels(labels.text(two)).collect();
    let common: Vec<&str> =
        split_labels(labels.text(one)).filter(|label| two.binary_search(label).is_ok()).collect();
    common.join("\n")
}
