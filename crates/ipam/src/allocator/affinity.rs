//! Releasing block affinities: of a single block, of a host, of a pool.

use super::{Allocator, MAX_RACE_ATTEMPTS};
use crate::operations::{self, delete_block, update_block};
use crate::owner::{BlockOwner, attribute};
use crate::records::{affinity_key, block_key};
use crate::{IpamError, IpamResult, block};
use ipnet::IpNet;
use std::collections::BTreeSet;
use tortie_model::StoreKey;
use tortie_model::key::AffinityType;
use tortie_store::{OperationOutcome, StoreOperation};

impl Allocator {
    /// Releases the affinity of one block. An empty block is deleted; another one stays without an owner until its
    /// addresses are released.
    pub async fn release_affinity(
        &self,
        owner: &BlockOwner,
        cidr: IpNet,
        must_be_empty: bool,
    ) -> IpamResult<()> {
        let mut cache = self.cache.lock().await;
        let result = self.release_claim(owner, cidr, must_be_empty).await;
        cache.forget(cidr);
        result
    }

    /// Releases the affinity of a block, whichever owner it has.
    pub async fn release_block_affinity(&self, cidr: IpNet, must_be_empty: bool) -> IpamResult<()> {
        let Some(found) = self.records.block(cidr).await? else {
            return Err(does_not_exist(&block_key(cidr)));
        };
        let Some((affinity, name)) = found.value.owner() else { return Ok(()) };
        let owner = BlockOwner { affinity, name: name.to_owned() };
        self.release_affinity(&owner, cidr, must_be_empty).await
    }

    /// Releases the blocks of an owner within `within`, or all of them. Continues after failures and returns the last
    /// error.
    pub async fn release_owner_affinities(
        &self,
        owner: &BlockOwner,
        within: Option<IpNet>,
        must_be_empty: bool,
    ) -> IpamResult<()> {
        let claims = self.records.affinities(owner, None).await?;
        let mut cidrs: BTreeSet<IpNet> = claims.into_iter().map(|(cidr, _)| cidr).collect();
        // Include blocks whose affinity record is missing.
        let blocks = self.records.blocks(None).await?;
        let owned = blocks.iter().map(|found| &found.value).filter(|block| block::belongs_to(block, owner));
        cidrs.extend(owned.map(|block| block.cidr));
        cidrs.retain(|cidr| within.is_none_or(|net| net.contains(cidr)));
        self.release_all(cidrs.into_iter().map(|cidr| (owner.clone(), cidr)).collect(), must_be_empty).await
    }

    /// Releases the blocks of all hosts in a pool. The caller has disabled the pool before.
    pub async fn release_pool_affinities(&self, pool: IpNet) -> IpamResult<()> {
        let claims = self.records.all_affinities(AffinityType::Host).await?;
        let inside = claims.into_iter().map(|(owner, cidr, _)| (owner, cidr));
        self.release_all(inside.filter(|(_, cidr)| pool.contains(cidr)).collect(), false).await
    }

    /// Releases all blocks of a deleted host and removes the records that old versions kept for it. Addresses stay
    /// assigned.
    pub async fn remove_host(&self, host: &str) -> IpamResult<()> {
        let result = self.release_owner_affinities(&BlockOwner::host(host), None, false).await;
        result.and(self.records.delete_host(host).await)
    }

    /// Releases every address recorded for a host, in any block. For hosts that were removed permanently.
    pub async fn release_host_addresses(&self, host: &str) -> IpamResult<super::ReleaseReport> {
        let mut wanted = Vec::new();
        for found in self.records.blocks(None).await? {
            for allocation in block::allocations(&found.value) {
                if allocation.attribute(attribute::NODE_ATTRIBUTE) == Some(host) {
                    wanted.push(block::ReleaseRequest {
                        address: allocation.address,
                        handle: allocation.handle().map(str::to_owned),
                        sequence_number: Some(allocation.sequence_number),
                    });
                }
            }
        }
        self.release(&wanted).await
    }

    async fn release_all(&self, claims: Vec<(BlockOwner, IpNet)>, must_be_empty: bool) -> IpamResult<()> {
        let mut result = Ok(());
        for (owner, cidr) in claims {
            match self.release_affinity(&owner, cidr, must_be_empty).await {
                Ok(()) | Err(IpamError::DoesNotExist { .. }) => {}
                Err(error) => {
                    tracing::warn!(%owner, %cidr, %error, "cannot release the affinity of a block");
                    result = Err(error);
                }
            }
        }
        result
    }

    /// Marks the affinity as pending deletion, then deletes the block or removes its owner, then deletes the affinity.
    /// Also handles a block whose affinity record is missing.
    pub(super) async fn release_claim(
        &self,
        owner: &BlockOwner,
        cidr: IpNet,
        must_be_empty: bool,
    ) -> IpamResult<()> {
        for _ in 0..MAX_RACE_ATTEMPTS {
            let claim = self.records.affinity(owner, cidr).await?;
            let found = self.records.block(cidr).await?;
            let found = match (found, &claim) {
                (Some(found), _) if block::belongs_to(&found.value, owner) => found,
                (_, None) => return Err(does_not_exist(&affinity_key(owner, cidr))),
                (found, Some(claim)) => {
                    self.records.carry_out(operations::withdraw(owner, cidr, claim)).await?;
                    let Some(found) = found else { return Err(does_not_exist(&block_key(cidr))) };
                    let theirs = found.value.affinity.unwrap_or_else(|| "nobody".to_owned());
                    return Err(IpamError::ClaimConflict {
                        block: cidr,
                        owner: theirs,
                        wanted: owner.to_string(),
                    });
                }
            };
            let empty = block::is_empty(&found.value);
            if must_be_empty && !empty {
                return Err(IpamError::NotEmpty { block: cidr });
            }
            let step = if empty {
                delete_block(cidr, &found.revision)
            } else {
                let mut orphan = found.value;
                block::disown(&mut orphan);
                block::advance(&mut orphan);
                update_block(&orphan, &found.revision)
            };
            let operation = match &claim {
                Some(claim) => operations::give_up(owner, cidr, claim, step),
                None => StoreOperation::one(step),
            };
            if let OperationOutcome::Done(_) = self.records.carry_out(operation).await? {
                return Ok(());
            }
        }
        Err(IpamError::TooManyRetries)
    }
}

fn does_not_exist(key: &StoreKey) -> IpamError {
    IpamError::DoesNotExist { id: key.to_string(), reason: "key not found".to_owned() }
}
