//! Small sets of small numbers: most have one member, few have many.

use std::collections::BTreeSet;

/// Up to this many are kept in a sorted list.
const FEW: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::box_collection, reason = "there are millions of these: each stays as small as a pointer")]
pub(super) enum Ids {
    #[default]
    None,
    One(u32),
    Few(Box<Vec<u32>>),
    Many(Box<BTreeSet<u32>>),
}

impl Ids {
    /// Whether it was not there yet.
    pub fn insert(&mut self, id: u32) -> bool {
        match self {
            Ids::None => {
                *self = Ids::One(id);
                true
            }
            Ids::One(other) if *other == id => false,
            Ids::One(other) => {
                *self = Ids::Few(Box::new(vec![(*other).min(id), (*other).max(id)]));
                true
            }
            Ids::Few(list) => {
                let Err(place) = list.binary_search(&id) else { return false };
                if list.len() < FEW {
                    list.insert(place, id);
                } else {
                    let all = list.iter().copied().chain([id]).collect();
                    *self = Ids::Many(Box::new(all));
                }
                true
            }
            Ids::Many(set) => set.insert(id),
        }
    }

    /// Whether it was there.
    pub fn remove(&mut self, id: u32) -> bool {
        match self {
            Ids::None => false,
            Ids::One(other) => {
                let there = *other == id;
                if there {
                    *self = Ids::None;
                }
                there
            }
            Ids::Few(list) => {
                let Ok(place) = list.binary_search(&id) else { return false };
                list.remove(place);
                if let [last] = list[..] {
                    *self = Ids::One(last);
                }
                true
            }
            Ids::Many(set) => {
                let there = set.remove(&id);
                // Half as many as it takes to become one, so that a set on the edge does not change all the time.
                if set.len() < FEW / 2 {
                    *self = Ids::Few(Box::new(set.iter().copied().collect()));
                }
                there
            }
        }
    }

    pub fn contains(&self, id: u32) -> bool {
        match self {
            Ids::None => false,
            Ids::One(other) => *other == id,
            Ids::Few(list) => list.binary_search(&id).is_ok(),
            Ids::Many(set) => set.contains(&id),
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Ids::None)
    }

    pub fn len(&self) -> usize {
        match self {
            Ids::None => 0,
            Ids::One(_) => 1,
            Ids::Few(list) => list.len(),
            Ids::Many(set) => set.len(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let (few, many): (&[u32], Option<&BTreeSet<u32>>) = match self {
            Ids::None => (&[], None),
            Ids::One(id) => (std::slice::from_ref(id), None),
            Ids::Few(list) => (list, None),
            Ids::Many(set) => (&[], Some(set)),
        };
        few.iter().chain(many.into_iter().flatten()).copied()
    }
}

impl FromIterator<u32> for Ids {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Ids {
        let mut all = Ids::None;
        ids.into_iter().for_each(|id| {
            all.insert(id);
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn like_any_other_set(steps in prop::collection::vec((any::<bool>(), 0u32..150), 0..600)) {
            let (mut ours, mut theirs) = (Ids::default(), BTreeSet::new());
            for (add, id) in steps {
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
