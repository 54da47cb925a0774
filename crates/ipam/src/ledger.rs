//! Address management's own entries in the store, typed, and a count of what reading and writing them costs.

use crate::owner::Owner;
use crate::{Error, Result};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tortie_model::ipam::{Block, BlockAffinity, Handle, IpamConfig};
use tortie_model::key::AffinityType;
use tortie_model::{Key, KeyRange, Kind, Resource, Value};
use tortie_store::backend::etcd::keys;
use tortie_store::{Change, Client, Revision};

/// A value and the revision it was read or written at.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing<T> {
    pub value: T,
    pub revision: Revision,
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum Commit {
    Done(Revision),
    /// Somebody else was faster; this is the first entry that was not as expected.
    Refused(Key),
}

/// Cheap to clone; all clones count together.
#[derive(Clone, Debug)]
pub struct Ledger {
    client: Client,
    operations: Arc<AtomicU64>,
}

impl Ledger {
    pub fn new(client: Client) -> Ledger {
        Ledger { client, operations: Arc::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Requests made to the store so far. A listing counts as one, however many pages it has.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    fn count(&self) -> &Client {
        self.operations.fetch_add(1, Ordering::Relaxed);
        &self.client
    }

    async fn get(&self, key: &Key) -> Result<Option<Standing<Value>>> {
        match self.count().get(key).await {
            Ok(entry) => Ok(Some(Standing { value: entry.value, revision: entry.revision })),
            Err(tortie_store::Error::DoesNotExist { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn block(&self, cidr: IpNet) -> Result<Option<Standing<Block>>> {
        let key = Key::Block { cidr };
        let found = self.get(&key).await?.and_then(|found| match found.value {
            Value::Block(value) => Some(Standing { value, revision: found.revision }),
            _ => None,
        });
        match found {
            // Written back, it would go to another key.
            Some(block) if block.value.cidr != cidr => Err(Error::Store(tortie_store::Error::Parse {
                key: keys::path(&key),
                value: block.value.cidr.to_string(),
                reason: "the block says it is another one".to_owned(),
            })),
            found => Ok(found),
        }
    }

    pub async fn affinity(&self, owner: &Owner, cidr: IpNet) -> Result<Option<Standing<BlockAffinity>>> {
        Ok(self.get(&affinity_key(owner, cidr)).await?.and_then(|found| match found.value {
            Value::BlockAffinity(value) => Some(Standing { value, revision: found.revision }),
            _ => None,
        }))
    }

    pub async fn handle(&self, id: &str) -> Result<Option<Standing<Handle>>> {
        Ok(self.get(&handle_key(id)).await?.and_then(|found| match found.value {
            Value::Handle(value) => Some(Standing { value, revision: found.revision }),
            _ => None,
        }))
    }

    /// The stored settings; what a missing object means is not decided here.
    pub async fn config(&self) -> Result<Option<IpamConfig>> {
        Ok(self.get(&Key::IpamConfig).await?.and_then(|found| match found.value {
            Value::IpamConfig(config) => Some(config),
            _ => None,
        }))
    }

    /// Written whatever stands there: settings are set by people, and the last one wins.
    pub async fn write_config(&self, config: IpamConfig) -> Result<()> {
        self.count().apply(&Key::IpamConfig, &Value::IpamConfig(config), None).await?;
        Ok(())
    }

    pub async fn resource(&self, kind: Kind, name: &str) -> Result<Option<Resource>> {
        Ok(self.get(&Key::resource(kind, "", name)).await?.and_then(|found| match found.value {
            Value::Resource(resource) => Some(resource),
            _ => None,
        }))
    }

    pub async fn resources(&self, kind: Kind) -> Result<Vec<Resource>> {
        let listing = self.count().list(&KeyRange::all(kind)).await?;
        let read = |value| match value {
            Value::Resource(resource) => Some(resource),
            _ => None,
        };
        Ok(listing.entries.into_iter().filter_map(|entry| read(entry.value)).collect())
    }

    pub async fn block_cidrs(&self, version: u8) -> Result<Vec<IpNet>> {
        let keys = self.count().list_keys(&KeyRange::Blocks { ip_version: Some(version) }).await?;
        let cidr = |key| match key {
            Key::Block { cidr } => Some(cidr),
            _ => None,
        };
        Ok(keys.into_iter().filter_map(cidr).collect())
    }

    /// Blocks of one family or of both. One that cannot be read is passed over.
    pub async fn blocks(&self, version: Option<u8>) -> Result<Vec<Standing<Block>>> {
        let listing = self.count().list(&KeyRange::Blocks { ip_version: version }).await?;
        Ok(listing
            .entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (Key::Block { cidr }, Value::Block(value)) if value.cidr == cidr => {
                    Some(Standing { value, revision: entry.revision })
                }
                _ => None,
            })
            .collect())
    }

    /// The claims of an owner, in the order of their keys.
    pub async fn affinities(
        &self,
        owner: &Owner,
        version: Option<u8>,
    ) -> Result<Vec<(IpNet, Standing<BlockAffinity>)>> {
        let range = KeyRange::BlockAffinities {
            affinity: owner.affinity,
            owner: Some(owner.name.clone()),
            ip_version: version,
        };
        Ok(self.claims(&range).await?.into_iter().map(|(_, cidr, standing)| (cidr, standing)).collect())
    }

    /// The claims of all owners of a kind.
    pub async fn all_affinities(
        &self,
        affinity: AffinityType,
    ) -> Result<Vec<(Owner, IpNet, Standing<BlockAffinity>)>> {
        self.claims(&KeyRange::BlockAffinities { affinity, owner: None, ip_version: None }).await
    }

    async fn claims(&self, range: &KeyRange) -> Result<Vec<(Owner, IpNet, Standing<BlockAffinity>)>> {
        let listing = self.count().list(range).await?;
        Ok(listing
            .entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (Key::BlockAffinity { affinity, owner, cidr }, Value::BlockAffinity(value)) => Some((
                    Owner { affinity, name: owner },
                    cidr,
                    Standing { value, revision: entry.revision },
                )),
                _ => None,
            })
            .collect())
    }

    pub async fn handles(&self) -> Result<BTreeMap<String, Standing<Handle>>> {
        let listing = self.count().list(&KeyRange::Handles).await?;
        Ok(listing
            .entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (Key::Handle { id }, Value::Handle(value)) => {
                    Some((id, Standing { value, revision: entry.revision }))
                }
                _ => None,
            })
            .collect())
    }

    /// All changes or none. That others were faster is an outcome, not an error.
    pub async fn commit(&self, changes: &[Change]) -> Result<Commit> {
        use tortie_store::Error as Refusal;
        match self.count().transact(changes).await {
            Ok(revision) => Ok(Commit::Done(revision)),
            Err(
                Refusal::AlreadyExists { id, .. }
                | Refusal::DoesNotExist { id, .. }
                | Refusal::Conflict { id, .. },
            ) => {
                let refused = changes.iter().map(Change::key).find(|key| key.to_string() == id);
                refused.cloned().map(Commit::Refused).ok_or(Error::TooManyRetries)
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub fn affinity_key(owner: &Owner, cidr: IpNet) -> Key {
    Key::BlockAffinity { affinity: owner.affinity, owner: owner.name.clone(), cidr }
}

pub fn handle_key(id: &str) -> Key {
    Key::Handle { id: id.to_owned() }
}

pub fn create_block(block: &Block) -> Change {
    Change::Create { key: Key::Block { cidr: block.cidr }, value: Value::Block(block.clone()) }
}

pub fn update_block(block: &Block, revision: Revision) -> Change {
    Change::Update { key: Key::Block { cidr: block.cidr }, value: Value::Block(block.clone()), revision }
}

pub fn delete_block(cidr: IpNet, revision: Revision) -> Change {
    Change::Delete { key: Key::Block { cidr }, revision }
}
