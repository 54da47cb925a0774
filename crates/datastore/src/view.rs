//! Reads the store at a revision, in the same way within a write and from a snapshot.

use super::fault::Fault;
use super::index::Index;
use super::limits::Work;
use super::reader::Reader;
use super::record::Version;
use super::refusal::Refusal;
use super::span::{Bounds, Span};
use redb::{ReadableTable, TableDefinition};
use std::ops::ControlFlow;

pub const HISTORY: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("history");
/// The keys that are attached to each lease.
pub const LEASE_KEYS: TableDefinition<(i64, &[u8]), ()> = TableDefinition::new("lease_keys");

pub trait HistoryTable: ReadableTable<(u64, u32), &'static [u8]> {}
impl<T: ReadableTable<(u64, u32), &'static [u8]>> HistoryTable for T {}

/// The store as of `revision`, which is the newest that this view can see.
pub struct View<'t, H> {
    pub index: &'t Index,
    pub history: &'t H,
    pub revision: i64,
    pub compacted: i64,
    /// Remaining number of versions that may be examined; at zero every visit ends early.
    pub work: &'t Work,
}

impl<H: HistoryTable> View<'_, H> {
    /// Returns the revision at which a request for `wanted` is answered; zero and negative values mean the newest.
    pub fn resolve(&self, wanted: i64) -> Result<i64, Refusal> {
        match wanted {
            future if future > self.revision => Err(Refusal::FUTURE_REVISION),
            newest if newest <= 0 => Ok(self.revision),
            past if past < self.compacted => Err(Refusal::COMPACTED),
            revision => Ok(revision),
        }
    }

    /// Returns an error if visits ended early because the work limit was reached.
    pub fn check_work(&self) -> Result<(), Refusal> {
        if self.work.get() == 0 { Err(Refusal::TOO_MUCH_WORK) } else { Ok(()) }
    }

    /// Visits the live keys of `span` as of `revision`, in key order.
    pub fn visit<F>(&self, span: &Span, revision: i64, mut visitor: F) -> Result<(), Fault>
    where
        F: FnMut(&[u8], &Version) -> ControlFlow<()>,
    {
        let mut reader = Reader::new(self.history, self.work);
        if let Span::Key(key) = span {
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
    pub fn count(&self, bounds: Bounds, revision: i64) -> Result<usize, Fault> {
        let mut reader = Reader::new(self.history, self.work);
        let mut count = 0;
        for (key, newest) in self.index.range(bounds) {
            let flow = match newest.at.main <= revision {
                // The index alone suffices; no lookup in the history is needed.
                true => {
                    count += usize::from(!newest.deleted);
                    reader.spend()
                }
                false => reader.visit(key, newest, revision, &mut |_, _| {
                    count += 1;
                    ControlFlow::Continue(())
                })?,
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(count)
    }
}
