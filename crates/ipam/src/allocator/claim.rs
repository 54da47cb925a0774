//! Claiming a block: one that does not exist yet, one whose affinity record is missing, or one that its owner does not
//! use.

use super::auto::Job;
use super::cache::{BlockCache, CachedBlock, Claim};
use super::{Allocator, stands_at};
use crate::operations::{self, create_block, update_block};
use crate::owner::{HostReserved, Owner};
use crate::records::{Versioned, affinity_key, block_key};
use crate::{Result, block, pick};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use tortie_model::ipam::{Block, BlockAffinity};
use tortie_store::{Operation, Outcome};

/// Minimum age of the affinity of an empty block before another host may take the block over.
const TIME_TO_USE: SignedDuration = SignedDuration::from_secs(60);

pub(super) enum Claimed {
    /// A block was claimed, or another host won the race for it. The caller tries again in both cases.
    Yes,
    /// All blocks of all pools have an owner; these are the blocks.
    NothingFree(Vec<Versioned<Block>>),
}

impl Allocator {
    pub(super) async fn claim(&self, job: &Job<'_>, cache: &mut BlockCache) -> Result<Claimed> {
        let existing = self.records.block_cidrs(job.version).await?;
        let unclaimed = job.pools.iter().find_map(|pool| {
            let start = pick::start(self.seed(pool, job.now), pool.block_count());
            pick::unclaimed(pool, &existing, &job.facts.reservations, start)
        });
        if let Some(cidr) = unclaimed {
            if self.claim_new(cidr, job.request.reserved.as_ref(), job.now, cache).await?.is_none() {
                self.load_claims(cache, job.version).await?;
            }
            return Ok(Claimed::Yes);
        }
        let blocks = self.records.blocks(Some(job.version)).await?;
        if self.take_over(job, cache, &blocks).await? {
            return Ok(Claimed::Yes);
        }
        Ok(Claimed::NothingFree(blocks))
    }

    pub(super) fn seed(&self, pool: &crate::pool::Pool, now: Timestamp) -> u64 {
        pick::seed(&self.owner.name, pool, now.as_nanosecond())
    }

    /// Claims a block that does not exist yet. Returns `None` if another host was faster.
    pub(super) async fn claim_new(
        &self,
        cidr: IpNet,
        reserved: Option<&HostReserved>,
        now: Timestamp,
        cache: &mut BlockCache,
    ) -> Result<Option<Versioned<Block>>> {
        let block = block::fresh(cidr, &self.owner, reserved, now);
        let operation = operations::claim(&self.owner, cidr, create_block(&block));
        self.carry_out_claim(block, operation, cache).await
    }

    async fn carry_out_claim(
        &self,
        block: Block,
        operation: Operation,
        cache: &mut BlockCache,
    ) -> Result<Option<Versioned<Block>>> {
        let Outcome::Done(written) = self.records.carry_out(operation).await? else { return Ok(None) };
        let cidr = block.cidr;
        // Another process deleted the affinity before it was confirmed.
        let Some(revision) = written.revision(&affinity_key(&self.owner, cidr)) else { return Ok(None) };
        let found = Versioned { value: block, revision: stands_at(&written, &block_key(cidr))? };
        cache.add(Claim {
            cidr,
            affinity: Versioned { value: BlockAffinity::default(), revision },
            block: CachedBlock::present(found.clone()),
        });
        Ok(Some(found))
    }

    /// Takes over an existing block: one of this host whose affinity record is missing, or an empty one that its owner
    /// does not use.
    async fn take_over(
        &self,
        job: &Job<'_>,
        cache: &mut BlockCache,
        blocks: &[Versioned<Block>],
    ) -> Result<bool> {
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
                let owner = Owner { affinity, name: name.to_owned() };
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
        mut block: Block,
        found: &Versioned<Block>,
        theirs: Option<(Owner, Versioned<BlockAffinity>)>,
        cache: &mut BlockCache,
    ) -> Result<Option<Versioned<Block>>> {
        block::advance(&mut block);
        let step = update_block(&block, &found.revision);
        let theirs = theirs.as_ref().map(|(owner, affinity)| (owner, affinity));
        let operation = operations::take_over(&self.owner, block.cidr, step, theirs);
        self.carry_out_claim(block, operation, cache).await
    }
}

/// Returns whether the block was claimed at least `TIME_TO_USE` ago. A block without a claim time is old enough.
fn was_claimed_long_ago(block: &Block, now: Timestamp) -> bool {
    block.affinity_claim_time.is_none_or(|claimed| now.duration_since(claimed) >= TIME_TO_USE)
}
