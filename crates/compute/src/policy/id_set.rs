//! Small sets of IDs: most have one member, few have many.

use super::ids::TableId;
use std::collections::BTreeSet;

/// Maximum size of a sorted list.
const MAX_LIST_LENGTH: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::box_collection, reason = "there are millions of these: each stays as small as a pointer")]
pub(super) enum IdSet<I> {
    #[default]
    None,
    One(I),
    Few(Box<Vec<I>>),
    Many(Box<BTreeSet<I>>),
}

impl<I: TableId> IdSet<I> {
    /// Inserts an ID. Returns whether it is new.
    pub fn insert(&mut self, id: I) -> bool {
        match self {
            IdSet::None => {
                *self = IdSet::One(id);
                true
            }
            IdSet::One(other) if *other == id => false,
            IdSet::One(other) => {
                *self = IdSet::Few(Box::new(vec![(*other).min(id), (*other).max(id)]));
                true
            }
            IdSet::Few(list) => {
                let Err(position) = list.binary_search(&id) else { return false };
                if list.len() < MAX_LIST_LENGTH {
                    list.insert(position, id);
                } else {
                    let all = list.iter().copied().chain([id]).collect();
                    *self = IdSet::Many(Box::new(all));
                }
                true
            }
            IdSet::Many(set) => set.insert(id),
        }
    }

    /// Removes an ID. Returns whether it was present.
    pub fn remove(&mut self, id: I) -> bool {
        match self {
            IdSet::None => false,
            IdSet::One(other) => {
                let was_present = *other == id;
                if was_present {
                    *self = IdSet::None;
                }
                was_present
            }
            IdSet::Few(list) => {
                let Ok(position) = list.binary_search(&id) else { return false };
                list.remove(position);
                if let [last] = list[..] {
                    *self = IdSet::One(last);
                }
                true
            }
            IdSet::Many(set) => {
                let was_present = set.remove(&id);
                // Convert back only at half the limit, so that a set near the limit is not converted repeatedly.
                if set.len() < MAX_LIST_LENGTH / 2 {
                    *self = IdSet::Few(Box::new(set.iter().copied().collect()));
                }
                was_present
            }
        }
    }

    pub fn contains(&self, id: I) -> bool {
        match self {
            IdSet::None => false,
            IdSet::One(other) => *other == id,
            IdSet::Few(list) => list.binary_search(&id).is_ok(),
            IdSet::Many(set) => set.contains(&id),
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, IdSet::None)
    }

    pub fn len(&self) -> usize {
        match self {
            IdSet::None => 0,
            IdSet::One(_) => 1,
            IdSet::Few(list) => list.len(),
            IdSet::Many(set) => set.len(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = I> {
        let (few, many): (&[I], Option<&BTreeSet<I>>) = match self {
            IdSet::None => (&[], None),
            IdSet::One(id) => (std::slice::from_ref(id), None),
            IdSet::Few(list) => (list, None),
            IdSet::Many(set) => (&[], Some(set)),
        };
        few.iter().chain(many.into_iter().flatten()).copied()
    }
}

impl<I: TableId> FromIterator<I> for IdSet<I> {
    fn from_iter<T: IntoIterator<Item = I>>(ids: T) -> IdSet<I> {
        let mut all = IdSet::None;
        ids.into_iter().for_each(|id| {
            all.insert(id);
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::ClassId;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn id_sets_behave_like_btree_sets(steps in prop::collection::vec((any::<bool>(), 0u32..150), 0..600)) {
            let (mut ours, mut theirs) = (IdSet::<ClassId>::default(), BTreeSet::new());
            for (add, number) in steps {
                let id = ClassId::new(number);
                if add {
                    prop_assert_eq!(ours.insert(id), theirs.insert(id));
                } else {
                    prop_assert_eq!(ours.remove(id), theirs.remove(&id));
                }
                prop_assert_eq!(ours.contains(id), theirs.contains(&id));
                prop_assert_eq!(ours.len(), theirs.len());
                prop_assert_eq!(ours.is_empty(), theirs.is_empty());
            }
            prop_assert!(ours.iter().eq(theirs.iter().copied()));
        }
    }
}
