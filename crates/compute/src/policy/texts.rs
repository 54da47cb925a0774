//! Texts kept once, however many hold them, close together: there are millions of short ones, for each of which an
//! allocation of its own would cost as much as the text.

use super::list::{List, Numbers};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher;

/// Texts lie in chunks of this many bytes; longer ones have a chunk of their own.
const CHUNK: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Texts {
    slots: List<Slot>,
    numbers: Numbers,
    /// Without the hashes, unlike an index: there are too many of these.
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    room: Room,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    span: Span,
    holders: u32,
}

/// Where a text lies: the upper half of `at` is the chunk, the lower the place in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    at: u32,
    len: u32,
}

/// Room for short texts.
#[derive(Debug, Default)]
pub(super) struct Room {
    chunks: Vec<Vec<u8>>,
    /// The chunk that is being filled.
    open: usize,
    /// Spans that were given back, by length.
    spare: HashMap<u32, Vec<u32>>,
}

impl Room {
    pub fn get(&self, span: Span) -> &[u8] {
        let (chunk, start) = (span.at as usize / CHUNK, span.at as usize % CHUNK);
        let whole = self.chunks.get(chunk).and_then(|chunk| chunk.get(start..start + span.len as usize));
        whole.unwrap_or_default()
    }

    pub fn put(&mut self, text: &[u8]) -> Span {
        let len = text.len() as u32;
        if let Some(at) = self.spare.get_mut(&len).and_then(Vec::pop) {
            let (chunk, start) = (at as usize / CHUNK, at as usize % CHUNK);
            self.chunks[chunk][start..start + text.len()].copy_from_slice(text);
            return Span { at, len };
        }
        if text.len() > CHUNK {
            self.chunks.push(text.to_vec());
            return Span { at: ((self.chunks.len() - 1) * CHUNK) as u32, len };
        }
        if self.chunks.get(self.open).is_none_or(|chunk| chunk.len() + text.len() > CHUNK) {
            self.open = self.chunks.len();
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunk = &mut self.chunks[self.open];
        let at = (self.open * CHUNK + chunk.len()) as u32;
        chunk.extend_from_slice(text);
        Span { at, len }
    }

    pub fn take_back(&mut self, span: Span) {
        match span.len as usize {
            0 => {}
            1..=CHUNK => self.spare.entry(span.len).or_default().push(span.at),
            _ => self.chunks[span.at as usize / CHUNK] = Vec::new(),
        }
    }
}

impl Texts {
    /// The name of a text, with one holder more.
    pub fn hold(&mut self, text: &str) -> u32 {
        let id = self.intern(text);
        self.hold_again(id);
        id
    }

    /// One holder more of a text that has a name.
    pub fn hold_again(&mut self, id: u32) {
        self.slots.at(id).holders += 1;
    }

    /// The name of a text, which somebody is about to hold.
    pub fn intern(&mut self, text: &str) -> u32 {
        let hash = self.hasher.hash_one(text.as_bytes());
        if let Some(id) = self.table.find(hash, |id| self.bytes(*id) == text.as_bytes()) {
            return *id;
        }
        let id = self.numbers.take();
        *self.slots.at(id) = Slot { span: self.room.put(text.as_bytes()), holders: 0 };
        let Texts { slots, room, hasher, table, .. } = self;
        let rehash = |id: &u32| hasher.hash_one(slots.get(*id).map_or(&[][..], |slot| room.get(slot.span)));
        table.insert_unique(hash, id, rehash);
        id
    }

    /// One holder less; after the last one the name may become another text's.
    pub fn release(&mut self, id: u32) {
        let slot = self.slots.at(id);
        slot.holders -= 1;
        if slot.holders > 0 {
            return;
        }
        let span = slot.span;
        let hash = self.hasher.hash_one(self.room.get(span));
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        self.room.take_back(span);
        self.numbers.give_back(id);
    }

    pub fn find(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text.as_bytes());
        self.table.find(hash, |id| self.bytes(*id) == text.as_bytes()).copied()
    }

    pub fn get(&self, id: u32) -> &str {
        // What was put in was text.
        std::str::from_utf8(self.bytes(id)).unwrap_or_default()
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.slots.get(id).map(|slot| self.room.get(slot.span)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn each_holder_reads_its_text(steps in prop::collection::vec((any::<bool>(), "[ab\u{e9}]{0,3}"), 0..300)) {
            let (mut texts, mut held) = (Texts::default(), BTreeMap::<String, Vec<u32>>::new());
            for (add, text) in steps {
                let names = held.entry(text.clone()).or_default();
                match (add, names.pop()) {
                    (true, last) => {
                        names.extend(last);
                        names.push(texts.hold(&text));
                    }
                    (false, Some(name)) => texts.release(name),
                    (false, None) => prop_assert_eq!(texts.find(&text), None),
                }
                for (text, names) in &held {
                    prop_assert!(names.iter().all(|name| texts.get(*name) == text && texts.find(text) == Some(*name)));
                }
            }
        }
    }

    #[test]
    fn texts_of_any_length_have_room() {
        let mut texts = Texts::default();
        let all: Vec<String> =
            [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5].map(|len| "x".repeat(len)).into();
        let names: Vec<u32> = all.iter().map(|text| texts.hold(text)).collect();
        assert!(all.iter().zip(&names).all(|(text, name)| texts.get(*name) == text));
        names.into_iter().for_each(|name| texts.release(name));
        let names: Vec<u32> = all.iter().rev().map(|text| texts.hold(text)).collect();
        assert!(all.iter().rev().zip(&names).all(|(text, name)| texts.get(*name) == text));
    }
}
