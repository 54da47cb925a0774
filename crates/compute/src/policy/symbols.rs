//! The symbol table: labels, interned, and the classes of endpoints that no selector can tell apart.
//!
//! An endpoint has labels of its own and inherits those of its profiles whose keys it does not have itself. Endpoints with the same
//! labels and the same profiles are of one class: selectors are matched against classes, not endpoints.

use super::ids::{ClassId, LabelSetId, ProfileListId, Symbol, nothing};
use super::interner::Interner;
use super::labels::{Label, LabelSets};
use super::pool::Pool;
use hashbrown::HashMap;
use tortie_model::selector::Labels;

/// Which labels and which profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    labels: LabelSetId,
    profiles: ProfileNames,
}

/// Nearly all endpoints have one profile or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ProfileNames {
    None,
    One(Symbol),
    List(ProfileListId),
}

/// The labels that endpoints inherit from a profile have changed. Its symbol and the old labels are held until
/// [`SymbolTable::forget`].
#[derive(Debug)]
pub(super) struct InheritedChange {
    pub profile: Symbol,
    pub old: Option<LabelSetId>,
}

#[derive(Debug, Default)]
pub(super) struct SymbolTable {
    interner: Interner<Symbol>,
    label_sets: LabelSets,
    profile_lists: Pool<ProfileListId, Box<[Symbol]>>,
    classes: Pool<ClassId, Class>,
    /// By profile: the labels that endpoints inherit from it.
    inherited: HashMap<Symbol, LabelSetId>,
}

impl SymbolTable {
    pub fn hold(&mut self, text: &str) -> Symbol {
        self.interner.hold(text)
    }

    pub fn release(&mut self, symbol: Symbol) {
        self.interner.release(symbol);
    }

    pub fn text(&self, symbol: Symbol) -> &str {
        self.interner.get(symbol)
    }

    pub fn find(&self, text: &str) -> Option<Symbol> {
        self.interner.find(text)
    }

    /// The class of endpoints with these labels and profiles, with one holder more.
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
        let class = Class { labels, profiles };
        let id = self.classes.hold(&class, || class);
        if self.classes.holders(id) == 1 {
            names.iter().for_each(|name| self.interner.hold_again(*name));
        } else {
            // The class holds its parts once, not each of its endpoints.
            self.label_sets.release(&mut self.interner, labels);
            if let ProfileNames::List(list) = profiles {
                self.profile_lists.release(list);
            }
        }
        id
    }

    /// The set of these labels, with one holder more.
    fn labels<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> LabelSetId {
        let symbol = |(key, value)| (self.interner.intern(key), self.interner.intern(value));
        let mut labels: Vec<Label> = labels.map(symbol).collect();
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

    /// How many endpoints are of this class.
    pub fn holders(&self, class: ClassId) -> u32 {
        self.classes.holders(class)
    }

    /// The set of labels that a class has itself.
    pub fn labels_of(&self, class: ClassId) -> LabelSetId {
        self.classes.get(class).map_or_else(nothing, |class| class.labels)
    }

    pub fn label_set(&self, labels: LabelSetId) -> impl Iterator<Item = Label> {
        self.label_sets.get(labels)
    }

    pub fn profiles(&self, class: ClassId) -> &[Symbol] {
        match self.classes.get(class).map(|class| &class.profiles) {
            Some(ProfileNames::One(name)) => std::slice::from_ref(name),
            Some(ProfileNames::List(list)) => self.profile_lists.get(*list).map_or(&[], AsRef::as_ref),
            Some(ProfileNames::None) | None => &[],
        }
    }

    pub fn inherited_from(&self, profile: Symbol) -> impl Iterator<Item = Label> {
        self.inherited.get(&profile).into_iter().flat_map(|labels| self.label_sets.get(*labels))
    }

    /// All labels of a class; of two with the same key the first counts.
    pub fn all_labels(&self, class: ClassId) -> impl Iterator<Item = Label> {
        let inherited = self.profiles(class).iter().flat_map(|profile| self.inherited_from(*profile));
        self.label_set(self.labels_of(class)).chain(inherited)
    }

    /// Endpoints inherit these labels from a profile from now on; none if they did before.
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
        // The inherited labels hold the symbol of the profile; nobody looks for a profile without any.
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

    /// Nobody asks any more what was inherited before.
    pub fn forget(&mut self, change: InheritedChange) {
        change.old.into_iter().for_each(|labels| self.label_sets.release(&mut self.interner, labels));
        self.release(change.profile);
    }

    /// The labels of a class as selectors see them.
    pub fn view(&self, class: ClassId) -> View<'_> {
        View { symbols: self, class }
    }
}

pub(super) struct View<'a> {
    symbols: &'a SymbolTable,
    class: ClassId,
}

impl Labels for View<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let key = self.symbols.find(key)?;
        let mut all = self.symbols.all_labels(self.class);
        all.find(|(symbol, _)| *symbol == key).map(|(_, value)| self.symbols.text(value))
    }
}
