//! An in-memory store shared by simulated processes, each of which can be made to crash at a given write. After each
//! write it checks the invariants that have to hold wherever a process crashes.

mod tests;

use crate::block;
use crate::owner::BlockOwner;
use crate::records::block_key;
use async_trait::async_trait;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tortie_model::ipam::{AddressBlock, AddressHandle, AffinityState};
use tortie_model::{KeyRange, StoreKey, StoreValue};
use tortie_store::operation::{OperationOutcome, WrittenRevisions};
use tortie_store::{
    Backend, BackendCapabilities, EntryChange, EntryListing, OperationRefusal, PageRequest, Revision,
    StoreEntry, StoreError, StoreResult, StoreWatch, Transactions, WatchOptions,
};

/// Pools, nodes and settings, which no process changes.
pub type SimulatedInputs = Arc<BTreeMap<StoreKey, StoreValue>>;

/// The entries shared by all processes.
#[derive(Clone, Debug)]
pub struct SimulatedStore {
    inputs: SimulatedInputs,
    records: Arc<Mutex<SimulatedEntries>>,
}

#[derive(Debug, Default)]
struct SimulatedEntries {
    entries: BTreeMap<StoreKey, (StoreValue, u64)>,
    writes: u64,
}

/// Crash of a simulated process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessCrash {
    /// Number of writes completed before the crash.
    pub after: u32,
    /// Whether the next write is still applied although the process does not receive the response.
    pub unheard: bool,
}

/// A simulated client of the store.
#[derive(Clone, Debug)]
pub struct SimulatedProcess {
    world: SimulatedStore,
    life: Arc<Mutex<SimulatedProcessState>>,
}

#[derive(Debug)]
struct SimulatedProcessState {
    death: Option<ProcessCrash>,
    dead: bool,
    /// Random state that determines how often each request yields to other processes.
    dice: u64,
}

impl SimulatedStore {
    pub fn new(inputs: SimulatedInputs) -> SimulatedStore {
        SimulatedStore { inputs, records: Arc::default() }
    }

    pub fn process(&self, seed: u64) -> SimulatedProcess {
        let life = SimulatedProcessState { death: None, dead: false, dice: seed | 1 };
        SimulatedProcess { world: self.clone(), life: Arc::new(Mutex::new(life)) }
    }

    pub fn keys(&self) -> Vec<StoreKey> {
        self.records.lock().unwrap().entries.keys().cloned().collect()
    }

    pub fn blocks(&self) -> Vec<AddressBlock> {
        self.records.lock().unwrap().blocks().cloned().collect()
    }

    /// Removes the claim times of all blocks, so that they count as claimed long ago.
    pub fn age(&self) {
        let mut world = self.records.lock().unwrap();
        let blocks: Vec<AddressBlock> = world.blocks().cloned().collect();
        for mut block in blocks {
            block.affinity_claim_time = None;
            world.put(block_key(block.cidr), Some(StoreValue::Block(block)));
        }
    }
}

impl SimulatedEntries {
    fn blocks(&self) -> impl Iterator<Item = &AddressBlock> {
        self.entries.values().filter_map(|(value, _)| match value {
            StoreValue::Block(block) => Some(block),
            _ => None,
        })
    }

    fn handle(&self, id: &str) -> Option<&AddressHandle> {
        match self.entries.get(&StoreKey::Handle { id: id.to_owned() }) {
            Some((StoreValue::Handle(handle), _)) => Some(handle),
            _ => None,
        }
    }

    fn put(&mut self, key: StoreKey, value: Option<StoreValue>) -> Revision {
        self.writes += 1;
        match value {
            Some(value) => self.entries.insert(key, (value, self.writes)),
            None => self.entries.remove(&key),
        };
        self.writes.into()
    }

    fn write(&mut self, change: &EntryChange) -> StoreResult<Revision> {
        self.check(change)?;
        let value = match change {
            EntryChange::Create { value, .. } | EntryChange::Update { value, .. } => Some(value.clone()),
            EntryChange::Delete { .. } => None,
            EntryChange::Keep { .. } => return Ok(self.writes.into()),
        };
        if let (Some((StoreValue::Block(before), _)), Some(StoreValue::Block(after))) =
            (self.entries.get(change.key()), &value)
        {
            assert_eq!(double_use(before, after), None, "an address was given to a second holder");
        }
        Ok(self.put(change.key().clone(), value))
    }

    fn check(&self, change: &EntryChange) -> StoreResult<()> {
        let stands = self.entries.get(change.key()).map(|(_, revision)| Revision::from(*revision));
        let expected = match change {
            EntryChange::Create { .. } => None,
            EntryChange::Update { revision, .. }
            | EntryChange::Delete { revision, .. }
            | EntryChange::Keep { revision, .. } => Some(revision.clone()),
        };
        let id = change.key().to_string();
        if stands == expected {
            return Ok(());
        }
        Err(match (stands, expected) {
            (None, _) => StoreError::DoesNotExist { id, reason: String::new() },
            (Some(_), None) => StoreError::AlreadyExists { id, reason: String::new(), current: None },
            (Some(_), Some(_)) => StoreError::Conflict { id, current: None },
        })
    }

    /// Asserts the invariants of an entry that was written and of the related entries.
    fn assert_sound(&self, key: &StoreKey) {
        match key {
            StoreKey::Block { cidr } => {
                if let Some(block) = self.block(cidr) {
                    let now = "2200-01-01T00:00:00Z".parse().unwrap();
                    assert_eq!(block::faults(block, now), Vec::<String>::new(), "{block:?}");
                    for handle in block.attributes.iter().filter_map(|record| record.handle()) {
                        self.assert_counted(handle, block);
                    }
                }
                for (key, (value, _)) in &self.entries {
                    if matches!(key, StoreKey::BlockAffinity { cidr: claimed, .. } if claimed == cidr) {
                        self.assert_proven(key, value);
                    }
                }
            }
            StoreKey::Handle { id } => self.blocks().for_each(|block| self.assert_counted(id, block)),
            key => {
                if let Some((value, _)) = self.entries.get(key) {
                    self.assert_proven(key, value);
                }
            }
        }
    }

    /// Asserts that a handle counts all its addresses in a block, so that releasing the handle finds them.
    fn assert_counted(&self, id: &str, block: &AddressBlock) {
        let held = block::addresses_of(block, id).len() as i64;
        let named = self.handle(id).and_then(|handle| handle.block.get(&block.cidr.to_string()));
        let named = named.copied().unwrap_or(0);
        assert!(named >= held, "handle {id} names {named} of {held} in {}", block.cidr);
    }

    /// Asserts that a confirmed affinity belongs to a block of the same owner.
    fn assert_proven(&self, key: &StoreKey, value: &StoreValue) {
        if let (StoreKey::BlockAffinity { affinity, owner, cidr }, StoreValue::BlockAffinity(claim)) =
            (key, value)
            && claim.state == AffinityState::Confirmed
        {
            let owner = BlockOwner { affinity: *affinity, name: owner.clone() };
            let proven = self.block(cidr).is_some_and(|block| block::belongs_to(block, &owner));
            assert!(proven, "{key} is confirmed but not so");
        }
    }

    fn entry(&self, key: &StoreKey) -> Option<StoreEntry> {
        let (value, revision) = self.entries.get(key)?;
        Some(StoreEntry { key: key.clone(), value: value.clone(), revision: (*revision).into() })
    }

    fn block(&self, cidr: &IpNet) -> Option<&AddressBlock> {
        match self.entries.get(&block_key(*cidr)) {
            Some((StoreValue::Block(block), _)) => Some(block),
            _ => None,
        }
    }
}

/// Returns a description of an address whose holder changed without a release in between.
fn double_use(before: &AddressBlock, after: &AddressBlock) -> Option<String> {
    block::allocations(before).find_map(|old| {
        let new = block::record(after, old.address)?;
        (new.handle() != old.handle()).then(|| format!("{}: {before:?} -> {after:?}", old.address))
    })
}

impl SimulatedProcess {
    /// Schedules the crash of the process, or cancels it with `None`.
    pub fn doom(&self, death: Option<ProcessCrash>) {
        self.life.lock().unwrap().death = death;
    }

    pub fn is_dead(&self) -> bool {
        self.life.lock().unwrap().dead
    }

    /// Yields a random number of times; fails if the process has crashed.
    async fn turn(&self) -> StoreResult<()> {
        let waits = {
            let mut life = self.life.lock().unwrap();
            life.dice ^= life.dice << 13;
            life.dice ^= life.dice >> 7;
            life.dice ^= life.dice << 17;
            life.dice % 4
        };
        for _ in 0..waits {
            tokio::task::yield_now().await;
        }
        if self.is_dead() { Err(died()) } else { Ok(()) }
    }

    fn write_all<T>(
        &self,
        changes: &[EntryChange],
        write: impl FnOnce(&mut SimulatedEntries) -> StoreResult<T>,
    ) -> StoreResult<T> {
        let mut life = self.life.lock().unwrap();
        let mut unheard = false;
        if let Some(death) = &mut life.death {
            if death.after == 0 {
                unheard = death.unheard;
                life.dead = true;
                if !unheard {
                    return Err(died());
                }
            } else {
                death.after -= 1;
            }
        }
        let mut world = self.world.records.lock().unwrap();
        let written = write(&mut world);
        changes.iter().for_each(|change| world.assert_sound(change.key()));
        if unheard { Err(died()) } else { written }
    }

    async fn write(&self, change: EntryChange) -> StoreResult<Revision> {
        self.turn().await?;
        self.write_all(std::slice::from_ref(&change), |world| world.write(&change))
    }
}

#[async_trait]
impl Backend for SimulatedProcess {
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities {
            ordered_revisions: true,
            expiring_entries: false,
            derived_kinds: &[],
            includes_kubernetes: false,
            checks_namespaces: false,
            is_api_server: false,
        }
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }

    async fn probe(&self) -> StoreResult<()> {
        self.turn().await
    }

    async fn get(&self, key: &StoreKey) -> StoreResult<StoreEntry> {
        if let Some(value) = self.world.inputs.get(key) {
            return Ok(StoreEntry { key: key.clone(), value: value.clone(), revision: 1.into() });
        }
        self.turn().await?;
        let found = self.world.records.lock().unwrap().entry(key);
        found.ok_or_else(|| StoreError::DoesNotExist { id: key.to_string(), reason: String::new() })
    }

    async fn list(&self, range: &KeyRange) -> StoreResult<EntryListing> {
        let entries = if matches!(range, KeyRange::Resources { .. }) {
            let inside = self.world.inputs.iter().filter(|(key, _)| range.contains(key));
            inside
                .map(|(key, value)| StoreEntry { key: key.clone(), value: value.clone(), revision: 1.into() })
                .collect()
        } else {
            self.turn().await?;
            let world = self.world.records.lock().unwrap();
            world
                .entries
                .keys()
                .filter(|key| range.contains(key))
                .filter_map(|key| world.entry(key))
                .collect()
        };
        Ok(EntryListing { entries, unreadable: Vec::new(), revision: 1.into(), next: None })
    }

    async fn list_page(&self, range: &KeyRange, _page: &PageRequest) -> StoreResult<EntryListing> {
        self.list(range).await
    }

    async fn create(&self, key: &StoreKey, value: &StoreValue) -> StoreResult<StoreEntry> {
        let change = EntryChange::Create { key: key.clone(), value: value.clone() };
        let revision = self.write(change).await?;
        Ok(StoreEntry { key: key.clone(), value: value.clone(), revision })
    }

    async fn update(
        &self,
        key: &StoreKey,
        value: &StoreValue,
        revision: &Revision,
    ) -> StoreResult<StoreEntry> {
        let revision = revision.clone();
        let change = EntryChange::Update { key: key.clone(), value: value.clone(), revision };
        let revision = self.write(change).await?;
        Ok(StoreEntry { key: key.clone(), value: value.clone(), revision })
    }

    async fn apply(
        &self,
        key: &StoreKey,
        _value: &StoreValue,
        _ttl: Option<Duration>,
    ) -> StoreResult<StoreEntry> {
        unreachable!("IPAM writes {key} with a condition")
    }

    /// Deletes an entry. Without a revision only entries of old versions are deleted, which the simulation does not have.
    async fn delete(&self, key: &StoreKey, revision: Option<&Revision>) -> StoreResult<StoreEntry> {
        let Some(revision) = revision.cloned() else {
            return Err(StoreError::DoesNotExist { id: key.to_string(), reason: String::new() });
        };
        let change = EntryChange::Delete { key: key.clone(), revision };
        self.turn().await?;
        self.write_all(std::slice::from_ref(&change), |world| {
            world.check(&change)?;
            let deleted = world.entry(key).ok_or_else(died)?;
            world.write(&change)?;
            Ok(deleted)
        })
    }

    fn watch(&self, range: KeyRange, _options: WatchOptions) -> StoreWatch {
        unreachable!("the simulation reads its inputs for each request instead of watching {range}")
    }
}

#[async_trait]
impl Transactions for SimulatedProcess {
    async fn commit(&self, _changes: &[EntryChange]) -> StoreResult<Revision> {
        unreachable!("IPAM uses operations")
    }

    async fn carry_out(&self, changes: &[EntryChange]) -> StoreResult<OperationOutcome> {
        self.turn().await?;
        self.write_all(changes, |world| {
            if let Some(refused) = changes.iter().find(|change| world.check(change).is_err()) {
                let key = refused.key().clone();
                let current = world.entry(&key).map(Box::new);
                return Ok(OperationOutcome::Refused(OperationRefusal { key, current }));
            }
            let mut revision = world.writes.into();
            for change in changes {
                revision = world.write(change)?;
            }
            // All entries of a transaction get the same revision.
            let writes = world.writes;
            for change in changes.iter().filter(|change| !matches!(change, EntryChange::Keep { .. })) {
                if let Some((_, written)) = world.entries.get_mut(change.key()) {
                    *written = writes;
                }
            }
            Ok(OperationOutcome::Done(WrittenRevisions::Together(revision)))
        })
    }
}

fn died() -> StoreError {
    StoreError::Datastore("the process died".to_owned())
}
