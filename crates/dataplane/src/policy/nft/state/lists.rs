//! Policy lists: the policies and profiles of a workload in one direction, in the order of evaluation. Workloads with the
//! same list share its chain, so the number of rules grows with the number of lists, not with workloads times policies.

use super::super::diff::TableDiff;
use super::super::render::{DispatchedRules, TierRenderer, names};
use super::super::table::{NftChain, SetType};
use super::DIRECTIONS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_plan::{EndpointTier, PolicyDirection, PolicyId, WorkloadPolicy};

/// The name of a list's chain, which is derived from the content of the list.
pub type ListName = Arc<str>;

#[derive(Default)]
pub struct PolicyLists {
    lists: BTreeMap<ListName, PolicyList>,
    /// The list of each interface in each direction.
    assigned: BTreeMap<(String, PolicyDirection), ListName>,
    /// Lists by the policies that they contain.
    by_policy: BTreeMap<PolicyId, BTreeSet<ListName>>,
    /// The maps and chains that rules of lists refer to, with those lists.
    parts: BTreeMap<String, BTreeSet<ListName>>,
    /// Maps and chains that a list no longer needs.
    released: BTreeSet<String>,
    /// Lists that have to be rendered again, or whose objects have to be removed.
    stale: BTreeSet<ListName>,
}

struct PolicyList {
    direction: PolicyDirection,
    tiers: Vec<EndpointTier>,
    profiles: Vec<String>,
    /// Interfaces of the workloads that use the list; never empty.
    interfaces: BTreeSet<String>,
    /// Names of the maps and chains that its rules refer to.
    parts: BTreeSet<String>,
}

impl PolicyList {
    fn policies(&self) -> impl Iterator<Item = &PolicyId> {
        self.tiers.iter().flat_map(|tier| tier.policies(self.direction))
    }
}

impl PolicyLists {
    /// Assigns the list of a workload's policies to its interface and releases the previous one. Returns the chain of
    /// the list.
    pub fn assign(
        &mut self,
        interface: &str,
        direction: PolicyDirection,
        policy: &WorkloadPolicy,
    ) -> ListName {
        let name: ListName = names::policy_list(direction, &policy.tiers, &policy.profiles).into();
        let previous = self.assigned.insert((interface.to_owned(), direction), name.clone());
        if previous.as_ref() == Some(&name) {
            return name;
        }
        if let Some(list) = self.lists.get_mut(&name) {
            list.interfaces.insert(interface.to_owned());
        } else {
            let list = PolicyList {
                direction,
                tiers: policy.tiers.clone(),
                profiles: policy.profiles.clone(),
                interfaces: BTreeSet::from([interface.to_owned()]),
                parts: BTreeSet::new(),
            };
            for id in list.policies() {
                self.by_policy.entry(id.clone()).or_default().insert(name.clone());
            }
            self.lists.insert(name.clone(), list);
            self.stale.insert(name.clone());
        }
        if let Some(previous) = previous {
            self.remove_user(interface, &previous);
        }
        name
    }

    /// Releases the lists of an interface.
    pub fn release(&mut self, interface: &str) {
        for direction in DIRECTIONS {
            if let Some(name) = self.assigned.remove(&(interface.to_owned(), direction)) {
                self.remove_user(interface, &name);
            }
        }
    }

    /// Removes an interface from the users of a list, and the list with its last user.
    fn remove_user(&mut self, interface: &str, name: &ListName) {
        let Some(list) = self.lists.get_mut(name) else { return };
        list.interfaces.remove(interface);
        if !list.interfaces.is_empty() {
            return;
        }
        self.stale.insert(name.clone());
        let Some(list) = self.lists.remove(name) else { return };
        for id in list.policies() {
            remove_list(&mut self.by_policy, id, name);
        }
        for part in &list.parts {
            self.release_part(part, name);
        }
    }

    /// Removes a list from the users of a map or chain.
    fn release_part(&mut self, part: &String, list: &ListName) {
        if let Some(lists) = self.parts.get_mut(part) {
            lists.remove(list);
            self.released.insert(part.clone());
        }
    }

    /// Schedules the lists that contain a policy.
    pub fn mark_users_of_policy(&mut self, id: &PolicyId) {
        self.stale.extend(self.by_policy.get(id).into_iter().flatten().cloned());
    }

    /// Schedules the lists that contain a profile.
    pub fn mark_users_of_profile(&mut self, name: &String) {
        let users = self.lists.iter().filter(|(_, list)| list.profiles.contains(name));
        self.stale.extend(users.map(|(name, _)| name.clone()));
    }

    pub fn mark_all(&mut self) {
        self.stale.extend(self.lists.keys().cloned());
    }

    /// Returns the interfaces of the workloads whose lists contain a policy.
    pub fn interfaces_of_policy(&self, id: &PolicyId) -> impl Iterator<Item = &String> {
        let lists = self.by_policy.get(id).into_iter().flatten();
        lists.filter_map(|name| self.lists.get(name)).flat_map(|list| &list.interfaces)
    }

    /// Returns the chains of all lists and the chains and maps that they refer to, with the interfaces of the workloads
    /// that use them.
    pub fn objects(&self) -> impl Iterator<Item = (&str, &BTreeSet<String>)> {
        self.lists.iter().flat_map(|(name, list)| {
            let parts = list.parts.iter().map(String::as_str);
            parts.chain([&**name]).map(|name| (name, &list.interfaces))
        })
    }

    /// Renders the changed lists.
    pub fn render(&mut self, diff: &mut TableDiff, tiers: TierRenderer<'_>) {
        for name in std::mem::take(&mut self.stale) {
            let Some(list) = self.lists.get_mut(&name) else {
                diff.drop_chain(&name);
                continue;
            };
            let rendered = tiers.with_profiles(&list.tiers, &list.profiles, list.direction);
            let DispatchedRules { rules, maps, chains } = rendered;
            diff.put_chain(name.to_string(), NftChain { hook: None, rules });
            let parts: BTreeSet<String> = maps.keys().chain(chains.keys()).cloned().collect();
            for part in &parts {
                self.parts.entry(part.clone()).or_default().insert(name.clone());
            }
            let previous = std::mem::replace(&mut list.parts, parts.clone());
            for part in previous.difference(&parts) {
                self.release_part(part, &name);
            }
            for (map, elements) in maps {
                diff.put_set(map.clone(), SetType::PortChains);
                diff.replace_elements(&map, elements);
            }
            for (chain, content) in chains {
                diff.put_chain(chain, content);
            }
        }
        // A list that was rendered later may need what an earlier one has released.
        for part in std::mem::take(&mut self.released) {
            if self.parts.get(&part).is_some_and(BTreeSet::is_empty) {
                self.parts.remove(&part);
                diff.drop_chain(&part);
                diff.drop_set(&part);
            }
        }
    }
}

fn remove_list(by_policy: &mut BTreeMap<PolicyId, BTreeSet<ListName>>, id: &PolicyId, name: &ListName) {
    if let Some(lists) = by_policy.get_mut(id) {
        lists.remove(name);
        if lists.is_empty() {
            by_policy.remove(id);
        }
    }
}
