//! Requests that would wait for each other go to the store in one batch.
//!
//! While one transaction is on its way, requests gather; whoever is next in line carries all of them out in one.
//! So a burst of containers costs a few transactions, not one after the other for each.

use super::batch::{Batch, BatchedRequest, QueuedRequest};
use super::cache::BlockCache;
use super::{Allocator, stands_at};
use crate::Result;
use crate::handle::HandleRecord;
use crate::records::{block_key, handle_key};
use jiff::Timestamp;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot::{Receiver, error::TryRecvError};
use tortie_model::Key;
use tortie_store::Outcome;
use tortie_store::operation::Written;

/// A store takes 128 steps in one transaction; each request brings one, each block two.
const BATCH: usize = 48;
/// How often a refused plan is made anew before everyone has to see to themselves.
const ATTEMPTS: usize = 4;

#[derive(Default)]
pub(super) struct Queue(Mutex<VecDeque<QueuedRequest>>);

impl Queue {
    fn push(&self, request: QueuedRequest) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(request);
    }

    fn next(&self) -> Vec<QueuedRequest> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queue.len().min(BATCH);
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
    pub(super) async fn in_batch<T>(
        &self,
        request: QueuedRequest,
        mut answer: Receiver<T>,
    ) -> Result<Option<T>> {
        self.queue.push(request);
        let mut cache = tokio::select! {
            biased;
            done = &mut answer => return Ok(done.ok()),
            cache = self.cache.lock() => cache,
        };
        loop {
            match answer.try_recv() {
                Ok(done) => return Ok(Some(done)),
                Err(TryRecvError::Closed) => return Ok(None),
                Err(TryRecvError::Empty) => {
                    let queued = self.queue.next();
                    if queued.is_empty() {
                        return Ok(None);
                    }
                    self.carry_out_batch(queued, &mut cache).await?;
                }
            }
        }
    }

    async fn carry_out_batch(&self, mut queued: Vec<QueuedRequest>, cache: &mut BlockCache) -> Result<()> {
        let facts = self.facts().await?;
        for _ in 0..ATTEMPTS {
            let batch = Batch::make(&self.owner, &facts, cache, queued, Timestamp::now());
            if batch.requests.is_empty() {
                return Ok(());
            }
            let refused = match self.records.carry_out(batch.operation).await? {
                Outcome::Refused(refusal) => refusal,
                Outcome::Done(written) => {
                    for block in batch.blocks {
                        let cidr = block.cidr;
                        let revision = stands_at(&written, &block_key(cidr))?;
                        self.written(cidr, Some(block), revision, &facts, cache).await;
                    }
                    for request in batch.requests {
                        self.answer(request, &written, cache).await;
                    }
                    return Ok(());
                }
            };
            let unaffected = |request: &BatchedRequest| match &refused.key {
                Key::Handle { id } => request.handle() != Some(id),
                _ => true,
            };
            let requests = batch.requests.into_iter().filter(unaffected);
            queued = requests.map(BatchedRequest::into_queued).collect();
            match refused.key {
                Key::Block { cidr } => {
                    let found = self.records.block_now(cidr, refused.current).await?;
                    cache.remember(cidr, found);
                }
                // Not ours any more, or not for certain: for someone to look at who has the time.
                Key::BlockAffinity { cidr, .. } => cache.doubt(cidr),
                _ => {}
            }
        }
        Ok(())
    }

    async fn answer(&self, request: BatchedRequest, written: &Written, cache: &mut BlockCache) {
        match request {
            BatchedRequest::Release { answer, released, .. } => {
                let _ = answer.send(released);
            }
            BatchedRequest::Assign { request, answer, assigned, handle } => {
                let Some(id) = request.holder.handle else { return };
                let mut record = HandleRecord::new(&id, None);
                record.written(handle, written.revision(&handle_key(&id)));
                cache.remember_handle(record);
                // Nobody waits any more: nobody would give it back either.
                if answer.send(assigned).is_err()
                    && let Err(error) = self.release_handle(&id, cache).await
                {
                    tracing::warn!(handle = id, %error, "could not release the addresses of a request that was given up");
                }
            }
        }
    }
}
