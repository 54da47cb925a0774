//! An in-memory store shared by simulated processes, each of which can be made to crash at a given write. After each
//! write it checks the invariants that have to hold wherever a process crashes.

mod tests;

use crate::block;
use crate::owner::Owner;
use crate::records::block_key;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tortie_model::ipam::{AffinityState, Block, Handle};
use tortie_model::{Key, KeyRange, Value};
use tortie_store::operation::{CompareAndSwap, Operation, Outcome, Written};
use tortie_store::{Change, Entry, Error, Refusal, Result, Revision};

/// The entries shared by all processes.
#[derive(Clone, Debug, Default)]
pub struct World(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    entries: BTreeMap<Key, (Value, u64)>,
    writes: u64,
}

/// Crash of a simulated process.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// Number of writes completed before the crash.
    pub after: u32,
    /// Whether the next write is still applied although the process does not receive the response.
    pub unheard: bool,
}

/// A simulated client of the store.
#[derive(Clone, Debug)]
pub struct Process {
    world: World,
    life: Arc<Mutex<Life>>,
}

#[derive(Debug)]
struct Life {
    death: Option<Death>,
    dead: bool,
    /// Random state that determines how often each request yields to other processes.
    dice: u64,
}

impl World {
    pub fn process(&self, seed: u64) -> Process {
        let life = Life { death: None, dead: false, dice: seed | 1 };
        Process { world: self.clone(), life: Arc::new(Mutex::new(life)) }
    }

    pub fn keys(&self) -> Vec<Key> {
        self.0.lock().unwrap().entries.keys().cloned().collect()
    }

    pub fn blocks(&self) -> Vec<Block> {
        self.0.lock().unwrap().blocks().cloned().collect()
    }

    /// Removes the claim times of all blocks, so that they count as claimed long ago.
    pub fn age(&self) {
        let mut world = self.0.lock().unwrap();
        let blocks: Vec<Block> = world.blocks().cloned().collect();
        for mut block in blocks {
            block.affinity_claim_time = None;
            world.put(block_key(block.cidr), Some(Value::Block(block)));
        }
    }
}

impl Entries {
    fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.entries.values().filter_map(|(value, _)| match value {
            Value::Block(block) => Some(block),
            _ => None,
        })
    }

    fn handle(&self, id: &str) -> Option<&Handle> {
        match self.entries.get(&Key::Handle { id: id.to_owned() }) {
            Some((Value::Handle(handle), _)) => Some(handle),
            _ => None,
        }
    }

    fn put(&mut self, key: Key, value: Option<Value>) -> Revision {
        self.writes += 1;
        match value {
            Some(value) => self.entries.insert(key, (value, self.writes)),
            None => self.entries.remove(&key),
        };
        self.writes.into()
    }

    fn write(&mut self, change: &Change) -> Result<Revision> {
        self.check(change)?;
        let value = match change {
            Change::Create { value, .. } | Change::Update { value, .. } => Some(value.clone()),
            Change::Delete { .. } => None,
            Change::Keep { .. } => return Ok(self.writes.into()),
        };
        if let (Some((Value::Block(before), _)), Some(Value::Block(after))) =
            (self.entries.get(change.key()), &value)
        {
            assert_eq!(double_use(before, after), None, "an address was given to a second holder");
        }
        Ok(self.put(change.key().clone(), value))
    }

    fn check(&self, change: &Change) -> Result<()> {
        let stands = self.entries.get(change.key()).map(|(_, revision)| Revision::from(*revision));
        let expected = match change {
            Change::Create { .. } => None,
            Change::Update { revision, .. }
            | Change::Delete { revision, .. }
            | Change::Keep { revision, .. } => Some(revision.clone()),
        };
        let id = change.key().to_string();
        match (stands == expected, stands.is_some()) {
            (true, _) => Ok(()),
            (false, true) => Err(Error::Conflict { id, current: None }),
            (false, false) => Err(Error::DoesNotExist { id, reason: String::new() }),
        }
    }

    /// Asserts the invariants of an entry that was written and of the related entries.
    fn assert_sound(&self, key: &Key) {
        match key {
            Key::Block { cidr } => {
                if let Some(block) = self.block(cidr) {
                    let now = "2200-01-01T00:00:00Z".parse().unwrap();
                    assert_eq!(block::faults(block, now), Vec::<String>::new(), "{block:?}");
                    for handle in block.attributes.iter().filter_map(|record| record.handle()) {
                        self.assert_counted(handle, block);
                    }
                }
                for (key, (value, _)) in &self.entries {
                    if matches!(key, Key::BlockAffinity { cidr: claimed, .. } if claimed == cidr) {
                        self.assert_proven(key, value);
                    }
                }
            }
            Key::Handle { id } => self.blocks().for_each(|block| self.assert_counted(id, block)),
            key => {
                if let Some((value, _)) = self.entries.get(key) {
                    self.assert_proven(key, value);
                }
            }
        }
    }

    /// Asserts that a handle counts all its addresses in a block, so that releasing the handle finds them.
    fn assert_counted(&self, id: &str, block: &Block) {
        let held = block::addresses_of(block, id).len() as i64;
        let named = self.handle(id).and_then(|handle| handle.block.get(&block.cidr.to_string()));
        let named = named.copied().unwrap_or(0);
        assert!(named >= held, "handle {id} names {named} of {held} in {}", block.cidr);
    }

    /// Asserts that a confirmed affinity belongs to a block of the same owner.
    fn assert_proven(&self, key: &Key, value: &Value) {
        if let (Key::BlockAffinity { affinity, owner, cidr }, Value::BlockAffinity(claim)) = (key, value)
            && claim.state == AffinityState::Confirmed
        {
            let owner = Owner { affinity: *affinity, name: owner.clone() };
            let proven = self.block(cidr).is_some_and(|block| block::belongs_to(block, &owner));
            assert!(proven, "{key} is confirmed but not so");
        }
    }

    fn entry(&self, key: &Key) -> Option<Entry> {
        let (value, revision) = self.entries.get(key)?;
        Some(Entry { key: key.clone(), value: value.clone(), revision: (*revision).into() })
    }

    fn block(&self, cidr: &IpNet) -> Option<&Block> {
        match self.entries.get(&block_key(*cidr)) {
            Some((Value::Block(block), _)) => Some(block),
            _ => None,
        }
    }
}

/// Returns a description of an address whose holder changed without a release in between.
fn double_use(before: &Block, after: &Block) -> Option<String> {
    block::allocations(before).find_map(|old| {
        let new = block::record(after, old.address)?;
        (new.handle() != old.handle()).then(|| format!("{}: {before:?} -> {after:?}", old.address))
    })
}

impl Process {
    /// Schedules the crash of the process, or cancels it with `None`.
    pub fn doom(&self, death: Option<Death>) {
        self.life.lock().unwrap().death = death;
    }

    pub fn is_dead(&self) -> bool {
        self.life.lock().unwrap().dead
    }

    /// Yields a random number of times; fails if the process has crashed.
    async fn turn(&self) -> Result<()> {
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

    fn write_all<T>(&self, changes: &[Change], write: impl FnOnce(&mut Entries) -> Result<T>) -> Result<T> {
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

    pub async fn get(&self, key: &Key) -> Result<Entry> {
        self.turn().await?;
        let found = self.world.0.lock().unwrap().entry(key);
        found.ok_or_else(|| Error::DoesNotExist { id: key.to_string(), reason: String::new() })
    }

    pub async fn list(&self, range: &KeyRange) -> Result<Vec<Entry>> {
        self.turn().await?;
        let world = self.world.0.lock().unwrap();
        let inside = world.entries.iter().filter(|(key, _)| range.contains(key));
        Ok(inside
            .map(|(key, (value, revision))| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: (*revision).into(),
            })
            .collect())
    }

    pub async fn list_keys(&self, range: &KeyRange) -> Result<Vec<Key>> {
        Ok(self.list(range).await?.into_iter().map(|entry| entry.key).collect())
    }

    pub async fn transact(&self, operation: Operation) -> Result<Outcome> {
        self.turn().await?;
        let changes = operation.fold();
        self.write_all(&changes, |world| {
            if let Some(refused) = changes.iter().find(|change| world.check(change).is_err()) {
                let key = refused.key().clone();
                let current = world.entry(&key).map(Box::new);
                return Ok(Outcome::Refused(Refusal { key, current }));
            }
            let mut revision = world.writes.into();
            for change in &changes {
                revision = world.write(change)?;
            }
            // All entries of a transaction get the same revision.
            let writes = world.writes;
            for change in changes.iter().filter(|change| !matches!(change, Change::Keep { .. })) {
                if let Some((_, written)) = world.entries.get_mut(change.key()) {
                    *written = writes;
                }
            }
            Ok(Outcome::Done(Written::Together(revision)))
        })
    }
}

impl CompareAndSwap for Process {
    async fn write(&self, change: &Change) -> Result<Revision> {
        self.turn().await?;
        self.write_all(std::slice::from_ref(change), |world| world.write(change))
    }
}

fn died() -> Error {
    Error::Datastore("the process died".to_owned())
}
