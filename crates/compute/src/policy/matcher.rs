//! Which selectors match which classes of endpoints, kept up to date as both come and go.
//!
//! Neither side is searched as a whole. A selector is filed under one label that it cannot do without, so that a class
//! finds the few selectors that may match it; classes are filed under their labels, so that a selector finds the few
//! classes that it may match. Only those are evaluated.
//!
//! Labels that no selector needs are not looked at. The first selector that needs a label key makes a shelf for it, which
//! takes one look at all label sets; from then on the shelf is kept up to date.

use super::ids::Ids;
use super::labels::Label;
use super::list::List;
use super::pool::Pool;
use super::shelf::{Holders, Shelf};
use super::words::{ClassId, Gift, Word, Words};
use hashbrown::HashMap;
use tortie_model::selector::{Requirement, Requirements, Selector};

pub(super) type SelectorId = u32;

/// As many shelves may stand empty in any case.
const FEW_SHELVES: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Matcher {
    selectors: Pool<Box<Selector>>,
    /// By selector.
    drawers: List<Drawer>,
    shelves: HashMap<Word, Shelf>,
    /// Shelves that no selector needs at the moment. They are kept for a while: selectors come back.
    unused: usize,
    unfiled: Ids,
    /// How many classes a selector matches.
    counts: HashMap<SelectorId, u32>,
    /// Label set to classes.
    of_labels: List<Ids>,
    /// Profile to classes.
    of_profile: Holders,
    matched: HashMap<ClassId, Ids>,
    pub evaluations: Evaluations,
}

/// How often a selector was evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evaluations {
    pub matching: u64,
    pub failing: u64,
    /// How often the classes for a new selector were looked for: by a value, by a key, among all.
    pub by_value: u64,
    pub by_key: u64,
    pub among_all: u64,
}

/// Where a selector is filed.
#[derive(Clone, Debug, Default)]
enum Drawer {
    /// It can match nothing.
    #[default]
    Bin,
    Key(Word),
    Value(Word, Word),
    Values(Box<(Word, Vec<Word>)>),
    /// It needs no label.
    Unfiled,
}

/// What a change means for one class.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub gone: Vec<SelectorId>,
    pub come: Vec<SelectorId>,
}

impl Matcher {
    pub fn len(&self) -> usize {
        self.selectors.len()
    }

    /// How many of the selectors are found by a label.
    pub fn filed(&self) -> usize {
        self.selectors.len() - self.unfiled.len()
    }

    pub fn selector(&self, id: SelectorId) -> Option<&Selector> {
        self.selectors.get(id).map(AsRef::as_ref)
    }

    pub fn find(&self, selector: &Selector) -> Option<SelectorId> {
        self.selectors.find(selector)
    }

    /// The selectors that match a class.
    pub fn matched(&self, class: ClassId) -> &Ids {
        static NOTHING: Ids = Ids::None;
        self.matched.get(&class).unwrap_or(&NOTHING)
    }

    pub fn matches_any(&self, selector: SelectorId) -> bool {
        self.counts.contains_key(&selector)
    }

    /// One holder more of a selector.
    pub fn hold(&mut self, words: &mut Words, selector: &Selector) -> SelectorId {
        let id = self.selectors.hold(selector, || Box::new(selector.clone()));
        if self.selectors.holders(id) > 1 {
            return id;
        }
        let requirements = selector.requirements();
        self.make_shelves(words, keys(&requirements));
        keys(&requirements).for_each(|key| self.need(words, key));
        let drawer = self.choose(words, &requirements);
        match drawer {
            Drawer::Bin => {}
            Drawer::Value(..) | Drawer::Values(_) => self.evaluations.by_value += 1,
            Drawer::Key(_) => self.evaluations.by_key += 1,
            Drawer::Unfiled => {
                self.evaluations.among_all += 1;
                self.unfiled.insert(id);
            }
        }
        drawer.each(|key, value| {
            self.shelves.get_mut(&key).into_iter().for_each(|shelf| shelf.file(value, id));
        });
        for class in self.candidates(&drawer) {
            if self.evaluate(words, selector, class) {
                self.note(class, id, true);
            }
        }
        *self.drawers.at(id) = drawer;
        id
    }

    pub fn release(&mut self, words: &mut Words, id: SelectorId) {
        if self.selectors.holders(id) > 1 {
            self.selectors.release(id);
            return;
        }
        for class in self.matching(id) {
            self.note(class, id, false);
        }
        let drawer = std::mem::take(self.drawers.at(id));
        if let Drawer::Unfiled = drawer {
            self.unfiled.remove(id);
        }
        drawer.each(|key, value| {
            self.shelves.get_mut(&key).into_iter().for_each(|shelf| shelf.unfile(value, id));
            value.into_iter().for_each(|value| words.release(value));
        });
        if let Some(selector) = self.selectors.release(id) {
            keys(&selector.requirements()).for_each(|key| self.need_no_more(words, key));
            self.sweep(words);
        }
    }

    /// Selectors are about to come: all the shelves that they need take one look at the label sets together.
    pub fn prepare<'a>(&mut self, words: &mut Words, selectors: impl Iterator<Item = &'a Selector>) {
        let keys = selectors.flat_map(|selector| keys(&selector.requirements()).collect::<Vec<_>>());
        self.make_shelves(words, keys);
    }

    fn make_shelves<'a>(&mut self, words: &mut Words, keys: impl Iterator<Item = &'a str>) {
        let mut new: HashMap<Word, Shelf> = HashMap::new();
        for key in keys {
            let known = |word| self.shelves.contains_key(&word) || new.contains_key(&word);
            if !words.find(key).is_some_and(known) {
                new.insert(words.hold(key), Shelf::default());
            }
        }
        if new.is_empty() {
            return;
        }
        let there = self.of_labels.iter().zip(0..).filter(|(classes, _)| !classes.is_empty());
        for (_, labels) in there {
            for (key, value) in words.label_set(labels) {
                new.get_mut(&key).into_iter().for_each(|shelf| shelf.holders.insert(value, labels));
            }
        }
        for profile in self.of_profile.words() {
            for (key, value) in words.given_by(profile) {
                new.get_mut(&key).into_iter().for_each(|shelf| shelf.givers.insert(value, profile));
            }
        }
        self.unused += new.len();
        self.shelves.extend(new);
    }

    fn need(&mut self, words: &Words, key: &str) {
        if let Some(shelf) = words.find(key).and_then(|key| self.shelves.get_mut(&key)) {
            self.unused -= usize::from(shelf.users == 0);
            shelf.users += 1;
        }
    }

    fn need_no_more(&mut self, words: &Words, key: &str) {
        if let Some(shelf) = words.find(key).and_then(|key| self.shelves.get_mut(&key)) {
            shelf.users -= 1;
            self.unused += usize::from(shelf.users == 0);
        }
    }

    /// Takes down the shelves that nobody needs once they are the larger part.
    fn sweep(&mut self, words: &mut Words) {
        if self.unused <= FEW_SHELVES + self.shelves.len() / 2 {
            return;
        }
        self.shelves.retain(|key, shelf| {
            if shelf.users == 0 {
                words.release(*key);
            }
            shelf.users > 0
        });
        self.unused = 0;
    }

    /// The classes that a selector matches.
    pub fn matching(&self, id: SelectorId) -> Vec<ClassId> {
        let Some(drawer) = self.drawers.get(id) else { return Vec::new() };
        if !self.matches_any(id) {
            return Vec::new();
        }
        let mut classes = self.candidates(drawer);
        classes.retain(|class| self.matched(*class).contains(id));
        classes
    }

    /// A class that has not been here comes.
    pub fn enter(&mut self, words: &Words, class: ClassId) {
        let labels = words.labels_of(class);
        let classes = self.of_labels.at(labels);
        let first = classes.is_empty();
        classes.insert(class);
        if first {
            self.shelve(words.label_set(labels), |shelf, value| shelf.holders.insert(value, labels));
        }
        for profile in words.profiles(class) {
            self.of_profile.insert(*profile, class);
            if self.of_profile.count(*profile) == 1 {
                self.shelve(words.given_by(*profile), |shelf, value| shelf.givers.insert(value, *profile));
            }
        }
        for id in self.matching_now(words, class) {
            self.note(class, id, true);
        }
    }

    /// A class that is here goes.
    pub fn leave(&mut self, words: &Words, class: ClassId) {
        let matched = self.matched.get(&class).cloned().unwrap_or_default();
        for id in matched.iter() {
            self.note(class, id, false);
        }
        let labels = words.labels_of(class);
        let classes = self.of_labels.at(labels);
        if classes.remove(class) && classes.is_empty() {
            self.shelve(words.label_set(labels), |shelf, value| shelf.holders.remove(value, labels));
        }
        for profile in words.profiles(class) {
            self.of_profile.remove(*profile, class);
            if self.of_profile.count(*profile) == 0 {
                self.shelve(words.given_by(*profile), |shelf, value| shelf.givers.remove(value, *profile));
            }
        }
    }

    /// A profile gives other labels now. What that means for its heirs is found out by [`Matcher::compare`].
    pub fn regive(&mut self, words: &Words, gift: &Gift) {
        let profile = gift.profile;
        if self.of_profile.count(profile) > 0 {
            let old = gift.old.into_iter().flat_map(|labels| words.label_set(labels));
            self.shelve(old, |shelf, value| shelf.givers.remove(value, profile));
            self.shelve(words.given_by(profile), |shelf, value| shelf.givers.insert(value, profile));
        }
    }

    /// Does something with the shelves of those labels that have one.
    fn shelve(&mut self, labels: impl Iterator<Item = Label>, change: impl Fn(&mut Shelf, Word)) {
        for (key, value) in labels {
            if let Some(shelf) = self.shelves.get_mut(&key) {
                change(shelf, value);
            }
        }
    }

    /// The classes that take labels from a profile.
    pub fn heirs(&self, profile: Word) -> Vec<ClassId> {
        self.of_profile.of(profile).collect()
    }

    /// How the selectors of a class change now that it inherits other labels; to be told to [`Matcher::settle`].
    pub fn compare(&mut self, words: &Words, class: ClassId) -> Difference {
        let now: Ids = self.matching_now(words, class).into_iter().collect();
        let before = self.matched(class);
        Difference {
            gone: before.iter().filter(|id| !now.contains(*id)).collect(),
            come: now.iter().filter(|id| !before.contains(*id)).collect(),
        }
    }

    pub fn settle(&mut self, class: ClassId, difference: &Difference) {
        difference.gone.iter().for_each(|id| self.note(class, *id, false));
        difference.come.iter().for_each(|id| self.note(class, *id, true));
    }

    fn note(&mut self, class: ClassId, id: SelectorId, matches: bool) {
        if matches {
            if self.matched.entry(class).or_default().insert(id) {
                *self.counts.entry(id).or_default() += 1;
            }
        } else if let Some(ids) = self.matched.get_mut(&class)
            && ids.remove(id)
        {
            if ids.is_empty() {
                self.matched.remove(&class);
            }
            if let Some(count) = self.counts.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&id);
                }
            }
        }
    }

    fn matching_now(&mut self, words: &Words, class: ClassId) -> Vec<SelectorId> {
        let mut ids: Vec<SelectorId> = self.unfiled.iter().collect();
        for (key, value) in words.all_labels(class) {
            ids.extend(self.shelves.get(&key).into_iter().flat_map(|shelf| shelf.asking(value)));
        }
        ids.sort_unstable();
        ids.dedup();
        let (selectors, evaluations) = (&self.selectors, &mut self.evaluations);
        let view = words.view(class);
        ids.retain(|id| {
            let matches = selectors.get(*id).is_some_and(|selector| selector.matches(&view));
            evaluations.count(matches);
            matches
        });
        ids
    }

    fn evaluate(&mut self, words: &Words, selector: &Selector, class: ClassId) -> bool {
        let matches = selector.matches(&words.view(class));
        self.evaluations.count(matches);
        matches
    }

    /// Under which label to file a selector: the one that the fewest classes have and the fewest selectors need. Its values
    /// have one holder more; the key is the shelf's.
    fn choose(&self, words: &mut Words, requirements: &Requirements<'_>) -> Drawer {
        if requirements.impossible {
            return Drawer::Bin;
        }
        let mut best: Option<((bool, usize), Word, &Requirement<'_>)> = None;
        for (key, requirement) in &requirements.labels {
            let Some(key) = words.find(key) else { continue };
            let Some(shelf) = self.shelves.get(&key) else { continue };
            let weight = match requirement {
                Requirement::Absent => continue,
                Requirement::Present => (true, shelf.weight()),
                Requirement::OneOf(values) => {
                    let known = values.iter().filter_map(|value| words.find(value));
                    (false, known.map(|value| shelf.weight_of(value)).sum())
                }
            };
            if best.is_none_or(|(other, _, _)| weight < other) {
                best = Some((weight, key, requirement));
            }
        }
        match best {
            None => Drawer::Unfiled,
            Some((_, key, Requirement::OneOf(values))) => match values[..] {
                [value] => Drawer::Value(key, words.hold(value)),
                _ => Drawer::Values(Box::new((key, values.iter().map(|value| words.hold(value)).collect()))),
            },
            Some((_, key, _)) => Drawer::Key(key),
        }
    }

    fn candidates(&self, drawer: &Drawer) -> Vec<ClassId> {
        let mut classes: Vec<ClassId> = Vec::new();
        if let Drawer::Unfiled = drawer {
            classes.extend(self.of_labels.iter().flat_map(Ids::iter));
        }
        drawer.each(|key, value| {
            let Some(Shelf { holders, givers, .. }) = self.shelves.get(&key) else { return };
            let of_labels = |labels: u32| self.of_labels.get(labels).into_iter().flat_map(Ids::iter);
            let of_profile = |profile: u32| self.of_profile.of(profile);
            match value {
                Some(value) => {
                    classes.extend(holders.of(value).flat_map(of_labels));
                    classes.extend(givers.of(value).flat_map(of_profile));
                }
                None => {
                    classes.extend(holders.all().flat_map(of_labels));
                    classes.extend(givers.all().flat_map(of_profile));
                }
            }
        });
        classes.sort_unstable();
        classes.dedup();
        classes
    }
}

impl Drawer {
    /// Each label that it stands under; without a value if any will do.
    fn each(&self, mut visit: impl FnMut(Word, Option<Word>)) {
        match self {
            Drawer::Bin | Drawer::Unfiled => {}
            Drawer::Key(key) => visit(*key, None),
            Drawer::Value(key, value) => visit(*key, Some(*value)),
            Drawer::Values(label) => label.1.iter().for_each(|value| visit(label.0, Some(*value))),
        }
    }
}

impl Evaluations {
    fn count(&mut self, matches: bool) {
        match matches {
            true => self.matching += 1,
            false => self.failing += 1,
        }
    }
}

/// The label keys that a selector asks for.
fn keys<'a>(requirements: &Requirements<'a>) -> impl Iterator<Item = &'a str> {
    let asked = requirements.labels.iter().filter(|(_, requirement)| **requirement != Requirement::Absent);
    asked.map(|(key, _)| *key)
}
