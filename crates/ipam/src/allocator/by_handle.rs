//! Releasing all addresses of a handle.
//!
//! The handle may reference blocks in which it has no address, because an assignment was interrupted or is in progress.
//! Therefore the block is written before the reference is removed from the handle, with or without a change: the write
//! of a concurrent assignment then fails and the assignment is retried.

use super::batch::QueuedRequest;
use super::cache::BlockCache;
use super::release::write_back;
use super::{Allocator, MAX_RACE_ATTEMPTS, stands_at};
use crate::block;
use crate::handle::HandleRecord;
use crate::operations::{self, touch_block};
use crate::records::{ExecutionMode, VersionedValue, block_key, handle_key};
use crate::{IpamError, IpamResult};
use ipnet::IpNet;
use jiff::Timestamp;
use std::net::IpAddr;
use tokio::sync::oneshot;
use tortie_model::StoreKey;
use tortie_model::ipam::AddressBlock;
use tortie_store::operation::OperationStep;
use tortie_store::{OperationOutcome, OperationRefusal};

/// Within the limit of 128 operations per etcd transaction.
const MAX_BLOCKS_PER_TRANSACTION: usize = 100;

impl Allocator {
    /// Releases all addresses of a handle and deletes the handle. Returns the released addresses.
    pub async fn release_by_handle(&self, id: &str) -> IpamResult<Vec<IpAddr>> {
        if self.batches() {
            let (sender, answer) = oneshot::channel();
            let request = QueuedRequest::Release { handle: id.to_owned(), record: None, answer: sender };
            if let Some(released) = self.in_batch(request, answer).await? {
                return Ok(released);
            }
        }
        let mut cache = self.cache.lock().await;
        self.release_handle(id, &mut cache).await
    }

    pub(super) async fn release_handle(&self, id: &str, cache: &mut BlockCache) -> IpamResult<Vec<IpAddr>> {
        let facts = self.facts().await?;
        // Without transactions, write one block at a time: a refused write would hide the releases by the steps before
        // it.
        let at_once = match self.records.mode() {
            ExecutionMode::Transaction => MAX_BLOCKS_PER_TRANSACTION,
            ExecutionMode::Steps => 1,
        };
        let mut released = Vec::new();
        let mut record = cache.take_handle(id);
        let mut existed = false;
        for _ in 0..MAX_RACE_ATTEMPTS {
            if record.is_none() {
                let found = self.records.handle(id).await?;
                record = found.is_some().then(|| HandleRecord::new(id, found));
                existed |= record.is_some();
            }
            let Some(handle) = &record else {
                if existed {
                    return Ok(released);
                }
                let id = handle_key(id).to_string();
                return Err(IpamError::DoesNotExist { id, reason: "the handle has no addresses".to_owned() });
            };
            let now = Timestamp::now();
            let blocks: Vec<String> = handle.blocks().take(at_once).map(str::to_owned).collect();
            let leave = handle.leave(&blocks);
            let is_last = matches!(leave, Some(OperationStep::Delete { .. }));
            let mut operation = operations::release(None, leave.into_iter().collect());
            let mut written = Vec::new();
            let mut addresses = Vec::new();
            for cidr in blocks.iter().filter_map(|cidr| cidr.parse::<IpNet>().ok()) {
                let Some(found) = self.block_with_handle(cidr, id, cache).await? else { continue };
                let mut next = found.value.clone();
                let given_back = block::release_handle(&mut next, id, now);
                if given_back.is_empty() {
                    operation.commit.push(touch_block(&found));
                    cache.remember(cidr, None);
                    continue;
                }
                let step = write_back(&mut next, &found.revision, &facts, now);
                let next = (!matches!(step, OperationStep::Delete { .. })).then_some(next);
                operation.commit.push(step);
                addresses.extend(given_back);
                written.push((cidr, next));
            }
            match self.records.carry_out(operation).await? {
                OperationOutcome::Done(done) => {
                    existed = true;
                    released.append(&mut addresses);
                    for (cidr, block) in written {
                        let revision = stands_at(&done, &block_key(cidr))?;
                        self.written(cidr, block, revision, &facts, cache).await;
                    }
                    if is_last && done.unfinished().is_empty() {
                        return Ok(released);
                    }
                    record = None;
                }
                OperationOutcome::Refused(OperationRefusal { key: StoreKey::Block { cidr }, .. }) => {
                    cache.remember(cidr, None)
                }
                OperationOutcome::Refused(_) => record = None,
            }
        }
        Err(IpamError::TooManyRetries)
    }

    /// Returns the block from the cache if the cached copy has addresses of the handle, else reads it.
    async fn block_with_handle(
        &self,
        cidr: IpNet,
        id: &str,
        cache: &mut BlockCache,
    ) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        let cached = cache.block(cidr);
        match cached.filter(|block| !block::addresses_of(&block.value, id).is_empty()) {
            Some(found) => Ok(Some(found)),
            None => {
                let found = self.records.block(cidr).await?;
                cache.remember(cidr, found.clone());
                Ok(found)
            }
        }
    }

    /// Removes a block from a handle that was changed concurrently with a release from that block, if the handle has no
    /// address left there. A count that is too high is harmless.
    pub(super) async fn correct_handle(
        &self,
        id: &str,
        cidr: IpNet,
        cache: &mut BlockCache,
    ) -> IpamResult<()> {
        for _ in 0..MAX_RACE_ATTEMPTS {
            let record = HandleRecord::new(id, self.records.handle(id).await?);
            let name = cidr.to_string();
            if !record.blocks().any(|block| block == name) {
                return Ok(());
            }
            let found = self.records.block(cidr).await?;
            if found.as_ref().is_some_and(|found| !block::addresses_of(&found.value, id).is_empty()) {
                return Ok(());
            }
            cache.remember(cidr, None);
            let leave = record.leave(&[name]).into_iter().collect();
            let operation = operations::release(found.as_ref().map(touch_block), leave);
            if let OperationOutcome::Done(done) = self.records.carry_out(operation).await?
                && done.unfinished().is_empty()
            {
                return Ok(());
            }
        }
        Err(IpamError::TooManyRetries)
    }
}
