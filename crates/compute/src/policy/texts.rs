//! Texts kept once, however many hold them, close together: there are millions of short ones, for each of which an
//! allocation of its own would cost as much as the text.

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher;

/// Texts lie in chunks of this many bytes; longer ones have a chunk of their own.
const CHUNK: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Texts {
    slots: Vec<Slot>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    room: Room,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    span: Span,
    holders: u32,
}

/// Where a text lies: the upper half of `at` is the chunk, the lower the place in it.
#[derive(Clone, Copy, Debug)]
struct Span {
    at: u32,
    len: u32,
}

#[derive(Debug, Default)]
struct Room {
    chunks: Vec<Vec<u8>>,
    /// The chunk that is being filled.
    open: usize,
    /// Spans that were given back, by length.
    spare: HashMap<u32, Vec<u32>>,
}

impl Room {
    fn get(&self, span: Span) -> &[u8] {
        let (chunk, start) = (span.at as usize / CHUNK, span.at as usize % CHUNK);
        let whole = self.chunks.get(chunk).and_then(|chunk| chunk.get(start..start + span.len as usize));
        whole.unwrap_or_default()
    }

    fn put(&mut self, text: &[u8]) -> Span {
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

    fn take_back(&mut self, span: Span) {
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
        self.slots[id as usize].holders += 1;
    }

    /// The name of a text, which somebody is about to hold.
    pub fn intern(&mut self, text: &str) -> u32 {
        let text = text.as_bytes();
        let hash = self.hasher.hash_one(text);
        let (slots, room) = (&self.slots, &self.room);
        if let Some(id) = self.table.find(hash, |id| room.get(slots[*id as usize].span) == text) {
            return *id;
        }
        let slot = Slot { span: self.room.put(text), holders: 0 };
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
        let (slots, room, hasher) = (&self.slots, &self.room, &self.hasher);
        self.table.insert_unique(hash, id, |id| hasher.hash_one(room.get(slots[*id as usize].span)));
        id
    }

    /// One holder less; after the last one the name may become another text's.
    pub fn release(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
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
        self.free.push(id);
    }

    pub fn find(&self, text: &str) -> Option<u32> {
        let text = text.as_bytes();
        let same = |id: &u32| self.room.get(self.slots[*id as usize].span) == text;
        self.table.find(self.hasher.hash_one(text), same).copied()
    }

    pub fn get(&self, id: u32) -> &str {
        let bytes = self.slots.get(id as usize).map(|slot| self.room.get(slot.span)).unwrap_or_default();
        // What was put in was text.
        std::str::from_utf8(bytes).unwrap_or_default()
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
