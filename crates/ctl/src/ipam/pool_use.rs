//! Checks whether a pool is in use: deleting it would interrupt the traffic of workloads with addresses from
//! it.

use tortie_model::Kind;
use tortie_store::{ResourceClient, StoreError, StoreResult};

/// Returns an error if addresses are assigned from the pool.
pub async fn check_unused(store: &ResourceClient, name: &str) -> StoreResult<()> {
    match store.count_pool_addresses(name).await? {
        (_, 0) => Ok(()),
        (cidr, count) => Err(StoreError::NotSupported {
            operation: "Delete",
            id: Kind::IPPool.identify("", name),
            reason: format!(
                "{count} addresses are assigned from {cidr}, and their traffic would be cut; remove the workloads first, \
                 or delete with --force"
            ),
        }),
    }
}
