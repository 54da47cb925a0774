//! Label index: for each label key that a selector needs, the label sets that have it and the selectors that need it.
//!
//! Endpoints have many labels that no selector needs. These are not indexed and cost nothing here.

use super::id_set::IdSet;
use super::ids::{LabelSetId, SelectorId, Symbol, TableId};
use hashbrown::HashMap;

/// The index of one label key.
#[derive(Debug, Default)]
pub(super) struct LabelKeyIndex {
    /// Number of selectors that need the key.
    pub users: u32,
    /// The selectors that are found by the key, regardless of the value.
    pub any_value: IdSet<SelectorId>,
    /// The selectors that are found by a value.
    pub by_value: LabelValueIndex<SelectorId>,
    /// The label sets that have the key.
    pub label_sets: LabelValueIndex<LabelSetId>,
    /// The profiles from which endpoints inherit the key.
    pub profiles: LabelValueIndex<Symbol>,
}

/// IDs by the value of a label. Many values, such as names, addresses and serial numbers, have one ID. These are
/// stored separately, since they need less memory.
#[derive(Debug)]
pub(super) struct LabelValueIndex<I> {
    one: HashMap<Symbol, I>,
    more: HashMap<Symbol, IdSet<I>>,
    len: usize,
}

impl<I> Default for LabelValueIndex<I> {
    fn default() -> Self {
        LabelValueIndex { one: HashMap::new(), more: HashMap::new(), len: 0 }
    }
}

impl LabelKeyIndex {
    /// Returns the number of IDs that are found under a value.
    pub fn cost_of(&self, value: Symbol) -> usize {
        self.label_sets.count(value) + self.by_value.count(value)
    }

    /// Returns the number of IDs that are found under the key.
    pub fn cost(&self) -> usize {
        self.label_sets.len + self.any_value.len()
    }

    pub fn insert_selector(&mut self, value: Option<Symbol>, selector: SelectorId) {
        match value {
            Some(value) => self.by_value.insert(value, selector),
            None => {
                self.any_value.insert(selector);
            }
        }
    }

    pub fn remove_selector(&mut self, value: Option<Symbol>, selector: SelectorId) {
        match value {
            Some(value) => self.by_value.remove(value, selector),
            None => {
                self.any_value.remove(selector);
            }
        }
    }

    /// Returns the selectors that may match a label set with this value of the key.
    pub fn selectors(&self, value: Symbol) -> impl Iterator<Item = SelectorId> {
        self.any_value.iter().chain(self.by_value.of(value))
    }
}

impl<I: TableId> LabelValueIndex<I> {
    pub fn insert(&mut self, value: Symbol, id: I) {
        if let Some(ids) = self.more.get_mut(&value) {
            self.len += usize::from(ids.insert(id));
            return;
        }
        match self.one.insert(value, id) {
            Some(first) if first == id => {}
            Some(first) => {
                self.one.remove(&value);
                self.more.insert(value, [first, id].into_iter().collect());
                self.len += 1;
            }
            None => self.len += 1,
        }
    }

    pub fn remove(&mut self, value: Symbol, id: I) {
        if let Some(ids) = self.more.get_mut(&value) {
            self.len -= usize::from(ids.remove(id));
            if let IdSet::One(last) = *ids {
                self.more.remove(&value);
                self.one.insert(value, last);
            }
        } else if self.one.get(&value) == Some(&id) {
            self.one.remove(&value);
            self.len -= 1;
        }
    }

    pub fn of(&self, value: Symbol) -> impl Iterator<Item = I> {
        let more = self.more.get(&value).into_iter().flat_map(IdSet::iter);
        self.one.get(&value).copied().into_iter().chain(more)
    }

    pub fn all(&self) -> impl Iterator<Item = I> {
        self.one.values().copied().chain(self.more.values().flat_map(IdSet::iter))
    }

    /// Returns the values that have IDs.
    pub fn values(&self) -> impl Iterator<Item = Symbol> {
        self.one.keys().chain(self.more.keys()).copied()
    }

    pub fn count(&self, value: Symbol) -> usize {
        self.more.get(&value).map_or_else(|| usize::from(self.one.contains_key(&value)), IdSet::len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::{ClassId, TableId};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ids_are_found_by_value(steps in prop::collection::vec((any::<bool>(), 0u32..4, 0u32..6), 0..200)) {
            let (mut ours, mut theirs) = (LabelValueIndex::<ClassId>::default(), BTreeSet::<(Symbol, ClassId)>::new());
            for (add, value, id) in steps {
                let (value, holder) = (Symbol::new(value), ClassId::new(id));
                if add {
                    ours.insert(value, holder);
                    theirs.insert((value, holder));
                } else {
                    ours.remove(value, holder);
                    theirs.remove(&(value, holder));
                }
                prop_assert_eq!(ours.len, theirs.len());
                for value in (0..4).map(Symbol::new) {
                    let of_value = theirs.iter().filter(|(other, _)| *other == value).map(|(_, holder)| *holder);
                    prop_assert_eq!(ours.of(value).collect::<BTreeSet<_>>(), of_value.clone().collect());
                    prop_assert_eq!(ours.count(value), of_value.count());
                }
                prop_assert_eq!(ours.all().count(), theirs.len());
                let symbols: BTreeSet<Symbol> = theirs.iter().map(|(value, _)| *value).collect();
                prop_assert_eq!(ours.values().collect::<BTreeSet<_>>(), symbols);
            }
        }
    }
}
