//! Profiles: which of them local endpoints name, and what stands in the plan for them.

use super::archive::{Archive, RulesId};
use super::convert::{Converted, Converter};
use super::sets::Need;
use super::words::{Word, Words};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::kinds;
use tortie_plan::{Action, Profile, Rule, Update};

/// Allows everything; there whether or not anybody wrote it.
const DEFAULT_ALLOW: &str = "projectcalico-default-allow";

#[derive(Debug, Default)]
pub(super) struct Profiles {
    rules: HashMap<Word, RulesId>,
    /// How many local endpoints name it.
    users: BTreeMap<String, u32>,
    told: BTreeMap<String, Told>,
    changed: BTreeSet<String>,
}

/// What the plan has, and the sets it needs.
type Told = (Arc<Profile>, Box<[Arc<Need>]>);

impl Profiles {
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn has(&self, words: &Words, name: &str) -> bool {
        words.find(name).is_some_and(|name| self.rules.contains_key(&name))
    }

    pub fn put(
        &mut self,
        words: &mut Words,
        archive: &mut Archive,
        name: &str,
        ingress: &[kinds::Rule],
        egress: &[kinds::Rule],
    ) {
        let rules = archive.keep(ingress, egress);
        let word = words.hold(name);
        if let Some(old) = self.rules.insert(word, rules) {
            archive.release(old);
            words.release(word);
        }
        self.mark(name);
    }

    pub fn remove(&mut self, words: &mut Words, archive: &mut Archive, name: &str) {
        let Some(word) = words.find(name) else { return };
        if let Some(old) = self.rules.remove(&word) {
            archive.release(old);
            words.release(word);
            self.mark(name);
        }
    }

    /// Only those that local endpoints name are looked at again.
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

    /// What changed. Sets that are needed now and sets that were needed are told apart from that.
    pub fn flush(
        &mut self,
        words: &Words,
        converter: Converter<'_>,
        added: &mut Vec<Update>,
        removed: &mut Vec<Update>,
        needs: &mut Needs,
    ) {
        for name in std::mem::take(&mut self.changed) {
            if !self.users.contains_key(&name) {
                if let Some((_, old)) = self.told.remove(&name) {
                    needs.old.extend(old);
                    removed.push(Update::Profile(name, None));
                }
                continue;
            }
            let rules = words.find(&name).and_then(|name| self.rules.get(&name)).copied();
            let (profile, new) = if name == DEFAULT_ALLOW {
                (same(vec![Rule::new(Action::Allow)]), Box::default())
            } else {
                let converted = converter.rules(rules, "").unwrap_or_else(|_| Converted::denying());
                let Converted { ingress, egress, needs } = converted;
                (Profile { ingress, egress }, needs)
            };
            let profile = Arc::new(profile);
            needs.new.extend(new.iter().cloned());
            let old = self.told.insert(name.clone(), (profile.clone(), new));
            if old.as_ref().is_none_or(|(old, _)| *old != profile) {
                added.push(Update::Profile(name, Some(profile)));
            }
            needs.old.extend(old.into_iter().flat_map(|(_, needs)| needs));
        }
    }
}

fn same(rules: Vec<Rule>) -> Profile {
    Profile { ingress: rules.clone(), egress: rules }
}

/// Sets that come into use and sets that go out of use. The first are taken before the second are let go, so that what
/// only changes hands stays.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub new: Vec<Arc<Need>>,
    pub old: Vec<Arc<Need>>,
}
