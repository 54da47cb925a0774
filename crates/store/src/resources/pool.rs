//! Checks of pools against other pools and existing blocks, and the deletion of a pool.

use super::addresses::AddressReleaser;
use super::{ResourceClient, read};
use crate::{Revision, StoreError, StoreResult};
use ipnet::IpNet;
use std::time::Duration;
use tortie_model::ipam::block::allocations;
use tortie_model::kinds::{IPPool, IPPoolSpec};
use tortie_model::{KeyRange, Resource, StoreKey, StoreValue, ValidationError};

/// Time for allocators to notice that a pool is disabled before its blocks are released.
const DISABLE_SETTLE_DELAY: Duration = Duration::from_millis(500);
const MAX_DISABLE_ATTEMPTS: u32 = 5;
const CIDR_FIELD: &str = "IPPool.Spec.CIDR";

impl ResourceClient {
    /// Checks that no other pool overlaps and that existing blocks have the block size of the pool.
    pub(super) async fn check_pool_fits(&self, pool: &IPPool) -> StoreResult<()> {
        let Ok(cidr) = pool.spec.cidr.parse::<IpNet>() else { return Ok(()) };
        for other in self.list_as::<IPPoolSpec>(None).await? {
            let same = other.metadata.name == pool.metadata.name;
            // A pool of the same name is left to the write, which reports that it exists.
            if !same && other.spec.cidr.parse().is_ok_and(|other| overlaps(&cidr, &other)) {
                let reason = format!(
                    "IPPool({}) CIDR overlaps with IPPool({}) CIDR {}",
                    pool.metadata.name, other.metadata.name, other.spec.cidr
                );
                return Err(ValidationError::one(CIDR_FIELD, &pool.spec.cidr, reason).into());
            }
        }
        for block in AddressReleaser::new(&self.client).blocks().await? {
            if overlaps(&cidr, &block.cidr) && i32::from(block.cidr.prefix_len()) != pool.spec.block_size {
                let reason = format!(
                    "addresses are in use in blocks of another size than {}: {}",
                    pool.spec.block_size, block.cidr
                );
                return Err(ValidationError::one(CIDR_FIELD, &pool.spec.cidr, reason).into());
            }
        }
        Ok(())
    }

    /// Returns the CIDR of a pool and the number of addresses that are assigned from it. Deleting a pool in use cuts the
    /// traffic of its workloads.
    pub async fn count_pool_addresses(&self, name: &str) -> StoreResult<(String, usize)> {
        let pool = self.get_as::<IPPoolSpec>("", name).await?;
        let Ok(cidr) = pool.spec.cidr.parse::<IpNet>() else { return Ok((pool.spec.cidr, 0)) };
        let blocks = self.client.list(&KeyRange::Blocks { ip_version: None }).await?.entries;
        let mut count = 0;
        for entry in &blocks {
            if let StoreValue::Block(block) = &entry.value
                && cidr.contains(&block.cidr)
            {
                count += allocations(block).filter(|allocation| !allocation.is_cooling_down()).count();
            }
        }
        Ok((pool.spec.cidr, count))
    }

    /// Disables the pool, waits for allocators to notice, releases its blocks, then deletes it.
    pub(super) async fn delete_pool(
        &self,
        key: &StoreKey,
        revision: Option<Revision>,
    ) -> StoreResult<Resource> {
        let (pool, revision) = self.disable_pool(key, revision).await?;
        tokio::time::sleep(DISABLE_SETTLE_DELAY).await;
        if let Ok(cidr) = pool.spec.cidr.parse() {
            AddressReleaser::new(&self.client).release_range(&cidr).await?;
        }
        read(self.client.delete(key, revision.as_ref()).await?)
    }

    /// Disables the pool and returns it. If the caller gave a revision, also returns the one to expect at the deletion.
    async fn disable_pool(
        &self,
        key: &StoreKey,
        given: Option<Revision>,
    ) -> StoreResult<(IPPool, Option<Revision>)> {
        let mut attempt = 1;
        loop {
            let entry = self.client.get(key).await?;
            if given.as_ref().is_some_and(|given| *given != entry.revision) {
                return Err(StoreError::Conflict {
                    id: key.to_string(),
                    current: read(entry).ok().map(Box::new),
                });
            }
            let revision = entry.revision.clone();
            let mut pool: IPPool = super::typed(read(entry)?)?;
            if pool.spec.disabled {
                return Ok((pool, given));
            }
            pool.spec.disabled = true;
            match self.client.update(key, &StoreValue::Resource(pool.clone().into()), &revision).await {
                Ok(entry) => return Ok((pool, given.map(|_| entry.revision))),
                Err(StoreError::Conflict { .. }) if given.is_none() && attempt < MAX_DISABLE_ATTEMPTS => {
                    attempt += 1
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn overlaps(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}
