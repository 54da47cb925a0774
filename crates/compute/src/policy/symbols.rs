//! Symbol table: interned labels, and the classes of endpoints that no selector can distinguish.
//!
//! An endpoint inherits those labels of its profiles whose keys it does not have itself. Endpoints with the same
//! labels and the same profiles are in one class: selectors are matched against classes, not endpoints.

use super::ids::{ClassId, LabelSetId, ProfileListId, Symbol, nothing};
use super::interner::StringInterner;
use super::labels::{LabelSets, LabelSymbols};
use super::pool::ValuePool;
use hashbrown::HashMap;
use tortie_model::selector::LabelLookup;

/// The labels and the profiles of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EndpointClass {
    labels: LabelSetId,
    profiles: ProfileNames,
}

/// The profiles of a class; nearly all endpoints have one profile or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ProfileNames {
    None,
    One(Symbol),
    List(ProfileListId),
}

/// A change of the labels that endpoints inherit from a profile. Its symbol and the old labels stay referenced until
/// [`SymbolTable::forget`].
#[derive(Debug)]
pub(super) struct InheritedChange {
    pub profile: Symbol,
    pub old: Option<LabelSetId>,
}

#[derive(Debug, Default)]
pub(super) struct SymbolTable {
    interner: StringInterner<Symbol>,
    label_sets: LabelSets,
    profile_lists: ValuePool<ProfileListId, Box<[Symbol]>>,
    classes: ValuePool<ClassId, EndpointClass>,
    /// The labels that endpoints inherit, by profile.
    inherited: HashMap<Symbol, LabelSetId>,
}

impl SymbolTable {
    /// Returns the symbol of a text and adds a reference to it.
    pub fn hold(&mut self, text: &str) -> Symbol {
        self.interner.hold(text)
    }

    /// Drops a reference to a symbol.
    pub fn release(&mut self, symbol: Symbol) {
        self.interner.release(symbol);
    }

    pub fn text(&self, symbol: Symbol) -> &str {
        self.interner.get(symbol)
    }

    pub fn find(&self, text: &str) -> Option<Symbol> {
        self.interner.find(text)
    }

    /// Returns the class of endpoints with these labels and profiles, and adds a reference to it.
    pub fn class<'a>(
        &mut self,
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        profiles: impl Iterator<Item = &'a str>,
    ) -> ClassId {
        let labels = self.labels(labels);
        let names: Vec<Symbol> = profiles.map(|name| self.interner.intern(name)).collect();
        let profiles = match names[..] {
            [] => ProfileNames::None,
            [name] => ProfileNames::One(name),
            _ => ProfileNames::List(self.profile_lists.hold(&names[..], || names[..].into())),
        };
        let class = EndpointClass { labels, profiles };
        let id = self.classes.hold(&class, || class);
        if self.classes.holders(id) == 1 {
            names.iter().for_each(|name| self.interner.hold_again(*name));
        } else {
            // The class references its parts once, not once for each of its endpoints.
            self.label_sets.release(&mut self.interner, labels);
            if let ProfileNames::List(list) = profiles {
                self.profile_lists.release(list);
            }
        }
        id
    }

    /// Returns the set of these labels and adds a reference to it.
    fn labels<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> LabelSetId {
        let labels = labels.map(|(key, value)| (self.interner.intern(key), self.interner.intern(value)));
        let mut labels: Vec<LabelSymbols> = labels.collect();
        labels.sort_unstable();
        self.label_sets.hold(&mut self.interner, &labels)
    }

    pub fn release_class(&mut self, id: ClassId) {
        if self.holders(id) == 1 {
            let names = self.profiles(id).to_vec();
            names.into_iter().for_each(|name| self.interner.release(name));
        }
        let Some(class) = self.classes.release(id) else { return };
        self.label_sets.release(&mut self.interner, class.labels);
        if let ProfileNames::List(list) = class.profiles {
            self.profile_lists.release(list);
        }
    }

    /// Returns the number of endpoints of this class.
    pub fn holders(&self, class: ClassId) -> u32 {
        self.classes.holders(class)
    }

    /// Returns the labels of a class without those that it inherits from profiles.
    pub fn labels_of(&self, class: ClassId) -> LabelSetId {
        self.classes.get(class).map_or_else(nothing, |class| class.labels)
    }

    pub fn label_set(&self, labels: LabelSetId) -> impl Iterator<Item = LabelSymbols> {
        self.label_sets.get(labels)
    }

    pub fn profiles(&self, class: ClassId) -> &[Symbol] {
        match self.classes.get(class).map(|class| &class.profiles) {
            Some(ProfileNames::One(name)) => std::slice::from_ref(name),
            Some(ProfileNames::List(list)) => self.profile_lists.get(*list).map_or(&[], AsRef::as_ref),
            Some(ProfileNames::None) | None => &[],
        }
    }

    pub fn inherited_from(&self, profile: Symbol) -> impl Iterator<Item = LabelSymbols> {
        self.inherited.get(&profile).into_iter().flat_map(|labels| self.label_sets.get(*labels))
    }

    /// Returns all labels of a class. If two have the same key, the first applies.
    pub fn all_labels(&self, class: ClassId) -> impl Iterator<Item = LabelSymbols> {
        let inherited = self.profiles(class).iter().flat_map(|profile| self.inherited_from(*profile));
        self.label_set(self.labels_of(class)).chain(inherited)
    }

    /// Sets the labels that endpoints inherit from a profile. Returns `None` if nothing changed.
    pub fn set_inherited<'a>(
        &mut self,
        profile: &str,
        labels: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<InheritedChange> {
        let profile = self.hold(profile);
        let mut labels = labels.peekable();
        let new = labels.peek().is_some().then(|| self.labels(labels));
        let old = self.inherited.get(&profile).copied();
        if old == new {
            new.into_iter().for_each(|labels| self.label_sets.release(&mut self.interner, labels));
            self.release(profile);
            return None;
        }
        // An entry of `inherited` references the symbol of its profile. A profile without labels has no entry.
        match new {
            Some(labels) => {
                if self.inherited.insert(profile, labels).is_none() {
                    self.interner.hold_again(profile);
                }
            }
            None => {
                self.inherited.remove(&profile);
                self.release(profile);
            }
        }
        Some(InheritedChange { profile, old })
    }

    /// Releases the old labels of a change.
    pub fn forget(&mut self, change: InheritedChange) {
        change.old.into_iter().for_each(|labels| self.label_sets.release(&mut self.interner, labels));
        self.release(change.profile);
    }

    /// Returns the labels of a class in the form that selectors evaluate.
    pub fn view(&self, class: ClassId) -> ClassLabels<'_> {
        ClassLabels { symbols: self, class }
    }
}

pub(super) struct ClassLabels<'a> {
    symbols: &'a SymbolTable,
    class: ClassId,
}

impl LabelLookup for ClassLabels<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let key = self.symbols.find(key)?;
        let mut all = self.symbols.all_labels(self.class);
        all.find(|(symbol, _)| *symbol == key).map(|(_, value)| self.symbols.text(value))
    }
}
