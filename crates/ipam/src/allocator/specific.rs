//! Assignment of a specific address.

use super::cache::BlockCache;
use super::request::SpecificRequest;
use super::{Allocator, MAX_RACE_ATTEMPTS, stands_at};
use crate::facts::AllocatorInputs;
use crate::handle::HandleRecord;
use crate::operations::{self, update_block};
use crate::records::{VersionedValue, block_key};
use crate::{IpamError, IpamResult, block, pool, space};
use ipnet::IpNet;
use jiff::Timestamp;
use tortie_model::StoreKey;
use tortie_model::ipam::AddressBlock;
use tortie_model::ipam::block::BlockError;
use tortie_store::{OperationOutcome, OperationRefusal};

impl Allocator {
    /// Assigns the address, reserved or not. Ignores pool selectors, assignment mode and block limits.
    pub async fn assign_address(&self, request: &SpecificRequest) -> IpamResult<IpNet> {
        let facts = self.facts().await?;
        match self.assign_address_with(&facts, request).await {
            Err(
                error @ (IpamError::NotInPool { .. }
                | IpamError::UseNotAllowed { .. }
                | IpamError::StrictAffinity { .. }),
            ) => match self.later_facts(&facts).await? {
                Some(later) => self.assign_address_with(&later, request).await,
                None => Err(error),
            },
            result => result,
        }
    }

    async fn assign_address_with(
        &self,
        facts: &AllocatorInputs,
        request: &SpecificRequest,
    ) -> IpamResult<IpNet> {
        let address = request.address;
        let Some(pool) = pool::containing(&facts.pools, address, true) else {
            return Err(IpamError::NotInPool { address });
        };
        if let Some(intended) = request.intended.filter(|intended| !pool.uses.contains(intended)) {
            return Err(IpamError::UseNotAllowed { address, intended });
        }
        let cidr = pool.block_of(address).ok_or(IpamError::NotInPool { address })?;
        let handle = request.holder.handle.as_deref();
        if self.in_use.as_ref().is_some_and(|in_use| in_use.is_held_by_another(address, handle)) {
            return Err(BlockError::AlreadyAssigned { address }.into());
        }
        let mut cache = self.cache.lock().await;
        let mut handle = request.holder.handle.as_deref().map(|id| HandleRecord::new(id, None));
        let mut look_at_handle = request.max_per_handle.is_some();
        for _ in 0..MAX_RACE_ATTEMPTS {
            let now = Timestamp::now();
            let remembered = cache.block(cidr);
            let from_memory = remembered.is_some();
            let found = match remembered {
                Some(found) => found,
                None => match self.find_or_claim(cidr, request, now, &mut cache).await? {
                    Some(found) => found,
                    None => continue,
                },
            };
            let mut next = found.value;
            block::thaw(&mut next, facts.config.ip_cooldown_seconds, now);
            if facts.config.strict_affinity && !block::belongs_to(&next, &self.owner) {
                return Err(IpamError::StrictAffinity { block: cidr, wanted: self.owner.to_string() });
            }
            let holder = block::record(&next, address).and_then(|record| record.handle());
            let is_ours = holder.is_some() && holder == request.holder.handle.as_deref();
            if let Err(error) = block::allocate_address(&mut next, address, &request.holder) {
                if from_memory {
                    cache.remember(cidr, None);
                    continue;
                }
                if request.max_per_handle.is_some() && is_ours {
                    return Ok(space::host_net(address));
                }
                return Err(error.into());
            }
            if let Some(record) = handle.as_mut().filter(|_| look_at_handle) {
                *record = HandleRecord::new(&record.id, self.records.handle(&record.id).await?);
                self.check_limit(record, request).await?;
                look_at_handle = false;
            }
            block::advance(&mut next);
            let counted = handle.as_ref().map(|record| record.add(cidr, 1).0);
            let operation = operations::assign(update_block(&next, &found.revision), counted);
            match self.records.carry_out(operation).await? {
                OperationOutcome::Done(written) => {
                    let revision = stands_at(&written, &block_key(cidr))?;
                    cache.remember(cidr, Some(VersionedValue { value: next, revision }));
                    return Ok(space::host_net(address));
                }
                OperationOutcome::Refused(OperationRefusal { key: StoreKey::Handle { .. }, .. }) => {
                    look_at_handle = true
                }
                OperationOutcome::Refused(_) => cache.remember(cidr, None),
            }
        }
        Err(IpamError::TooManyRetries)
    }

    /// Returns the block, claiming it if it does not exist. Returns `None` if another process was faster and the caller
    /// should retry.
    async fn find_or_claim(
        &self,
        cidr: IpNet,
        request: &SpecificRequest,
        now: Timestamp,
        cache: &mut BlockCache,
    ) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        if let Some(found) = self.records.block(cidr).await? {
            return Ok(Some(found));
        }
        let reserved = request.reserved.as_ref();
        if let Some(found) = self.claim_new(cidr, reserved, now, cache).await? {
            return Ok(Some(found));
        }
        // An affinity of this host without a block, left over from an interrupted claim, prevents the claim: complete
        // it.
        let version = space::version(&cidr);
        self.load_claims(cache, version).await?;
        let claims = cache.claims(version).as_mut();
        match claims.and_then(|claims| claims.iter_mut().find(|claim| claim.cidr == cidr)) {
            Some(claim) => self.resolve(claim, reserved, now).await,
            None => Ok(None),
        }
    }

    async fn check_limit(&self, record: &HandleRecord, request: &SpecificRequest) -> IpamResult<()> {
        let Some(limit) = request.max_per_handle else { return Ok(()) };
        let version = space::version_of(request.address);
        let held = self.held_by(record, version).await?;
        if held.len() as u128 >= u128::from(limit) {
            return Err(IpamError::HandleLimit { handle: record.id.clone(), version, limit });
        }
        Ok(())
    }
}
