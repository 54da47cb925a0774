//! Profiles: which of them local endpoints name, and what stands in the plan for them.

use super::body::{Body, Told, deny};
use super::convert::Converter;
use super::sets::Need;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_model::kinds;
use tortie_model::selector::Selector;
use tortie_plan::{Action, Profile, Rule, Update};

/// Allows everything; there whether or not anybody wrote it.
const DEFAULT_ALLOW: &str = "projectcalico-default-allow";

#[derive(Debug, Default)]
pub(super) struct Profiles {
    bodies: BTreeMap<String, Body<Profile>>,
    /// How many local endpoints name it.
    users: BTreeMap<String, u32>,
    told: BTreeMap<String, Told<Profile>>,
    changed: BTreeSet<String>,
}

impl Profiles {
    pub fn len(&self) -> usize {
        self.bodies.len()
    }

    pub fn has(&self, name: &str) -> bool {
        self.bodies.contains_key(name)
    }

    pub fn put(&mut self, name: &str, ingress: &[kinds::Rule], egress: &[kinds::Rule]) {
        let body = Body::new(Some((ingress.to_vec(), egress.to_vec())));
        self.bodies.insert(name.to_owned(), body);
        self.changed.insert(name.to_owned());
    }

    pub fn remove(&mut self, name: &str) {
        if self.bodies.remove(name).is_some() {
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
        known: &dyn Fn(&Selector) -> Option<Arc<Need>>,
        added: &mut Vec<Update>,
        removed: &mut Vec<Update>,
        needs: &mut Needs,
    ) {
        for name in std::mem::take(&mut self.changed) {
            let body = self.bodies.get_mut(&name);
            if !self.users.contains_key(&name) {
                body.into_iter().for_each(Body::rest);
                if let Some((_, old)) = self.told.remove(&name) {
                    needs.old.extend(old);
                    removed.push(Update::Profile(name, None));
                }
                continue;
            }
            let (profile, new) = match body {
                _ if name == DEFAULT_ALLOW => {
                    (Arc::new(same(vec![Rule::new(Action::Allow)])), Box::default())
                }
                None => (Arc::new(same(deny())), Box::default()),
                Some(body) => {
                    let converter = Converter { namespace: "", known, needs: Vec::new() };
                    body.prepare(converter, |ingress, egress| Profile { ingress, egress });
                    match body {
                        Body::Ready(profile, needs) => (profile.clone(), needs.clone()),
                        _ => (Arc::new(same(deny())), Box::default()),
                    }
                }
            };
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
