//! Maps each key to the position of its newest version in the history: an ordered map in memory, rebuilt at every
//! start.
//!
//! Cloning copies a reference, and a change copies only the affected leaf: every reader keeps the keys as of one
//! commit while the writer continues. The keys of a leaf share one buffer, which needs little memory and few
//! allocations for any number of keys.

use super::history_record::CommitRevision;
use super::key_span::KeyBounds;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// A leaf with more keys, or more bytes of keys, is split.
const MAX_LEAF_KEYS: usize = 128;
const MAX_LEAF_BYTES: usize = 64 * 1024;

/// The newest version of a key; a deleted key stays until compaction removes its last version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatestVersion {
    pub at: CommitRevision,
    pub deleted: bool,
}

#[derive(Clone, Debug, Default)]
pub struct VersionIndex {
    /// In key order; no leaf is empty.
    leaves: Arc<Vec<Arc<IndexLeaf>>>,
}

#[derive(Clone, Debug, Default)]
struct IndexLeaf {
    keys: Vec<u8>,
    slots: Vec<IndexSlot>,
}

#[derive(Clone, Copy, Debug)]
struct IndexSlot {
    /// End of the key in the buffer; it starts at the end of the previous one.
    end: u32,
    place: LatestVersion,
}

impl VersionIndex {
    pub fn get(&self, key: &[u8]) -> Option<LatestVersion> {
        let leaf = self.leaves.get(self.leaf_of(key))?;
        let slot = leaf.find(key).ok()?;
        leaf.slots.get(slot).map(|slot| slot.place)
    }

    pub fn set(&mut self, key: &[u8], place: LatestVersion) {
        let number = self.leaf_of(key);
        let leaves = Arc::make_mut(&mut self.leaves);
        if leaves.is_empty() {
            leaves.push(Arc::default());
        }
        let last = number + 1 == leaves.len();
        let Some(leaf) = leaves.get_mut(number) else { return };
        let leaf = Arc::make_mut(leaf);
        match leaf.find(key) {
            Ok(slot) => leaf.slots[slot].place = place,
            Err(slot) => {
                leaf.insert(slot, key, place);
                if leaf.slots.len() > MAX_LEAF_KEYS
                    || (leaf.keys.len() > MAX_LEAF_BYTES && leaf.slots.len() > 1)
                {
                    // Keys often arrive in order: splitting at the end keeps the existing leaves full.
                    let appended = last && slot + 1 == leaf.slots.len();
                    let half = if appended { slot } else { leaf.slots.len() / 2 };
                    let upper = leaf.split_off(half);
                    leaves.insert(number + 1, Arc::new(upper));
                }
            }
        }
    }

    pub fn remove(&mut self, key: &[u8]) {
        let number = self.leaf_of(key);
        let Some(Ok(slot)) = self.leaves.get(number).map(|leaf| leaf.find(key)) else { return };
        let leaves = Arc::make_mut(&mut self.leaves);
        let leaf = Arc::make_mut(&mut leaves[number]);
        leaf.remove(slot);
        if leaf.slots.is_empty() {
            leaves.remove(number);
        }
    }

    /// Returns the keys within the bounds, in order.
    pub fn range<'a>(&'a self, bounds: KeyBounds<'a>) -> impl Iterator<Item = (&'a [u8], LatestVersion)> {
        let from = match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let first = self.leaf_of(from);
        let leaves = self.leaves.get(first..).unwrap_or_default();
        let skipped = leaves.first().map_or(0, |leaf| leaf.find(from).unwrap_or_else(|slot| slot));
        leaves
            .iter()
            .flat_map(|leaf| (0..leaf.slots.len()).map(|slot| (leaf.key(slot), leaf.slots[slot].place)))
            .skip(skipped)
            .skip_while(move |(key, _)| matches!(bounds.0, Bound::Excluded(from) if *key <= from))
            .take_while(move |(key, _)| match bounds.1 {
                Bound::Included(until) => *key <= until,
                Bound::Excluded(until) => *key < until,
                Bound::Unbounded => true,
            })
    }

    /// Returns the index of the leaf that contains or would contain a key.
    fn leaf_of(&self, key: &[u8]) -> usize {
        self.leaves.partition_point(|leaf| leaf.key(0) <= key).saturating_sub(1)
    }
}

impl IndexLeaf {
    fn start(&self, slot: usize) -> usize {
        slot.checked_sub(1).and_then(|before| self.slots.get(before)).map_or(0, |slot| slot.end as usize)
    }

    fn key(&self, slot: usize) -> &[u8] {
        let end = self.slots.get(slot).map_or(self.keys.len(), |slot| slot.end as usize);
        self.keys.get(self.start(slot)..end).unwrap_or_default()
    }

    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let mut low = 0;
        let mut high = self.slots.len();
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    fn insert(&mut self, slot: usize, key: &[u8], place: LatestVersion) {
        let start = self.start(slot);
        self.keys.splice(start..start, key.iter().copied());
        self.slots.insert(slot, IndexSlot { end: start as u32, place });
        for slot in &mut self.slots[slot..] {
            slot.end += key.len() as u32;
        }
    }

    fn remove(&mut self, slot: usize) {
        let start = self.start(slot);
        let length = self.key(slot).len();
        self.keys.drain(start..start + length);
        self.slots.remove(slot);
        for slot in &mut self.slots[slot..] {
            slot.end -= length as u32;
        }
    }

    fn split_off(&mut self, slot: usize) -> IndexLeaf {
        let start = self.start(slot);
        let mut upper = IndexLeaf { keys: self.keys.split_off(start), slots: self.slots.split_off(slot) };
        for slot in &mut upper.slots {
            slot.end -= start as u32;
        }
        self.keys.shrink_to_fit();
        self.slots.shrink_to_fit();
        upper
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn place(main: i64) -> LatestVersion {
        LatestVersion { at: CommitRevision { main, sub: 0 }, deleted: main % 2 == 0 }
    }

    fn all(index: &VersionIndex) -> Vec<(Vec<u8>, LatestVersion)> {
        let bounds = (Bound::Unbounded, Bound::Unbounded);
        index.range(bounds).map(|(key, place)| (key.to_vec(), place)).collect()
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map(
            steps in prop::collection::vec((any::<bool>(), 0u32..600), 0..1500),
            from in 0u32..600, until in 0u32..600,
        ) {
            let key = |number: u32| format!("{}{number}", "k".repeat(number as usize % 5)).into_bytes();
            let (mut index, mut model) = (VersionIndex::default(), BTreeMap::new());
            let mut earlier = (index.clone(), model.clone());
            for (step, (set, number)) in steps.into_iter().enumerate() {
                if step == 700 {
                    earlier = (index.clone(), model.clone());
                }
                if set || number % 3 > 0 {
                    index.set(&key(number), place(step as i64));
                    model.insert(key(number), place(step as i64));
                } else {
                    index.remove(&key(number));
                    model.remove(&key(number));
                }
                prop_assert_eq!(index.get(&key(number)), model.get(&key(number)).copied());
            }
            let as_rows = |model: &BTreeMap<Vec<u8>, LatestVersion>| -> Vec<_> { model.clone().into_iter().collect() };
            prop_assert_eq!(all(&index), as_rows(&model));
            prop_assert_eq!(all(&earlier.0), as_rows(&earlier.1));
            let (from, until) = (key(from), key(until));
            let bounds = (Bound::Included(from.as_slice()), Bound::Excluded(until.as_slice()));
            let expected: Vec<_> =
                as_rows(&model).into_iter().filter(|(key, _)| *key >= from && *key < until).collect();
            let found: Vec<_> = index.range(bounds).map(|(key, place)| (key.to_vec(), place)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn large_and_empty_keys_have_their_place() {
        let mut index = VersionIndex::default();
        for (number, length) in [(1, 70_000), (2, 0), (3, 70_001), (4, 1)] {
            index.set(&vec![7; length], place(number));
        }
        assert_eq!(index.get(&[]), Some(place(2)));
        assert_eq!(index.get(&vec![7; 70_001]), Some(place(3)));
        assert_eq!(all(&index).iter().map(|(key, _)| key.len()).collect::<Vec<_>>(), [0, 1, 70_000, 70_001]);
    }
}
