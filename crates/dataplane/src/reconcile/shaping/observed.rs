//! The buckets and redirections that the kernel has.

use super::super::Core;
use crate::kernel::{Qdiscs, TokenBucket};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Shaping {
    pub there: Qdiscs,
    /// The buckets as they were written, of which the kernel does not tell everything.
    pub written: BTreeMap<u32, TokenBucket>,
    /// Something may differ from what it should be.
    pub dirty: bool,
    /// Interfaces that are not as they should be, and why.
    pub errors: BTreeMap<String, String>,
}

impl Core {
    /// Whether an interface has a bucket.
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

    /// Takes a fresh look at traffic control in.
    pub fn qdiscs_are(&mut self, qdiscs: Qdiscs) {
        self.shaping.written.retain(|device, _| qdiscs.buckets.contains_key(device));
        if self.shaping.there != qdiscs {
            self.shaping.there = qdiscs;
            self.shaping.dirty = true;
        }
    }
}
