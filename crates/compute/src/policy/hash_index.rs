//! Finds IDs by their values, which are stored elsewhere.

use super::ids::TableId;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hash};

#[derive(Debug)]
pub(super) struct HashIndex<I> {
    table: HashTable<HashIndexEntry<I>>,
    hasher: DefaultHashBuilder,
}

/// The hash is stored: hashing all values again whenever the table grows would take longer than everything else.
#[derive(Clone, Copy, Debug)]
struct HashIndexEntry<I> {
    hash: u32,
    id: I,
}

impl<I> Default for HashIndex<I> {
    fn default() -> Self {
        HashIndex { table: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }
}

/// Spreads a hash over 64 bits: the table uses both ends of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<I: TableId> HashIndex<I> {
    /// Returns the hash of a value. Callers compute it once for each value.
    pub fn hash(&self, value: &(impl Hash + ?Sized)) -> u32 {
        self.hasher.hash_one(value) as u32
    }

    pub fn find(&self, hash: u32, is_it: impl Fn(I) -> bool) -> Option<I> {
        let entry = self.table.find(spread(hash), |entry| entry.hash == hash && is_it(entry.id));
        entry.map(|entry| entry.id)
    }

    /// Returns all IDs whose values may have this hash.
    pub fn candidates(&self, hash: u32) -> impl Iterator<Item = I> {
        let entries = self.table.iter_hash(spread(hash));
        entries.filter(move |entry| entry.hash == hash).map(|entry| entry.id)
    }

    pub fn insert(&mut self, hash: u32, id: I) {
        self.table.insert_unique(spread(hash), HashIndexEntry { hash, id }, |entry| spread(entry.hash));
    }

    pub fn remove(&mut self, hash: u32, id: I) {
        let entry = self.table.find_entry(spread(hash), |entry| entry.hash == hash && entry.id == id);
        if let Ok(entry) = entry {
            entry.remove();
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }
}
