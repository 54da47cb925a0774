//! The entries that a client has in one bucket: keys and the digest of each version.

use crate::protocol::{DigestSum, FeedRecord, RecordAction};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct ReplicaBucket {
    digests: BTreeMap<Box<str>, u64>,
    sum: DigestSum,
    /// Sequence number up to which the bucket already includes the changes of the hub.
    pub as_of: u64,
}

impl ReplicaBucket {
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.digests.keys().map(AsRef::as_ref)
    }

    pub fn sum(&self) -> DigestSum {
        self.sum
    }

    /// Returns whether the bucket holds this version of the entry.
    pub fn has(&self, record: &FeedRecord) -> bool {
        self.digests.get(record.key.as_str()) == Some(&record.digest())
    }

    /// Returns the keys that are missing from `content`.
    pub fn keys_missing_from(&self, content: &[FeedRecord]) -> Vec<String> {
        let present: BTreeSet<&str> = content.iter().map(|record| record.key.as_str()).collect();
        self.digests.keys().filter(|key| !present.contains(&***key)).map(|key| key.to_string()).collect()
    }

    /// Applies a record and returns whether it changed the bucket.
    pub fn apply(&mut self, record: &FeedRecord) -> bool {
        let digest = (record.action() != RecordAction::Delete).then(|| record.digest());
        let before = match digest {
            Some(digest) => self.digests.insert(record.key.as_str().into(), digest),
            None => self.digests.remove(record.key.as_str()),
        };
        digest.into_iter().for_each(|digest| self.sum.add(digest));
        before.into_iter().for_each(|digest| self.sum.remove(digest));
        before != digest
    }
}
