//! Byte strings that are stored once and referred to by number, with reference counts: names, label sets and encoded
//! policy traces.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Number of an interned byte string. [`InternId::EMPTY`] is the empty string, which is always present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InternId(u32);

impl InternId {
    pub const EMPTY: InternId = InternId(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
struct InternEntry {
    bytes: Box<[u8]>,
    references: u32,
}

/// Estimated memory of an entry besides its bytes: the entry, its place in the index, and the allocation.
const ENTRY_OVERHEAD_BYTES: usize = size_of::<InternEntry>() + 8 + 16;

#[derive(Debug)]
pub struct InternTable {
    index: HashTable<u32>,
    entries: Vec<InternEntry>,
    free: Vec<u32>,
    bytes: usize,
    hasher: DefaultHashBuilder,
}

impl InternTable {
    pub fn new() -> InternTable {
        let empty = InternEntry { bytes: Box::default(), references: 1 };
        InternTable {
            index: HashTable::new(),
            entries: vec![empty],
            free: Vec::new(),
            bytes: 0,
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Returns the number of `bytes` and adds a reference to it.
    pub fn acquire(&mut self, bytes: &[u8]) -> InternId {
        if bytes.is_empty() {
            return InternId::EMPTY;
        }
        let hash = self.hasher.hash_one(bytes);
        if let Some(found) = self.index.find(hash, |id| *self.entries[*id as usize].bytes == *bytes) {
            let id = *found;
            self.entries[id as usize].references += 1;
            return InternId(id);
        }
        let entry = InternEntry { bytes: bytes.into(), references: 1 };
        self.bytes += bytes.len() + ENTRY_OVERHEAD_BYTES;
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hash, id, |id| hasher.hash_one(&*entries[*id as usize].bytes));
        InternId(id)
    }

    /// Removes a reference; an entry without references is removed.
    pub fn release(&mut self, id: InternId) {
        if id == InternId::EMPTY {
            return;
        }
        let entry = &mut self.entries[id.index()];
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        let bytes = std::mem::take(&mut entry.bytes);
        self.bytes -= bytes.len() + ENTRY_OVERHEAD_BYTES;
        if let Ok(found) = self.index.find_entry(self.hasher.hash_one(&*bytes), |known| *known == id.0) {
            found.remove();
        }
        self.free.push(id.0);
    }

    pub fn get(&self, id: InternId) -> &[u8] {
        &self.entries[id.index()].bytes
    }

    /// Returns an entry by its position, as `InternId::index` returns it.
    pub fn get_index(&self, index: usize) -> &[u8] {
        &self.entries[index].bytes
    }

    /// Returns an entry that was interned from a string.
    pub fn text(&self, id: InternId) -> &str {
        std::str::from_utf8(self.get(id)).unwrap_or_default()
    }

    /// Returns a number above all numbers in use.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Returns the estimated memory of the entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_share_one_entry() {
        let mut table = InternTable::new();
        let (web, shop) = (table.acquire(b"web"), table.acquire(b"shop"));
        assert_ne!(web, shop);
        assert_eq!(table.acquire(b"web"), web);
        assert_eq!(table.acquire(b""), InternId::EMPTY);
        assert_eq!((table.text(web), table.capacity()), ("web", 3));
        table.release(web);
        assert_eq!(table.text(web), "web", "one reference is left");
        table.release(web);
        assert_eq!(table.acquire(b"db"), web, "numbers are used again");
        assert_eq!(table.text(shop), "shop");
        for id in [web, shop, InternId::EMPTY] {
            table.release(id);
        }
        assert_eq!((table.capacity(), table.bytes()), (3, 0));
    }
}
