//! Claiming a block: one that does not exist yet, one whose affinity record is missing, or one that its owner does not
//! use.

use super::auto::FamilyAssignmentJob;
use super::cache::{BlockCache, CachedBlock, CachedClaim};
use super::{Allocator, stands_at};
use crate::operations::{self, create_block, update_block};
use crate::owner::{BlockOwner, HostReserved};
use crate::records::{VersionedValue, affinity_key, block_key};
use crate::{IpamResult, block, pick};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use tortie_model::ipam::{AddressBlock, BlockAffinity};
use tortie_store::{OperationOutcome, StoreOperation};

/// Minimum age of the affinity of an empty block before another host may take the block over.
const MIN_TAKEOVER_AGE: SignedDuration = SignedDuration::from_secs(60);

pub(super) enum BlockClaimResult {
    /// A block was claimed, or another host won the race for it. The caller tries again in both cases.
    Yes,
    /// All blocks of all pools have an owner; these are the blocks.
    NothingFree(Vec<VersionedValue<AddressBlock>>),
}

impl Allocator {
    pub(super) async fn claim(
        &self,
        job: &FamilyAssignmentJob<'_>,
        cache: &mut BlockCache,
    ) -> IpamResult<BlockClaimResult> {
        let existing = self.records.block_cidrs(job.version).await?;
        let unclaimed = job.pools.iter().find_map(|pool| {
            let start = pick::start(self.seed(pool, job.now), pool.block_count());
            pick::unclaimed(pool, &existing, &job.facts.reservations, start)
        });
        if let Some(cidr) = unclaimed {
            if self.claim_new(cidr, job.request.reserved.as_ref(), job.now, cache).await?.is_none() {
                self.load_claims(cache, job.version).await?;
            }
            return Ok(BlockClaimResult::Yes);
        }
        let blocks = self.records.blocks(Some(job.version)).await?;
        if self.take_over(job, cache, &blocks).await? {
            return Ok(BlockClaimResult::Yes);
        }
        Ok(BlockClaimResult::NothingFree(blocks))
    }

    pub(super) fn seed(&self, pool: &crate::pool::AllocationPool, now: Timestamp) -> u64 {
        pick::seed(&self.owner.name, pool, now.as_nanosecond())
    }

    /// Claims a block that does not exist yet. Returns `None` if another host was faster.
    pub(super) async fn claim_new(
        &self,
        cidr: IpNet,
        reserved: Option<&HostReserved>,
        now: Timestamp,
        cache: &mut BlockCache,
    ) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        let block = block::fresh(cidr, &self.owner, reserved, now);
        let operation = operations::claim(&self.owner, cidr, create_block(&block));
        self.carry_out_claim(block, operation, cache).await
    }

    async fn carry_out_claim(
        &self,
        block: AddressBlock,
        operation: StoreOperation,
        cache: &mut BlockCache,
    ) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        let OperationOutcome::Done(written) = self.records.carry_out(operation).await? else {
            return Ok(None);
        };
        let cidr = block.cidr;
        // Another process deleted the affinity before it was confirmed.
        let Some(revision) = written.revision(&affinity_key(&self.owner, cidr)) else { return Ok(None) };
        let found = VersionedValue { value: block, revision: stands_at(&written, &block_key(cidr))? };
        cache.add(CachedClaim {
            cidr,
            affinity: VersionedValue { value: BlockAffinity::default(), revision },
            block: CachedBlock::present(found.clone()),
        });
        Ok(Some(found))
    }

    /// Takes over an existing block: one of this host whose affinity record is missing, or an empty one that its owner
    /// does not use.
    async fn take_over(
        &self,
        job: &FamilyAssignmentJob<'_>,
        cache: &mut BlockCache,
        blocks: &[VersionedValue<AddressBlock>],
    ) -> IpamResult<bool> {
        let cooldown = job.facts.config.ip_cooldown_seconds;
        let mut unused = Vec::new();
        for pool in &job.pools {
            let start = pick::start(self.seed(pool, job.now), pool.block_count());
            for found in pick::in_order(pool, blocks, |found| &found.value.cidr, start) {
                let mut thawed = found.value.clone();
                block::thaw(&mut thawed, cooldown, job.now);
                let known = cache.claims(job.version).iter().flatten().any(|c| c.cidr == thawed.cidr);
                if known || block::free(&thawed, &job.facts.reservations) == 0 {
                    continue;
                }
                if block::belongs_to(&thawed, &self.owner) {
                    if self.adopt(thawed, found, None, cache).await?.is_some() {
                        return Ok(true);
                    }
                } else if block::is_empty(&thawed) && was_claimed_long_ago(&thawed, job.now) {
                    unused.push(found);
                }
            }
        }
        for found in unused {
            let cidr = found.value.cidr;
            let mut theirs = None;
            if let Some((affinity, name)) = found.value.owner() {
                let owner = BlockOwner { affinity, name: name.to_owned() };
                theirs = self.records.affinity(&owner, cidr).await?.map(|affinity| (owner, affinity));
            }
            let fresh = block::fresh(cidr, &self.owner, job.request.reserved.as_ref(), job.now);
            if self.adopt(fresh, found, theirs, cache).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes an existing block as a block of this host.
    async fn adopt(
        &self,
        mut block: AddressBlock,
        found: &VersionedValue<AddressBlock>,
        theirs: Option<(BlockOwner, VersionedValue<BlockAffinity>)>,
        cache: &mut BlockCache,
    ) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        block::advance(&mut block);
        let step = update_block(&block, &found.revision);
        let theirs = theirs.as_ref().map(|(owner, affinity)| (owner, affinity));
        let operation = operations::take_over(&self.owner, block.cidr, step, theirs);
        self.carry_out_claim(block, operation, cache).await
    }
}

/// Returns whether the block was claimed at least `MIN_TAKEOVER_AGE` ago. A block without a claim time is old enough.
fn was_claimed_long_ago(block: &AddressBlock, now: Timestamp) -> bool {
    block.affinity_claim_time.is_none_or(|claimed| now.duration_since(claimed) >= MIN_TAKEOVER_AGE)
}
