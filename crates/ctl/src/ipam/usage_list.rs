//! Utilisation of all pools and of the blocks in them.

use super::show::{block_owner, list_blocks, list_pools};
use crate::failure::CommandResult;
use ipnet::IpNet;
use tortie_ipam::pool::AllocationPool;
use tortie_ipam::reservation::ReservedRanges;
use tortie_ipam::usage::{self, AddressUsage};
use tortie_ipam::{IpamRecords, facts};
use tortie_model::Kind;
use tortie_model::ipam::AddressBlock;
use tortie_store::ResourceClient;

#[derive(Clone, Debug, Default)]
pub struct UsageList {
    pub pools: Vec<PoolUsage>,
    /// Blocks that no pool contains.
    pub orphans: Vec<BlockUsage>,
}

#[derive(Clone, Debug)]
pub struct PoolUsage {
    pub pool: AllocationPool,
    pub usage: AddressUsage,
    /// Sorted by address.
    pub blocks: Vec<BlockUsage>,
}

#[derive(Clone, Debug)]
pub struct BlockUsage {
    pub cidr: IpNet,
    /// The node that assigns addresses from it.
    pub owner: Option<String>,
    pub usage: AddressUsage,
}

/// Reads pools, reservations and blocks, and computes how many addresses are in use.
pub async fn list_usage(store: &ResourceClient) -> CommandResult<UsageList> {
    load_usage(&IpamRecords::new(store.client().clone())).await
}

pub(super) async fn load_usage(records: &IpamRecords) -> CommandResult<UsageList> {
    let pools = list_pools(records).await?;
    let reservations = facts::reservations(&records.resources(Kind::IPReservation).await?);
    let blocks = list_blocks(records).await?;
    let orphans = blocks.iter().filter(|block| !pools.iter().any(|pool| pool.cidr.contains(&block.cidr)));
    let orphans = orphans.map(|block| BlockUsage::new(block, &reservations)).collect();
    let pools = pools.into_iter().map(|pool| {
        let inside: Vec<_> = blocks.iter().filter(|block| pool.cidr.contains(&block.cidr)).collect();
        let usage = usage::of_pool(&pool.cidr, inside.iter().copied(), &reservations);
        let blocks = inside.into_iter().map(|block| BlockUsage::new(block, &reservations)).collect();
        PoolUsage { pool, usage, blocks }
    });
    Ok(UsageList { pools: pools.collect(), orphans })
}

impl BlockUsage {
    fn new(block: &AddressBlock, reservations: &ReservedRanges) -> BlockUsage {
        BlockUsage {
            cidr: block.cidr,
            owner: block_owner(block).map(str::to_owned),
            usage: usage::of_block(block, reservations),
        }
    }
}
