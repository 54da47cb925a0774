//! The objects of a kind and their latest changes, without I/O. A watcher is a position in the changes, not a queue:
//! memory does not grow with the number or slowness of watchers.

use crate::stored::StoredObject;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

/// Limits of the retained changes: by number and by bytes.
const MAX_RETAINED_CHANGES: usize = 4_096;
const MAX_RETAINED_BYTES: usize = 8 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct CachedChange {
    pub before: Option<Arc<StoredObject>>,
    /// The current object, or the deleted one at the revision of the deletion.
    pub after: Arc<StoredObject>,
    pub is_deletion: bool,
    departed: Arc<OnceLock<Arc<StoredObject>>>,
}

impl CachedChange {
    /// Returns the object before the change, with the revision of the change. Watchers whose selection no longer
    /// contains the object receive it as a deletion. It is built once for all watchers.
    pub fn departed(&self) -> Option<Arc<StoredObject>> {
        let before = self.before.as_ref()?;
        let object = self.departed.get_or_init(|| Arc::new(before.deleted_at(self.after.revision)));
        Some(object.clone())
    }
}

/// A position between two changes: the number of changes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryPosition(u64);

/// Error: the changes after a position are no longer retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooOld;

type ObjectKey = (String, String);

#[derive(Debug, Default)]
pub struct ChangeHistory {
    objects: BTreeMap<ObjectKey, Arc<StoredObject>>,
    changes: VecDeque<CachedChange>,
    /// Number of changes that were dropped before the first retained one.
    dropped: u64,
    bytes: usize,
    /// All changes after this revision are retained.
    floor: u64,
    /// All changes up to this revision have been received.
    reached: u64,
    in_sync: bool,
}

impl ChangeHistory {
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    pub fn reached_revision(&self) -> u64 {
        self.reached
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    pub fn put(&mut self, key: ObjectKey, object: StoredObject) {
        let object = Arc::new(object);
        let before = self.objects.insert(key, object.clone());
        self.record_change(CachedChange {
            before,
            after: object,
            is_deletion: false,
            departed: Arc::default(),
        });
    }

    pub fn delete(&mut self, key: &ObjectKey, revision: u64) {
        if let Some(before) = self.objects.remove(key) {
            let after = Arc::new(before.deleted_at(revision));
            let departed = Arc::new(OnceLock::from(after.clone()));
            self.record_change(CachedChange { before: Some(before), after, is_deletion: true, departed });
        }
    }

    /// Records that all changes up to a revision have been received.
    pub fn advance_to(&mut self, revision: u64) {
        self.reached = self.reached.max(revision);
    }

    /// Records that the first snapshot is complete.
    pub fn complete_snapshot(&mut self, revision: u64) {
        self.in_sync = true;
        self.floor = revision;
        self.advance_to(revision);
    }

    fn record_change(&mut self, change: CachedChange) {
        if !self.in_sync {
            return;
        }
        self.advance_to(change.after.revision);
        self.bytes += change.after.json.len();
        self.changes.push_back(change);
        while self.changes.len() > MAX_RETAINED_CHANGES || self.bytes > MAX_RETAINED_BYTES {
            let Some(old) = self.changes.pop_front() else { break };
            self.bytes -= old.after.json.len();
            self.dropped += 1;
            self.floor = self.floor.max(old.after.revision);
        }
    }

    pub fn objects(&self) -> impl Iterator<Item = &Arc<StoredObject>> {
        self.objects.values()
    }

    /// Returns the position after all received changes.
    pub fn end(&self) -> HistoryPosition {
        HistoryPosition(self.dropped + self.changes.len() as u64)
    }

    /// Returns the position after all changes up to a revision, which a watcher has seen.
    pub fn position_after(&self, revision: u64) -> Result<HistoryPosition, TooOld> {
        if revision < self.floor {
            return Err(TooOld);
        }
        let seen = self.changes.iter().take_while(|change| change.after.revision <= revision).count();
        Ok(HistoryPosition(self.dropped + seen as u64))
    }

    /// Returns at most `limit` changes after a position, and the position after them.
    pub fn changes_from(
        &self,
        from: HistoryPosition,
        limit: usize,
    ) -> Result<(Vec<CachedChange>, HistoryPosition), TooOld> {
        let skipped = from.0.checked_sub(self.dropped).ok_or(TooOld)?;
        let skipped = usize::try_from(skipped).map_err(|_| TooOld)?;
        let changes: Vec<CachedChange> = self.changes.iter().skip(skipped).take(limit).cloned().collect();
        let position = HistoryPosition(from.0 + changes.len() as u64);
        Ok((changes, position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn object(name: &str, revision: u64, size: usize) -> StoredObject {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","resourceVersion":"{revision}"}},"x":"{}"}}"#,
            "x".repeat(size)
        );
        StoredObject {
            namespace: String::new(),
            name: name.to_owned(),
            tier: String::new(),
            labels: BTreeMap::new(),
            revision,
            json: Bytes::from(text),
        }
    }

    fn key(name: &str) -> ObjectKey {
        (String::new(), name.to_owned())
    }

    #[test]
    fn a_watcher_receives_every_later_change() {
        let mut history = ChangeHistory::default();
        history.put(key("a"), object("a", 3, 0));
        history.complete_snapshot(10);
        assert_eq!(history.position_after(9), Err(TooOld));
        let start = history.position_after(10).unwrap();
        assert_eq!(start, history.end());
        history.put(key("b"), object("b", 12, 0));
        history.delete(&key("a"), 13);
        history.delete(&key("missing"), 14);
        let (changes, end) = history.changes_from(start, 10).unwrap();
        assert_eq!(changes.len(), 2);
        assert_eq!((changes[1].is_deletion, changes[1].after.revision), (true, 13));
        assert_eq!(changes[1].after.value()["metadata"]["resourceVersion"], "13");
        assert_eq!(end, history.end());
        assert_eq!(history.changes_from(history.position_after(12).unwrap(), 10).unwrap().0.len(), 1);
        assert_eq!(history.reached_revision(), 13);
        // A watcher of a future revision waits for it.
        assert_eq!(history.position_after(99).unwrap(), history.end());
    }

    #[test]
    fn retained_changes_are_bounded() {
        let mut history = ChangeHistory::default();
        history.complete_snapshot(1);
        let start = history.end();
        for revision in 2..(MAX_RETAINED_CHANGES as u64 + 3) {
            history.put(key("a"), object("a", revision, 0));
        }
        assert_eq!(history.changes.len(), MAX_RETAINED_CHANGES);
        assert_eq!(history.changes_from(start, 1), Err(TooOld));
        assert_eq!(history.position_after(1), Err(TooOld));
        assert!(history.position_after(history.floor()).is_ok());
        // 100 MB of changes are trimmed to the limit.
        for revision in 10_000..10_100 {
            history.put(key("big"), object("big", revision, 1 << 20));
        }
        assert!(
            history.bytes <= MAX_RETAINED_BYTES && history.changes.len() < 9,
            "{}",
            history.changes.len()
        );
        let (changes, _) =
            history.changes_from(history.position_after(history.floor()).unwrap(), 100).unwrap();
        assert_eq!(changes.last().map(|change| change.after.revision), Some(10_099));
    }
}
