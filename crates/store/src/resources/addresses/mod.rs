//! Giving back what a deleted node or pool held: addresses, their handles, and claims on blocks.
//!
//! Only what deletions need; allocation is not done here. A block and the handles of its addresses change in one
//! transaction, so nothing is left half released.

mod block;

use crate::{Change, Client, Entry, Error, Result, Revision};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_model::ipam::{Block, Handle, IpamConfig};
use tortie_model::key::AffinityType;
use tortie_model::{Key, KeyRange, Value};

/// As often as the reference tries against rivals.
const ATTEMPTS: u32 = 100;

pub struct Addresses<'a> {
    client: &'a Client,
}

/// One look at a block and what to do about it; `None` when there is nothing to do.
type Plan = Option<Vec<Change>>;

impl<'a> Addresses<'a> {
    pub fn new(client: &'a Client) -> Self {
        Addresses { client }
    }

    /// Releases those of the addresses that `node` holds; what is free or another's stays as it is.
    pub async fn release(&self, node: &str, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        let cooldown = self.cooldown().await?;
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

    /// Gives up every claim of a host; blocks with addresses in use stay, without an owner.
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
        // Left by old versions.
        match self.client.delete(&Key::IpamHost { host: host.to_owned() }, None).await {
            Ok(_) | Err(Error::DoesNotExist { .. }) => first_error,
            Err(error) => first_error.and(Err(error)),
        }
    }

    /// Gives up every claim on blocks inside the range, whoever holds it, and blocks whose claim got lost.
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

    /// All blocks that can be read.
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

    async fn cooldown(&self) -> Result<Duration> {
        let config = match self.find(&Key::IpamConfig).await?.map(|entry| entry.value) {
            Some(Value::IpamConfig(config)) => config,
            _ => IpamConfig::default(),
        };
        Ok(Duration::from_secs(config.ip_cooldown_seconds.into()))
    }

    async fn find(&self, key: &Key) -> Result<Option<Entry>> {
        match self.client.get(key).await {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::DoesNotExist { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Plans and commits until no rival comes between.
    async fn retry<F: Future<Output = Result<Plan>>>(&self, plan: impl Fn() -> F) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Some(changes) = plan().await? else { return Ok(()) };
            match self.client.transact(&changes).await {
                Ok(_) => return Ok(()),
                Err(Error::Conflict { .. } | Error::DoesNotExist { .. } | Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Datastore("Max retries hit - excessive concurrent IPAM requests".into()))
    }

    async fn plan_release(
        &self,
        cidr: IpNet,
        node: &str,
        addresses: &BTreeSet<IpAddr>,
        cooldown: Duration,
    ) -> Result<Plan> {
        let key = Key::Block { cidr };
        let Some(Entry { value: Value::Block(mut block), revision, .. }) = self.find(&key).await? else {
            return Ok(None);
        };
        let ordinals = block::held_by(&block, node, addresses);
        if ordinals.is_empty() {
            return Ok(None);
        }
        let handles = block::release(&mut block, &ordinals, Timestamp::now(), cooldown);
        let mut changes = vec![if block.affinity.is_none() && block::is_empty(&block) {
            Change::Delete { key, revision }
        } else {
            Change::Update { key, value: Value::Block(block), revision }
        }];
        changes.extend(self.plan_handles(cidr, handles).await?);
        Ok(Some(changes))
    }

    async fn plan_handles(&self, cidr: IpNet, released: BTreeMap<String, i64>) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for (id, count) in released {
            let key = Key::Handle { id };
            let Some(Entry { value: Value::Handle(handle), revision, .. }) = self.find(&key).await? else {
                continue;
            };
            let handle = without(handle, &cidr.to_string(), count);
            changes.push(if handle.block.is_empty() {
                Change::Delete { key, revision }
            } else {
                Change::Update { key, value: Value::Handle(handle), revision }
            });
        }
        Ok(changes)
    }

    /// A block nobody claims any more: gone if it is empty, without an owner if not.
    async fn plan_unclaimed(&self, cidr: IpNet) -> Result<Plan> {
        let key = Key::Block { cidr };
        let Some(Entry { value: Value::Block(block), revision, .. }) = self.find(&key).await? else {
            return Ok(None);
        };
        let settled = block.affinity.is_none() && !block::is_empty(&block);
        Ok((!settled).then(|| vec![disowned(key, block, revision)]))
    }

    async fn plan_affinity_release(&self, key: &Key) -> Result<Plan> {
        let Key::BlockAffinity { affinity, owner, cidr } = key else { return Ok(None) };
        let Some(claim) = self.find(key).await? else { return Ok(None) };
        let mut changes = vec![Change::Delete { key: key.clone(), revision: claim.revision }];
        let block_key = Key::Block { cidr: *cidr };
        if let Some(Entry { value: Value::Block(block), revision, .. }) = self.find(&block_key).await?
            && block.owner() == Some((*affinity, owner))
        {
            changes.push(disowned(block_key, block, revision));
        }
        Ok(Some(changes))
    }
}

/// What becomes of a block that loses its owner.
fn disowned(key: Key, mut block: Block, revision: Revision) -> Change {
    if block::is_empty(&block) {
        return Change::Delete { key, revision };
    }
    block::disown(&mut block);
    Change::Update { key, value: Value::Block(block), revision }
}

/// The handle with fewer addresses in a block. Counts may be too high, so the block goes when they reach zero.
fn without(mut handle: Handle, block: &str, released: i64) -> Handle {
    if let Some(count) = handle.block.get_mut(block) {
        *count = count.saturating_sub(released);
        if *count <= 0 {
            handle.block.remove(block);
        }
    }
    handle
}
