//! An in-memory store shared by simulated processes, each of which can be made to crash at a given write. After each
//! write it checks the invariants that have to hold wherever a process crashes.

mod tests;

use crate::block;
use crate::owner::BlockOwner;
use crate::records::block_key;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tortie_model::ipam::{AddressBlock, AddressHandle, AffinityState};
use tortie_model::{KeyRange, StoreKey, StoreValue};
use tortie_store::operation::{CompareAndSwap, OperationOutcome, StoreOperation, WrittenRevisions};
use tortie_store::{EntryChange, OperationRefusal, Revision, StoreEntry, StoreError, StoreResult};

/// The entries shared by all processes.
#[derive(Clone, Debug, Default)]
pub struct SimulatedStore(Arc<Mutex<SimulatedEntries>>);

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
    pub fn process(&self, seed: u64) -> SimulatedProcess {
        let life = SimulatedProcessState { death: None, dead: false, dice: seed | 1 };
        SimulatedProcess { world: self.clone(), life: Arc::new(Mutex::new(life)) }
    }

    pub fn keys(&self) -> Vec<StoreKey> {
        self.0.lock().unwrap().entries.keys().cloned().collect()
    }

    pub fn blocks(&self) -> Vec<AddressBlock> {
        self.0.lock().unwrap().blocks().cloned().collect()
    }

    /// Removes the claim times of all blocks, so that they count as claimed long ago.
    pub fn age(&self) {
        let mut world = self.0.lock().unwrap();
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
        match (stands == expected, stands.is_some()) {
            (true, _) => Ok(()),
            (false, true) => Err(StoreError::Conflict { id, current: None }),
            (false, false) => Err(StoreError::DoesNotExist { id, reason: String::new() }),
        }
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
        let mut world = self.world.0.lock().unwrap();
        let written = write(&mut world);
        changes.iter().for_each(|change| world.assert_sound(change.key()));
        if unheard { Err(died()) } else { written }
    }

    pub async fn get(&self, key: &StoreKey) -> StoreResult<StoreEntry> {
        self.turn().await?;
        let found = self.world.0.lock().unwrap().entry(key);
        found.ok_or_else(|| StoreError::DoesNotExist { id: key.to_string(), reason: String::new() })
    }

    pub async fn list(&self, range: &KeyRange) -> StoreResult<Vec<StoreEntry>> {
        self.turn().await?;
        let world = self.world.0.lock().unwrap();
        let inside = world.entries.iter().filter(|(key, _)| range.contains(key));
        Ok(inside
            .map(|(key, (value, revision))| StoreEntry {
                key: key.clone(),
                value: value.clone(),
                revision: (*revision).into(),
            })
            .collect())
    }

    pub async fn list_keys(&self, range: &KeyRange) -> StoreResult<Vec<StoreKey>> {
        Ok(self.list(range).await?.into_iter().map(|entry| entry.key).collect())
    }

    pub async fn transact(&self, operation: StoreOperation) -> StoreResult<OperationOutcome> {
        self.turn().await?;
        let changes = operation.fold();
        self.write_all(&changes, |world| {
            if let Some(refused) = changes.iter().find(|change| world.check(change).is_err()) {
                let key = refused.key().clone();
                let current = world.entry(&key).map(Box::new);
                return Ok(OperationOutcome::Refused(OperationRefusal { key, current }));
            }
            let mut revision = world.writes.into();
            for change in &changes {
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

impl CompareAndSwap for SimulatedProcess {
    async fn write(&self, change: &EntryChange) -> StoreResult<Revision> {
        self.turn().await?;
        self.write_all(std::slice::from_ref(change), |world| world.write(change))
    }
}

fn died() -> StoreError {
    StoreError::Datastore("the process died".to_owned())
}
