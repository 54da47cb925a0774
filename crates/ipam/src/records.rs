//! Typed access to the IPAM entries in the store, with a count of the requests sent.

use crate::owner::Owner;
use crate::{Error, Result};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tortie_model::ipam::{Block, BlockAffinity, Handle, IpamConfig};
use tortie_model::key::AffinityType;
use tortie_model::{Key, KeyRange, Kind, Resource, Value};
use tortie_store::operation::{Outcome, one_by_one};
use tortie_store::{Client, Entry, Operation, Revision};

#[cfg(test)]
use crate::simulation::Process;

/// A value and the revision at which it was read or written.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    pub value: T,
    pub revision: Revision,
}

/// Way in which operations are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// All steps in one transaction.
    Transaction,
    /// Each step as a separate compare-and-swap.
    Steps,
}

#[derive(Clone, Debug)]
enum Store {
    Client(Client),
    #[cfg(test)]
    Simulated(Process),
}

/// Handle to the IPAM entries. Cheap to clone; all clones share the request counter.
#[derive(Clone, Debug)]
pub struct Records {
    store: Store,
    carrier: Carrier,
    operations: Arc<AtomicU64>,
}

impl Records {
    /// Creates the handle. Operations use transactions if the store supports them.
    pub fn new(client: Client) -> Records {
        let carrier = match client.transactions() {
            Some(_) => Carrier::Transaction,
            None => Carrier::Steps,
        };
        Records { store: Store::Client(client), carrier, operations: Arc::default() }
    }

    pub fn carried_by(self, carrier: Carrier) -> Records {
        Records { carrier, ..self }
    }

    #[cfg(test)]
    pub fn simulated(process: Process, carrier: Carrier) -> Records {
        Records { store: Store::Simulated(process), carrier, operations: Arc::default() }
    }

    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Returns the number of requests sent to the store so far. A listing counts as one, whatever its number of pages.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    fn count(&self) -> &Store {
        self.operations.fetch_add(1, Ordering::Relaxed);
        &self.store
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Value>>> {
        let found = match self.count() {
            Store::Client(client) => client.get(key).await,
            #[cfg(test)]
            Store::Simulated(process) => process.get(key).await,
        };
        match found {
            Ok(entry) => Ok(Some(Versioned { value: entry.value, revision: entry.revision })),
            Err(tortie_store::Error::DoesNotExist { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn list(&self, range: &KeyRange) -> Result<Vec<Entry>> {
        match self.count() {
            Store::Client(client) => Ok(client.list(range).await?.entries),
            #[cfg(test)]
            Store::Simulated(process) => Ok(process.list(range).await?),
        }
    }

    /// Executes all steps of an operation. A lost race is an outcome, not an error.
    pub async fn carry_out(&self, operation: Operation) -> Result<Outcome> {
        match (self.count(), self.carrier) {
            (Store::Client(client), Carrier::Transaction) => Ok(client.carry_out(operation).await?),
            (Store::Client(client), Carrier::Steps) => Ok(one_by_one(client, &operation).await?),
            #[cfg(test)]
            (Store::Simulated(process), Carrier::Transaction) => Ok(process.transact(operation).await?),
            #[cfg(test)]
            (Store::Simulated(process), Carrier::Steps) => Ok(one_by_one(process, &operation).await?),
        }
    }

    pub async fn block(&self, cidr: IpNet) -> Result<Option<Versioned<Block>>> {
        as_block(cidr, self.get(&Key::Block { cidr }).await?)
    }

    /// Returns the block after a refused write: the entry that came with the refusal, or else a fresh read.
    pub async fn block_now(
        &self,
        cidr: IpNet,
        refused: Option<Box<Entry>>,
    ) -> Result<Option<Versioned<Block>>> {
        match refused {
            Some(entry) => as_block(cidr, Some(Versioned { value: entry.value, revision: entry.revision })),
            None => self.block(cidr).await,
        }
    }

    pub async fn affinity(&self, owner: &Owner, cidr: IpNet) -> Result<Option<Versioned<BlockAffinity>>> {
        Ok(self.get(&affinity_key(owner, cidr)).await?.and_then(|found| match found.value {
            Value::BlockAffinity(value) => Some(Versioned { value, revision: found.revision }),
            _ => None,
        }))
    }

    pub async fn handle(&self, id: &str) -> Result<Option<Versioned<Handle>>> {
        Ok(self.get(&handle_key(id)).await?.and_then(|found| match found.value {
            Value::Handle(value) => Some(Versioned { value, revision: found.revision }),
            _ => None,
        }))
    }

    /// Returns the stored configuration, or `None`. The caller applies the defaults.
    pub async fn config(&self) -> Result<Option<IpamConfig>> {
        Ok(self.get(&Key::IpamConfig).await?.and_then(|found| match found.value {
            Value::IpamConfig(config) => Some(config),
            _ => None,
        }))
    }

    /// Writes unconditionally: the configuration is set by users, and the last write wins.
    pub async fn write_config(&self, config: IpamConfig) -> Result<()> {
        match self.count() {
            Store::Client(client) => {
                client.apply(&Key::IpamConfig, &Value::IpamConfig(config), None).await?;
            }
            #[cfg(test)]
            Store::Simulated(_) => {}
        }
        Ok(())
    }

    /// Deletes the IPAM host entry that old versions kept for a host.
    pub async fn delete_host(&self, host: &str) -> Result<()> {
        let deleted = match self.count() {
            Store::Client(client) => client.delete(&Key::IpamHost { host: host.to_owned() }, None).await,
            #[cfg(test)]
            Store::Simulated(_) => return Ok(()),
        };
        match deleted {
            Ok(_) | Err(tortie_store::Error::DoesNotExist { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn resource(&self, kind: Kind, name: &str) -> Result<Option<Resource>> {
        Ok(self.get(&Key::resource(kind, "", name)).await?.and_then(|found| match found.value {
            Value::Resource(resource) => Some(resource),
            _ => None,
        }))
    }

    pub async fn resources(&self, kind: Kind) -> Result<Vec<Resource>> {
        let entries = self.list(&KeyRange::all(kind)).await?;
        let read = |value| match value {
            Value::Resource(resource) => Some(resource),
            _ => None,
        };
        Ok(entries.into_iter().filter_map(|entry| read(entry.value)).collect())
    }

    pub async fn block_cidrs(&self, version: u8) -> Result<Vec<IpNet>> {
        let range = KeyRange::Blocks { ip_version: Some(version) };
        let keys = match self.count() {
            Store::Client(client) => client.list_keys(&range).await?,
            #[cfg(test)]
            Store::Simulated(process) => process.list_keys(&range).await?,
        };
        let cidr = |key| match key {
            Key::Block { cidr } => Some(cidr),
            _ => None,
        };
        Ok(keys.into_iter().filter_map(cidr).collect())
    }

    /// Lists the blocks of one family or of both. Unreadable blocks are skipped.
    pub async fn blocks(&self, version: Option<u8>) -> Result<Vec<Versioned<Block>>> {
        let entries = self.list(&KeyRange::Blocks { ip_version: version }).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (Key::Block { cidr }, Value::Block(value)) if value.cidr == cidr => {
                    Some(Versioned { value, revision: entry.revision })
                }
                _ => None,
            })
            .collect())
    }

    /// Lists the affinities of an owner, in key order.
    pub async fn affinities(
        &self,
        owner: &Owner,
        version: Option<u8>,
    ) -> Result<Vec<(IpNet, Versioned<BlockAffinity>)>> {
        let range = KeyRange::BlockAffinities {
            affinity: owner.affinity,
            owner: Some(owner.name.clone()),
            ip_version: version,
        };
        Ok(self.claims(&range).await?.into_iter().map(|(_, cidr, affinity)| (cidr, affinity)).collect())
    }

    /// Lists the affinities of all owners of a type.
    pub async fn all_affinities(
        &self,
        affinity: AffinityType,
    ) -> Result<Vec<(Owner, IpNet, Versioned<BlockAffinity>)>> {
        self.claims(&KeyRange::BlockAffinities { affinity, owner: None, ip_version: None }).await
    }

    async fn claims(&self, range: &KeyRange) -> Result<Vec<(Owner, IpNet, Versioned<BlockAffinity>)>> {
        let entries = self.list(range).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (Key::BlockAffinity { affinity, owner, cidr }, Value::BlockAffinity(value)) => Some((
                    Owner { affinity, name: owner },
                    cidr,
                    Versioned { value, revision: entry.revision },
                )),
                _ => None,
            })
            .collect())
    }

    pub async fn handles(&self) -> Result<BTreeMap<String, Versioned<Handle>>> {
        let entries = self.list(&KeyRange::Handles).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (Key::Handle { id }, Value::Handle(value)) => {
                    Some((id, Versioned { value, revision: entry.revision }))
                }
                _ => None,
            })
            .collect())
    }
}

fn as_block(cidr: IpNet, found: Option<Versioned<Value>>) -> Result<Option<Versioned<Block>>> {
    let Some(Versioned { value: Value::Block(value), revision }) = found else { return Ok(None) };
    // Writing such a block back would write to another key.
    if value.cidr != cidr {
        return Err(Error::Store(tortie_store::Error::Parse {
            key: Key::Block { cidr }.to_string(),
            value: value.cidr.to_string(),
            reason: "the block says it is another one".to_owned(),
        }));
    }
    Ok(Some(Versioned { value, revision }))
}

pub fn affinity_key(owner: &Owner, cidr: IpNet) -> Key {
    Key::BlockAffinity { affinity: owner.affinity, owner: owner.name.clone(), cidr }
}

pub fn handle_key(id: &str) -> Key {
    Key::Handle { id: id.to_owned() }
}

pub fn block_key(cidr: IpNet) -> Key {
    Key::Block { cidr }
}
