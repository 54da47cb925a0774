//! Giving up blocks: one, those of a host, those of a pool.

use super::{Allocator, MAX_ATTEMPTS};
use crate::operations::{self, delete_block, update_block};
use crate::owner::{Owner, attribute};
use crate::records::{affinity_key, block_key};
use crate::{Error, Result, block};
use ipnet::IpNet;
use std::collections::BTreeSet;
use tortie_model::Key;
use tortie_model::key::AffinityType;
use tortie_store::{Operation, Outcome};

impl Allocator {
    /// Gives up one block: an empty one goes, another stays without an owner until its addresses come back.
    pub async fn release_affinity(&self, owner: &Owner, cidr: IpNet, must_be_empty: bool) -> Result<()> {
        let mut cache = self.cache.lock().await;
        let result = self.release_claim(owner, cidr, must_be_empty).await;
        cache.forget(cidr);
        result
    }

    /// Gives up a block whoever has it.
    pub async fn release_block_affinity(&self, cidr: IpNet, must_be_empty: bool) -> Result<()> {
        let missing = || does_not_exist(&block_key(cidr));
        let found = self.records.block(cidr).await?.ok_or_else(missing)?;
        match found.value.owner() {
            Some((affinity, name)) => {
                let owner = Owner { affinity, name: name.to_owned() };
                self.release_affinity(&owner, cidr, must_be_empty).await
            }
            None => Ok(()),
        }
    }

    /// Gives up every block of an owner that lies in `within`, or all. Goes on past failures; the last is returned.
    pub async fn release_owner_affinities(
        &self,
        owner: &Owner,
        within: Option<IpNet>,
        must_be_empty: bool,
    ) -> Result<()> {
        let claims = self.records.affinities(owner, None).await?;
        let mut cidrs: BTreeSet<IpNet> = claims.into_iter().map(|(cidr, _)| cidr).collect();
        // Also those whose claim got lost.
        let blocks = self.records.blocks(None).await?;
        let owned = blocks.iter().map(|found| &found.value).filter(|block| block::belongs_to(block, owner));
        cidrs.extend(owned.map(|block| block.cidr));
        cidrs.retain(|cidr| within.is_none_or(|net| net.contains(cidr)));
        self.release_all(cidrs.into_iter().map(|cidr| (owner.clone(), cidr)).collect(), must_be_empty).await
    }

    /// Gives up every host's blocks in a pool, which has been disabled before.
    pub async fn release_pool_affinities(&self, pool: IpNet) -> Result<()> {
        let claims = self.records.all_affinities(AffinityType::Host).await?;
        let inside = claims.into_iter().map(|(owner, cidr, _)| (owner, cidr));
        self.release_all(inside.filter(|(_, cidr)| pool.contains(cidr)).collect(), false).await
    }

    /// Forgets a host that is gone: all its blocks, and what old versions kept of it. Addresses stay assigned.
    pub async fn remove_host(&self, host: &str) -> Result<()> {
        let result = self.release_owner_affinities(&Owner::host(host), None, false).await;
        result.and(self.records.delete_host(host).await)
    }

    /// Gives back every address recorded for a host, wherever it is: for a host that is gone for good.
    pub async fn release_host_addresses(&self, host: &str) -> Result<super::ReleaseReport> {
        let mut wanted = Vec::new();
        for found in self.records.blocks(None).await? {
            for allocation in block::allocations(&found.value) {
                if allocation.attribute(attribute::NODE) == Some(host) {
                    wanted.push(block::Release {
                        address: allocation.address,
                        handle: allocation.handle().map(str::to_owned),
                        sequence_number: Some(allocation.sequence_number),
                    });
                }
            }
        }
        self.release(&wanted).await
    }

    async fn release_all(&self, claims: Vec<(Owner, IpNet)>, must_be_empty: bool) -> Result<()> {
        let mut result = Ok(());
        for (owner, cidr) in claims {
            match self.release_affinity(&owner, cidr, must_be_empty).await {
                Ok(()) | Err(Error::DoesNotExist { .. }) => {}
                Err(error) => {
                    tracing::warn!(%owner, %cidr, %error, "could not give up a block");
                    result = Err(error);
                }
            }
        }
        result
    }

    /// The claim announces that it goes, then the block goes or loses its owner, then the claim goes. A block whose claim
    /// got lost is given up all the same.
    pub(super) async fn release_claim(&self, owner: &Owner, cidr: IpNet, must_be_empty: bool) -> Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let claim = self.records.affinity(owner, cidr).await?;
            let found = self.records.block(cidr).await?;
            let found = match (found, &claim) {
                (Some(found), _) if block::belongs_to(&found.value, owner) => found,
                (_, None) => return Err(does_not_exist(&affinity_key(owner, cidr))),
                (found, Some(claim)) => {
                    self.records.carry_out(operations::withdraw(owner, cidr, claim)).await?;
                    let Some(found) = found else { return Err(does_not_exist(&block_key(cidr))) };
                    let theirs = found.value.affinity.unwrap_or_else(|| "nobody".to_owned());
                    return Err(Error::ClaimConflict {
                        block: cidr,
                        owner: theirs,
                        wanted: owner.to_string(),
                    });
                }
            };
            let empty = block::is_empty(&found.value);
            if must_be_empty && !empty {
                return Err(Error::NotEmpty { block: cidr });
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
                None => Operation::one(step),
            };
            if let Outcome::Done(_) = self.records.carry_out(operation).await? {
                return Ok(());
            }
        }
        Err(Error::TooManyRetries)
    }
}

fn does_not_exist(key: &Key) -> Error {
    Error::DoesNotExist { id: key.to_string(), reason: "key not found".to_owned() }
}
