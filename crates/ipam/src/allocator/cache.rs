//! Cache of the block affinities and blocks of this host. With it an allocation costs one transaction.

use super::{Allocator, MAX_RACE_ATTEMPTS, stands_at};
use crate::handle::HandleRecord;
use crate::operations::{self, create_block, update_block};
use crate::owner::{BlockOwner, HostReserved};
use crate::records::{VersionedValue, affinity_key, block_key};
use crate::{IpamError, IpamResult, block, space};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_model::StoreKey;
use tortie_model::ipam::{AddressBlock, AffinityState, BlockAffinity};
use tortie_store::{OperationOutcome, Revision};

/// An affinity of this host to a block.
#[derive(Clone, Debug)]
pub(super) struct CachedClaim {
    pub cidr: IpNet,
    pub affinity: VersionedValue<BlockAffinity>,
    pub block: CachedBlock,
}

/// Cached state of the block itself.
#[derive(Clone, Debug)]
pub(super) enum CachedBlock {
    Unknown,
    Absent,
    Present(Box<VersionedValue<AddressBlock>>),
}

/// Maximum number of cached handles. Handles released by other processes stay cached until the limit is reached.
const MAX_CACHED_HANDLES: usize = 4096;

/// Affinities by family, in key order, `None` until loaded. Also the handles written last, which are needed when their
/// addresses are released.
#[derive(Debug, Default)]
pub(super) struct BlockCache {
    v4: Option<Vec<CachedClaim>>,
    v6: Option<Vec<CachedClaim>>,
    handles: BTreeMap<String, HandleRecord>,
}

impl CachedBlock {
    pub fn present(block: VersionedValue<AddressBlock>) -> CachedBlock {
        CachedBlock::Present(Box::new(block))
    }
}

impl BlockCache {
    pub fn claims(&mut self, version: u8) -> &mut Option<Vec<CachedClaim>> {
        if version == 4 { &mut self.v4 } else { &mut self.v6 }
    }

    fn find(&mut self, cidr: IpNet) -> Option<&mut CachedClaim> {
        self.claims(space::version(&cidr)).as_mut()?.iter_mut().find(|claim| claim.cidr == cidr)
    }

    /// Returns the block if its content is cached.
    pub fn block(&mut self, cidr: IpNet) -> Option<VersionedValue<AddressBlock>> {
        match &self.find(cidr)?.block {
            CachedBlock::Present(block) => Some(VersionedValue::clone(block)),
            CachedBlock::Unknown | CachedBlock::Absent => None,
        }
    }

    /// Returns the CIDR of the cached block that contains an address.
    pub fn block_with(&mut self, address: IpAddr) -> Option<IpNet> {
        let claims = self.claims(space::version_of(address)).as_ref()?;
        claims.iter().map(|claim| claim.cidr).find(|cidr| cidr.contains(&address))
    }

    /// Stores the block after a write, or marks it unknown if it turned out to have changed.
    pub fn remember(&mut self, cidr: IpNet, block: Option<VersionedValue<AddressBlock>>) {
        if let Some(claim) = self.find(cidr) {
            claim.block = block.map_or(CachedBlock::Unknown, CachedBlock::present);
        }
    }

    /// Invalidates the affinities of the family, because this one may be deleted or about to be: they are loaded again
    /// before use.
    pub fn doubt(&mut self, cidr: IpNet) {
        *self.claims(space::version(&cidr)) = None;
    }

    pub fn remember_handle(&mut self, record: HandleRecord) {
        if self.handles.len() >= MAX_CACHED_HANDLES {
            self.handles.clear();
        }
        self.handles.insert(record.id.clone(), record);
    }

    /// Removes and returns the cached handle: the caller is about to change it.
    pub fn take_handle(&mut self, id: &str) -> Option<HandleRecord> {
        self.handles.remove(id)
    }

    pub fn forget(&mut self, cidr: IpNet) {
        if let Some(claims) = self.claims(space::version(&cidr)) {
            claims.retain(|claim| claim.cidr != cidr);
        }
    }

    pub fn add(&mut self, claim: CachedClaim) {
        self.forget(claim.cidr);
        if let Some(claims) = self.claims(space::version(&claim.cidr)) {
            claims.push(claim);
        }
    }
}

impl CachedClaim {
    /// Returns the condition that the affinity is unchanged in the store.
    pub fn check(&self, owner: &BlockOwner) -> (StoreKey, Revision) {
        (affinity_key(owner, self.cidr), self.affinity.revision.clone())
    }
}

impl Allocator {
    pub(super) async fn load_claims(&self, cache: &mut BlockCache, version: u8) -> IpamResult<()> {
        let found = self.records.affinities(&self.owner, Some(version)).await?;
        let claims = found.into_iter().map(|(cidr, affinity)| CachedClaim {
            cidr,
            affinity,
            block: CachedBlock::Unknown,
        });
        *cache.claims(version) = Some(claims.collect());
        Ok(())
    }

    /// Ensures that the affinity is confirmed and that the block exists and belongs to this host. If the block belongs
    /// to another owner, deletes the affinity and returns `None`.
    pub(super) async fn resolve(
        &self,
        claim: &mut CachedClaim,
        reserved: Option<&HostReserved>,
        now: Timestamp,
    ) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        let affinity_key = affinity_key(&self.owner, claim.cidr);
        let block_key = block_key(claim.cidr);
        for _ in 0..MAX_RACE_ATTEMPTS {
            if let CachedBlock::Unknown = claim.block {
                let found = self.records.block(claim.cidr).await?;
                claim.block = found.map_or(CachedBlock::Absent, CachedBlock::present);
            }
            let (step, block) = match &claim.block {
                CachedBlock::Present(found) if !block::belongs_to(&found.value, &self.owner) => {
                    let withdraw = operations::withdraw(&self.owner, claim.cidr, &claim.affinity);
                    // The result does not matter: the affinity may be deleted already.
                    self.records.carry_out(withdraw).await?;
                    return Ok(None);
                }
                CachedBlock::Present(found) if claim.affinity.value.state == AffinityState::Confirmed => {
                    return Ok(Some(VersionedValue::clone(found)));
                }
                CachedBlock::Present(found) => {
                    // The new sequence number makes a concurrent release of the block fail.
                    let mut block = found.value.clone();
                    block::advance(&mut block);
                    (update_block(&block, &found.revision), block)
                }
                CachedBlock::Unknown | CachedBlock::Absent => {
                    let block = block::fresh(claim.cidr, &self.owner, reserved, now);
                    (create_block(&block), block)
                }
            };
            let confirm = operations::confirm(&self.owner, claim.cidr, &claim.affinity, step);
            match self.records.carry_out(confirm).await? {
                OperationOutcome::Done(written) => {
                    let found = VersionedValue { value: block, revision: stands_at(&written, &block_key)? };
                    claim.block = CachedBlock::present(found.clone());
                    if let Some(revision) = written.revision(&affinity_key) {
                        claim.affinity.value.state = AffinityState::Confirmed;
                        claim.affinity.revision = revision;
                        return Ok(Some(found));
                    }
                    // Another process deleted the affinity before it was confirmed; the block still belongs to this
                    // host.
                    if !self.look_again(claim, &affinity_key).await? {
                        return self.claim_again(claim).await;
                    }
                }
                OperationOutcome::Refused(refusal) => {
                    if !self.look_again(claim, &refusal.key).await? {
                        return Ok(None);
                    }
                }
            }
        }
        Err(IpamError::TooManyRetries)
    }

    /// Creates the affinity again for a block of this host whose affinity is missing.
    async fn claim_again(&self, claim: &mut CachedClaim) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        let CachedBlock::Present(found) = &claim.block else { return Ok(None) };
        let operation = operations::claim(&self.owner, claim.cidr, operations::touch_block(found));
        // The caller retries and finds the block and its affinity, confirmed or pending.
        self.records.carry_out(operation).await?;
        Ok(None)
    }

    /// Reads the entry again whose precondition failed. Returns `false` if the affinity no longer exists.
    pub(super) async fn look_again(&self, claim: &mut CachedClaim, refused: &StoreKey) -> IpamResult<bool> {
        match refused {
            StoreKey::Block { .. } => claim.block = CachedBlock::Unknown,
            StoreKey::BlockAffinity { .. } => match self.records.affinity(&self.owner, claim.cidr).await? {
                Some(affinity) => claim.affinity = affinity,
                None => return Ok(false),
            },
            _ => {}
        }
        Ok(true)
    }
}
