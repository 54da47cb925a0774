//! Profiles: those that local endpoints reference, and their form in the plan.

use super::archive::RuleArchive;
use super::convert::{ConvertedRules, RuleConverter};
use super::ids::{RulesId, Symbol};
use super::sets::NeededSet;
use super::symbols::SymbolTable;
use crate::changes::PlanChanges;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::{Kind, StoreKey, kinds};
use tortie_plan::{PlanUpdate, PlannedRule, ProfileRules, RuleAction};

/// Profile that allows everything. It exists even without a resource.
const DEFAULT_ALLOW_PROFILE: &str = "projectcalico-default-allow";

#[derive(Debug, Default)]
pub(super) struct ProfileTable {
    rules: HashMap<Symbol, RulesId>,
    /// Number of local endpoints that reference each profile.
    users: BTreeMap<String, u32>,
    in_plan: BTreeMap<String, PlannedProfile>,
    /// Profiles in the plan with rules that only an HTTP proxy could enforce.
    pub unproxied: BTreeSet<String>,
    changed: BTreeSet<String>,
    /// Criteria that cannot be expressed in profiles that local endpoints reference.
    pub problems: BTreeMap<StoreKey, String>,
}

/// The profile in the plan, and the sets it needs.
type PlannedProfile = (Arc<ProfileRules>, Box<[Arc<NeededSet>]>);

impl ProfileTable {
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn names<'a>(&'a self, symbols: &'a SymbolTable) -> impl Iterator<Item = &'a str> {
        self.rules.keys().map(|name| symbols.text(*name))
    }

    pub fn has(&self, symbols: &SymbolTable, name: &str) -> bool {
        symbols.find(name).is_some_and(|name| self.rules.contains_key(&name))
    }

    pub fn put(
        &mut self,
        symbols: &mut SymbolTable,
        archive: &mut RuleArchive,
        name: &str,
        ingress: &[kinds::Rule],
        egress: &[kinds::Rule],
    ) {
        let rules = archive.keep(ingress, egress);
        let symbol = symbols.hold(name);
        if let Some(old) = self.rules.insert(symbol, rules) {
            archive.release(old);
            symbols.release(symbol);
        }
        self.mark(name);
    }

    pub fn remove(&mut self, symbols: &mut SymbolTable, archive: &mut RuleArchive, name: &str) {
        let Some(symbol) = symbols.find(name) else { return };
        if let Some(old) = self.rules.remove(&symbol) {
            archive.release(old);
            symbols.release(symbol);
            self.mark(name);
        }
    }

    /// Converts the rules of all profiles in the plan again at the next flush.
    pub fn convert_again(&mut self) {
        self.changed.extend(self.in_plan.keys().cloned());
    }

    /// Marks a profile as changed, if local endpoints reference it.
    fn mark(&mut self, name: &str) {
        if self.users.contains_key(name) {
            self.changed.insert(name.to_owned());
        }
    }

    pub fn hold(&mut self, name: &str) {
        let users = self.users.entry(name.to_owned()).or_default();
        *users += 1;
        if *users == 1 {
            self.changed.insert(name.to_owned());
        }
    }

    pub fn release(&mut self, name: &str) {
        if let Some(users) = self.users.get_mut(name) {
            *users -= 1;
            if *users == 0 {
                self.users.remove(name);
                self.changed.insert(name.to_owned());
            }
        }
    }

    /// Returns the changes, and the sets that profiles need from now on or no longer need.
    pub fn flush(&mut self, symbols: &SymbolTable, converter: RuleConverter<'_>) -> (PlanChanges, SetUsage) {
        let mut changes = PlanChanges::default();
        let mut usage = SetUsage::default();
        for name in std::mem::take(&mut self.changed) {
            self.problems.remove(&StoreKey::resource(Kind::Profile, "", &name));
            self.unproxied.remove(&name);
            if !self.users.contains_key(&name) {
                if let Some((_, old)) = self.in_plan.remove(&name) {
                    usage.old.extend(old);
                    changes.removed.push(PlanUpdate::Profile(name, None));
                }
                continue;
            }
            let rules = symbols.find(&name).and_then(|name| self.rules.get(&name)).copied();
            let (profile, new) = if name == DEFAULT_ALLOW_PROFILE {
                let rules = vec![PlannedRule::new(RuleAction::Allow)];
                (ProfileRules { ingress: rules.clone(), egress: rules }, Box::default())
            } else {
                let converted = converter.rules(rules, "");
                let problem = converted.problem();
                self.problems
                    .extend(problem.map(|problem| (StoreKey::resource(Kind::Profile, "", &name), problem)));
                let ConvertedRules { ingress, egress, needs, .. } = converted;
                (ProfileRules { ingress, egress }, needs)
            };
            if profile.has_unproxied_rules() {
                self.unproxied.insert(name.clone());
            }
            let profile = Arc::new(profile);
            usage.new.extend(new.iter().cloned());
            let old = self.in_plan.insert(name.clone(), (profile.clone(), new));
            if old.as_ref().is_none_or(|(old, _)| *old != profile) {
                changes.added.push(PlanUpdate::Profile(name, Some(profile)));
            }
            usage.old.extend(old.into_iter().flat_map(|(_, needs)| needs));
        }
        (changes, usage)
    }
}

/// Sets that come into use and sets that go out of use. The caller adds references to the first before it releases
/// the second, so that a set with another user stays.
#[derive(Debug, Default)]
pub(super) struct SetUsage {
    pub new: Vec<Arc<NeededSet>>,
    pub old: Vec<Arc<NeededSet>>,
}

impl SetUsage {
    pub fn extend(&mut self, other: SetUsage) {
        self.new.extend(other.new);
        self.old.extend(other.old);
    }
}
