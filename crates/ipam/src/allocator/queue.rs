//! Queue that combines concurrent requests into batches.
//!
//! While one transaction is in flight, requests gather; the next task that gets the lock executes all of them in one
//! transaction. A burst of containers thus costs a few transactions instead of one each.

use super::batch::{BatchedRequest, QueuedRequest, RequestBatch};
use super::cache::BlockCache;
use super::{Allocator, stands_at};
use crate::IpamResult;
use crate::handle::HandleRecord;
use crate::records::{block_key, handle_key};
use jiff::Timestamp;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot::{Receiver, error::TryRecvError};
use tortie_model::StoreKey;
use tortie_store::OperationOutcome;
use tortie_store::operation::WrittenRevisions;

/// Maximum requests per batch. An etcd transaction has at most 128 operations; each request needs one, each block two.
const MAX_BATCH_REQUESTS: usize = 48;
/// Attempts to execute a refused batch before its requests are processed individually.
const MAX_BATCH_ATTEMPTS: usize = 4;

#[derive(Default)]
pub(super) struct RequestQueue(Mutex<VecDeque<QueuedRequest>>);

impl RequestQueue {
    fn push(&self, request: QueuedRequest) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(request);
    }

    fn next(&self) -> Vec<QueuedRequest> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queue.len().min(MAX_BATCH_REQUESTS);
        queue.drain(..count).collect()
    }
}

impl std::fmt::Debug for RequestQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

impl Allocator {
    /// Returns the result of the request, or `None` if it has to be processed individually.
    pub(super) async fn in_batch<T>(
        &self,
        request: QueuedRequest,
        mut answer: Receiver<T>,
    ) -> IpamResult<Option<T>> {
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

    async fn carry_out_batch(
        &self,
        mut queued: Vec<QueuedRequest>,
        cache: &mut BlockCache,
    ) -> IpamResult<()> {
        let facts = self.facts().await?;
        for _ in 0..MAX_BATCH_ATTEMPTS {
            let batch = RequestBatch::make(&self.owner, &facts, cache, queued, Timestamp::now());
            if batch.requests.is_empty() {
                return Ok(());
            }
            let refused = match self.records.carry_out(batch.operation).await? {
                OperationOutcome::Refused(refusal) => refusal,
                OperationOutcome::Done(written) => {
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
            let unaffected = batch.requests.into_iter().filter(|request| match &refused.key {
                StoreKey::Handle { id } => request.handle() != Some(id),
                _ => true,
            });
            queued = unaffected.map(BatchedRequest::into_queued).collect();
            match refused.key {
                StoreKey::Block { cidr } => {
                    let found = self.records.block_now(cidr, refused.current).await?;
                    cache.remember(cidr, found);
                }
                // The affinity changed or is gone: reload the affinities outside of the batch.
                StoreKey::BlockAffinity { cidr, .. } => cache.doubt(cidr),
                _ => {}
            }
        }
        Ok(())
    }

    async fn answer(&self, request: BatchedRequest, written: &WrittenRevisions, cache: &mut BlockCache) {
        match request {
            BatchedRequest::Release { answer, released, .. } => {
                let _ = answer.send(released);
            }
            BatchedRequest::Assign { request, answer, assigned, handle } => {
                let Some(id) = request.holder.handle else { return };
                let mut record = HandleRecord::new(&id, None);
                record.written(handle, written.revision(&handle_key(&id)));
                cache.remember_handle(record);
                // The caller was cancelled and would never release the addresses.
                if answer.send(assigned).is_err()
                    && let Err(error) = self.release_handle(&id, cache).await
                {
                    tracing::warn!(handle = id, %error, "cannot release the addresses of a cancelled request");
                }
            }
        }
    }
}
