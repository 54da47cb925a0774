//! Reading the tables at a revision, the same way inside a write and from a snapshot.

use super::fault::Fault;
use super::record::{Moment, Version, decode_current, decode_history};
use super::refusal::Refusal;
use super::span::Span;
use redb::{ReadableTable, TableDefinition};
use std::ops::ControlFlow;

pub const CURRENT: TableDefinition<&[u8], &[u8]> = TableDefinition::new("current");
pub const HISTORY: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("history");
/// Which keys a lease holds.
pub const LEASE_KEYS: TableDefinition<(i64, &[u8]), ()> = TableDefinition::new("lease_keys");

pub trait CurrentTable: ReadableTable<&'static [u8], &'static [u8]> {}
impl<T: ReadableTable<&'static [u8], &'static [u8]>> CurrentTable for T {}

pub trait HistoryTable: ReadableTable<(u64, u32), &'static [u8]> {}
impl<T: ReadableTable<(u64, u32), &'static [u8]>> HistoryTable for T {}

/// The store as of `revision`, which is the newest this view can see.
pub struct View<'t, C, H> {
    pub current: &'t C,
    pub history: &'t H,
    pub revision: i64,
    pub compacted: i64,
}

impl<C: CurrentTable, H: HistoryTable> View<'_, C, H> {
    /// The revision a request that names `wanted` is answered at; zero and below mean the newest.
    pub fn resolve(&self, wanted: i64) -> Result<i64, Refusal> {
        match wanted {
            future if future > self.revision => Err(Refusal::FUTURE_REVISION),
            newest if newest <= 0 => Ok(self.revision),
            past if past < self.compacted => Err(Refusal::COMPACTED),
            revision => Ok(revision),
        }
    }

    /// Visits the live keys of `span` as they stood at `revision`, in order of key.
    pub fn visit<F>(&self, span: &Span, revision: i64, mut visitor: F) -> Result<(), Fault>
    where
        F: FnMut(&[u8], &Version) -> ControlFlow<()>,
    {
        if let Span::Key(key) = span {
            if let Some(guard) = self.current.get(key.as_ref())? {
                let _ = self.visit_one(key, guard.value(), revision, &mut visitor)?;
            }
            return Ok(());
        }
        let Some(bounds) = span.bounds() else { return Ok(()) };
        for row in self.current.range::<&[u8]>(bounds)? {
            let (key, bytes) = row?;
            if self.visit_one(key.value(), bytes.value(), revision, &mut visitor)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn visit_one<F>(
        &self,
        key: &[u8],
        newest: &[u8],
        revision: i64,
        visitor: &mut F,
    ) -> Result<ControlFlow<()>, Fault>
    where
        F: FnMut(&[u8], &Version) -> ControlFlow<()>,
    {
        let newest = decode_current(newest)?;
        if newest.at.main <= revision {
            return Ok(if newest.deleted { ControlFlow::Continue(()) } else { visitor(key, &newest) });
        }
        self.visit_past(key, newest.at, revision, visitor)
    }

    /// Follows the chain of versions backwards to the one that stood at `revision`.
    fn visit_past<F>(
        &self,
        key: &[u8],
        mut at: Moment,
        revision: i64,
        visitor: &mut F,
    ) -> Result<ControlFlow<()>, Fault>
    where
        F: FnMut(&[u8], &Version) -> ControlFlow<()>,
    {
        while at != Moment::default() {
            let Some(guard) = self.history.get(at.key())? else { break };
            let entry = decode_history(at, guard.value())?;
            if at.main <= revision {
                let gone = entry.version.deleted;
                return Ok(if gone { ControlFlow::Continue(()) } else { visitor(key, &entry.version) });
            }
            // A chain leads strictly backwards; anything else is damage that must not loop.
            if entry.previous >= at {
                return Err(Fault::Record);
            }
            at = entry.previous;
        }
        Ok(ControlFlow::Continue(()))
    }
}
