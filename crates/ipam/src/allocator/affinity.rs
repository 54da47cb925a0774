//! Giving up blocks: one, those of a host, those of a pool.

use super::{Allocator, MAX_ATTEMPTS};
use crate::ledger::{Commit, Standing, affinity_key, delete_block, update_block};
use crate::owner::{Owner, attribute};
use crate::{Error, Result, audit, block};
use ipnet::IpNet;
use tortie_model::Key;
use tortie_model::ipam::BlockAffinity;
use tortie_model::key::AffinityType;
use tortie_store::Change;

impl Allocator {
    /// Gives up one block: an empty one goes, another stays without an owner until its addresses come back.
    pub async fn release_affinity(&self, owner: &Owner, cidr: IpNet, must_be_empty: bool) -> Result<()> {
        let mut owned = self.owned.lock().await;
        let result = self.release_claim(owner, cidr, must_be_empty, None).await;
        owned.forget(cidr);
        result
    }

    /// Gives up a block whoever has it.
    pub async fn release_block_affinity(&self, cidr: IpNet, must_be_empty: bool) -> Result<()> {
        let missing = || does_not_exist(&Key::Block { cidr });
        let standing = self.ledger.block(cidr).await?.ok_or_else(missing)?;
        match standing.value.owner() {
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
        let claims = self.ledger.affinities(owner, None).await?;
        let wanted = |cidr: &IpNet| within.is_none_or(|net| net.contains(cidr));
        let cidrs = claims.into_iter().map(|(cidr, _)| (owner.clone(), cidr));
        self.release_all(cidrs.filter(|(_, cidr)| wanted(cidr)).collect(), must_be_empty).await
    }

    /// Gives up every host's blocks in a pool, which has been disabled before.
    pub async fn release_pool_affinities(&self, pool: IpNet) -> Result<()> {
        let claims = self.ledger.all_affinities(AffinityType::Host).await?;
        let inside = claims.into_iter().map(|(owner, cidr, _)| (owner, cidr));
        self.release_all(inside.filter(|(_, cidr)| pool.contains(cidr)).collect(), false).await
    }

    /// Forgets a host that is gone: all its blocks, and what old versions kept of it. Addresses stay assigned.
    pub async fn remove_host(&self, host: &str) -> Result<()> {
        let result = self.release_owner_affinities(&Owner::host(host), None, false).await;
        match self.ledger.client().delete(&Key::IpamHost { host: host.to_owned() }, None).await {
            Ok(_) | Err(tortie_store::Error::DoesNotExist { .. }) => result,
            Err(error) => result.and(Err(error.into())),
        }
    }

    /// Gives back every address recorded for a host, wherever it is: for a host that is gone for good.
    pub async fn release_host_addresses(&self, host: &str) -> Result<super::ReleaseReport> {
        let mut wanted = Vec::new();
        for standing in self.ledger.blocks(None).await? {
            for allocation in audit::allocations(&standing.value) {
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

    /// One transaction for claim and block, so nobody ever sees one without the other.
    pub(super) async fn release_claim(
        &self,
        owner: &Owner,
        cidr: IpNet,
        must_be_empty: bool,
        sequence_number: Option<u64>,
    ) -> Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(claim) = self.ledger.affinity(owner, cidr).await? else {
                return Err(does_not_exist(&affinity_key(owner, cidr)));
            };
            let Some(found) = self.ledger.block(cidr).await? else {
                self.ledger.commit(&[delete_claim(owner, cidr, &claim)]).await?;
                return Err(does_not_exist(&Key::Block { cidr }));
            };
            if !block::belongs_to(&found.value, owner) {
                self.ledger.commit(&[delete_claim(owner, cidr, &claim)]).await?;
                let theirs = found.value.affinity.unwrap_or_else(|| "nobody".to_owned());
                return Err(Error::ClaimConflict { block: cidr, owner: theirs, wanted: owner.to_string() });
            }
            if sequence_number.is_some_and(|expected| expected != found.value.sequence_number) {
                return Err(Error::NotEmpty { block: cidr });
            }
            let empty = block::is_empty(&found.value);
            if must_be_empty && !empty {
                return Err(Error::NotEmpty { block: cidr });
            }
            let change = if empty {
                delete_block(cidr, found.revision.clone())
            } else {
                let mut orphan = found.value;
                block::disown(&mut orphan);
                block::advance(&mut orphan);
                update_block(&orphan, found.revision.clone())
            };
            match self.ledger.commit(&[delete_claim(owner, cidr, &claim), change]).await? {
                Commit::Done(_) => return Ok(()),
                Commit::Refused(_) => {}
            }
        }
        Err(Error::TooManyRetries)
    }
}

fn delete_claim(owner: &Owner, cidr: IpNet, claim: &Standing<BlockAffinity>) -> Change {
    Change::Delete { key: affinity_key(owner, cidr), revision: claim.revision.clone() }
}

fn does_not_exist(key: &Key) -> Error {
    Error::DoesNotExist { id: key.to_string(), reason: "key not found".to_owned() }
}
