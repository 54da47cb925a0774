//! Releasing individual addresses.

use super::cache::BlockCache;
use super::{Allocator, MAX_RACE_ATTEMPTS, stands_at};
use crate::block::{self, ReleaseRequest, ReleaseResult};
use crate::facts::AllocatorInputs;
use crate::handle::HandleRecord;
use crate::operations::{self, delete_block, update_block};
use crate::records::{VersionedValue, block_key};
use crate::{IpamError, IpamResult, pool, space};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_model::ipam::AddressBlock;
use tortie_model::key::AffinityType;
use tortie_model::selector::Selector;
use tortie_model::{Kind, StoreKey};
use tortie_store::operation::OperationStep;
use tortie_store::{OperationOutcome, OperationRefusal, Revision};

/// Maximum addresses per transaction. An etcd transaction has at most 128 operations, and each address may add a
/// handle.
const MAX_RELEASES_PER_TRANSACTION: usize = 100;
/// Number of addresses from which on all handles are listed instead of read one by one.
const LIST_HANDLES_THRESHOLD: usize = 3;

/// Result of releasing a list of addresses.
#[derive(Debug, Default)]
pub struct ReleaseReport {
    pub released: Vec<IpAddr>,
    /// Addresses that were not assigned, or are already in cooldown.
    pub unallocated: Vec<IpAddr>,
    /// The first error. It does not affect addresses in other blocks.
    pub error: Option<IpamError>,
}

type HandleRecords = BTreeMap<String, HandleRecord>;

impl Allocator {
    /// Releases addresses. Those of one block are released together or not at all.
    pub async fn release(&self, wanted: &[ReleaseRequest]) -> IpamResult<ReleaseReport> {
        let facts = self.facts().await?;
        let mut cache = self.cache.lock().await;
        let mut handles = HandleRecords::new();
        let listed = wanted.len() >= LIST_HANDLES_THRESHOLD;
        if listed {
            for (id, found) in self.records.handles().await? {
                let record = HandleRecord::new(&id, Some(found));
                handles.insert(id, record);
            }
        }
        let mut report = ReleaseReport::default();
        let mut by_block: BTreeMap<IpNet, Vec<ReleaseRequest>> = BTreeMap::new();
        for release in wanted {
            match self.block_of(&facts, &mut cache, release.address).await? {
                Some(cidr) => by_block.entry(cidr).or_default().push(release.clone()),
                None => report.unallocated.push(release.address),
            }
        }
        for (cidr, mut wanted) in by_block {
            let mut done = ReleaseResult::default();
            let result =
                self.release_in(cidr, &mut wanted, &facts, &mut cache, &mut handles, &mut done).await;
            report.released.append(&mut done.addresses);
            report.unallocated.append(&mut done.unallocated);
            if let Err(error) = result {
                report.error.get_or_insert(error);
            }
        }
        Ok(report)
    }

    /// Returns the block of an address, derived from the pools including disabled ones, or else by listing the blocks.
    pub(super) async fn block_of(
        &self,
        facts: &AllocatorInputs,
        cache: &mut BlockCache,
        address: IpAddr,
    ) -> IpamResult<Option<IpNet>> {
        if let Some(cidr) = cache.block_with(address) {
            return Ok(Some(cidr));
        }
        if let Some(pool) = pool::containing(&facts.pools, address, false) {
            return Ok(pool.block_of(address));
        }
        let cidrs = self.records.block_cidrs(space::version_of(address)).await?;
        Ok(cidrs.into_iter().find(|cidr| cidr.contains(&address)))
    }

    async fn release_in(
        &self,
        cidr: IpNet,
        wanted: &mut Vec<ReleaseRequest>,
        facts: &AllocatorInputs,
        cache: &mut BlockCache,
        handles: &mut HandleRecords,
        done: &mut ReleaseResult,
    ) -> IpamResult<()> {
        for _ in 0..MAX_RACE_ATTEMPTS {
            let remembered = cache.block(cidr);
            let from_memory = remembered.is_some();
            let found = match remembered {
                Some(found) => Some(found),
                None => self.records.block(cidr).await?,
            };
            let now = Timestamp::now();
            // The conditions are checked for all addresses, even if only some fit in this transaction.
            let all = found.as_ref().map(|found| block::release(&mut found.value.clone(), wanted, now));
            let all = all.unwrap_or_else(|| {
                let unallocated = wanted.iter().map(|release| release.address).collect();
                Ok(ReleaseResult { unallocated, ..ReleaseResult::default() })
            });
            if from_memory && all.as_ref().map_or(true, |all| !all.unallocated.is_empty()) {
                // The cached block may be stale: read it before reporting an address as unallocated.
                cache.remember(cidr, None);
                continue;
            }
            let all = all?;
            let (Some(found), false) = (found, all.addresses.is_empty()) else {
                done.unallocated.extend(all.unallocated);
                return Ok(());
            };
            let batch: Vec<ReleaseRequest> = wanted
                .iter()
                .filter(|release| all.addresses.contains(&release.address))
                .take(MAX_RELEASES_PER_TRANSACTION)
                .cloned()
                .collect();
            let mut next = found.value.clone();
            let released = block::release(&mut next, &batch, now)?;
            let step = write_back(&mut next, &found.revision, facts, now);
            // Read the handles before writing the block, so that addresses assigned later are not subtracted.
            let mut counted = Vec::new();
            for (id, count) in &released.handles {
                if !handles.contains_key(id) {
                    handles.insert(id.clone(), HandleRecord::new(id, self.records.handle(id).await?));
                }
                counted.extend(handles.get(id).and_then(|record| record.subtract(cidr, *count)));
            }
            let deleted = matches!(step, OperationStep::Delete { .. });
            let operation = operations::release(Some(step), counted);
            match self.records.carry_out(operation).await? {
                OperationOutcome::Done(written) => {
                    for id in released.handles.keys() {
                        handles.remove(id);
                    }
                    wanted.retain(|release| !released.addresses.contains(&release.address));
                    done.addresses.extend(released.addresses);
                    let next = (!deleted).then_some(next);
                    self.written(cidr, next, stands_at(&written, &block_key(cidr))?, facts, cache).await;
                    for key in written.unfinished() {
                        if let StoreKey::Handle { id } = key {
                            self.correct_handle(id, cidr, cache).await?;
                        }
                    }
                    if wanted.is_empty() {
                        return Ok(());
                    }
                }
                OperationOutcome::Refused(OperationRefusal { key: StoreKey::Handle { id }, .. }) => {
                    handles.remove(&id);
                }
                OperationOutcome::Refused(_) => cache.remember(cidr, None),
            }
        }
        Err(IpamError::TooManyRetries)
    }

    /// Updates the cache after a block was written or, if `block` is `None`, deleted. Releases an empty block whose
    /// pool no longer selects its host.
    pub(super) async fn written(
        &self,
        cidr: IpNet,
        block: Option<AddressBlock>,
        revision: Revision,
        facts: &AllocatorInputs,
        cache: &mut BlockCache,
    ) {
        let Some(block) = block else {
            cache.forget(cidr);
            return;
        };
        let empty = block::is_empty(&block);
        let owner = block.owner().map(|(affinity, name)| (affinity, name.to_owned()));
        cache.remember(cidr, Some(VersionedValue { value: block, revision }));
        let (true, Some((AffinityType::Host, host))) = (empty, owner) else { return };
        match self.return_if_unselected(cidr, &host, facts).await {
            Ok(true) => cache.forget(cidr),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%cidr, host, %error, "cannot release an empty block whose pool no longer selects its host")
            }
        }
    }

    async fn return_if_unselected(
        &self,
        cidr: IpNet,
        host: &str,
        facts: &AllocatorInputs,
    ) -> IpamResult<bool> {
        let Some(pool) = pool::containing(&facts.pools, cidr.network(), true) else { return Ok(false) };
        if pool.node_selector == Selector::parse("").ok() {
            return Ok(false);
        }
        let owner = crate::owner::BlockOwner::host(host);
        let labels = if owner == self.owner {
            facts.node_labels.clone()
        } else {
            self.records.resource(Kind::Node, host).await?.map(|node| node.metadata().labels.clone())
        };
        if labels.is_none_or(|labels| pool.selects_node(&labels)) {
            return Ok(false);
        }
        self.release_claim(&owner, cidr, true).await.map(|()| true)
    }
}

/// Returns the step that writes a block after a release. Addresses whose cooldown has expired become free; an empty
/// block without an owner is deleted.
pub(super) fn write_back(
    block: &mut AddressBlock,
    revision: &Revision,
    facts: &AllocatorInputs,
    now: Timestamp,
) -> OperationStep {
    block::thaw(block, facts.config.ip_cooldown_seconds, now);
    if block.affinity.is_none() && block::is_empty(block) {
        return delete_block(block.cidr, revision);
    }
    block::advance(block);
    update_block(block, revision)
}
