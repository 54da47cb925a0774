//! Applies the diff of one table to the kernel in transactions, and identifies the objects that the kernel rejects.

use super::blame::{self, RejectedObject};
use super::diff::TableDiff;
use super::kernel::{NftablesClient, RejectionReason};
use super::message::TableOperation;
use super::table::TableFamily;
use crate::error::DataplaneResult;
use crate::failure::{AffectedWorkloads, KernelFailure};
use crate::netns::Netns;
use crate::policy::{EngineStats, PolicyStats};
use std::time::Duration;

/// Maximum number of consecutive attempts with a reduced transaction before the writer waits.
const MAX_COMMIT_ATTEMPTS: usize = 20;
/// First and longest delay before a rejected transaction is retried.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_TABLE_RETRY_DELAY: Duration = Duration::from_secs(8);
/// Longest delay if the kernel rejects single objects: the chains concerned drop all packets until then, and each
/// attempt reads the whole table.
const MAX_OBJECT_RETRY_DELAY: Duration = Duration::from_secs(60);

pub(super) struct TableWriter {
    kernel: NftablesClient,
    /// Whether the kernel has to be read before the next transaction.
    unsure: bool,
    /// The reason why the kernel's table differs from the diff: the kernel enforces its previous state, or nothing.
    failure: Option<TableFailure>,
    /// Delay before the next attempt for the whole table; any change resets it.
    table_retry: BackOff,
    /// Delay before the next attempt for rejected single objects.
    object_retry: BackOff,
    pub stats: PolicyStats,
}

impl TableWriter {
    pub fn open(netns: &Netns, family: TableFamily) -> DataplaneResult<TableWriter> {
        Ok(TableWriter {
            kernel: NftablesClient::open(netns, family)?,
            unsure: true,
            failure: None,
            table_retry: BackOff::new(MAX_TABLE_RETRY_DELAY),
            object_retry: BackOff::new(MAX_OBJECT_RETRY_DELAY),
            stats: PolicyStats::default(),
        })
    }

    pub fn port(&self) -> u32 {
        self.kernel.port()
    }

    /// Requests a read of the table, as another program may have changed it.
    pub fn invalidate(&mut self) {
        self.unsure = true;
        self.table_retry.reset();
    }

    /// Allows an immediate attempt after a change of the diff, which may resolve a rejection of the whole table.
    pub fn diff_changed(&mut self) {
        self.table_retry.reset();
    }

    pub fn failure(&self) -> Option<&TableFailure> {
        self.failure.as_ref()
    }

    /// Returns the pending operations if they can be combined with those of another table.
    fn operations<'d>(&self, diff: &'d TableDiff) -> Option<Vec<TableOperation<'d>>> {
        let is_clear = !self.unsure
            && self.failure.is_none()
            && diff.refused_count() == 0
            && !diff.retires_maps()
            && diff.preparations().is_empty();
        is_clear.then(|| diff.operations()).filter(|operations| !operations.is_empty())
    }

    /// Changes this table and another in one transaction if both have changes: the kernel needs as much time for one
    /// small transaction as for two tables. Returns whether it succeeded.
    pub async fn converge_with(
        &mut self,
        diff: &mut TableDiff,
        other: &mut TableWriter,
        other_diff: &mut TableDiff,
    ) -> bool {
        let Some(theirs) = other.operations(other_diff) else { return false };
        let Some(ours) = self.operations(diff) else { return false };
        let tables = [(self.kernel.family, ours), (other.kernel.family, theirs)];
        if !self.kernel.commit_together(&tables).await {
            // The transaction may have been committed and only its acknowledgement lost.
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

    /// Makes the kernel's table match the diff.
    pub async fn converge(&mut self, diff: &mut TableDiff, now: Duration) {
        if self.failure.is_some() && !self.table_retry.is_due(now) {
            return;
        }
        if diff.refused_count() > 0 && self.object_retry.is_due(now) {
            diff.retry_refused();
        }
        let refused = diff.refused_count();
        self.failure = self.write_changes(diff).await.err();
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

    async fn write_changes(&mut self, diff: &mut TableDiff) -> Result<(), TableFailure> {
        let family = self.kernel.family;
        let mut fresh = false;
        let mut last = RejectionReason::default();
        for _ in 0..MAX_COMMIT_ATTEMPTS {
            if self.unsure {
                self.stats.reads += 1;
                let read = self.kernel.read().await;
                self.stats.failed_reads += u64::from(read.is_err());
                let (seen, elements) = read.map_err(|error| TableFailure::new(family, error.into()))?;
                diff.observe(seen, elements);
                self.unsure = false;
                fresh = true;
            }
            let Some((stage, operations)) = next_transaction(diff) else { return Ok(()) };
            self.stats.writes += 1;
            let committed = self.kernel.commit(&operations).await;
            let culprits = committed.as_ref().err().map(|refusal| blame::find_rejected(&operations, refusal));
            let refusal = match committed {
                Ok(()) => {
                    match stage {
                        TransactionStage::Preparation => diff.prepared(),
                        TransactionStage::Change => diff.done(),
                        TransactionStage::Removal => diff.removed(),
                    }
                    continue;
                }
                Err(refusal) => refusal,
            };
            self.stats.refused_writes += 1;
            let table = family.object();
            tracing::warn!(%table, reason = refusal.reason.text, "the kernel rejected a change of policy");
            self.unsure = true;
            // Errors such as missing permission or memory are not caused by the object that they are reported for.
            if refusal.is_of_the_whole() {
                return Err(TableFailure::new(family, refusal.reason));
            }
            // The kernel's table may only differ from the assumed state: read it before rejecting any object.
            if fresh {
                let culprits = culprits.unwrap_or_default();
                let mut helped = false;
                for culprit in &culprits {
                    helped |= diff.refuse(culprit);
                }
                if !helped {
                    return Err(TableFailure { family, reason: refusal.reason, culprits });
                }
            }
            last = refusal.reason;
        }
        Err(TableFailure::new(family, last))
    }
}

/// The transactions of one change, in this order. Most changes consist of only one.
#[derive(Clone, Copy)]
enum TransactionStage {
    /// Adds sets that have to be filled before rules refer to them.
    Preparation,
    Change,
    /// Removes objects that packets may still use during the change.
    Removal,
}

/// Returns the operations of the next transaction; `None` if the kernel's table matches the diff.
fn next_transaction(diff: &TableDiff) -> Option<(TransactionStage, Vec<TableOperation<'_>>)> {
    let preparations = diff.preparations();
    if !preparations.is_empty() {
        return Some((TransactionStage::Preparation, preparations));
    }
    let changes = diff.operations();
    if !changes.is_empty() {
        return Some((TransactionStage::Change, changes));
    }
    let removals = diff.removals();
    (!removals.is_empty()).then_some((TransactionStage::Removal, removals))
}

/// The reason why a transaction was abandoned.
#[derive(Clone, Debug)]
pub(super) struct TableFailure {
    family: TableFamily,
    reason: RejectionReason,
    /// The objects that the kernel named, if any.
    pub culprits: Vec<RejectedObject>,
}

impl TableFailure {
    fn new(family: TableFamily, reason: RejectionReason) -> TableFailure {
        TableFailure { family, reason, culprits: Vec::new() }
    }

    pub fn failure(&self) -> KernelFailure {
        let object = self.family.object();
        KernelFailure { object, concerns: AffectedWorkloads::Everything, reason: self.reason.clone().into() }
    }
}

/// Delay between attempts that doubles with each failure.
#[derive(Debug)]
struct BackOff {
    pause: Duration,
    longest: Duration,
    not_before: Duration,
}

impl BackOff {
    fn new(longest: Duration) -> BackOff {
        BackOff { pause: FIRST_RETRY_DELAY, longest, not_before: Duration::ZERO }
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
    fn retry_delays_double_up_to_the_maximum() {
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
