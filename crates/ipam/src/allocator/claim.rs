//! Claiming a block: the claim and the block come into being in one transaction.

use super::Allocator;
use super::auto::Job;
use super::owned::{Claim, Owned, Seen};
use crate::ledger::{Commit, Standing, affinity_key, create_block, update_block};
use crate::owner::{HostReserved, Owner};
use crate::{Result, block, pick};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use tortie_model::Value;
use tortie_model::ipam::{Block, BlockAffinity};
use tortie_store::{Change, Revision};

/// An empty block is taken from its owner only if it has had this long to use it.
const TIME_TO_USE: SignedDuration = SignedDuration::from_secs(60);

pub(super) enum Claimed {
    /// A block was claimed, or a race for it was lost: worth another look either way.
    Yes,
    /// Every block of every pool is somebody's; here they are.
    NothingFree(Vec<Standing<Block>>),
}

impl Allocator {
    pub(super) async fn claim(&self, job: &Job<'_>, owned: &mut Owned) -> Result<Claimed> {
        let existing = self.ledger.block_cidrs(job.version).await?;
        let unclaimed = job.pools.iter().find_map(|pool| {
            let start = pick::start(self.seed(pool, job.now), pool.block_count());
            pick::unclaimed(pool, &existing, &job.facts.reservations, start)
        });
        if let Some(cidr) = unclaimed {
            if self.claim_new(cidr, job.request.reserved.as_ref(), job.now, owned).await?.is_none() {
                self.load_claims(owned, job.version).await?;
            }
            return Ok(Claimed::Yes);
        }
        let blocks = self.ledger.blocks(Some(job.version)).await?;
        if self.take_over(job, owned, &blocks).await? {
            return Ok(Claimed::Yes);
        }
        Ok(Claimed::NothingFree(blocks))
    }

    pub(super) fn seed(&self, pool: &crate::pool::Pool, now: Timestamp) -> u64 {
        pick::seed(&self.owner.name, pool, now.as_nanosecond())
    }

    /// Claims a block that does not exist; nothing if somebody was faster.
    pub(super) async fn claim_new(
        &self,
        cidr: IpNet,
        reserved: Option<&HostReserved>,
        now: Timestamp,
        owned: &mut Owned,
    ) -> Result<Option<Standing<Block>>> {
        let block = block::fresh(cidr, &self.owner, reserved, now);
        let changes = [self.new_affinity(cidr), create_block(&block)];
        self.commit_claim(block, &changes, owned).await
    }

    fn new_affinity(&self, cidr: IpNet) -> Change {
        let value = Value::BlockAffinity(BlockAffinity::default());
        Change::Create { key: affinity_key(&self.owner, cidr), value }
    }

    async fn commit_claim(
        &self,
        block: Block,
        changes: &[Change],
        owned: &mut Owned,
    ) -> Result<Option<Standing<Block>>> {
        match self.ledger.commit(changes).await? {
            Commit::Refused(_) => Ok(None),
            Commit::Done(revision) => {
                let standing = Standing { value: block, revision: revision.clone() };
                owned.add(Claim {
                    cidr: standing.value.cidr,
                    affinity: Standing { value: BlockAffinity::default(), revision },
                    block: Seen::at(standing.clone()),
                });
                Ok(Some(standing))
            }
        }
    }

    /// Makes one of the existing blocks ours: one that is but whose claim got lost, or one its owner does not use.
    async fn take_over(&self, job: &Job<'_>, owned: &mut Owned, blocks: &[Standing<Block>]) -> Result<bool> {
        let cooldown = job.facts.config.ip_cooldown_seconds;
        let mut unused = Vec::new();
        for pool in &job.pools {
            let start = pick::start(self.seed(pool, job.now), pool.block_count());
            for standing in pick::in_order(pool, blocks, |standing| &standing.value.cidr, start) {
                let mut thawed = standing.value.clone();
                block::thaw(&mut thawed, cooldown, job.now);
                let known = owned.claims(job.version).iter().flatten().any(|c| c.cidr == thawed.cidr);
                if known || block::free(&thawed, &job.facts.reservations) == 0 {
                    continue;
                }
                if block::belongs_to(&thawed, &self.owner) {
                    let revision = standing.revision.clone();
                    if self.adopt(thawed, revision, &[], owned).await?.is_some() {
                        return Ok(true);
                    }
                } else if block::is_empty(&thawed) && is_seasoned(&thawed, job.now) {
                    unused.push(standing);
                }
            }
        }
        for standing in unused {
            let found = &standing.value;
            let mut release = Vec::new();
            if let Some((affinity, name)) = found.owner() {
                let owner = Owner { affinity, name: name.to_owned() };
                if let Some(theirs) = self.ledger.affinity(&owner, found.cidr).await? {
                    let key = affinity_key(&owner, found.cidr);
                    release.push(Change::Delete { key, revision: theirs.revision.clone() });
                }
            }
            let fresh = block::fresh(found.cidr, &self.owner, job.request.reserved.as_ref(), job.now);
            if self.adopt(fresh, standing.revision.clone(), &release, owned).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn adopt(
        &self,
        mut block: Block,
        revision: Revision,
        release: &[Change],
        owned: &mut Owned,
    ) -> Result<Option<Standing<Block>>> {
        block::advance(&mut block);
        let mut changes = vec![self.new_affinity(block.cidr), update_block(&block, revision)];
        changes.extend_from_slice(release);
        self.commit_claim(block, &changes, owned).await
    }
}

/// A block without a time of its claim is very old.
fn is_seasoned(block: &Block, now: Timestamp) -> bool {
    block.affinity_claim_time.is_none_or(|claimed| now.duration_since(claimed) >= TIME_TO_USE)
}
