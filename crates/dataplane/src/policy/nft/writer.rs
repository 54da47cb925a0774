//! Brings one table of the kernel to what its diff says, in transactions, and finds out what the kernel refuses.

use super::blame::{self, Culprit};
use super::diff::TableDiff;
use super::kernel::Kernel;
use super::message::Operation;
use super::table::TableFamily;
use crate::error::Result;
use crate::failure::{Concerns, Failure};
use crate::netns::Netns;
use crate::policy::{EngineStats, PolicyStats};
use std::time::Duration;

/// How often a transaction is changed and tried again before it has to wait.
const ATTEMPTS: usize = 20;
/// Before what was refused is tried again: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// At most, where the kernel refuses single objects: they are closed meanwhile, and each attempt reads the whole table.
const LONGEST_CLOSED: Duration = Duration::from_secs(60);

pub(super) struct Writer {
    kernel: Kernel,
    /// The kernel has to be read before the next transaction.
    unsure: bool,
    /// Why the kernel's table is not the diff's: it judges by what it had before, or by nothing.
    failure: Option<TableFailure>,
    /// The whole table is tried again then, or as soon as something changes.
    table_retry: BackOff,
    /// Single objects that were refused are tried again then.
    object_retry: BackOff,
    pub stats: PolicyStats,
}

impl Writer {
    pub fn open(netns: &Netns, family: TableFamily) -> Result<Writer> {
        Ok(Writer {
            kernel: Kernel::open(netns, family)?,
            unsure: true,
            failure: None,
            table_retry: BackOff::new(LONGEST_PAUSE),
            object_retry: BackOff::new(LONGEST_CLOSED),
            stats: PolicyStats::default(),
        })
    }

    pub fn port(&self) -> u32 {
        self.kernel.port()
    }

    /// Somebody else may have changed the table.
    pub fn invalidate(&mut self) {
        self.unsure = true;
        self.table_retry.reset();
    }

    /// The diff has changed: a refusal of the whole may be one of the past.
    pub fn diff_changed(&mut self) {
        self.table_retry.reset();
    }

    pub fn failure(&self) -> Option<&TableFailure> {
        self.failure.as_ref()
    }

    /// What is to change, where nothing is in the way of changing it together with another table.
    fn operations<'d>(&self, diff: &'d TableDiff) -> Option<Vec<Operation<'d>>> {
        let is_clear = !self.unsure
            && self.failure.is_none()
            && diff.refused_count() == 0
            && diff.preparations().is_empty();
        is_clear.then(|| diff.operations()).filter(|operations| !operations.is_empty())
    }

    /// Changes this table and another in one transaction if both have to be changed: the kernel takes as long for a small one as
    /// for two. Says whether it did.
    pub async fn converge_with(
        &mut self,
        diff: &mut TableDiff,
        other: &mut Writer,
        other_diff: &mut TableDiff,
    ) -> bool {
        let Some(theirs) = other.operations(other_diff) else { return false };
        let Some(ours) = self.operations(diff) else { return false };
        let tables = [(self.kernel.family, ours), (other.kernel.family, theirs)];
        if !self.kernel.commit_together(&tables).await {
            // Perhaps it was made and only its answer lost.
            (self.unsure, other.unsure) = (true, true);
            return false;
        }
        drop(tables);
        for (writer, diff) in [(self, diff), (other, other_diff)] {
            diff.done();
            writer.stats.writes += 1;
            writer.count(diff);
        }
        true
    }

    /// Makes the kernel's table what it shall be.
    pub async fn converge(&mut self, diff: &mut TableDiff, now: Duration) {
        if self.failure.is_some() && !self.table_retry.is_due(now) {
            return;
        }
        if diff.refused_count() > 0 && self.object_retry.is_due(now) {
            diff.retry_refused();
        }
        let refused = diff.refused_count();
        self.failure = self.settle(diff).await.err();
        match &self.failure {
            Some(_) => self.table_retry.wait(now),
            None => self.table_retry.reset(),
        }
        match diff.refused_count() {
            0 => self.object_retry.reset(),
            after if after > refused => self.object_retry.wait(now),
            _ => {}
        }
        self.count(diff);
    }

    fn count(&mut self, diff: &TableDiff) {
        let (chains, rules) = diff.chain_counts();
        let (sets, maps) = diff.set_counts();
        (self.stats.rules, self.stats.sets) = (rules, sets);
        self.stats.engine = EngineStats::Nftables { chains, maps };
    }

    async fn settle(&mut self, diff: &mut TableDiff) -> std::result::Result<(), TableFailure> {
        let family = self.kernel.family;
        let give_up = |reason, culprits| TableFailure { family, reason, culprits };
        let mut fresh = false;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            if self.unsure {
                self.stats.reads += 1;
                let read = self.kernel.read().await;
                self.stats.failed_reads += u64::from(read.is_err());
                let (seen, elements) = read.map_err(|error| give_up(error.to_string(), Vec::new()))?;
                diff.observe(seen, elements);
                self.unsure = false;
                fresh = true;
            }
            let preparations = diff.preparations();
            let preparing = !preparations.is_empty();
            let operations = if preparing { preparations } else { diff.operations() };
            if operations.is_empty() {
                return Ok(());
            }
            self.stats.writes += 1;
            let committed = self.kernel.commit(&operations).await;
            let culprits = committed.as_ref().err().map(|refusal| blame::culprits(&operations, refusal));
            let refusal = match committed {
                Ok(()) if preparing => {
                    diff.prepared();
                    continue;
                }
                Ok(()) => {
                    diff.done();
                    return Ok(());
                }
                Err(refusal) => refusal,
            };
            self.stats.refused_writes += 1;
            let table = family.object();
            tracing::warn!(%table, reason = refusal.reason, "the kernel refused a change of policy");
            self.unsure = true;
            // Neither permission nor memory is the fault of what it was met at.
            if refusal.is_of_the_whole() {
                return Err(give_up(refusal.reason, Vec::new()));
            }
            // The kernel may only be different from what we believed: read before blaming anything.
            if fresh {
                let culprits = culprits.unwrap_or_default();
                let mut helped = false;
                for culprit in &culprits {
                    helped |= diff.refuse(culprit);
                }
                if !helped {
                    return Err(give_up(refusal.reason, culprits));
                }
            }
            last = refusal.reason;
        }
        Err(give_up(last, Vec::new()))
    }
}

/// Why a transaction was given up.
#[derive(Clone, Debug)]
pub(super) struct TableFailure {
    family: TableFamily,
    reason: String,
    /// What the kernel named, if it named anything.
    pub culprits: Vec<Culprit>,
}

impl TableFailure {
    pub fn failure(&self) -> Failure {
        let object = self.family.object();
        Failure { object, concerns: Concerns::Everything, reason: self.reason.clone() }
    }
}

/// Pauses between attempts that double as long as they fail.
#[derive(Debug)]
struct BackOff {
    pause: Duration,
    longest: Duration,
    not_before: Duration,
}

impl BackOff {
    fn new(longest: Duration) -> BackOff {
        BackOff { pause: FIRST_PAUSE, longest, not_before: Duration::ZERO }
    }

    fn is_due(&self, now: Duration) -> bool {
        now >= self.not_before
    }

    fn wait(&mut self, now: Duration) {
        self.not_before = now + self.pause;
        self.pause = (self.pause * 2).min(self.longest);
    }

    fn reset(&mut self) {
        *self = BackOff::new(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over() {
        let mut back_off = BackOff::new(Duration::from_secs(4));
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..4 {
            assert!(back_off.is_due(now));
            back_off.wait(now);
            assert!(!back_off.is_due(now));
            pauses.push((back_off.not_before - now).as_secs());
            now = back_off.not_before;
        }
        assert_eq!(pauses, [1, 2, 4, 4]);
        back_off.wait(now);
        back_off.reset();
        assert!(back_off.is_due(now));
    }
}
