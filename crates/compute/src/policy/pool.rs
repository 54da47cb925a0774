//! Stores each value once, with an ID of four bytes and a reference count.

use super::chunked::{ChunkedVec, IdAllocator};
use super::hash_index::HashIndex;
use super::ids::TableId;
use std::borrow::Borrow;
use std::hash::Hash;

#[derive(Debug)]
pub(super) struct ValuePool<I, T> {
    slots: ChunkedVec<I, PooledValue<T>>,
    ids: IdAllocator<I>,
    index: HashIndex<I>,
}

#[derive(Debug)]
struct PooledValue<T> {
    value: Option<T>,
    holders: u32,
}

impl<T> Default for PooledValue<T> {
    fn default() -> Self {
        PooledValue { value: None, holders: 0 }
    }
}

impl<I, T> Default for ValuePool<I, T> {
    fn default() -> Self {
        ValuePool { slots: ChunkedVec::default(), ids: IdAllocator::default(), index: HashIndex::default() }
    }
}

impl<I: TableId, T: Eq + Hash> ValuePool<I, T> {
    /// Adds a reference to a value and returns the ID of the value. `create` returns the value to store if it is new.
    pub fn hold<Q>(&mut self, value: &Q, create: impl FnOnce() -> T) -> I
    where
        T: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let hash = self.index.hash(value);
        if let Some(id) = self.index.find(hash, |id| self.has_value(id, value)) {
            self.slots.at(id).holders += 1;
            return id;
        }
        let id = self.ids.take();
        *self.slots.at(id) = PooledValue { value: Some(create()), holders: 1 };
        self.index.insert(hash, id);
        id
    }

    /// Drops a reference. Returns the value if it was the last one.
    pub fn release(&mut self, id: I) -> Option<T> {
        let slot = self.slots.at(id);
        slot.holders -= 1;
        if slot.holders > 0 {
            return None;
        }
        let value = slot.value.take()?;
        self.index.remove(self.index.hash(&value), id);
        self.ids.give_back(id);
        Some(value)
    }

    pub fn find<Q>(&self, value: &Q) -> Option<I>
    where
        T: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.index.find(self.index.hash(value), |id| self.has_value(id, value))
    }

    fn has_value<Q>(&self, id: I, value: &Q) -> bool
    where
        T: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.get(id).is_some_and(|known| known.borrow() == value)
    }

    pub fn get(&self, id: I) -> Option<&T> {
        self.slots.get(id)?.value.as_ref()
    }

    pub fn holders(&self, id: I) -> u32 {
        self.slots.get(id).map_or(0, |slot| slot.holders)
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }
}
