//! Finds versions in the history, starting from the newest version of a key.

use super::history_record::{CommitRevision, HistoryEntry, KeyVersion, decode_history};
use super::index::LatestVersion;
use super::limits::WorkBudget;
use super::revision_view::HistoryTable;
use super::storage_fault::StorageFault;
use std::ops::ControlFlow;

/// Keys that were written in sequence are usually also listed in sequence: within this many revisions and rows,
/// continuing the scan is cheaper than a lookup.
const MAX_SCAN_REVISIONS: i64 = 8;
const MAX_SCAN_ROWS: usize = 64;

pub struct HistoryReader<'t, H> {
    history: &'t H,
    work: &'t WorkBudget,
    /// The position after the last lookup, kept once a second nearby lookup has shown that it is useful.
    walk: Option<redb::Range<'t, (u64, u32), &'static [u8]>>,
    last: CommitRevision,
}

impl<'t, H: HistoryTable> HistoryReader<'t, H> {
    pub fn new(history: &'t H, work: &'t WorkBudget) -> HistoryReader<'t, H> {
        HistoryReader { history, work, walk: None, last: CommitRevision::default() }
    }

    /// Calls `visitor` with the version of a key as of `revision`, unless it was deleted then.
    pub fn visit<F>(
        &mut self,
        key: &[u8],
        newest: LatestVersion,
        revision: i64,
        visitor: &mut F,
    ) -> Result<ControlFlow<()>, StorageFault>
    where
        F: FnMut(&[u8], &KeyVersion) -> ControlFlow<()>,
    {
        let mut at = newest.at;
        if self.spend().is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if at.main <= revision && newest.deleted {
            return Ok(ControlFlow::Continue(()));
        }
        // The chain of versions leads backwards and ends at the first version, or where compaction has cut it.
        while at != CommitRevision::default() {
            let looked_up = self.read(at, |entry| {
                if at.main > revision {
                    return ChainStep::Back(entry.previous);
                }
                if entry.version.deleted {
                    return ChainStep::Done(ControlFlow::Continue(()));
                }
                ChainStep::Done(visitor(key, &entry.version))
            })?;
            match looked_up {
                Some(ChainStep::Done(flow)) => return Ok(flow),
                // A link that does not lead backwards is corruption and must not cause an endless loop.
                Some(ChainStep::Back(previous)) if previous >= at => return Err(StorageFault::Record),
                Some(ChainStep::Back(_)) if self.spend().is_break() => return Ok(ControlFlow::Break(())),
                Some(ChainStep::Back(previous)) => at = previous,
                None if at == newest.at => return Err(StorageFault::Record),
                None => break,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Counts one examined version and returns whether more may follow. The last unit is never usable, so zero means
    /// that versions were skipped.
    pub fn spend(&self) -> ControlFlow<()> {
        let left = self.work.get().saturating_sub(1);
        self.work.set(left);
        if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn read<T>(
        &mut self,
        at: CommitRevision,
        mut with: impl FnMut(&HistoryEntry) -> T,
    ) -> Result<Option<T>, StorageFault> {
        let near = at > self.last
            && at.main - self.last.main <= MAX_SCAN_REVISIONS
            && self.last != CommitRevision::default();
        self.last = at;
        if !near {
            return self.look_up(at, with);
        }
        let walk = match &mut self.walk {
            Some(walk) => walk,
            walk => walk.insert(self.history.range(at.key()..)?),
        };
        for row in walk.take(MAX_SCAN_ROWS) {
            let (key, bytes) = row?;
            match CommitRevision::from_key(key.value()).cmp(&at) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(with(&decode_history(at, bytes.value())?))),
                std::cmp::Ordering::Greater => break,
            }
        }
        self.look_up(at, with)
    }

    fn look_up<T>(
        &mut self,
        at: CommitRevision,
        mut with: impl FnMut(&HistoryEntry) -> T,
    ) -> Result<Option<T>, StorageFault> {
        self.walk = None;
        match self.history.get(at.key())? {
            Some(guard) => Ok(Some(with(&decode_history(at, guard.value())?))),
            None => Ok(None),
        }
    }
}

enum ChainStep {
    Done(ControlFlow<()>),
    Back(CommitRevision),
}
