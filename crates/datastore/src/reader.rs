//! Finds versions in the history, starting from the newest version of a key.

use super::fault::Fault;
use super::index::LatestVersion;
use super::limits::Work;
use super::record::{Entry, Revision, Version, decode_history};
use super::view::HistoryTable;
use std::ops::ControlFlow;

/// Keys that were written in sequence are usually also listed in sequence: within this many revisions and rows,
/// continuing the scan is cheaper than a lookup.
const NEAR: i64 = 8;
const STEPS: usize = 64;

pub struct Reader<'t, H> {
    history: &'t H,
    work: &'t Work,
    /// The position after the last lookup, kept once a second nearby lookup has shown that it is useful.
    walk: Option<redb::Range<'t, (u64, u32), &'static [u8]>>,
    last: Revision,
}

impl<'t, H: HistoryTable> Reader<'t, H> {
    pub fn new(history: &'t H, work: &'t Work) -> Reader<'t, H> {
        Reader { history, work, walk: None, last: Revision::default() }
    }

    /// Calls `visitor` with the version of a key as of `revision`, unless it was deleted then.
    pub fn visit<F>(
        &mut self,
        key: &[u8],
        newest: LatestVersion,
        revision: i64,
        visitor: &mut F,
    ) -> Result<ControlFlow<()>, Fault>
    where
        F: FnMut(&[u8], &Version) -> ControlFlow<()>,
    {
        let mut at = newest.at;
        if self.spend().is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if at.main <= revision && newest.deleted {
            return Ok(ControlFlow::Continue(()));
        }
        // The chain of versions leads backwards and ends at the first version, or where compaction has cut it.
        while at != Revision::default() {
            let looked_up = self.read(at, |entry| {
                if at.main > revision {
                    return Step::Back(entry.previous);
                }
                match entry.version.deleted {
                    true => Step::Done(ControlFlow::Continue(())),
                    false => Step::Done(visitor(key, &entry.version)),
                }
            })?;
            match looked_up {
                Some(Step::Done(flow)) => return Ok(flow),
                // A link that does not lead backwards is corruption and must not cause an endless loop.
                Some(Step::Back(previous)) if previous >= at => return Err(Fault::Record),
                Some(Step::Back(_)) if self.spend().is_break() => return Ok(ControlFlow::Break(())),
                Some(Step::Back(previous)) => at = previous,
                None if at == newest.at => return Err(Fault::Record),
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

    fn read<T>(&mut self, at: Revision, mut with: impl FnMut(&Entry) -> T) -> Result<Option<T>, Fault> {
        let near = at > self.last && at.main - self.last.main <= NEAR && self.last != Revision::default();
        self.last = at;
        if !near {
            return self.look_up(at, with);
        }
        let walk = match &mut self.walk {
            Some(walk) => walk,
            walk => walk.insert(self.history.range(at.key()..)?),
        };
        for row in walk.take(STEPS) {
            let (key, bytes) = row?;
            match Revision::from_key(key.value()).cmp(&at) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(with(&decode_history(at, bytes.value())?))),
                std::cmp::Ordering::Greater => break,
            }
        }
        self.look_up(at, with)
    }

    fn look_up<T>(&mut self, at: Revision, mut with: impl FnMut(&Entry) -> T) -> Result<Option<T>, Fault> {
        self.walk = None;
        match self.history.get(at.key())? {
            Some(guard) => Ok(Some(with(&decode_history(at, guard.value())?))),
            None => Ok(None),
        }
    }
}

enum Step {
    Done(ControlFlow<()>),
    Back(Revision),
}
