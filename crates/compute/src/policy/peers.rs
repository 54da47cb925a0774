//! Labels of namespaces and service accounts, which proxies compare with authenticated peers. They come from the
//! profiles that Kubernetes namespaces and service accounts become. Nothing is stored unless proxies receive policy.

use super::symbols::SymbolTable;
use crate::changes::PlanChanges;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_plan::{PeerLabels, PlanUpdate, ServiceAccountId};

const NAMESPACE_PROFILE_PREFIX: &str = "kns.";
const SERVICE_ACCOUNT_PROFILE_PREFIX: &str = "ksa.";
/// Prefixes of the labels that endpoints inherit from these profiles.
const LABEL_PREFIXES: [&str; 2] = ["pcns.", "pcsa."];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerGroup {
    Namespace(String),
    ServiceAccount(ServiceAccountId),
}

#[derive(Debug, Default)]
pub(super) struct PeerTable {
    enabled: bool,
    /// Profiles whose labels may differ from those in the plan.
    changed: BTreeSet<String>,
    in_plan: BTreeMap<PeerGroup, PeerLabels>,
}

impl PeerGroup {
    fn of_profile(profile: &str) -> Option<PeerGroup> {
        if let Some(namespace) = profile.strip_prefix(NAMESPACE_PROFILE_PREFIX) {
            return Some(PeerGroup::Namespace(namespace.to_owned()));
        }
        // Names of service accounts may contain dots, names of namespaces may not.
        let (namespace, name) = profile.strip_prefix(SERVICE_ACCOUNT_PROFILE_PREFIX)?.split_once('.')?;
        let id = ServiceAccountId { namespace: namespace.to_owned(), name: name.to_owned() };
        Some(PeerGroup::ServiceAccount(id))
    }

    fn update(&self, labels: Option<PeerLabels>) -> PlanUpdate {
        match self.clone() {
            PeerGroup::Namespace(name) => PlanUpdate::Namespace(name, labels),
            PeerGroup::ServiceAccount(id) => PlanUpdate::ServiceAccount(id, labels),
        }
    }
}

impl PeerTable {
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Includes the labels of all profiles in the plan, or removes them. Returns whether this is a change.
    pub fn enable<'a>(&mut self, enabled: bool, profiles: impl Iterator<Item = &'a str>) -> bool {
        let changed = std::mem::replace(&mut self.enabled, enabled) != enabled;
        if changed {
            self.changed
                .extend(profiles.filter(|name| PeerGroup::of_profile(name).is_some()).map(str::to_owned));
        }
        changed
    }

    /// Schedules a profile whose labels have changed, or that was created or deleted.
    pub fn mark(&mut self, profile: &str) {
        if self.enabled && PeerGroup::of_profile(profile).is_some() {
            self.changed.insert(profile.to_owned());
        }
    }

    /// Returns the changes. `exists` returns whether there is a profile of this name.
    pub fn flush(&mut self, symbols: &SymbolTable, exists: impl Fn(&str) -> bool) -> PlanChanges {
        let mut changes = PlanChanges::default();
        for profile in std::mem::take(&mut self.changed) {
            let Some(group) = PeerGroup::of_profile(&profile) else { continue };
            if !self.enabled || !exists(&profile) {
                if self.in_plan.remove(&group).is_some() {
                    changes.removed.push(group.update(None));
                }
                continue;
            }
            let labels = read_labels(symbols, &profile);
            if self.in_plan.get(&group).is_some_and(|known| **known == labels) {
                continue;
            }
            let labels = Arc::new(labels);
            changes.added.push(group.update(Some(labels.clone())));
            self.in_plan.insert(group, labels);
        }
        changes
    }
}

fn read_labels(symbols: &SymbolTable, profile: &str) -> BTreeMap<String, String> {
    let profile = symbols.find(profile);
    let labels = profile.into_iter().flat_map(|profile| symbols.inherited_from(profile));
    let labels = labels.map(|(key, value)| {
        let key = symbols.text(key);
        let bare = LABEL_PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)).unwrap_or(key);
        (bare.to_owned(), symbols.text(value).to_owned())
    });
    labels.collect()
}
