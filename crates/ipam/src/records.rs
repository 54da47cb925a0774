//! Typed access to the IPAM entries in the store, with a count of the requests sent.

use crate::owner::BlockOwner;
use crate::{IpamError, IpamResult};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tortie_model::ipam::{AddressBlock, AddressHandle, BlockAffinity, IpamConfig};
use tortie_model::key::AffinityType;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::operation::OperationOutcome;
use tortie_store::{Revision, StoreClient, StoreEntry, StoreError, StoreOperation};

/// A value and the revision at which it was read or written.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedValue<T> {
    pub value: T,
    pub revision: Revision,
}

/// Way in which operations are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// All steps in one transaction.
    Transaction,
    /// Each step as a separate compare-and-swap.
    Steps,
}

/// Handle to the IPAM entries. Cheap to clone; all clones share the request counter.
#[derive(Clone, Debug)]
pub struct IpamRecords {
    client: StoreClient,
    mode: ExecutionMode,
    operations: Arc<AtomicU64>,
}

impl IpamRecords {
    /// Creates the handle. Operations use transactions if the store supports them.
    pub fn new(client: StoreClient) -> IpamRecords {
        let mode = if client.has_transactions() { ExecutionMode::Transaction } else { ExecutionMode::Steps };
        IpamRecords { client, mode, operations: Arc::default() }
    }

    pub fn with_mode(self, mode: ExecutionMode) -> IpamRecords {
        IpamRecords { mode, ..self }
    }

    pub fn mode(&self) -> ExecutionMode {
        self.mode
    }

    /// Returns the number of requests sent to the store so far. A listing counts as one, whatever its number of pages.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Counts a request and returns the client for it.
    fn counted(&self) -> &StoreClient {
        self.operations.fetch_add(1, Ordering::Relaxed);
        &self.client
    }

    async fn get(&self, key: &StoreKey) -> IpamResult<Option<VersionedValue<StoreValue>>> {
        match self.counted().get(key).await {
            Ok(entry) => Ok(Some(VersionedValue { value: entry.value, revision: entry.revision })),
            Err(StoreError::DoesNotExist { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn list(&self, range: &KeyRange) -> IpamResult<Vec<StoreEntry>> {
        Ok(self.counted().list(range).await?.entries)
    }

    /// Executes all steps of an operation. A lost race is an outcome, not an error.
    pub async fn carry_out(&self, operation: StoreOperation) -> IpamResult<OperationOutcome> {
        let client = self.counted();
        Ok(match self.mode {
            ExecutionMode::Transaction => client.carry_out(operation).await?,
            ExecutionMode::Steps => client.carry_out_in_steps(&operation).await?,
        })
    }

    pub async fn block(&self, cidr: IpNet) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        as_block(cidr, self.get(&StoreKey::Block { cidr }).await?)
    }

    /// Returns the block after a refused write: the entry that came with the refusal, or else a fresh read.
    pub async fn block_now(
        &self,
        cidr: IpNet,
        refused: Option<Box<StoreEntry>>,
    ) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
        match refused {
            Some(entry) => {
                as_block(cidr, Some(VersionedValue { value: entry.value, revision: entry.revision }))
            }
            None => self.block(cidr).await,
        }
    }

    pub async fn affinity(
        &self,
        owner: &BlockOwner,
        cidr: IpNet,
    ) -> IpamResult<Option<VersionedValue<BlockAffinity>>> {
        Ok(self.get(&affinity_key(owner, cidr)).await?.and_then(|found| match found.value {
            StoreValue::BlockAffinity(value) => Some(VersionedValue { value, revision: found.revision }),
            _ => None,
        }))
    }

    pub async fn handle(&self, id: &str) -> IpamResult<Option<VersionedValue<AddressHandle>>> {
        Ok(self.get(&handle_key(id)).await?.and_then(|found| match found.value {
            StoreValue::Handle(value) => Some(VersionedValue { value, revision: found.revision }),
            _ => None,
        }))
    }

    /// Returns the stored configuration, or `None`. The caller applies the defaults.
    pub async fn config(&self) -> IpamResult<Option<IpamConfig>> {
        Ok(self.get(&StoreKey::IpamConfig).await?.and_then(|found| match found.value {
            StoreValue::IpamConfig(config) => Some(config),
            _ => None,
        }))
    }

    /// Writes unconditionally: the configuration is set by users, and the last write wins.
    pub async fn write_config(&self, config: IpamConfig) -> IpamResult<()> {
        self.counted().apply(&StoreKey::IpamConfig, &StoreValue::IpamConfig(config), None).await?;
        Ok(())
    }

    /// Deletes the IPAM host entry that old versions kept for a host.
    pub async fn delete_host(&self, host: &str) -> IpamResult<()> {
        match self.counted().delete(&StoreKey::IpamHost { host: host.to_owned() }, None).await {
            Ok(_) | Err(StoreError::DoesNotExist { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn resource(&self, kind: Kind, name: &str) -> IpamResult<Option<Resource>> {
        Ok(self.get(&StoreKey::resource(kind, "", name)).await?.and_then(|found| match found.value {
            StoreValue::Resource(resource) => Some(resource),
            _ => None,
        }))
    }

    pub async fn resources(&self, kind: Kind) -> IpamResult<Vec<Resource>> {
        let entries = self.list(&KeyRange::all(kind)).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match entry.value {
                StoreValue::Resource(resource) => Some(resource),
                _ => None,
            })
            .collect())
    }

    pub async fn block_cidrs(&self, version: u8) -> IpamResult<Vec<IpNet>> {
        let range = KeyRange::Blocks { ip_version: Some(version) };
        let keys = self.counted().list_keys(&range).await?;
        Ok(keys
            .into_iter()
            .filter_map(|key| match key {
                StoreKey::Block { cidr } => Some(cidr),
                _ => None,
            })
            .collect())
    }

    /// Lists the blocks of one family or of both. Unreadable blocks are skipped.
    pub async fn blocks(&self, version: Option<u8>) -> IpamResult<Vec<VersionedValue<AddressBlock>>> {
        let entries = self.list(&KeyRange::Blocks { ip_version: version }).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (StoreKey::Block { cidr }, StoreValue::Block(value)) if value.cidr == cidr => {
                    Some(VersionedValue { value, revision: entry.revision })
                }
                _ => None,
            })
            .collect())
    }

    /// Lists the affinities of an owner, in key order.
    pub async fn affinities(
        &self,
        owner: &BlockOwner,
        version: Option<u8>,
    ) -> IpamResult<Vec<(IpNet, VersionedValue<BlockAffinity>)>> {
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
    ) -> IpamResult<Vec<(BlockOwner, IpNet, VersionedValue<BlockAffinity>)>> {
        self.claims(&KeyRange::BlockAffinities { affinity, owner: None, ip_version: None }).await
    }

    async fn claims(
        &self,
        range: &KeyRange,
    ) -> IpamResult<Vec<(BlockOwner, IpNet, VersionedValue<BlockAffinity>)>> {
        let entries = self.list(range).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (StoreKey::BlockAffinity { affinity, owner, cidr }, StoreValue::BlockAffinity(value)) => {
                    Some((
                        BlockOwner { affinity, name: owner },
                        cidr,
                        VersionedValue { value, revision: entry.revision },
                    ))
                }
                _ => None,
            })
            .collect())
    }

    pub async fn handles(&self) -> IpamResult<BTreeMap<String, VersionedValue<AddressHandle>>> {
        let entries = self.list(&KeyRange::Handles).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match (entry.key, entry.value) {
                (StoreKey::Handle { id }, StoreValue::Handle(value)) => {
                    Some((id, VersionedValue { value, revision: entry.revision }))
                }
                _ => None,
            })
            .collect())
    }
}

fn as_block(
    cidr: IpNet,
    found: Option<VersionedValue<StoreValue>>,
) -> IpamResult<Option<VersionedValue<AddressBlock>>> {
    let Some(VersionedValue { value: StoreValue::Block(value), revision }) = found else { return Ok(None) };
    // Writing such a block back would write to another key.
    if value.cidr != cidr {
        return Err(IpamError::Store(StoreError::Parse {
            key: StoreKey::Block { cidr }.to_string(),
            value: value.cidr.to_string(),
            reason: "the block says it is another one".to_owned(),
        }));
    }
    Ok(Some(VersionedValue { value, revision }))
}

pub fn affinity_key(owner: &BlockOwner, cidr: IpNet) -> StoreKey {
    StoreKey::BlockAffinity { affinity: owner.affinity, owner: owner.name.clone(), cidr }
}

pub fn handle_key(id: &str) -> StoreKey {
    StoreKey::Handle { id: id.to_owned() }
}

pub fn block_key(cidr: IpNet) -> StoreKey {
    StoreKey::Block { cidr }
}
