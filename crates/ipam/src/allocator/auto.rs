//! Automatic assignment of addresses: from the affine blocks of this host, then from a newly claimed block, then
//! borrowed from blocks of other hosts.

use super::batch::QueuedRequest;
use super::cache::{BlockCache, CachedBlock};
use super::claim::BlockClaimResult;
use super::request::{AssignError, AssignRequest, AssignedAddresses, DualStackAssignment};
use super::{Allocator, MAX_RACE_ATTEMPTS, stands_at};
use crate::facts::AllocatorInputs;
use crate::handle::HandleRecord;
use crate::operations::{self, update_block};
use crate::pool::{self, AllocationPool, PoolCriteria};
use crate::records::{VersionedValue, block_key, handle_key};
use crate::{IpamError, IpamResult, block};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::BTreeMap;
use tokio::sync::oneshot;
use tortie_model::StoreKey;
use tortie_model::ipam::AddressBlock;
use tortie_store::{OperationOutcome, OperationRefusal, Revision};

/// Maximum number of blocks per host if neither the request nor the configuration sets one.
const DEFAULT_MAX_BLOCKS_PER_HOST: u32 = 20;

/// State of assigning the addresses of one family for a request.
pub(super) struct FamilyAssignmentJob<'a> {
    pub request: &'a AssignRequest,
    pub facts: &'a AllocatorInputs,
    pub pools: Vec<&'a AllocationPool>,
    pub version: u8,
    pub assigned: AssignedAddresses,
    /// Shared by both families; `None` for a request without a handle.
    pub handle: &'a mut Option<HandleRecord>,
    pub now: Timestamp,
}

/// Result of trying to assign addresses from one block.
// Created once per allocation and matched immediately, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub(super) enum BlockAssignResult {
    Some(VersionedValue<AddressBlock>),
    Nothing,
    Refused(OperationRefusal),
}

impl Allocator {
    /// Assigns addresses of both families, IPv4 first.
    pub async fn auto_assign(
        &self,
        request: &AssignRequest,
    ) -> std::result::Result<DualStackAssignment, AssignError> {
        let mut assigned = DualStackAssignment {
            v4: AssignedAddresses::new(4, request.v4),
            v6: AssignedAddresses::new(6, request.v6),
        };
        match self.assign_in_batch(request).await {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => {}
            Err(error) => return Err(AssignError { error, assigned }),
        }
        let mut handle = request.holder.handle.as_deref().map(|id| HandleRecord::new(id, None));
        for version in [4, 6] {
            let family = if version == 4 { &mut assigned.v4 } else { &mut assigned.v6 };
            if let Err(error) = self.assign_family(request, family, &mut handle).await {
                return Err(AssignError { error, assigned });
            }
        }
        Ok(assigned)
    }

    /// Assigns in a batch with concurrent requests. Returns `None` if the cache alone cannot serve the request.
    async fn assign_in_batch(&self, request: &AssignRequest) -> IpamResult<Option<DualStackAssignment>> {
        let simple = request.holder.handle.is_some() && request.max_per_handle.is_none();
        if !self.batches() || !simple || request.v4 == 0 && request.v6 == 0 {
            return Ok(None);
        }
        let (sender, answer) = oneshot::channel();
        let queued = QueuedRequest::Assign { request: Box::new(request.clone()), answer: sender };
        self.in_batch(queued, answer).await
    }

    async fn assign_family(
        &self,
        request: &AssignRequest,
        assigned: &mut AssignedAddresses,
        handle: &mut Option<HandleRecord>,
    ) -> IpamResult<()> {
        if assigned.requested == 0 {
            return Ok(());
        }
        let facts = self.facts().await?;
        let result = self.assign_with(&facts, request, assigned, handle).await;
        if result.is_ok() && assigned.missing() == 0 {
            return result;
        }
        // The watched pools may lag behind a recent change by the user: retry with a fresh read.
        match self.later_facts(&facts).await? {
            Some(later) => self.assign_with(&later, request, assigned, handle).await,
            None => result,
        }
    }

    async fn assign_with(
        &self,
        facts: &AllocatorInputs,
        request: &AssignRequest,
        assigned: &mut AssignedAddresses,
        handle: &mut Option<HandleRecord>,
    ) -> IpamResult<()> {
        let version = assigned.version;
        let labels = facts.labels(&self.owner)?;
        let mut job = FamilyAssignmentJob {
            request,
            facts,
            pools: choose(facts, &self.owner.name, labels, request, version)?,
            version,
            assigned: std::mem::take(assigned),
            handle,
            now: Timestamp::now(),
        };
        job.assigned.messages.clear();
        let mut cache = self.cache.lock().await;
        let result = self.run(&mut job, &mut cache).await;
        *assigned = job.assigned;
        if let Some(record) = job.handle.as_ref().filter(|record| record.is_known()) {
            cache.remember_handle(record.clone());
        }
        result
    }

    async fn run(&self, job: &mut FamilyAssignmentJob<'_>, cache: &mut BlockCache) -> IpamResult<()> {
        if job.request.max_per_handle.is_some() && self.refresh_handle(job).await? {
            return Ok(());
        }
        let mut fresh = cache.claims(job.version).is_none();
        if fresh {
            self.load_claims(cache, job.version).await?;
            self.return_unsuitable(job, cache).await;
        }
        for _ in 0..MAX_RACE_ATTEMPTS {
            while job.assigned.missing() > 0 && self.take_from_claimed(job, cache).await? {}
            if job.assigned.missing() == 0 {
                return Ok(());
            }
            if !fresh {
                // Other processes may have released addresses or blocks since the cache was filled.
                self.load_claims(cache, job.version).await?;
                self.return_unsuitable(job, cache).await;
                fresh = true;
                continue;
            }
            let limit = choose_block_limit(job);
            let count = cache.claims(job.version).iter().flatten().filter(|c| job.suits(&c.cidr)).count();
            if count as u128 >= u128::from(limit) {
                return Err(IpamError::BlockLimit { limit });
            }
            if !job.facts.config.auto_allocate_blocks {
                return Err(IpamError::NoClaimsAllowed);
            }
            match self.claim(job, cache).await? {
                BlockClaimResult::Yes => {}
                BlockClaimResult::NothingFree(blocks) => return self.borrow(job, cache, blocks).await,
            }
        }
        Err(IpamError::TooManyRetries)
    }

    /// Assigns addresses from the first affine block that has free ones. Returns whether there was such a block.
    async fn take_from_claimed(
        &self,
        job: &mut FamilyAssignmentJob<'_>,
        cache: &mut BlockCache,
    ) -> IpamResult<bool> {
        let claims = cache.claims(job.version).get_or_insert_default();
        let mut index = 0;
        while let Some(claim) = claims.get_mut(index) {
            if !job.suits(&claim.cidr) || job.facts.reservations.covers(&claim.cidr) {
                index += 1;
                continue;
            }
            let mut gone = true;
            for _ in 0..MAX_RACE_ATTEMPTS {
                let Some(mut found) = self.resolve(claim, job.request.reserved.as_ref(), job.now).await?
                else {
                    break;
                };
                match self.take(job, &mut found, Some(claim.check(&self.owner))).await? {
                    BlockAssignResult::Some(written) => {
                        claim.block = CachedBlock::present(written);
                        return Ok(true);
                    }
                    BlockAssignResult::Nothing => {
                        claim.block = CachedBlock::present(found);
                        gone = false;
                        break;
                    }
                    BlockAssignResult::Refused(refusal) if !self.look_again(claim, &refusal.key).await? => {
                        break;
                    }
                    BlockAssignResult::Refused(_) if job.assigned.missing() == 0 => return Ok(true),
                    BlockAssignResult::Refused(_) => {}
                }
            }
            if gone {
                claims.remove(index);
            } else {
                index += 1;
            }
        }
        Ok(false)
    }

    /// Assigns up to the missing number of addresses from one block. The operation counts them in the handle first.
    pub(super) async fn take(
        &self,
        job: &mut FamilyAssignmentJob<'_>,
        found: &mut VersionedValue<AddressBlock>,
        check: Option<(StoreKey, Revision)>,
    ) -> IpamResult<BlockAssignResult> {
        block::thaw(&mut found.value, job.facts.config.ip_cooldown_seconds, job.now);
        if job.facts.config.strict_affinity && !block::belongs_to(&found.value, &self.owner) {
            return Ok(BlockAssignResult::Nothing);
        }
        if block::free(&found.value, &job.facts.reservations) == 0 {
            return Ok(BlockAssignResult::Nothing);
        }
        let mut next = found.value.clone();
        let wanted = usize::try_from(job.assigned.missing()).unwrap_or(usize::MAX);
        let taken = block::allocate(&mut next, wanted, &job.request.holder, &job.facts.reservations);
        block::advance(&mut next);
        let count = u32::try_from(taken.len()).unwrap_or(u32::MAX);
        let (counted, handle) = job.handle.as_ref().map(|handle| handle.add(next.cidr, count)).unzip();
        let mut operation = operations::assign(update_block(&next, &found.revision), counted);
        operation.checks.extend(check);
        match self.records.carry_out(operation).await? {
            OperationOutcome::Done(written) => {
                if let (Some(record), Some(handle)) = (job.handle.as_mut(), handle) {
                    let revision = written.revision(&handle_key(&record.id));
                    record.written(handle, revision);
                }
                let revision = stands_at(&written, &block_key(next.cidr))?;
                let prefix = next.cidr.prefix_len();
                job.assigned
                    .addresses
                    .extend(taken.into_iter().filter_map(|address| IpNet::new(address, prefix).ok()));
                Ok(BlockAssignResult::Some(VersionedValue { value: next, revision }))
            }
            OperationOutcome::Refused(refusal) => {
                if matches!(refusal.key, StoreKey::Handle { .. }) {
                    self.refresh_handle(job).await?;
                }
                Ok(BlockAssignResult::Refused(refusal))
            }
        }
    }

    /// Reads the handle again. If the request limits the addresses per handle, returns whether the handle already has
    /// enough; these addresses are then the result.
    async fn refresh_handle(&self, job: &mut FamilyAssignmentJob<'_>) -> IpamResult<bool> {
        let Some(record) = job.handle.as_mut() else { return Ok(false) };
        *record = HandleRecord::new(&record.id, self.records.handle(&record.id).await?);
        let Some(limit) = job.request.max_per_handle else { return Ok(false) };
        let held = self.held_by(record, job.version).await?;
        let count = u32::try_from(held.len()).unwrap_or(u32::MAX);
        if count >= job.assigned.requested {
            job.assigned.addresses = held;
            job.assigned.addresses.truncate(job.assigned.requested as usize);
            return Ok(true);
        }
        if count.saturating_add(job.assigned.missing()) > limit {
            let handle = record.id.clone();
            return Err(IpamError::HandleLimit { handle, version: job.version, limit });
        }
        Ok(false)
    }

    /// Returns the addresses of a handle as recorded in the blocks: the counts in the handle itself may be wrong.
    pub(super) async fn held_by(&self, record: &HandleRecord, version: u8) -> IpamResult<Vec<IpNet>> {
        let mut held = Vec::new();
        for cidr in record.blocks().filter_map(|cidr| cidr.parse::<IpNet>().ok()) {
            if crate::space::version(&cidr) != version {
                continue;
            }
            if let Some(found) = self.records.block(cidr).await? {
                let addresses = block::addresses_of(&found.value, &record.id);
                held.extend(addresses.into_iter().filter_map(|a| IpNet::new(a, cidr.prefix_len()).ok()));
            }
        }
        Ok(held)
    }

    /// Releases empty blocks in pools that no longer select this node.
    async fn return_unsuitable(&self, job: &FamilyAssignmentJob<'_>, cache: &mut BlockCache) {
        let Ok(labels) = job.facts.labels(&self.owner) else { return };
        let claims: Vec<IpNet> = cache.claims(job.version).iter().flatten().map(|c| c.cidr).collect();
        for cidr in claims {
            let pool = pool::containing(&job.facts.pools, cidr.network(), true);
            if job.suits(&cidr) || pool.is_none_or(|pool| pool.selects_node(labels)) {
                continue;
            }
            match self.release_claim(&self.owner, cidr, true).await {
                Ok(()) => cache.forget(cidr),
                Err(error) => {
                    tracing::debug!(%cidr, %error, "cannot release a block whose pool no longer selects this node")
                }
            }
        }
    }
}

impl FamilyAssignmentJob<'_> {
    /// Returns whether a block is in a pool that the request may use.
    pub fn suits(&self, cidr: &IpNet) -> bool {
        self.pools.iter().any(|pool| pool.cidr.contains(cidr))
    }
}

/// Returns the pools that a request may use for one family.
pub(super) fn choose<'a>(
    facts: &'a AllocatorInputs,
    node: &str,
    node_labels: &BTreeMap<String, String>,
    request: &AssignRequest,
    version: u8,
) -> IpamResult<Vec<&'a AllocationPool>> {
    let address_bits = if version == 4 { 32 } else { 128 };
    let reserved = request.reserved.as_ref();
    let choice = PoolCriteria {
        version,
        node,
        node_labels,
        namespace_labels: &request.namespace_labels,
        requested: request.pools(version),
        intended: request.intended,
        longest_prefix: reserved.map_or(address_bits, |reserved| reserved.longest_prefix(address_bits)),
    };
    pool::select(&facts.pools, &choice)
}

fn choose_block_limit(job: &FamilyAssignmentJob<'_>) -> u32 {
    let global = Some(job.facts.config.max_blocks_per_host).filter(|limit| *limit > 0);
    let own = job.request.max_blocks.filter(|limit| *limit > 0);
    match (own, global) {
        (Some(own), Some(global)) => own.min(global),
        (Some(limit), None) | (None, Some(limit)) => limit,
        (None, None) => DEFAULT_MAX_BLOCKS_PER_HOST,
    }
}
