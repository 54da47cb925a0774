//! Matches selectors against classes of endpoints, incrementally as both are added and removed.
//!
//! Neither side is searched as a whole. A selector is indexed by one label that it cannot match without, so that a
//! class finds the few selectors that may match it; classes are indexed by their labels, so that a selector finds the
//! few classes that it may match. Only those are evaluated.
//!
//! Label keys that no selector needs are not indexed. The first selector that needs a key builds its index with one
//! scan of all label sets; from then on the index is kept up to date.

use super::chunked::ChunkedVec;
use super::id_set::IdSet;
use super::ids::{ClassId, LabelSetId, SelectorId, Symbol};
use super::label_index::{LabelKeyIndex, LabelValueIndex};
use super::labels::LabelSymbols;
use super::pool::ValuePool;
use super::symbols::{InheritedChange, SymbolTable};
use hashbrown::HashMap;
use tortie_model::selector::{LabelCondition, LabelConditions, Selector};

/// Number of unused indexes that are always kept.
const MAX_UNUSED_INDEXES: usize = 8;

#[derive(Debug, Default)]
pub(super) struct SelectorMatcher {
    selectors: ValuePool<SelectorId, Box<Selector>>,
    /// The label by which each selector is indexed.
    indexed_by: ChunkedVec<SelectorId, SelectorIndexKey>,
    label_index: HashMap<Symbol, LabelKeyIndex>,
    /// Number of indexes that no selector needs at the moment. They are kept for a while, since selectors return.
    unused: usize,
    unindexed: IdSet<SelectorId>,
    /// Number of classes that each selector matches.
    counts: HashMap<SelectorId, u32>,
    /// Classes by label set.
    of_labels: ChunkedVec<LabelSetId, IdSet<ClassId>>,
    /// Classes by profile.
    of_profile: LabelValueIndex<ClassId>,
    matched: HashMap<ClassId, IdSet<SelectorId>>,
    pub evaluations: EvaluationCounts,
}

/// How often selectors were evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvaluationCounts {
    pub matching: u64,
    pub failing: u64,
    /// How often the classes for a new selector were searched: by a value, by a key, among all.
    pub by_value: u64,
    pub by_key: u64,
    pub among_all: u64,
}

/// The label by which a selector is indexed.
#[derive(Clone, Debug, Default)]
enum SelectorIndexKey {
    /// It can match nothing.
    #[default]
    Nothing,
    Key(Symbol),
    Value(Symbol, Symbol),
    Values(Box<(Symbol, Vec<Symbol>)>),
    /// It needs no label; all classes are searched.
    Scan,
}

/// Changes of the selectors that match one class.
#[derive(Debug, Default)]
pub(super) struct SelectorChanges {
    pub gone: Vec<SelectorId>,
    pub come: Vec<SelectorId>,
}

impl SelectorMatcher {
    pub fn len(&self) -> usize {
        self.selectors.len()
    }

    /// Returns the number of selectors that are indexed by a label.
    pub fn indexed(&self) -> usize {
        self.selectors.len() - self.unindexed.len()
    }

    pub fn selector(&self, id: SelectorId) -> Option<&Selector> {
        self.selectors.get(id).map(AsRef::as_ref)
    }

    pub fn find(&self, selector: &Selector) -> Option<SelectorId> {
        self.selectors.find(selector)
    }

    /// Returns the selectors that match a class.
    pub fn matched(&self, class: ClassId) -> &IdSet<SelectorId> {
        static NO_SELECTORS: IdSet<SelectorId> = IdSet::None;
        self.matched.get(&class).unwrap_or(&NO_SELECTORS)
    }

    pub fn matches_any(&self, selector: SelectorId) -> bool {
        self.counts.contains_key(&selector)
    }

    /// Adds a reference to a selector, which is evaluated if it is new.
    pub fn hold(&mut self, symbols: &mut SymbolTable, selector: &Selector) -> SelectorId {
        let id = self.selectors.hold(selector, || Box::new(selector.clone()));
        if self.selectors.holders(id) > 1 {
            return id;
        }
        let requirements = selector.requirements();
        self.build_indexes(symbols, keys(&requirements));
        keys(&requirements).for_each(|key| self.need(symbols, key));
        let indexed_by = self.choose(symbols, &requirements);
        match indexed_by {
            SelectorIndexKey::Nothing => {}
            SelectorIndexKey::Value(..) | SelectorIndexKey::Values(_) => self.evaluations.by_value += 1,
            SelectorIndexKey::Key(_) => self.evaluations.by_key += 1,
            SelectorIndexKey::Scan => {
                self.evaluations.among_all += 1;
                self.unindexed.insert(id);
            }
        }
        indexed_by.each(|key, value| {
            self.label_index.get_mut(&key).into_iter().for_each(|index| index.insert_selector(value, id));
        });
        for class in self.candidates(&indexed_by) {
            if self.evaluate(symbols, selector, class) {
                self.set_match(class, id, true);
            }
        }
        *self.indexed_by.at(id) = indexed_by;
        id
    }

    pub fn release(&mut self, symbols: &mut SymbolTable, id: SelectorId) {
        if self.selectors.holders(id) > 1 {
            self.selectors.release(id);
            return;
        }
        for class in self.matching(id) {
            self.set_match(class, id, false);
        }
        let indexed_by = std::mem::take(self.indexed_by.at(id));
        if let SelectorIndexKey::Scan = indexed_by {
            self.unindexed.remove(id);
        }
        indexed_by.each(|key, value| {
            self.label_index.get_mut(&key).into_iter().for_each(|index| index.remove_selector(value, id));
            value.into_iter().for_each(|value| symbols.release(value));
        });
        if let Some(selector) = self.selectors.release(id) {
            keys(&selector.requirements()).for_each(|key| self.need_no_more(symbols, key));
            self.drop_unused_indexes(symbols);
        }
    }

    /// Builds the indexes that new selectors will need, in one scan of the label sets.
    pub fn prepare<'a>(&mut self, symbols: &mut SymbolTable, selectors: impl Iterator<Item = &'a Selector>) {
        let keys = selectors.flat_map(|selector| keys(&selector.requirements()).collect::<Vec<_>>());
        self.build_indexes(symbols, keys);
    }

    fn build_indexes<'a>(&mut self, symbols: &mut SymbolTable, keys: impl Iterator<Item = &'a str>) {
        let mut new: HashMap<Symbol, LabelKeyIndex> = HashMap::new();
        for key in keys {
            if let Some(symbol) = symbols.find(key)
                && (self.label_index.contains_key(&symbol) || new.contains_key(&symbol))
            {
                continue;
            }
            new.insert(symbols.hold(key), LabelKeyIndex::default());
        }
        if new.is_empty() {
            return;
        }
        let in_use = self.of_labels.iter().filter(|(_, classes)| !classes.is_empty());
        for (labels, _) in in_use {
            for (key, value) in symbols.label_set(labels) {
                new.get_mut(&key).into_iter().for_each(|index| index.label_sets.insert(value, labels));
            }
        }
        for profile in self.of_profile.values() {
            for (key, value) in symbols.inherited_from(profile) {
                new.get_mut(&key).into_iter().for_each(|index| index.profiles.insert(value, profile));
            }
        }
        self.unused += new.len();
        self.label_index.extend(new);
    }

    fn need(&mut self, symbols: &SymbolTable, key: &str) {
        if let Some(index) = symbols.find(key).and_then(|key| self.label_index.get_mut(&key)) {
            self.unused -= usize::from(index.users == 0);
            index.users += 1;
        }
    }

    fn need_no_more(&mut self, symbols: &SymbolTable, key: &str) {
        if let Some(index) = symbols.find(key).and_then(|key| self.label_index.get_mut(&key)) {
            index.users -= 1;
            self.unused += usize::from(index.users == 0);
        }
    }

    /// Drops the indexes that no selector needs once they are the majority.
    fn drop_unused_indexes(&mut self, symbols: &mut SymbolTable) {
        if self.unused <= MAX_UNUSED_INDEXES + self.label_index.len() / 2 {
            return;
        }
        self.label_index.retain(|key, index| {
            if index.users == 0 {
                symbols.release(*key);
            }
            index.users > 0
        });
        self.unused = 0;
    }

    /// Returns the classes that a selector matches.
    pub fn matching(&self, id: SelectorId) -> Vec<ClassId> {
        let Some(indexed_by) = self.indexed_by.get(id) else { return Vec::new() };
        if !self.matches_any(id) {
            return Vec::new();
        }
        let mut classes = self.candidates(indexed_by);
        classes.retain(|class| self.matched(*class).contains(id));
        classes
    }

    /// Adds a new class.
    pub fn enter(&mut self, symbols: &SymbolTable, class: ClassId) {
        let labels = symbols.labels_of(class);
        let classes = self.of_labels.at(labels);
        let first = classes.is_empty();
        classes.insert(class);
        if first {
            self.update_indexes(symbols.label_set(labels), |index, value| {
                index.label_sets.insert(value, labels)
            });
        }
        for profile in symbols.profiles(class) {
            self.of_profile.insert(*profile, class);
            if self.of_profile.count(*profile) == 1 {
                self.update_indexes(symbols.inherited_from(*profile), |index, value| {
                    index.profiles.insert(value, *profile)
                });
            }
        }
        for id in self.matching_now(symbols, class) {
            self.set_match(class, id, true);
        }
    }

    /// Removes a class.
    pub fn leave(&mut self, symbols: &SymbolTable, class: ClassId) {
        let matched = self.matched.get(&class).cloned().unwrap_or_default();
        for id in matched.iter() {
            self.set_match(class, id, false);
        }
        let labels = symbols.labels_of(class);
        let classes = self.of_labels.at(labels);
        if classes.remove(class) && classes.is_empty() {
            self.update_indexes(symbols.label_set(labels), |index, value| {
                index.label_sets.remove(value, labels)
            });
        }
        for profile in symbols.profiles(class) {
            self.of_profile.remove(*profile, class);
            if self.of_profile.count(*profile) == 0 {
                self.update_indexes(symbols.inherited_from(*profile), |index, value| {
                    index.profiles.remove(value, *profile)
                });
            }
        }
    }

    /// Updates the indexes after a change of the labels that endpoints inherit from a profile. [`SelectorMatcher::compare`]
    /// determines the effect on their classes.
    pub fn inherited_changed(&mut self, symbols: &SymbolTable, change: &InheritedChange) {
        let profile = change.profile;
        if self.of_profile.count(profile) > 0 {
            let old = change.old.into_iter().flat_map(|labels| symbols.label_set(labels));
            self.update_indexes(old, |index, value| index.profiles.remove(value, profile));
            self.update_indexes(symbols.inherited_from(profile), |index, value| {
                index.profiles.insert(value, profile)
            });
        }
    }

    /// Updates the indexes of those labels whose key is indexed.
    fn update_indexes(
        &mut self,
        labels: impl Iterator<Item = LabelSymbols>,
        change: impl Fn(&mut LabelKeyIndex, Symbol),
    ) {
        for (key, value) in labels {
            if let Some(index) = self.label_index.get_mut(&key) {
                change(index, value);
            }
        }
    }

    /// Returns the classes that inherit labels from a profile.
    pub fn inheriting(&self, profile: Symbol) -> Vec<ClassId> {
        self.of_profile.of(profile).collect()
    }

    /// Returns how the selectors that match a class change with its inherited labels; the caller passes the result to
    /// [`SelectorMatcher::settle`].
    pub fn compare(&mut self, symbols: &SymbolTable, class: ClassId) -> SelectorChanges {
        let now: IdSet<SelectorId> = self.matching_now(symbols, class).into_iter().collect();
        let before = self.matched(class);
        SelectorChanges {
            gone: before.iter().filter(|id| !now.contains(*id)).collect(),
            come: now.iter().filter(|id| !before.contains(*id)).collect(),
        }
    }

    pub fn settle(&mut self, class: ClassId, difference: &SelectorChanges) {
        difference.gone.iter().for_each(|id| self.set_match(class, *id, false));
        difference.come.iter().for_each(|id| self.set_match(class, *id, true));
    }

    fn set_match(&mut self, class: ClassId, id: SelectorId, matches: bool) {
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

    fn matching_now(&mut self, symbols: &SymbolTable, class: ClassId) -> Vec<SelectorId> {
        let mut ids: Vec<SelectorId> = self.unindexed.iter().collect();
        for (key, value) in symbols.all_labels(class) {
            ids.extend(self.label_index.get(&key).into_iter().flat_map(|index| index.selectors(value)));
        }
        ids.sort_unstable();
        ids.dedup();
        let view = symbols.view(class);
        ids.retain(|id| {
            let matches = self.selectors.get(*id).is_some_and(|selector| selector.matches(&view));
            self.evaluations.count(matches);
            matches
        });
        ids
    }

    fn evaluate(&mut self, symbols: &SymbolTable, selector: &Selector, class: ClassId) -> bool {
        let matches = selector.matches(&symbols.view(class));
        self.evaluations.count(matches);
        matches
    }

    /// Chooses the label by which a selector is indexed: the one that the fewest classes have and the fewest
    /// selectors need. Adds a reference to its values; the index references the key.
    fn choose(&self, symbols: &mut SymbolTable, requirements: &LabelConditions<'_>) -> SelectorIndexKey {
        if requirements.impossible {
            return SelectorIndexKey::Nothing;
        }
        let mut best: Option<((bool, usize), Symbol, &LabelCondition<'_>)> = None;
        for (key, requirement) in &requirements.labels {
            let Some(key) = symbols.find(key) else { continue };
            let Some(index) = self.label_index.get(&key) else { continue };
            let cost = match requirement {
                LabelCondition::Absent => continue,
                LabelCondition::Present => (true, index.cost()),
                LabelCondition::OneOf(values) => {
                    let known = values.iter().filter_map(|value| symbols.find(value));
                    (false, known.map(|value| index.cost_of(value)).sum())
                }
            };
            if best.is_none_or(|(other, _, _)| cost < other) {
                best = Some((cost, key, requirement));
            }
        }
        match best {
            None => SelectorIndexKey::Scan,
            Some((_, key, LabelCondition::OneOf(values))) => match values[..] {
                [value] => SelectorIndexKey::Value(key, symbols.hold(value)),
                _ => SelectorIndexKey::Values(Box::new((
                    key,
                    values.iter().map(|value| symbols.hold(value)).collect(),
                ))),
            },
            Some((_, key, _)) => SelectorIndexKey::Key(key),
        }
    }

    fn classes_with(&self, labels: LabelSetId) -> impl Iterator<Item = ClassId> {
        self.of_labels.get(labels).into_iter().flat_map(IdSet::iter)
    }

    fn candidates(&self, indexed_by: &SelectorIndexKey) -> Vec<ClassId> {
        let mut classes: Vec<ClassId> = Vec::new();
        if let SelectorIndexKey::Scan = indexed_by {
            classes.extend(self.of_labels.iter().flat_map(|(_, classes)| classes.iter()));
        }
        indexed_by.each(|key, value| {
            let Some(LabelKeyIndex { label_sets, profiles, .. }) = self.label_index.get(&key) else { return };
            match value {
                Some(value) => {
                    classes.extend(label_sets.of(value).flat_map(|labels| self.classes_with(labels)));
                    classes.extend(profiles.of(value).flat_map(|profile| self.of_profile.of(profile)));
                }
                None => {
                    classes.extend(label_sets.all().flat_map(|labels| self.classes_with(labels)));
                    classes.extend(profiles.all().flat_map(|profile| self.of_profile.of(profile)));
                }
            }
        });
        classes.sort_unstable();
        classes.dedup();
        classes
    }
}

impl SelectorIndexKey {
    /// Visits each label under which the selector is indexed; without a value if any value matches.
    fn each(&self, mut visit: impl FnMut(Symbol, Option<Symbol>)) {
        match self {
            SelectorIndexKey::Nothing | SelectorIndexKey::Scan => {}
            SelectorIndexKey::Key(key) => visit(*key, None),
            SelectorIndexKey::Value(key, value) => visit(*key, Some(*value)),
            SelectorIndexKey::Values(label) => label.1.iter().for_each(|value| visit(label.0, Some(*value))),
        }
    }
}

impl EvaluationCounts {
    fn count(&mut self, matches: bool) {
        if matches {
            self.matching += 1;
        } else {
            self.failing += 1;
        }
    }
}

/// Returns the label keys that a selector needs.
fn keys<'a>(requirements: &LabelConditions<'a>) -> impl Iterator<Item = &'a str> {
    let asked = requirements.labels.iter().filter(|(_, requirement)| **requirement != LabelCondition::Absent);
    asked.map(|(key, _)| *key)
}
