//! What endpoints are called: labels, interned, and the classes of endpoints that no selector can tell apart.
//!
//! An endpoint has labels of its own and takes those of its profiles that it has not itself. Endpoints with the same
//! labels and the same profiles are of one class: selectors are matched against classes, not endpoints.

use super::ids::Ids;
use super::pool::Pool;
use hashbrown::HashMap;
use tortie_model::selector::Labels;

/// An interned text.
pub(super) type Word = u32;
pub(super) type ClassId = u32;

pub(super) type Label = (Word, Word);

/// Which labels and which profiles, as names in the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub labels: u32,
    pub profiles: u32,
}

/// Who has a label, by key and value.
#[derive(Debug, Default)]
pub(super) struct Holders(HashMap<Word, Values>);

/// Many values have one holder: names, addresses, serial numbers. These are kept apart since they need less room.
#[derive(Debug, Default)]
struct Values {
    one: HashMap<Word, u32>,
    more: HashMap<Word, Ids>,
}

#[derive(Debug, Default)]
pub(super) struct Words {
    texts: Pool<Box<str>>,
    label_sets: Pool<Box<[Label]>>,
    profile_lists: Pool<Box<[Word]>>,
    classes: Pool<Class>,
    inherited: HashMap<Word, Box<[Label]>>,
    /// Which profiles give a label.
    pub givers: Holders,
}

impl Values {
    fn insert(&mut self, value: Word, holder: u32) {
        if let Some(holders) = self.more.get_mut(&value) {
            holders.insert(holder);
        } else if let Some(first) = self.one.insert(value, holder)
            && first != holder
        {
            self.one.remove(&value);
            self.more.insert(value, [first, holder].into_iter().collect());
        }
    }

    fn remove(&mut self, value: Word, holder: u32) {
        if let Some(holders) = self.more.get_mut(&value) {
            holders.remove(holder);
            if let Ids::One(last) = *holders {
                self.more.remove(&value);
                self.one.insert(value, last);
            }
        } else if self.one.get(&value) == Some(&holder) {
            self.one.remove(&value);
        }
    }

    fn holders(&self, value: Word) -> impl Iterator<Item = u32> {
        let more = self.more.get(&value).into_iter().flat_map(Ids::iter);
        self.one.get(&value).copied().into_iter().chain(more)
    }
}

impl Holders {
    pub fn insert(&mut self, labels: &[Label], holder: u32) {
        for (key, value) in labels {
            self.0.entry(*key).or_default().insert(*value, holder);
        }
    }

    pub fn remove(&mut self, labels: &[Label], holder: u32) {
        for (key, value) in labels {
            let Some(values) = self.0.get_mut(key) else { continue };
            values.remove(*value, holder);
            if values.one.is_empty() && values.more.is_empty() {
                self.0.remove(key);
            }
        }
    }

    pub fn of_value(&self, key: Word, value: Word) -> impl Iterator<Item = u32> {
        self.0.get(&key).into_iter().flat_map(move |values| values.holders(value))
    }

    pub fn of_key(&self, key: Word) -> impl Iterator<Item = u32> {
        let values = self.0.get(&key).into_iter();
        values.flat_map(|values| values.one.values().copied().chain(values.more.values().flat_map(Ids::iter)))
    }

    pub fn count_of_value(&self, key: Word, value: Word) -> usize {
        let Some(values) = self.0.get(&key) else { return 0 };
        values.more.get(&value).map_or_else(|| usize::from(values.one.contains_key(&value)), Ids::len)
    }

    pub fn count_of_key(&self, key: Word) -> usize {
        let Some(values) = self.0.get(&key) else { return 0 };
        values.one.len() + values.more.values().map(Ids::len).sum::<usize>()
    }
}

impl Words {
    pub fn hold(&mut self, text: &str) -> Word {
        self.texts.hold(text, || text.into())
    }

    pub fn release(&mut self, word: Word) {
        self.texts.release(word);
    }

    pub fn text(&self, word: Word) -> &str {
        self.texts.get(word).map_or("", AsRef::as_ref)
    }

    pub fn find(&self, text: &str) -> Option<Word> {
        self.texts.find(text)
    }

    /// The class of endpoints with these labels and profiles, with one holder more.
    pub fn class<'a>(
        &mut self,
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        profiles: impl Iterator<Item = &'a str>,
    ) -> ClassId {
        let mut own: Vec<Label> = labels.map(|(key, value)| (self.hold(key), self.hold(value))).collect();
        own.sort_unstable();
        let profiles: Vec<Word> = profiles.map(|name| self.hold(name)).collect();
        let label_set = self.label_sets.hold(&own[..], || own[..].into());
        if self.label_sets.holders(label_set) > 1 {
            self.release_labels(&own);
        }
        let profile_list = self.profile_lists.hold(&profiles[..], || profiles[..].into());
        if self.profile_lists.holders(profile_list) > 1 {
            profiles.iter().for_each(|word| self.release(*word));
        }
        let class = Class { labels: label_set, profiles: profile_list };
        let id = self.classes.hold(&class, || class);
        if self.classes.holders(id) > 1 {
            // The class holds its parts once, not each of its endpoints.
            self.label_sets.release(label_set);
            self.profile_lists.release(profile_list);
        }
        id
    }

    pub fn release_class(&mut self, id: ClassId) {
        let Some(class) = self.classes.release(id) else { return };
        if let Some(labels) = self.label_sets.release(class.labels) {
            self.release_labels(&labels);
        }
        if let Some(profiles) = self.profile_lists.release(class.profiles) {
            profiles.iter().for_each(|word| self.release(*word));
        }
    }

    fn release_labels(&mut self, labels: &[Label]) {
        for (key, value) in labels {
            self.release(*key);
            self.release(*value);
        }
    }

    /// How many endpoints are of this class.
    pub fn holders(&self, class: ClassId) -> u32 {
        self.classes.holders(class)
    }

    pub fn parts(&self, class: ClassId) -> Class {
        self.classes.get(class).copied().unwrap_or(Class { labels: u32::MAX, profiles: u32::MAX })
    }

    pub fn own_labels(&self, class: ClassId) -> &[Label] {
        self.label_sets.get(self.parts(class).labels).map_or(&[], AsRef::as_ref)
    }

    pub fn profiles(&self, class: ClassId) -> &[Word] {
        self.profile_lists.get(self.parts(class).profiles).map_or(&[], AsRef::as_ref)
    }

    pub fn given_by(&self, profile: Word) -> &[Label] {
        self.inherited.get(&profile).map_or(&[], AsRef::as_ref)
    }

    /// A profile gives these labels from now on; returns its name, or none if nothing changes.
    pub fn set_given<'a>(
        &mut self,
        profile: &str,
        labels: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Word> {
        let name = self.hold(profile);
        let new: Box<[Label]> = labels.map(|(key, value)| (self.hold(key), self.hold(value))).collect();
        let old = self.inherited.get(&name).cloned().unwrap_or_default();
        if old == new {
            self.release_labels(&new);
            self.release(name);
            return None;
        }
        self.givers.remove(&old, name);
        self.givers.insert(&new, name);
        self.release_labels(&old);
        // The name is held by the labels it gives; nobody looks for a profile that gives none.
        match (old.is_empty(), new.is_empty()) {
            (true, _) => {}
            (false, false) => self.release(name),
            (false, true) => {
                self.release(name);
                self.release(name);
            }
        }
        if new.is_empty() {
            self.inherited.remove(&name);
        } else {
            self.inherited.insert(name, new);
        }
        Some(name)
    }

    /// The labels of a class as selectors see them.
    pub fn view(&self, class: ClassId) -> View<'_> {
        View { words: self, own: self.own_labels(class), profiles: self.profiles(class) }
    }
}

pub(super) struct View<'a> {
    words: &'a Words,
    own: &'a [Label],
    profiles: &'a [Word],
}

impl Labels for View<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let given = self.profiles.iter().flat_map(|profile| self.words.given_by(*profile));
        let mut all = self.own.iter().chain(given);
        all.find(|(word, _)| self.words.text(*word) == key).map(|(_, value)| self.words.text(*value))
    }
}
