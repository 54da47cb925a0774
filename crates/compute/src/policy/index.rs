//! Finds numbers by what they stand for, which is kept elsewhere.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hash};

#[derive(Debug, Default)]
pub(super) struct Index {
    table: HashTable<Entry>,
    hasher: DefaultHashBuilder,
}

/// The hash is kept: to look at all that the numbers stand for whenever the table grows would take longer than all else.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    number: u32,
}

impl Entry {
    /// The table looks at both ends of a hash.
    fn spread(hash: u32) -> u64 {
        u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Index {
    /// To be asked once for each value.
    pub fn hash(&self, value: &(impl Hash + ?Sized)) -> u32 {
        self.hasher.hash_one(value) as u32
    }

    pub fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let same = |entry: &Entry| entry.hash == hash && is_it(entry.number);
        self.table.find(Entry::spread(hash), same).map(|entry| entry.number)
    }

    /// All that may stand for something with this hash.
    pub fn candidates(&self, hash: u32) -> impl Iterator<Item = u32> {
        let entries = self.table.iter_hash(Entry::spread(hash));
        entries.filter(move |entry| entry.hash == hash).map(|entry| entry.number)
    }

    pub fn insert(&mut self, hash: u32, number: u32) {
        let entry = Entry { hash, number };
        self.table.insert_unique(Entry::spread(hash), entry, |entry| Entry::spread(entry.hash));
    }

    pub fn remove(&mut self, hash: u32, number: u32) {
        let same = |entry: &Entry| entry.hash == hash && entry.number == number;
        if let Ok(entry) = self.table.find_entry(Entry::spread(hash), same) {
            entry.remove();
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }
}
