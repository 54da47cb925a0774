//! Reads the store at a revision, in the same way within a write and from a snapshot.

use super::history_reader::HistoryReader;
use super::history_record::KeyVersion;
use super::index::VersionIndex;
use super::key_span::{KeyBounds, KeySpan};
use super::limits::WorkBudget;
use super::rejection::RequestRejection;
use super::storage_fault::StorageFault;
use redb::{ReadableTable, TableDefinition};
use std::ops::ControlFlow;

pub const HISTORY_TABLE: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("history");
/// The keys that are attached to each lease.
pub const LEASE_KEYS_TABLE: TableDefinition<(i64, &[u8]), ()> = TableDefinition::new("lease_keys");

pub trait HistoryTable: ReadableTable<(u64, u32), &'static [u8]> {}
impl<T: ReadableTable<(u64, u32), &'static [u8]>> HistoryTable for T {}

/// The store as of `revision`, which is the newest that this view can see.
pub struct RevisionView<'t, H> {
    pub index: &'t VersionIndex,
    pub history: &'t H,
    pub revision: i64,
    pub compacted: i64,
    /// Remaining number of versions that may be examined; at zero every visit ends early.
    pub work: &'t WorkBudget,
}

impl<H: HistoryTable> RevisionView<'_, H> {
    /// Returns the revision at which a request for `wanted` is answered; zero and negative values mean the newest.
    pub fn resolve(&self, wanted: i64) -> Result<i64, RequestRejection> {
        match wanted {
            future if future > self.revision => Err(RequestRejection::FUTURE_REVISION),
            newest if newest <= 0 => Ok(self.revision),
            past if past < self.compacted => Err(RequestRejection::COMPACTED),
            revision => Ok(revision),
        }
    }

    /// Returns an error if visits ended early because the work limit was reached.
    pub fn check_work(&self) -> Result<(), RequestRejection> {
        if self.work.get() == 0 { Err(RequestRejection::TOO_MUCH_WORK) } else { Ok(()) }
    }

    /// Visits the live keys of `span` as of `revision`, in key order.
    pub fn visit<F>(&self, span: &KeySpan, revision: i64, mut visitor: F) -> Result<(), StorageFault>
    where
        F: FnMut(&[u8], &KeyVersion) -> ControlFlow<()>,
    {
        let mut reader = HistoryReader::new(self.history, self.work);
        if let KeySpan::Key(key) = span {
            if let Some(newest) = self.index.get(key) {
                let _ = reader.visit(key, newest, revision, &mut visitor)?;
            }
            return Ok(());
        }
        let Some(bounds) = span.bounds() else { return Ok(()) };
        for (key, newest) in self.index.range(bounds) {
            if reader.visit(key, newest, revision, &mut visitor)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the number of keys that were live at `revision`.
    pub fn count(&self, bounds: KeyBounds, revision: i64) -> Result<usize, StorageFault> {
        let mut reader = HistoryReader::new(self.history, self.work);
        let mut count = 0;
        for (key, newest) in self.index.range(bounds) {
            let flow = if newest.at.main <= revision {
                // The index alone suffices; no lookup in the history is needed.
                count += usize::from(!newest.deleted);
                reader.spend()
            } else {
                reader.visit(key, newest, revision, &mut |_, _| {
                    count += 1;
                    ControlFlow::Continue(())
                })?
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(count)
    }
}
