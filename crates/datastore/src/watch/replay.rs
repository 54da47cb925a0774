//! Reads past changes from the history on disk, for watches that start in the past and for watches that fell behind.

use super::filter::WatchFilter;
use crate::change::KeyChange;
use crate::history_record::{CommitRevision, HistoryEntry, decode_history};
use crate::snapshot::StoreSnapshot;
use crate::storage_fault::StorageFault;
use bytes::Bytes;
use std::sync::Arc;
use tortie_etcd_proto::mvccpb::KeyValue;

/// A part of the history that fits into one response.
pub struct ReplayPart {
    pub events: Vec<Arc<KeyChange>>,
    /// All revisions up to and including this one have been examined.
    pub through: i64,
    /// Whether the next revision cannot be sent because its changes need too much memory.
    pub too_large: bool,
}

/// Revisions are never split, so a part can exceed these limits.
const MAX_REPLAY_EVENTS: usize = 1000;
const MAX_REPLAY_BYTES: usize = 128 << 10;
/// Maximum memory for the changes of one revision.
const MAX_REVISION_BYTES: usize = 32 << 20;
/// Limits the time that one watch with few events in a long history occupies a thread.
const MAX_SCANNED_ENTRIES: usize = 20_000;

/// Returns the events that the watch would have received from revision `from` on.
pub fn replay(
    snapshot: &StoreSnapshot,
    interest: &WatchFilter,
    from: i64,
) -> Result<ReplayPart, StorageFault> {
    let mut events = Vec::new();
    let mut bytes = 0;
    let mut last = from - 1;
    // Memory of the changes of revision `last`.
    let mut last_bytes = 0;
    let rows = snapshot.history.range(CommitRevision { main: from, sub: 0 }.key()..)?;
    for (scanned, row) in rows.enumerate() {
        let (key, value) = row?;
        let at = CommitRevision::from_key(key.value());
        let full =
            events.len() >= MAX_REPLAY_EVENTS || bytes >= MAX_REPLAY_BYTES || scanned >= MAX_SCANNED_ENTRIES;
        if full && at.main != last {
            return Ok(ReplayPart { events, through: last, too_large: false });
        }
        if at.main != last {
            last_bytes = 0;
        }
        last = at.main;
        let entry = decode_history(at, value.value())?;
        if !interest.span.contains(entry.key) {
            continue;
        }
        let change = read_change(snapshot, interest, &entry)?;
        if interest.wants(&change) {
            bytes += change.size();
            last_bytes += change.size();
            events.push(Arc::new(change));
        }
        if last_bytes > MAX_REVISION_BYTES {
            // The revisions before it can be sent.
            events.retain(|change: &Arc<KeyChange>| change.kv.mod_revision < last);
            return Ok(ReplayPart { too_large: events.is_empty(), events, through: last - 1 });
        }
    }
    Ok(ReplayPart { events, through: snapshot.state.revision.max(last), too_large: false })
}

fn read_change(
    snapshot: &StoreSnapshot,
    interest: &WatchFilter,
    entry: &HistoryEntry,
) -> Result<KeyChange, StorageFault> {
    let at = entry.version.at;
    let key = Bytes::copy_from_slice(entry.key);
    // The value before the oldest readable revision is not sent even if it is still on disk.
    let wanted = interest.with_previous && at.main > snapshot.state.compacted;
    let previous = if wanted { read_previous(snapshot, entry, &key)? } else { None };
    if entry.version.deleted {
        return Ok(KeyChange::delete(key, at.main, previous));
    }
    Ok(KeyChange::put(entry.version.key_value(key), previous))
}

/// Returns the value before the whole transaction, not before this change of it.
fn read_previous(
    snapshot: &StoreSnapshot,
    entry: &HistoryEntry,
    key: &Bytes,
) -> Result<Option<KeyValue>, StorageFault> {
    let transaction = entry.version.at.main;
    let mut at = entry.previous;
    while let Some(guard) = snapshot.history.get(at.key())? {
        let before = decode_history(at, guard.value())?;
        if at.main < transaction {
            return Ok((!before.version.deleted).then(|| before.version.key_value(key.clone())));
        }
        if before.previous >= at {
            return Err(StorageFault::Record);
        }
        at = before.previous;
    }
    Ok(None)
}
