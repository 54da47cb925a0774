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
use tortie_store::operation::{Outcome, one_by_one};
use tortie_store::{Client, Entry, Operation, Revision};

#[cfg(test)]
use crate::simulation::Process;

/// A value and the revision it was read or written at.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    pub value: T,
    pub revision: Revision,
}

/// How operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// All steps in one transaction.
    Transaction,
    /// Each step as a compare-and-swap of its own.
    Steps,
}

#[derive(Clone, Debug)]
enum Store {
    Client(Client),
    #[cfg(test)]
    Simulated(Process),
}

/// Cheap to clone; all clones count together.
#[derive(Clone, Debug)]
pub struct Records {
    store: Store,
    carrier: Carrier,
    operations: Arc<AtomicU64>,
}

impl Records {
    /// Carries operations out in transactions if the store has them.
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

    /// Requests made to the store so far. A listing counts as one, however many pages it has.
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

    /// All steps of an operation. That others were faster is an outcome, not an error.
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

    /// The block after a refusal: what came with the refusal, or else what is read.
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

    /// The stored settings; what a missing object means is not decided here.
    pub async fn config(&self) -> Result<Option<IpamConfig>> {
        Ok(self.get(&Key::IpamConfig).await?.and_then(|found| match found.value {
            Value::IpamConfig(config) => Some(config),
            _ => None,
        }))
    }

    /// Written whatever stands there: settings are set by people, and the last one wins.
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

    /// Removes what old versions kept of a host.
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

    /// Blocks of one family or of both. One that cannot be read is passed over.
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

    /// The claims of an owner, in the order of their keys.
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

    /// The claims of all owners of a kind.
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
    // Written back, it would go to another key.
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
