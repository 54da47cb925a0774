//! Checks whether a pool is in use: deleting it would interrupt the traffic of workloads with addresses from
//! it.

use tortie_ipam::{Records, block};
use tortie_model::{Kind, Resource};
use tortie_store::{Error, Resources, Result};

/// Returns an error if addresses are assigned from the pool.
pub async fn check_unused(store: &Resources, name: &str) -> Result<()> {
    let Resource::IPPool(pool) = store.get(Kind::IPPool, "", name).await? else { return Ok(()) };
    let Ok(cidr) = pool.spec.cidr.parse::<ipnet::IpNet>() else { return Ok(()) };
    let blocks = match Records::new(store.client().clone()).blocks(None).await {
        Ok(blocks) => blocks,
        Err(tortie_ipam::Error::Store(error)) => return Err(error),
        Err(error) => return Err(Error::Datastore(error.to_string())),
    };
    let inside = blocks.iter().filter(|found| cidr.contains(&found.value.cidr));
    let allocations = inside.flat_map(|found| block::allocations(&found.value));
    match allocations.filter(|allocation| !allocation.is_cooling_down()).count() {
        0 => Ok(()),
        count => Err(Error::NotSupported {
            operation: "Delete",
            id: Kind::IPPool.identify("", name),
            reason: format!(
                "{count} addresses are assigned from {cidr}, and their traffic would be cut; remove the workloads first, \
                 or delete with --force"
            ),
        }),
    }
}
