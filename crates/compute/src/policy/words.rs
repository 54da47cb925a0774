//! What endpoints are called: labels, interned, and the classes of endpoints that no selector can tell apart.
//!
//! An endpoint has labels of its own and takes those of its profiles that it has not itself. Endpoints with the same
//! labels and the same profiles are of one class: selectors are matched against classes, not endpoints.

use super::pool::Pool;
use super::texts::Texts;
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

/// What a profile gave until now; its name and these labels stay until they are forgotten.
#[derive(Debug)]
pub(super) struct Gift {
    pub profile: Word,
    pub old: Box<[Label]>,
}

#[derive(Debug, Default)]
pub(super) struct Words {
    texts: Texts,
    label_sets: Pool<Box<[Label]>>,
    profile_lists: Pool<Box<[Word]>>,
    classes: Pool<Class>,
    inherited: HashMap<Word, Box<[Label]>>,
}

impl Words {
    pub fn hold(&mut self, text: &str) -> Word {
        self.texts.hold(text)
    }

    /// A word that somebody is about to hold.
    fn intern(&mut self, text: &str) -> Word {
        self.texts.intern(text)
    }

    pub fn release(&mut self, word: Word) {
        self.texts.release(word);
    }

    pub fn text(&self, word: Word) -> &str {
        self.texts.get(word)
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
        // Nearly always there are others with the same labels, which hold the words already.
        let mut own: Vec<Label> = labels.map(|(key, value)| (self.intern(key), self.intern(value))).collect();
        own.sort_unstable();
        let label_set = self.label_sets.hold(&own[..], || own[..].into());
        if self.label_sets.holders(label_set) == 1 {
            own.iter().flat_map(|(key, value)| [*key, *value]).for_each(|word| self.texts.hold_again(word));
        }
        let profiles: Vec<Word> = profiles.map(|name| self.intern(name)).collect();
        let profile_list = self.profile_lists.hold(&profiles[..], || profiles[..].into());
        if self.profile_lists.holders(profile_list) == 1 {
            profiles.iter().for_each(|word| self.texts.hold_again(*word));
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

    pub fn label_set(&self, labels: u32) -> &[Label] {
        self.label_sets.get(labels).map_or(&[], AsRef::as_ref)
    }

    pub fn own_labels(&self, class: ClassId) -> &[Label] {
        self.label_set(self.parts(class).labels)
    }

    pub fn profiles(&self, class: ClassId) -> &[Word] {
        self.profile_lists.get(self.parts(class).profiles).map_or(&[], AsRef::as_ref)
    }

    pub fn given_by(&self, profile: Word) -> &[Label] {
        self.inherited.get(&profile).map_or(&[], AsRef::as_ref)
    }

    /// A profile gives these labels from now on; returns what changed, or none if nothing does.
    pub fn set_given<'a>(
        &mut self,
        profile: &str,
        labels: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Gift> {
        let profile = self.hold(profile);
        let new: Box<[Label]> = labels.map(|(key, value)| (self.hold(key), self.hold(value))).collect();
        let old = self.inherited.get(&profile).cloned().unwrap_or_default();
        if old == new {
            self.release_labels(&new);
            self.release(profile);
            return None;
        }
        // The labels that it gives hold its name; nobody looks for a profile that gives none.
        if old.is_empty() {
            self.texts.hold_again(profile);
        }
        if new.is_empty() {
            self.inherited.remove(&profile);
            self.release(profile);
        } else {
            self.inherited.insert(profile, new);
        }
        Some(Gift { profile, old })
    }

    /// Nobody asks any more what a profile gave before.
    pub fn forget(&mut self, gift: Gift) {
        self.release_labels(&gift.old);
        self.release(gift.profile);
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
        let key = self.words.find(key)?;
        let given = self.profiles.iter().flat_map(|profile| self.words.given_by(*profile));
        let mut all = self.own.iter().chain(given);
        all.find(|(word, _)| *word == key).map(|(_, value)| self.words.text(*value))
    }
}
