//! Interner: stores each string once, with a reference count, and gives it an ID of four bytes.

use super::arena::{ArenaSpan, TextArena};
use super::chunked::{ChunkedVec, IdAllocator};
use super::ids::TableId;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

#[derive(Debug)]
pub(super) struct StringInterner<I> {
    slots: ChunkedVec<I, InternedString>,
    ids: IdAllocator<I>,
    /// Without the hashes, unlike `HashIndex`: there are too many strings.
    table: HashTable<I>,
    hasher: DefaultHashBuilder,
    arena: TextArena,
}

impl<I> Default for StringInterner<I> {
    fn default() -> Self {
        StringInterner {
            slots: ChunkedVec::default(),
            ids: IdAllocator::default(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            arena: TextArena::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct InternedString {
    span: ArenaSpan,
    holders: u32,
}

impl<I: TableId> StringInterner<I> {
    /// Returns the ID of a string and adds a reference.
    pub fn hold(&mut self, text: &str) -> I {
        let id = self.intern(text);
        self.hold_again(id);
        id
    }

    /// Adds a reference to a string that has an ID.
    pub fn hold_again(&mut self, id: I) {
        self.slots.at(id).holders += 1;
    }

    /// Returns the ID of a string. The caller must add a reference.
    pub fn intern(&mut self, text: &str) -> I {
        let hash = self.hasher.hash_one(text.as_bytes());
        if let Some(id) = self.table.find(hash, |id| self.bytes(*id) == text.as_bytes()) {
            return *id;
        }
        let id = self.ids.take();
        *self.slots.at(id) = InternedString { span: self.arena.put(text.as_bytes()), holders: 0 };
        let StringInterner { slots, arena, hasher, table, .. } = self;
        table.insert_unique(hash, id, |id| {
            hasher.hash_one(slots.get(*id).map_or(&[][..], |slot| arena.get(slot.span)))
        });
        id
    }

    /// Drops a reference. After the last one, the ID may be reused for another string.
    pub fn release(&mut self, id: I) {
        let slot = self.slots.at(id);
        slot.holders -= 1;
        if slot.holders > 0 {
            return;
        }
        let span = slot.span;
        let hash = self.hasher.hash_one(self.arena.get(span));
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        self.arena.take_back(span);
        self.ids.give_back(id);
    }

    pub fn find(&self, text: &str) -> Option<I> {
        let hash = self.hasher.hash_one(text.as_bytes());
        self.table.find(hash, |id| self.bytes(*id) == text.as_bytes()).copied()
    }

    pub fn get(&self, id: I) -> &str {
        // Only valid UTF-8 was stored.
        std::str::from_utf8(self.bytes(id)).unwrap_or_default()
    }

    fn bytes(&self, id: I) -> &[u8] {
        self.slots.get(id).map(|slot| self.arena.get(slot.span)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::arena::ARENA_CHUNK_BYTES;
    use super::super::ids::Symbol;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn each_holder_reads_its_text(steps in prop::collection::vec((any::<bool>(), "[ab\u{e9}]{0,3}"), 0..300)) {
            let (mut interner, mut held) = (StringInterner::<Symbol>::default(), BTreeMap::<String, Vec<Symbol>>::new());
            for (add, text) in steps {
                let names = held.entry(text.clone()).or_default();
                match (add, names.pop()) {
                    (true, last) => {
                        names.extend(last);
                        names.push(interner.hold(&text));
                    }
                    (false, Some(name)) => interner.release(name),
                    (false, None) => prop_assert_eq!(interner.find(&text), None),
                }
                for (text, names) in &held {
                    prop_assert!(names.iter().all(|name| interner.get(*name) == text && interner.find(text) == Some(*name)));
                }
            }
        }
    }

    #[test]
    fn texts_of_any_length_have_room() {
        let mut interner = StringInterner::<Symbol>::default();
        let all: Vec<String> =
            [0, 1, ARENA_CHUNK_BYTES - 1, ARENA_CHUNK_BYTES, ARENA_CHUNK_BYTES + 1, 3 * ARENA_CHUNK_BYTES, 5]
                .map(|len| "x".repeat(len))
                .into();
        let names: Vec<Symbol> = all.iter().map(|text| interner.hold(text)).collect();
        assert!(all.iter().zip(&names).all(|(text, name)| interner.get(*name) == text));
        names.into_iter().for_each(|name| interner.release(name));
        let names: Vec<Symbol> = all.iter().rev().map(|text| interner.hold(text)).collect();
        assert!(all.iter().rev().zip(&names).all(|(text, name)| interner.get(*name) == text));
    }
}
