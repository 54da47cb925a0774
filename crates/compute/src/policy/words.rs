//! What endpoints are called: labels, interned, and the classes of endpoints that no selector can tell apart.
//!
//! An endpoint has labels of its own and takes those of its profiles that it has not itself. Endpoints with the same
//! labels and the same profiles are of one class: selectors are matched against classes, not endpoints.

use super::labels::{Label, LabelSets, LabelsId};
use super::pool::Pool;
use super::texts::Texts;
use hashbrown::HashMap;
use tortie_model::selector::Labels;

/// An interned text.
pub(super) type Word = u32;
pub(super) type ClassId = u32;

/// Which labels and which profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    labels: LabelsId,
    profiles: ProfileNames,
}

/// Nearly all endpoints have one profile or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ProfileNames {
    None,
    One(Word),
    List(u32),
}

/// What a profile gave until now; its name and these labels stay until they are forgotten.
#[derive(Debug)]
pub(super) struct Gift {
    pub profile: Word,
    pub old: Option<LabelsId>,
}

#[derive(Debug, Default)]
pub(super) struct Words {
    texts: Texts,
    label_sets: LabelSets,
    profile_lists: Pool<Box<[Word]>>,
    classes: Pool<Class>,
    /// The labels that a profile gives.
    inherited: HashMap<Word, LabelsId>,
}

impl Words {
    pub fn hold(&mut self, text: &str) -> Word {
        self.texts.hold(text)
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
        let labels = self.labels(labels);
        let names: Vec<Word> = profiles.map(|name| self.texts.intern(name)).collect();
        let profiles = match names[..] {
            [] => ProfileNames::None,
            [name] => ProfileNames::One(name),
            _ => ProfileNames::List(self.profile_lists.hold(&names[..], || names[..].into())),
        };
        let class = Class { labels, profiles };
        let id = self.classes.hold(&class, || class);
        if self.classes.holders(id) == 1 {
            names.iter().for_each(|name| self.texts.hold_again(*name));
        } else {
            // The class holds its parts once, not each of its endpoints.
            self.label_sets.release(&mut self.texts, labels);
            if let ProfileNames::List(list) = profiles {
                self.profile_lists.release(list);
            }
        }
        id
    }

    /// The set of these labels, with one holder more.
    fn labels<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> LabelsId {
        let word = |(key, value)| (self.texts.intern(key), self.texts.intern(value));
        let mut labels: Vec<Label> = labels.map(word).collect();
        labels.sort_unstable();
        self.label_sets.hold(&mut self.texts, &labels)
    }

    pub fn release_class(&mut self, id: ClassId) {
        if self.holders(id) == 1 {
            let names = self.profiles(id).to_vec();
            names.into_iter().for_each(|name| self.texts.release(name));
        }
        let Some(class) = self.classes.release(id) else { return };
        self.label_sets.release(&mut self.texts, class.labels);
        if let ProfileNames::List(list) = class.profiles {
            self.profile_lists.release(list);
        }
    }

    /// How many endpoints are of this class.
    pub fn holders(&self, class: ClassId) -> u32 {
        self.classes.holders(class)
    }

    /// The set of labels that a class has itself.
    pub fn labels_of(&self, class: ClassId) -> LabelsId {
        self.classes.get(class).map_or(u32::MAX, |class| class.labels)
    }

    pub fn label_set(&self, labels: LabelsId) -> impl Iterator<Item = Label> {
        self.label_sets.get(labels)
    }

    pub fn profiles(&self, class: ClassId) -> &[Word] {
        match self.classes.get(class).map(|class| &class.profiles) {
            Some(ProfileNames::One(name)) => std::slice::from_ref(name),
            Some(ProfileNames::List(list)) => self.profile_lists.get(*list).map_or(&[], AsRef::as_ref),
            Some(ProfileNames::None) | None => &[],
        }
    }

    pub fn given_by(&self, profile: Word) -> impl Iterator<Item = Label> {
        self.inherited.get(&profile).into_iter().flat_map(|labels| self.label_sets.get(*labels))
    }

    /// All labels of a class; of two with the same key the first counts.
    pub fn all_labels(&self, class: ClassId) -> impl Iterator<Item = Label> {
        let given = self.profiles(class).iter().flat_map(|profile| self.given_by(*profile));
        self.label_set(self.labels_of(class)).chain(given)
    }

    /// A profile gives these labels from now on; returns what changed, or none if nothing does.
    pub fn set_given<'a>(
        &mut self,
        profile: &str,
        labels: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Gift> {
        let profile = self.hold(profile);
        let mut labels = labels.peekable();
        let new = labels.peek().is_some().then(|| self.labels(labels));
        let old = self.inherited.get(&profile).copied();
        if old == new {
            new.into_iter().for_each(|labels| self.label_sets.release(&mut self.texts, labels));
            self.release(profile);
            return None;
        }
        // The labels that it gives hold its name; nobody looks for a profile that gives none.
        match new {
            Some(labels) => {
                if self.inherited.insert(profile, labels).is_none() {
                    self.texts.hold_again(profile);
                }
            }
            None => {
                self.inherited.remove(&profile);
                self.release(profile);
            }
        }
        Some(Gift { profile, old })
    }

    /// Nobody asks any more what a profile gave before.
    pub fn forget(&mut self, gift: Gift) {
        gift.old.into_iter().for_each(|labels| self.label_sets.release(&mut self.texts, labels));
        self.release(gift.profile);
    }

    /// The labels of a class as selectors see them.
    pub fn view(&self, class: ClassId) -> View<'_> {
        View { words: self, class }
    }
}

pub(super) struct View<'a> {
    words: &'a Words,
    class: ClassId,
}

impl Labels for View<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let key = self.words.find(key)?;
        let mut all = self.words.all_labels(self.class);
        all.find(|(word, _)| *word == key).map(|(_, value)| self.words.text(value))
    }
}
