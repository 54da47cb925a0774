//! Which selectors match which classes of endpoints, kept up to date as both come and go.
//!
//! Neither side is searched as a whole. A selector is filed under one label that it cannot do without, so that a class
//! finds the few selectors that may match it; classes are filed under their labels, so that a selector finds the few
//! classes that it may match. Only those are evaluated.

use super::ids::Ids;
use super::pool::Pool;
use super::words::{ClassId, Holders, Word, Words};
use hashbrown::HashMap;
use tortie_model::selector::{Requirement, Selector};

pub(super) type SelectorId = u32;

#[derive(Debug, Default)]
pub(super) struct Matcher {
    selectors: Pool<Box<Selector>>,
    /// By selector.
    drawers: Vec<Drawer>,
    by_value: HashMap<(Word, Word), Ids>,
    by_key: HashMap<Word, Ids>,
    unfiled: Ids,
    /// How many classes a selector matches.
    counts: HashMap<SelectorId, u32>,
    /// Label to label sets.
    holders: Holders,
    /// Label set to classes.
    of_labels: Vec<Ids>,
    of_profile: HashMap<Word, Ids>,
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
    Values(Word, Box<[Word]>),
    Key(Word),
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
        let drawer = self.drawer(words, selector);
        match &drawer {
            Drawer::Bin => {}
            Drawer::Values(key, values) => {
                self.evaluations.by_value += 1;
                values.iter().for_each(|value| {
                    self.by_value.entry((*key, *value)).or_default().insert(id);
                });
            }
            Drawer::Key(key) => {
                self.evaluations.by_key += 1;
                self.by_key.entry(*key).or_default().insert(id);
            }
            Drawer::Unfiled => {
                self.evaluations.among_all += 1;
                self.unfiled.insert(id);
            }
        }
        for class in self.candidates(words, &drawer) {
            if self.evaluate(words, selector, class) {
                self.note(class, id, true);
            }
        }
        *at(&mut self.drawers, id) = drawer;
        id
    }

    pub fn release(&mut self, words: &mut Words, id: SelectorId) {
        if self.selectors.holders(id) == 1 {
            for class in self.matching(words, id) {
                self.note(class, id, false);
            }
            match std::mem::take(at(&mut self.drawers, id)) {
                Drawer::Bin => {}
                Drawer::Values(key, values) => {
                    for value in values {
                        take(&mut self.by_value, &(key, value), id);
                        words.release(value);
                    }
                    words.release(key);
                }
                Drawer::Key(key) => {
                    take(&mut self.by_key, &key, id);
                    words.release(key);
                }
                Drawer::Unfiled => {
                    self.unfiled.remove(id);
                }
            }
        }
        self.selectors.release(id);
    }

    /// The classes that a selector matches.
    pub fn matching(&self, words: &Words, id: SelectorId) -> Vec<ClassId> {
        let Some(drawer) = self.drawers.get(id as usize) else { return Vec::new() };
        if !self.matches_any(id) {
            return Vec::new();
        }
        let mut classes = self.candidates(words, drawer);
        classes.retain(|class| self.matched(*class).contains(id));
        classes
    }

    /// A class that has not been here comes.
    pub fn enter(&mut self, words: &Words, class: ClassId) {
        let labels = words.parts(class).labels;
        let classes = at(&mut self.of_labels, labels);
        if classes.is_empty() {
            self.holders.insert(words.own_labels(class), labels);
        }
        classes.insert(class);
        for profile in words.profiles(class) {
            self.of_profile.entry(*profile).or_default().insert(class);
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
        let labels = words.parts(class).labels;
        let classes = at(&mut self.of_labels, labels);
        if classes.remove(class) && classes.is_empty() {
            self.holders.remove(words.own_labels(class), labels);
        }
        for profile in words.profiles(class) {
            take(&mut self.of_profile, profile, class);
        }
    }

    /// The classes that take labels from a profile.
    pub fn heirs(&self, profile: Word) -> Vec<ClassId> {
        self.of_profile.get(&profile).map(|classes| classes.iter().collect()).unwrap_or_default()
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
        let given = words.profiles(class).iter().flat_map(|profile| words.given_by(*profile));
        let mut ids: Vec<SelectorId> = self.unfiled.iter().collect();
        for (key, value) in words.own_labels(class).iter().chain(given) {
            ids.extend(self.by_value.get(&(*key, *value)).into_iter().flat_map(Ids::iter));
            ids.extend(self.by_key.get(key).into_iter().flat_map(Ids::iter));
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

    /// Under which label to file a selector: the one that the fewest classes have and the fewest selectors need.
    fn drawer(&self, words: &mut Words, selector: &Selector) -> Drawer {
        let requirements = selector.requirements();
        if requirements.impossible {
            return Drawer::Bin;
        }
        let mut best: Option<((bool, usize), &str, &Requirement<'_>)> = None;
        for (key, requirement) in &requirements.labels {
            let word = words.find(key);
            let weight = match requirement {
                Requirement::Absent => continue,
                Requirement::Present => (true, word.map_or(0, |key| self.weight_of_key(key))),
                Requirement::OneOf(values) => {
                    let of_value = |value: &&str| match (word, words.find(value)) {
                        (Some(key), Some(value)) => self.weight_of_value(key, value),
                        _ => 0,
                    };
                    (false, values.iter().map(of_value).sum())
                }
            };
            if best.is_none_or(|(other, _, _)| weight < other) {
                best = Some((weight, key, requirement));
            }
        }
        match best {
            None => Drawer::Unfiled,
            Some((_, key, Requirement::OneOf(values))) => {
                let key = words.hold(key);
                Drawer::Values(key, values.iter().map(|value| words.hold(value)).collect())
            }
            Some((_, key, _)) => Drawer::Key(words.hold(key)),
        }
    }

    fn weight_of_value(&self, key: Word, value: Word) -> usize {
        let selectors = self.by_value.get(&(key, value)).map_or(0, Ids::len);
        self.holders.count_of_value(key, value) + selectors
    }

    fn weight_of_key(&self, key: Word) -> usize {
        let selectors = self.by_key.get(&key).map_or(0, Ids::len);
        self.holders.count_of_key(key) + selectors
    }

    fn candidates(&self, words: &Words, drawer: &Drawer) -> Vec<ClassId> {
        let mut classes: Vec<ClassId> = Vec::new();
        let mut add = |label_sets: &mut dyn Iterator<Item = u32>, profiles: &mut dyn Iterator<Item = u32>| {
            for labels in label_sets {
                classes.extend(self.of_labels.get(labels as usize).into_iter().flat_map(Ids::iter));
            }
            for profile in profiles {
                classes.extend(self.of_profile.get(&profile).into_iter().flat_map(Ids::iter));
            }
        };
        match drawer {
            Drawer::Bin => {}
            Drawer::Values(key, values) => {
                for value in values {
                    add(&mut self.holders.of_value(*key, *value), &mut words.givers.of_value(*key, *value));
                }
            }
            Drawer::Key(key) => add(&mut self.holders.of_key(*key), &mut words.givers.of_key(*key)),
            Drawer::Unfiled => classes.extend(self.of_labels.iter().flat_map(Ids::iter)),
        }
        classes.sort_unstable();
        classes.dedup();
        classes
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

fn take<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Ids>, key: &K, id: u32) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

/// The place of a number in a list that is as long as it must be.
fn at<T: Clone + Default>(list: &mut Vec<T>, number: u32) -> &mut T {
    if list.len() <= number as usize {
        list.resize(number as usize + 1, T::default());
    }
    &mut list[number as usize]
}
