//! Sets of labels, each kept once.
//!
//! Pods of one make have the same label keys and differ in the values, so the keys are kept once for all of them.

use super::pool::Pool;
use super::texts::Texts;
use super::words::Word;

pub(super) type Label = (Word, Word);
pub(super) type LabelsId = u32;

#[derive(Debug, Default)]
pub(super) struct LabelSets {
    keys: Pool<Box<[Word]>>,
    /// The name of the keys, then a value for each of them.
    sets: Pool<Box<[Word]>>,
    /// Room to write in.
    draft: Vec<Word>,
}

impl LabelSets {
    /// The name of a set, with one holder more. The labels are sorted; the set holds their words.
    pub fn hold(&mut self, texts: &mut Texts, labels: &[Label]) -> LabelsId {
        let LabelSets { keys, sets, draft } = self;
        draft.clear();
        draft.extend(labels.iter().map(|(key, _)| *key));
        let of_keys = keys.hold(&draft[..], || draft[..].into());
        if keys.holders(of_keys) == 1 {
            draft.iter().for_each(|key| texts.hold_again(*key));
        }
        draft.clear();
        draft.push(of_keys);
        draft.extend(labels.iter().map(|(_, value)| *value));
        let id = sets.hold(&draft[..], || draft[..].into());
        if sets.holders(id) == 1 {
            draft.iter().skip(1).for_each(|value| texts.hold_again(*value));
        } else {
            keys.release(of_keys);
        }
        id
    }

    pub fn release(&mut self, texts: &mut Texts, id: LabelsId) {
        let Some(set) = self.sets.release(id) else { return };
        let Some((of_keys, values)) = set.split_first() else { return };
        values.iter().for_each(|value| texts.release(*value));
        let keys = self.keys.release(*of_keys).unwrap_or_default();
        keys.iter().for_each(|key| texts.release(*key));
    }

    pub fn get(&self, id: LabelsId) -> impl Iterator<Item = Label> {
        let (of_keys, values) =
            self.sets.get(id).and_then(|set| set.split_first()).unwrap_or((&u32::MAX, &[]));
        let keys = self.keys.get(*of_keys).map_or(&[][..], AsRef::as_ref);
        keys.iter().copied().zip(values.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_their_words_as_long_as_somebody_holds_them() {
        let (mut texts, mut sets) = (Texts::default(), LabelSets::default());
        let hold = |texts: &mut Texts, sets: &mut LabelSets, labels: &[(&str, &str)]| {
            let mut labels: Vec<Label> =
                labels.iter().map(|(key, value)| (texts.intern(key), texts.intern(value))).collect();
            labels.sort_unstable();
            let id = sets.hold(texts, &labels);
            assert!(sets.get(id).eq(labels));
            id
        };
        let one = hold(&mut texts, &mut sets, &[("app", "web"), ("run", "a")]);
        let other = hold(&mut texts, &mut sets, &[("app", "web"), ("run", "b")]);
        assert_ne!(one, other);
        assert_eq!(hold(&mut texts, &mut sets, &[("app", "web"), ("run", "a")]), one);
        assert_eq!(sets.keys.len(), 1);
        sets.release(&mut texts, one);
        assert!(texts.find("a").is_some());
        sets.release(&mut texts, one);
        assert_eq!((texts.find("a"), texts.find("b").is_some()), (None, true));
        assert_eq!(sets.get(one).count(), 0);
        sets.release(&mut texts, other);
        assert_eq!((texts.find("app"), texts.find("run"), texts.find("web")), (None, None, None));
        let none = hold(&mut texts, &mut sets, &[]);
        assert_eq!(sets.get(none).count(), 0);
    }
}
