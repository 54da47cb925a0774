//! Requests that would wait for each other go to the store together.
//!
//! While one transaction is on its way, requests gather; whoever is next in line carries all of them out in one.
//! So a burst of containers costs a few transactions, not one after the other for each.

use super::Allocator;
use super::owned::Owned;
use super::plan::{Plan, Planned, Work};
use crate::Result;
use crate::handle::HandleRecord;
use crate::ledger::Commit;
use jiff::Timestamp;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot::{Receiver, error::TryRecvError};
use tortie_model::Key;
use tortie_store::Revision;

/// A store takes 128 steps in one transaction; each request brings one, each block two.
const TOGETHER: usize = 48;
/// How often a refused plan is made anew before everyone has to see to themselves.
const ATTEMPTS: usize = 4;

#[derive(Default)]
pub(super) struct Queue(Mutex<VecDeque<Work>>);

impl Queue {
    fn push(&self, work: Work) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(work);
    }

    fn next(&self) -> Vec<Work> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queue.len().min(TOGETHER);
        queue.drain(..count).collect()
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

impl Allocator {
    /// The answer, or nothing if the request has to be done alone.
    pub(super) async fn together<T>(&self, work: Work, mut answer: Receiver<T>) -> Result<Option<T>> {
        self.queue.push(work);
        let mut owned = tokio::select! {
            biased;
            done = &mut answer => return Ok(done.ok()),
            owned = self.owned.lock() => owned,
        };
        loop {
            match answer.try_recv() {
                Ok(done) => return Ok(Some(done)),
                Err(TryRecvError::Closed) => return Ok(None),
                Err(TryRecvError::Empty) => {
                    let work = self.queue.next();
                    if work.is_empty() {
                        return Ok(None);
                    }
                    self.carry_out(work, &mut owned).await?;
                }
            }
        }
    }

    async fn carry_out(&self, mut work: Vec<Work>, owned: &mut Owned) -> Result<()> {
        let facts = self.facts().await?;
        for _ in 0..ATTEMPTS {
            let plan = Plan::make(&self.owner, &facts, owned, work, Timestamp::now());
            if plan.planned.is_empty() {
                return Ok(());
            }
            let refused = match self.ledger.commit(&plan.changes).await? {
                Commit::Refused(key) => key,
                Commit::Done(revision) => {
                    for block in plan.blocks {
                        self.written(block, revision.clone(), &[], &facts, owned).await;
                    }
                    for planned in plan.planned {
                        self.settle(planned, revision.clone(), owned).await;
                    }
                    return Ok(());
                }
            };
            let unaffected = |planned: &Planned| match &refused {
                Key::Handle { id } => planned.handle() != Some(id),
                _ => true,
            };
            work = plan.planned.into_iter().filter(unaffected).map(Planned::into_work).collect();
            match refused {
                Key::Block { cidr } => {
                    let standing = self.ledger.block(cidr).await?;
                    owned.remember(cidr, standing);
                }
                // Not ours any more, or not for certain: for someone to look at who has the time.
                Key::BlockAffinity { cidr, .. } => owned.doubt(cidr),
                _ => {}
            }
        }
        Ok(())
    }

    async fn settle(&self, planned: Planned, revision: Revision, owned: &mut Owned) {
        match planned {
            Planned::Release { answer, released, .. } => {
                let _ = answer.send(released);
            }
            Planned::Assign { work, answer, assigned, handle } => {
                let Some(id) = work.holder.handle else { return };
                let mut record = HandleRecord::new(&id, None);
                record.written(handle, revision.clone());
                owned.remember_handle(record);
                // Nobody waits any more: nobody would give it back either.
                if answer.send(assigned).is_err()
                    && let Err(error) = self.release_handle(&id, owned).await
                {
                    tracing::warn!(handle = id, %error, "an address nobody waited for could not be taken back");
                }
            }
        }
    }
}
