//! Who has a label, and which selectors ask for it: one shelf for each label key that a selector needs.
//!
//! Endpoints have many labels that no selector ever asks for. They are not on any shelf, and cost nothing here.

use super::ids::Ids;
use super::words::Word;
use hashbrown::HashMap;

#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// How many selectors need the key.
    pub users: u32,
    /// The selectors that are filed here, whatever the value is.
    pub any: Ids,
    /// The selectors that are filed under a value.
    pub by_value: Holders,
    /// The label sets that have the key.
    pub holders: Holders,
    /// The profiles that give it.
    pub givers: Holders,
}

/// Who has a word. Many have one holder: names, addresses, serial numbers. These are kept apart since they need less room.
#[derive(Debug, Default)]
pub(super) struct Holders {
    one: HashMap<Word, u32>,
    more: HashMap<Word, Ids>,
    len: usize,
}

impl Shelf {
    /// How much is found under the values.
    pub fn weight_of(&self, value: Word) -> usize {
        self.holders.count(value) + self.by_value.count(value)
    }

    /// How much is found under the key.
    pub fn weight(&self) -> usize {
        self.holders.len + self.any.len()
    }

    pub fn file(&mut self, value: Option<Word>, selector: u32) {
        match value {
            Some(value) => self.by_value.insert(value, selector),
            None => {
                self.any.insert(selector);
            }
        }
    }

    pub fn unfile(&mut self, value: Option<Word>, selector: u32) {
        match value {
            Some(value) => self.by_value.remove(value, selector),
            None => {
                self.any.remove(selector);
            }
        }
    }

    /// The selectors that may match what has the key with this value.
    pub fn asking(&self, value: Word) -> impl Iterator<Item = u32> {
        self.any.iter().chain(self.by_value.of(value))
    }
}

impl Holders {
    pub fn insert(&mut self, value: Word, holder: u32) {
        if let Some(holders) = self.more.get_mut(&value) {
            self.len += usize::from(holders.insert(holder));
            return;
        }
        match self.one.insert(value, holder) {
            Some(first) if first == holder => {}
            Some(first) => {
                self.one.remove(&value);
                self.more.insert(value, [first, holder].into_iter().collect());
                self.len += 1;
            }
            None => self.len += 1,
        }
    }

    pub fn remove(&mut self, value: Word, holder: u32) {
        if let Some(holders) = self.more.get_mut(&value) {
            self.len -= usize::from(holders.remove(holder));
            if let Ids::One(last) = *holders {
                self.more.remove(&value);
                self.one.insert(value, last);
            }
        } else if self.one.get(&value) == Some(&holder) {
            self.one.remove(&value);
            self.len -= 1;
        }
    }

    pub fn of(&self, value: Word) -> impl Iterator<Item = u32> {
        let more = self.more.get(&value).into_iter().flat_map(Ids::iter);
        self.one.get(&value).copied().into_iter().chain(more)
    }

    pub fn all(&self) -> impl Iterator<Item = u32> {
        self.one.values().copied().chain(self.more.values().flat_map(Ids::iter))
    }

    /// The words that somebody has.
    pub fn words(&self) -> impl Iterator<Item = Word> {
        self.one.keys().chain(self.more.keys()).copied()
    }

    pub fn count(&self, value: Word) -> usize {
        self.more.get(&value).map_or_else(|| usize::from(self.one.contains_key(&value)), Ids::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn holders_are_who_has_the_value(steps in prop::collection::vec((any::<bool>(), 0u32..4, 0u32..6), 0..200)) {
            let (mut ours, mut theirs) = (Holders::default(), BTreeSet::new());
            for (add, value, holder) in steps {
                if add {
                    ours.insert(value, holder);
                    theirs.insert((value, holder));
                } else {
                    ours.remove(value, holder);
                    theirs.remove(&(value, holder));
                }
                prop_assert_eq!(ours.len, theirs.len());
                for value in 0..4 {
                    let of_value = theirs.iter().filter(|(other, _)| *other == value).map(|(_, holder)| *holder);
                    prop_assert_eq!(ours.of(value).collect::<BTreeSet<_>>(), of_value.clone().collect());
                    prop_assert_eq!(ours.count(value), of_value.count());
                }
                prop_assert_eq!(ours.all().count(), theirs.len());
                let words: BTreeSet<u32> = theirs.iter().map(|(value, _)| *value).collect();
                prop_assert_eq!(ours.words().collect::<BTreeSet<_>>(), words);
            }
        }
    }
}
