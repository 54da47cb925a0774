//! Values kept once, however many hold them: each has a four-byte name and a count of its holders.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

#[derive(Debug)]
pub(super) struct Pool<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    holders: u32,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool { slots: Vec::new(), free: Vec::new(), table: HashTable::new(), hasher: Default::default() }
    }
}

impl<T: Eq + Hash> Pool<T> {
    /// The name of a value, with one holder more.
    pub fn hold<Q>(&mut self, value: &Q, own: impl FnOnce() -> T) -> u32
    where
        T: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let hash = self.hasher.hash_one(value);
        let same = |id: &u32| self.slots[*id as usize].value.as_ref().is_some_and(|v| v.borrow() == value);
        if let Some(id) = self.table.find(hash, same).copied() {
            self.slots[id as usize].holders += 1;
            return id;
        }
        let slot = Slot { value: Some(own()), holders: 1 };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |id: &u32| slots[*id as usize].value.as_ref().map_or(0, |value| hasher.hash_one(value));
        self.table.insert_unique(hash, id, rehash);
        id
    }

    /// One holder less; returns the value if that was the last.
    pub fn release(&mut self, id: u32) -> Option<T> {
        let slot = &mut self.slots[id as usize];
        slot.holders -= 1;
        if slot.holders > 0 {
            return None;
        }
        let value = slot.value.take()?;
        if let Ok(entry) = self.table.find_entry(self.hasher.hash_one(&value), |other| *other == id) {
            entry.remove();
        }
        self.free.push(id);
        Some(value)
    }

    pub fn find<Q>(&self, value: &Q) -> Option<u32>
    where
        T: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let same = |id: &u32| self.slots[*id as usize].value.as_ref().is_some_and(|v| v.borrow() == value);
        self.table.find(self.hasher.hash_one(value), same).copied()
    }

    pub fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.value.as_ref()
    }

    pub fn holders(&self, id: u32) -> u32 {
        self.slots.get(id as usize).map_or(0, |slot| slot.holders)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }
}
