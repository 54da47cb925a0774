//! Releases the addresses, handles and block affinities of a deleted node or pool.
//!
//! Contains only what deletions need, no allocation. The steps are in the order of the allocator: a handle references
//! its addresses until the block no longer contains them.

use crate::operation::{Expected, Reversible, Step};
use crate::{Client, Entry, Error, Operation, Outcome, Result, Revision};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::ipam::block::{self, Release};
use tortie_model::ipam::owner::attribute;
use tortie_model::ipam::{AffinityState, Block, BlockAffinity, IpamConfig, Tunnel};
use tortie_model::key::AffinityType;
use tortie_model::{Key, KeyRange, Value};

/// Maximum number of attempts after lost races; the same as Calico's.
const ATTEMPTS: u32 = 100;

pub struct Addresses<'a> {
    client: &'a Client,
}

/// The operation for one block, derived from its current state; `None` if there is nothing to do.
type Plan = Option<Operation>;

impl<'a> Addresses<'a> {
    pub fn new(client: &'a Client) -> Self {
        Addresses { client }
    }

    /// Releases those of the addresses that `node` holds. Addresses that are free or held by other nodes are left
    /// alone.
    pub async fn release(&self, node: &str, addresses: &BTreeSet<IpAddr>) -> Result<()> {
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
    pub async fn tunnels_of(&self, node: &str) -> Result<BTreeSet<IpAddr>> {
        let is_tunnel = |allocation: &block::Allocation| {
            allocation.attribute(attribute::NODE) == Some(node)
                && allocation.handle().and_then(Tunnel::of_handle).is_some_and(|(_, of)| of == node)
        };
        let mut found = BTreeSet::new();
        for block in self.blocks().await? {
            found.extend(block::allocations(&block).filter(is_tunnel).map(|allocation| allocation.address));
        }
        Ok(found)
    }

    /// Releases all block affinities of a host. Blocks with addresses in use stay, without an owner.
    pub async fn release_host(&self, host: &str) -> Result<()> {
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
        match self.client.delete(&Key::IpamHost { host: host.to_owned() }, None).await {
            Ok(_) | Err(Error::DoesNotExist { .. }) => first_error,
            Err(error) => first_error.and(Err(error)),
        }
    }

    /// Releases the affinities of all blocks in a CIDR, whatever their owner, and blocks whose affinity record is
    /// missing.
    pub async fn release_range(&self, cidr: &IpNet) -> Result<()> {
        let mut first_error = Ok(());
        for affinity in [AffinityType::Host, AffinityType::Virtual] {
            let range = KeyRange::BlockAffinities { affinity, owner: None, ip_version: None };
            for key in self.keys(&range).await? {
                if matches!(&key, Key::BlockAffinity { cidr: block, .. } if cidr.contains(block)) {
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
    pub async fn blocks(&self) -> Result<Vec<Block>> {
        let listing = self.client.list(&KeyRange::Blocks { ip_version: None }).await?;
        let block = |entry: Entry| match entry.value {
            Value::Block(block) => Some(block),
            _ => None,
        };
        Ok(listing.entries.into_iter().filter_map(block).collect())
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>> {
        Ok(self.client.list(range).await?.entries.into_iter().map(|entry| entry.key).collect())
    }

    async fn cooldown_seconds(&self) -> Result<u32> {
        let config = match self.find(&Key::IpamConfig).await?.map(|entry| entry.value) {
            Some(Value::IpamConfig(config)) => config,
            _ => IpamConfig::default(),
        };
        Ok(config.ip_cooldown_seconds)
    }

    async fn find(&self, key: &Key) -> Result<Option<Entry>> {
        match self.client.get(key).await {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::DoesNotExist { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Plans and executes an operation until it does not lose a race.
    async fn retry<F: Future<Output = Result<Plan>>>(&self, plan: impl Fn() -> F) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Some(operation) = plan().await? else { return Ok(()) };
            if let Outcome::Done(_) = self.client.carry_out(operation).await? {
                return Ok(());
            }
        }
        Err(Error::Datastore("Max retries hit - excessive concurrent IPAM requests".into()))
    }

    async fn plan_release(
        &self,
        cidr: IpNet,
        node: &str,
        addresses: &BTreeSet<IpAddr>,
        cooldown_seconds: u32,
    ) -> Result<Plan> {
        let key = Key::Block { cidr };
        let Some(Entry { value: Value::Block(mut block), revision, .. }) = self.find(&key).await? else {
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
        let expected = Expected::At(revision);
        let step = if block.affinity.is_none() && block::is_empty(&block) {
            Step::Delete { key, expected }
        } else {
            Step::Update { key, value: Value::Block(block), expected }
        };
        let finish = self.plan_handles(cidr, released.handles).await?;
        Ok(Some(Operation { finish, ..Operation::one(step) }))
    }

    async fn plan_handles(&self, cidr: IpNet, released: BTreeMap<String, u32>) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for (id, count) in released {
            let key = Key::Handle { id };
            let Some(Entry { value: Value::Handle(mut handle), revision, .. }) = self.find(&key).await?
            else {
                continue;
            };
            handle.subtract(cidr, count);
            let expected = Expected::At(revision);
            steps.push(if handle.block.is_empty() {
                Step::Delete { key, expected }
            } else {
                Step::Update { key, value: Value::Handle(handle), expected }
            });
        }
        Ok(steps)
    }

    /// Plans the removal of a block without an affinity: it is deleted if empty, and loses its owner otherwise.
    async fn plan_unclaimed(&self, cidr: IpNet) -> Result<Plan> {
        let key = Key::Block { cidr };
        let Some(Entry { value: Value::Block(block), revision, .. }) = self.find(&key).await? else {
            return Ok(None);
        };
        let settled = block.affinity.is_none() && !block::is_empty(&block);
        Ok((!settled).then(|| Operation::one(disowned(key, block, revision))))
    }

    async fn plan_affinity_release(&self, key: &Key) -> Result<Plan> {
        let Key::BlockAffinity { affinity, owner, cidr } = key else { return Ok(None) };
        let Some(claim) = self.find(key).await? else { return Ok(None) };
        let block_key = Key::Block { cidr: *cidr };
        if let Some(Entry { value: Value::Block(block), revision, .. }) = self.find(&block_key).await?
            && block.owner() == Some((*affinity, owner))
            && let Value::BlockAffinity(found) = &claim.value
        {
            let leaving = BlockAffinity { state: AffinityState::PendingDeletion, ..found.clone() };
            let leaving = Value::BlockAffinity(leaving);
            return Ok(Some(Operation {
                prepare: vec![Reversible::update(key.clone(), claim.value, leaving, claim.revision)],
                commit: vec![disowned(block_key, block, revision)],
                finish: vec![Step::Delete { key: key.clone(), expected: Expected::Written }],
                ..Operation::default()
            }));
        }
        let expected = Expected::At(claim.revision);
        Ok(Some(Operation::one(Step::Delete { key: key.clone(), expected })))
    }
}

/// Returns the step that removes the owner of a block, or deletes the block if it is empty.
fn disowned(key: Key, mut block: Block, revision: Revision) -> Step {
    let expected = Expected::At(revision);
    if block::is_empty(&block) {
        return Step::Delete { key, expected };
    }
    block::disown(&mut block);
    block::advance(&mut block);
    Step::Update { key, value: Value::Block(block), expected }
}

/// Returns those of the addresses that the node holds, or whose holder has no recorded node.
fn held_by_node(block: &Block, node: &str, addresses: &BTreeSet<IpAddr>) -> Vec<Release> {
    block::allocations(block)
        .filter(|allocation| addresses.contains(&allocation.address))
        .filter(|allocation| allocation.record.is_some() && !allocation.is_cooling_down())
        .filter(|allocation| allocation.attribute(attribute::NODE).is_none_or(|name| name == node))
        .map(|allocation| Release::of(allocation.address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn only_the_nodes_own_addresses_count() {
        let mut block: Block = serde_json::from_value(json!({
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
        let held = |block: &Block, node| {
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
