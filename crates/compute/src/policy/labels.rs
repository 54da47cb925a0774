//! Sets of labels, each stored once.
//!
//! Pods of the same template have the same label keys and differ in the values, so the keys are stored once for all
//! of them.

use super::ids::{KeyListId, LabelSetId, Symbol, TableId, nothing};
use super::interner::StringInterner;
use super::pool::ValuePool;

pub(super) type LabelSymbols = (Symbol, Symbol);

#[derive(Debug, Default)]
pub(super) struct LabelSets {
    keys: ValuePool<KeyListId, Box<[Symbol]>>,
    /// The ID of the keys, then a symbol for the value of each key: in one allocation, since there are millions.
    sets: ValuePool<LabelSetId, Box<[u32]>>,
    /// Buffers, reused for the next set.
    scratch_keys: Vec<Symbol>,
    scratch: Vec<u32>,
}

impl LabelSets {
    /// Returns the ID of a set and adds a reference. The labels must be sorted; the set references their symbols.
    pub fn hold(&mut self, interner: &mut StringInterner<Symbol>, labels: &[LabelSymbols]) -> LabelSetId {
        let LabelSets { keys, sets, scratch_keys, scratch } = self;
        scratch_keys.clear();
        scratch_keys.extend(labels.iter().map(|(key, _)| *key));
        let of_keys = keys.hold(&scratch_keys[..], || scratch_keys[..].into());
        if keys.holders(of_keys) == 1 {
            scratch_keys.iter().for_each(|key| interner.hold_again(*key));
        }
        scratch.clear();
        scratch.push(of_keys.number());
        scratch.extend(labels.iter().map(|(_, value)| value.number()));
        let id = sets.hold(&scratch[..], || scratch[..].into());
        if sets.holders(id) == 1 {
            labels.iter().for_each(|(_, value)| interner.hold_again(*value));
        } else {
            keys.release(of_keys);
        }
        id
    }

    pub fn release(&mut self, interner: &mut StringInterner<Symbol>, id: LabelSetId) {
        let Some(set) = self.sets.release(id) else { return };
        let Some((of_keys, values)) = set.split_first() else { return };
        values.iter().for_each(|value| interner.release(Symbol::new(*value)));
        let keys = self.keys.release(KeyListId::new(*of_keys)).unwrap_or_default();
        keys.iter().for_each(|key| interner.release(*key));
    }

    pub fn get(&self, id: LabelSetId) -> impl Iterator<Item = LabelSymbols> {
        let set = self.sets.get(id).and_then(|set| set.split_first());
        let of_keys = set.map_or_else(nothing, |(keys, _)| KeyListId::new(*keys));
        let values = set.map_or(&[][..], |(_, values)| values);
        let keys = self.keys.get(of_keys).map_or(&[][..], AsRef::as_ref);
        keys.iter().copied().zip(values.iter().copied().map(Symbol::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_reference_symbols_while_they_are_referenced() {
        let (mut interner, mut sets) = (StringInterner::default(), LabelSets::default());
        let hold = |interner: &mut StringInterner<Symbol>, sets: &mut LabelSets, labels: &[(&str, &str)]| {
            let mut labels: Vec<LabelSymbols> =
                labels.iter().map(|(key, value)| (interner.intern(key), interner.intern(value))).collect();
            labels.sort_unstable();
            let id = sets.hold(interner, &labels);
            assert!(sets.get(id).eq(labels));
            id
        };
        let one = hold(&mut interner, &mut sets, &[("app", "web"), ("run", "a")]);
        let other = hold(&mut interner, &mut sets, &[("app", "web"), ("run", "b")]);
        assert_ne!(one, other);
        assert_eq!(hold(&mut interner, &mut sets, &[("app", "web"), ("run", "a")]), one);
        assert_eq!(sets.keys.len(), 1);
        sets.release(&mut interner, one);
        assert!(interner.find("a").is_some());
        sets.release(&mut interner, one);
        assert_eq!((interner.find("a"), interner.find("b").is_some()), (None, true));
        assert_eq!(sets.get(one).count(), 0);
        sets.release(&mut interner, other);
        assert_eq!((interner.find("app"), interner.find("run"), interner.find("web")), (None, None, None));
        let none = hold(&mut interner, &mut sets, &[]);
        assert_eq!(sets.get(none).count(), 0);
    }
}
