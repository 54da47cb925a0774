//! Releases the addresses, handles and block affinities of a deleted node or pool.
//!
//! Contains only what deletions need, no allocation. The steps are in the order of the allocator: a handle references
//! its addresses until the block no longer contains them.

use crate::operation::{ExpectedRevision, OperationStep, ReversibleStep};
use crate::{OperationOutcome, Revision, StoreClient, StoreEntry, StoreError, StoreOperation, StoreResult};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::ipam::block::{self, ReleaseRequest};
use tortie_model::ipam::owner::attribute;
use tortie_model::ipam::{AddressBlock, AffinityState, BlockAffinity, IpamConfig, TunnelType};
use tortie_model::key::AffinityType;
use tortie_model::{KeyRange, StoreKey, StoreValue};

/// Maximum number of attempts after lost races; the same as Calico's.
const MAX_RELEASE_ATTEMPTS: u32 = 100;

pub struct AddressReleaser<'a> {
    client: &'a StoreClient,
}

/// The operation for one block, derived from its current state; `None` if there is nothing to do.
type ReleasePlan = Option<StoreOperation>;

impl<'a> AddressReleaser<'a> {
    pub fn new(client: &'a StoreClient) -> Self {
        AddressReleaser { client }
    }

    /// Releases those of the addresses that `node` holds. Addresses that are free or held by other nodes are left
    /// alone.
    pub async fn release(&self, node: &str, addresses: &BTreeSet<IpAddr>) -> StoreResult<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        let cooldown = self.cooldown_seconds().await?;
        let mut first_error = Ok(());
        for block in self.blocks().await? {
            let inside: BTreeSet<IpAddr> =
                addresses.iter().copied().filter(|address| block.cidr.contains(address)).collect();
            if !inside.is_empty() {
                let released = self.retry(|| self.plan_release(block.cidr, node, &inside, cooldown)).await;
                first_error = first_error.and(released);
            }
        }
        first_error
    }

    /// Returns the addresses of a node's tunnels as recorded in the blocks: the Node object may be deleted already.
    pub async fn tunnels_of(&self, node: &str) -> StoreResult<BTreeSet<IpAddr>> {
        let mut found = BTreeSet::new();
        for block in self.blocks().await? {
            for allocation in block::allocations(&block) {
                let tunnel = allocation.handle().and_then(TunnelType::of_handle);
                if allocation.attribute(attribute::NODE_ATTRIBUTE) == Some(node)
                    && tunnel.is_some_and(|(_, of)| of == node)
                {
                    found.insert(allocation.address);
                }
            }
        }
        Ok(found)
    }

    /// Releases all block affinities of a host. Blocks with addresses in use stay, without an owner.
    pub async fn release_host(&self, host: &str) -> StoreResult<()> {
        let range = KeyRange::BlockAffinities {
            affinity: AffinityType::Host,
            owner: Some(host.to_owned()),
            ip_version: None,
        };
        let mut first_error = Ok(());
        for key in self.keys(&range).await? {
            let released = self.retry(|| self.plan_affinity_release(&key)).await;
            first_error = first_error.and(released);
        }
        // Written by old versions.
        match self.client.delete(&StoreKey::IpamHost { host: host.to_owned() }, None).await {
            Ok(_) | Err(StoreError::DoesNotExist { .. }) => first_error,
            Err(error) => first_error.and(Err(error)),
        }
    }

    /// Releases the affinities of all blocks in a CIDR, whatever their owner, and blocks whose affinity record is
    /// missing.
    pub async fn release_range(&self, cidr: &IpNet) -> StoreResult<()> {
        let mut first_error = Ok(());
        for affinity in [AffinityType::Host, AffinityType::Virtual] {
            let range = KeyRange::BlockAffinities { affinity, owner: None, ip_version: None };
            for key in self.keys(&range).await? {
                if matches!(&key, StoreKey::BlockAffinity { cidr: block, .. } if cidr.contains(block)) {
                    let released = self.retry(|| self.plan_affinity_release(&key)).await;
                    first_error = first_error.and(released);
                }
            }
        }
        for block in self.blocks().await? {
            if cidr.contains(&block.cidr) {
                first_error = first_error.and(self.retry(|| self.plan_unclaimed(block.cidr)).await);
            }
        }
        first_error
    }

    /// Returns all readable blocks.
    pub async fn blocks(&self) -> StoreResult<Vec<AddressBlock>> {
        let listing = self.client.list(&KeyRange::Blocks { ip_version: None }).await?;
        Ok(listing
            .entries
            .into_iter()
            .filter_map(|entry| match entry.value {
                StoreValue::Block(block) => Some(block),
                _ => None,
            })
            .collect())
    }

    async fn keys(&self, range: &KeyRange) -> StoreResult<Vec<StoreKey>> {
        Ok(self.client.list(range).await?.entries.into_iter().map(|entry| entry.key).collect())
    }

    async fn cooldown_seconds(&self) -> StoreResult<u32> {
        let config = match self.find(&StoreKey::IpamConfig).await?.map(|entry| entry.value) {
            Some(StoreValue::IpamConfig(config)) => config,
            _ => IpamConfig::default(),
        };
        Ok(config.ip_cooldown_seconds)
    }

    async fn find(&self, key: &StoreKey) -> StoreResult<Option<StoreEntry>> {
        match self.client.get(key).await {
            Ok(entry) => Ok(Some(entry)),
            Err(StoreError::DoesNotExist { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Plans and executes an operation until it does not lose a race.
    async fn retry<F: Future<Output = StoreResult<ReleasePlan>>>(
        &self,
        plan: impl Fn() -> F,
    ) -> StoreResult<()> {
        for _ in 0..MAX_RELEASE_ATTEMPTS {
            let Some(operation) = plan().await? else { return Ok(()) };
            if let OperationOutcome::Done(_) = self.client.carry_out(operation).await? {
                return Ok(());
            }
        }
        Err(StoreError::Datastore("Max retries hit - excessive concurrent IPAM requests".into()))
    }

    async fn plan_release(
        &self,
        cidr: IpNet,
        node: &str,
        addresses: &BTreeSet<IpAddr>,
        cooldown_seconds: u32,
    ) -> StoreResult<ReleasePlan> {
        let key = StoreKey::Block { cidr };
        let Some(StoreEntry { value: StoreValue::Block(mut block), revision, .. }) = self.find(&key).await?
        else {
            return Ok(None);
        };
        let held = held_by_node(&block, node, addresses);
        if held.is_empty() {
            return Ok(None);
        }
        let now = Timestamp::now();
        // Cannot fail: the releases have no conditions.
        let Ok(released) = block::release(&mut block, &held, now) else { return Ok(None) };
        block::thaw(&mut block, cooldown_seconds, now);
        block::advance(&mut block);
        let expected = ExpectedRevision::At(revision);
        let step = if block.affinity.is_none() && block::is_empty(&block) {
            OperationStep::Delete { key, expected }
        } else {
            OperationStep::Update { key, value: StoreValue::Block(block), expected }
        };
        let finish = self.plan_handles(cidr, released.handles).await?;
        Ok(Some(StoreOperation { finish, ..StoreOperation::one(step) }))
    }

    async fn plan_handles(
        &self,
        cidr: IpNet,
        released: BTreeMap<String, u32>,
    ) -> StoreResult<Vec<OperationStep>> {
        let mut steps = Vec::new();
        for (id, count) in released {
            let key = StoreKey::Handle { id };
            let Some(StoreEntry { value: StoreValue::Handle(mut handle), revision, .. }) =
                self.find(&key).await?
            else {
                continue;
            };
            handle.subtract(cidr, count);
            let expected = ExpectedRevision::At(revision);
            steps.push(if handle.block.is_empty() {
                OperationStep::Delete { key, expected }
            } else {
                OperationStep::Update { key, value: StoreValue::Handle(handle), expected }
            });
        }
        Ok(steps)
    }

    /// Plans the removal of a block without an affinity: it is deleted if empty, and loses its owner otherwise.
    async fn plan_unclaimed(&self, cidr: IpNet) -> StoreResult<ReleasePlan> {
        let key = StoreKey::Block { cidr };
        let Some(StoreEntry { value: StoreValue::Block(block), revision, .. }) = self.find(&key).await?
        else {
            return Ok(None);
        };
        let settled = block.affinity.is_none() && !block::is_empty(&block);
        Ok((!settled).then(|| StoreOperation::one(disowned(key, block, revision))))
    }

    async fn plan_affinity_release(&self, key: &StoreKey) -> StoreResult<ReleasePlan> {
        let StoreKey::BlockAffinity { affinity, owner, cidr } = key else { return Ok(None) };
        let Some(claim) = self.find(key).await? else { return Ok(None) };
        let block_key = StoreKey::Block { cidr: *cidr };
        if let Some(StoreEntry { value: StoreValue::Block(block), revision, .. }) =
            self.find(&block_key).await?
            && block.owner() == Some((*affinity, owner))
            && let StoreValue::BlockAffinity(found) = &claim.value
        {
            let leaving = BlockAffinity { state: AffinityState::PendingDeletion, ..found.clone() };
            let leaving = StoreValue::BlockAffinity(leaving);
            return Ok(Some(StoreOperation {
                prepare: vec![ReversibleStep::update(key.clone(), claim.value, leaving, claim.revision)],
                commit: vec![disowned(block_key, block, revision)],
                finish: vec![OperationStep::Delete { key: key.clone(), expected: ExpectedRevision::Written }],
                ..StoreOperation::default()
            }));
        }
        let expected = ExpectedRevision::At(claim.revision);
        Ok(Some(StoreOperation::one(OperationStep::Delete { key: key.clone(), expected })))
    }
}

/// Returns the step that removes the owner of a block, or deletes the block if it is empty.
fn disowned(key: StoreKey, mut block: AddressBlock, revision: Revision) -> OperationStep {
    let expected = ExpectedRevision::At(revision);
    if block::is_empty(&block) {
        return OperationStep::Delete { key, expected };
    }
    block::disown(&mut block);
    block::advance(&mut block);
    OperationStep::Update { key, value: StoreValue::Block(block), expected }
}

/// Returns those of the addresses that the node holds, or whose holder has no recorded node.
fn held_by_node(block: &AddressBlock, node: &str, addresses: &BTreeSet<IpAddr>) -> Vec<ReleaseRequest> {
    block::allocations(block)
        .filter(|allocation| addresses.contains(&allocation.address))
        .filter(|allocation| allocation.record.is_some() && !allocation.is_cooling_down())
        .filter(|allocation| allocation.attribute(attribute::NODE_ATTRIBUTE).is_none_or(|name| name == node))
        .map(|allocation| ReleaseRequest::of(allocation.address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn only_the_nodes_own_addresses_count() {
        let mut block: AddressBlock = serde_json::from_value(json!({
            "cidr": "10.65.3.8/29", "affinity": "host:n1",
            "allocations": [0, null, 1, 2, 1, null, null, 9], "unallocated": [5, 6, 1],
            "attributes": [
                {"handle_id": "pod-a", "secondary": {"node": "n1", "pod": "a"}},
                {"handle_id": "pod-b", "secondary": {"node": "n2", "pod": "b"}},
                {"releasedAt": "2026-03-01T11:00:00Z"},
            ],
        }))
        .unwrap();
        let all: BTreeSet<IpAddr> =
            ["10.65.3.8", "10.65.3.9", "10.65.3.10", "10.65.3.11", "10.65.3.15", "10.65.3.16", "fd00::8"]
                .map(|text| text.parse().unwrap())
                .into();
        let held = |block: &AddressBlock, node| {
            held_by_node(block, node, &all)
                .iter()
                .map(|release| release.address.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(held(&block, "n1"), ["10.65.3.8"]);
        assert_eq!(held(&block, "n2"), ["10.65.3.10"]);
        Arc::make_mut(&mut block.attributes[0]).secondary.clear();
        assert_eq!(held(&block, "n3"), ["10.65.3.8"]);
    }
}
