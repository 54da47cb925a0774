//! Borrowing addresses from blocks of other hosts when no block is left to claim.

use super::auto::{BlockAssignResult, FamilyAssignmentJob};
use super::cache::BlockCache;
use super::{Allocator, MAX_RACE_ATTEMPTS};
use crate::records::VersionedValue;
use crate::{IpamResult, pick};
use tortie_model::StoreKey;
use tortie_model::ipam::AddressBlock;
use tortie_store::OperationRefusal;

impl Allocator {
    /// Assigns the missing addresses from any block with free ones, without changing the affinity of the blocks.
    pub(super) async fn borrow(
        &self,
        job: &mut FamilyAssignmentJob<'_>,
        cache: &mut BlockCache,
        blocks: Vec<VersionedValue<AddressBlock>>,
    ) -> IpamResult<()> {
        if job.facts.config.strict_affinity {
            let message = "No more free affine blocks and strict affinity enabled".to_owned();
            job.assigned.messages.push(message);
            return Ok(());
        }
        for pool in job.pools.clone() {
            let start = pick::start(self.seed(pool, job.now), pool.block_count());
            for found in pick::in_order(pool, &blocks, |found| &found.value.cidr, start) {
                if job.assigned.missing() == 0 {
                    return Ok(());
                }
                if !job.facts.reservations.covers(&found.value.cidr) {
                    self.borrow_from(job, cache, found.clone()).await?;
                }
            }
        }
        if job.assigned.missing() > 0 {
            let pools: Vec<String> = job.pools.iter().map(|pool| pool.cidr.to_string()).collect();
            job.assigned.messages.push(format!("No IPs available in pools: [{}]", pools.join(" ")));
        }
        Ok(())
    }

    async fn borrow_from(
        &self,
        job: &mut FamilyAssignmentJob<'_>,
        cache: &mut BlockCache,
        mut found: VersionedValue<AddressBlock>,
    ) -> IpamResult<()> {
        let cidr = found.value.cidr;
        for _ in 0..MAX_RACE_ATTEMPTS {
            match self.take(job, &mut found, None).await? {
                BlockAssignResult::Some(written) => {
                    cache.remember(cidr, Some(written));
                    return Ok(());
                }
                BlockAssignResult::Nothing => return Ok(()),
                BlockAssignResult::Refused(OperationRefusal { key: StoreKey::Block { .. }, current }) => {
                    match self.records.block_now(cidr, current).await? {
                        Some(current) => found = current,
                        None => return Ok(()),
                    }
                }
                BlockAssignResult::Refused(_) => {}
            }
            if job.assigned.missing() == 0 {
                return Ok(());
            }
        }
        // Too much contention on this block: continue with the next one.
        Ok(())
    }
}
