//! The buckets and redirections in the kernel.

use super::super::DataplaneCore;
use crate::kernel::{QdiscState, TokenBucket};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct ShapingState {
    pub there: QdiscState,
    /// The buckets as they were written, because the kernel does not report all their parameters.
    pub written: BTreeMap<u32, TokenBucket>,
    /// Whether the kernel may differ from the desired state.
    pub dirty: bool,
    /// Interfaces with failed operations, and the reasons.
    pub errors: BTreeMap<String, String>,
}

impl DataplaneCore {
    /// Whether an interface has this bucket.
    pub(in crate::reconcile) fn has_bucket(&self, device: u32, bucket: &TokenBucket) -> bool {
        let there = self.shaping.there.buckets.get(&device).is_some_and(|there| there.is_like(bucket));
        there && self.shaping.written.get(&device).is_none_or(|written| written == bucket)
    }

    pub fn bucket_written(&mut self, device: u32, bucket: TokenBucket) {
        self.shaping.written.insert(device, bucket);
    }

    pub fn is_shaping_due(&self) -> bool {
        self.shaping.dirty
    }

    /// Replaces the known traffic control state.
    pub fn qdiscs_are(&mut self, qdiscs: QdiscState) {
        self.shaping.written.retain(|device, _| qdiscs.buckets.contains_key(device));
        if self.shaping.there != qdiscs {
            self.shaping.there = qdiscs;
            self.shaping.dirty = true;
        }
    }
}
