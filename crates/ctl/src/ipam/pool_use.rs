//! Checks whether a pool is in use: deleting it would interrupt the traffic of workloads with addresses from
//! it.

use tortie_ipam::{IpamRecords, block};
use tortie_model::{Kind, Resource};
use tortie_store::{ResourceClient, StoreError, StoreResult};

/// Returns an error if addresses are assigned from the pool.
pub async fn check_unused(store: &ResourceClient, name: &str) -> StoreResult<()> {
    let Resource::IPPool(pool) = store.get(Kind::IPPool, "", name).await? else { return Ok(()) };
    let Ok(cidr) = pool.spec.cidr.parse::<ipnet::IpNet>() else { return Ok(()) };
    let blocks = match IpamRecords::new(store.client().clone()).blocks(None).await {
        Ok(blocks) => blocks,
        Err(tortie_ipam::IpamError::Store(error)) => return Err(error),
        Err(error) => return Err(StoreError::Datastore(error.to_string())),
    };
    let inside = blocks.iter().filter(|found| cidr.contains(&found.value.cidr));
    let allocations = inside.flat_map(|found| block::allocations(&found.value));
    match allocations.filter(|allocation| !allocation.is_cooling_down()).count() {
        0 => Ok(()),
        count => Err(StoreError::NotSupported {
            operation: "Delete",
            id: Kind::IPPool.identify("", name),
            reason: format!(
                "{count} addresses are assigned from {cidr}, and their traffic would be cut; remove the workloads first, \
                 or delete with --force"
            ),
        }),
    }
}
