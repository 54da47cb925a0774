//! Workload endpoints: the chains of each interface, its entries in the dispatch maps and its permitted sources.

use super::super::diff::TableDiff;
use super::super::render::{TierRenderer, WorkloadInterfaces, names, workloads};
use super::super::rule::{NftFamily, interface};
use super::super::table::{NftElement, SetType};
use super::lists::PolicyLists;
use super::{DIRECTIONS, PolicyTables, put};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{
    DirectionQos, FloatingIp, PlannedWorkload, PolicyDirection, PolicyId, PolicySettings, QosSettings,
    WorkloadId, WorkloadPolicy,
};

#[derive(Default)]
pub struct WorkloadEndpoints {
    policies: BTreeMap<WorkloadId, WorkloadPolicy>,
    traits: BTreeMap<WorkloadId, WorkloadTraits>,
    lists: PolicyLists,
    /// Workloads that claim an interface; the first in order owns it.
    claims: BTreeMap<String, BTreeSet<WorkloadId>>,
    /// Interfaces that have to be rendered again.
    stale: BTreeSet<String>,
    /// Interfaces whose element in the set of proxied workloads has to be rendered again.
    stale_proxies: BTreeSet<String>,
}

/// Properties of a workload, other than its policy, that affect the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadTraits {
    /// `None` if it is unknown.
    mac: Option<[u8; 6]>,
    addresses: Vec<IpAddr>,
    floating: Vec<FloatingIp>,
    qos: QosSettings,
}

impl From<&PlannedWorkload> for WorkloadTraits {
    fn from(workload: &PlannedWorkload) -> WorkloadTraits {
        let PlannedWorkload { mac, addresses, floating, qos, .. } = workload;
        WorkloadTraits { mac: *mac, addresses: addresses.clone(), floating: floating.clone(), qos: *qos }
    }
}

impl WorkloadTraits {
    fn limits(&self, direction: PolicyDirection) -> DirectionQos {
        match direction {
            PolicyDirection::Ingress => self.qos.ingress,
            PolicyDirection::Egress => self.qos.egress,
        }
    }

    /// Returns whether chains that belong to no single workload depend on this one.
    fn affects_global_chains(&self) -> bool {
        !self.floating.is_empty() || self.qos.dscp.is_some()
    }
}

impl WorkloadEndpoints {
    pub fn policies(&self) -> &BTreeMap<WorkloadId, WorkloadPolicy> {
        &self.policies
    }

    pub fn traits(&self) -> &BTreeMap<WorkloadId, WorkloadTraits> {
        &self.traits
    }

    /// Returns the interfaces that workloads claim, with those workloads.
    pub fn claims(&self) -> &BTreeMap<String, BTreeSet<WorkloadId>> {
        &self.claims
    }

    /// Returns the workloads that claim an interface.
    pub fn claimants(&self, interface: &str) -> impl Iterator<Item = &WorkloadId> {
        self.claims.get(interface).into_iter().flatten()
    }

    /// Returns the chains and maps of policy lists, with the workloads that use them.
    pub fn list_objects(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &WorkloadId>)> {
        self.lists.objects().map(|(name, interfaces)| {
            (name, interfaces.iter().flat_map(|interface| self.claimants(interface)))
        })
    }

    /// Returns the workloads that a policy applies to.
    pub fn users_of_policy(&self, id: &PolicyId) -> impl Iterator<Item = &WorkloadId> {
        self.lists.interfaces_of_policy(id).flat_map(|interface| self.claimants(interface))
    }

    /// Returns the workloads that a profile applies to.
    pub fn users_of_profile(&self, name: &String) -> impl Iterator<Item = &WorkloadId> {
        self.policies.iter().filter(|(_, policy)| policy.profiles.contains(name)).map(|(id, _)| id)
    }

    /// Returns all floating addresses.
    pub fn floating_addresses(&self) -> impl Iterator<Item = &FloatingIp> {
        self.traits.values().flat_map(|traits| &traits.floating)
    }

    /// Returns the addresses of workloads that have a DSCP value, with that value.
    pub fn marked_addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.traits
            .values()
            .filter_map(|traits| Some((&traits.addresses, traits.qos.dscp?)))
            .flat_map(|(addresses, dscp)| addresses.iter().map(move |address| (*address, dscp)))
    }

    /// Sets or removes the properties of a workload. Returns whether the global chains are stale.
    pub fn put_traits(&mut self, id: &WorkloadId, workload: Option<&PlannedWorkload>) -> bool {
        let traits = workload.map(WorkloadTraits::from);
        let old = put(&mut self.traits, id, traits.clone());
        if old == traits {
            return false;
        }
        if let Some(policy) = self.policies.get(id) {
            self.stale.insert(policy.interface.clone());
        }
        old.iter().chain(&traits).any(WorkloadTraits::affects_global_chains)
    }

    pub fn put_policy(&mut self, id: &WorkloadId, policy: Option<&WorkloadPolicy>) {
        let known = self.policies.get(id);
        let interfaces = [known, policy].into_iter().flatten().map(|policy| policy.interface.clone());
        self.stale_proxies.extend(interfaces);
        if let (Some(known), Some(new)) = (known, policy)
            && known.http_proxy != new.http_proxy
            && *new == (WorkloadPolicy { http_proxy: new.http_proxy, ..known.clone() })
        {
            self.policies.insert(id.clone(), new.clone());
            return;
        }
        if let Some(new) = policy {
            self.claims.entry(new.interface.clone()).or_default().insert(id.clone());
            self.stale.insert(new.interface.clone());
        }
        if let Some(old) = put(&mut self.policies, id, policy.cloned()) {
            if policy.is_none_or(|new| new.interface != old.interface) {
                remove_member(&mut self.claims, &old.interface, id);
            }
            self.stale.insert(old.interface);
        }
    }

    pub fn mark_all(&mut self) {
        self.stale.extend(self.claims.keys().cloned());
        self.lists.mark_all();
    }

    /// Schedules the lists that contain a policy.
    pub fn mark_users_of_policy(&mut self, id: &PolicyId) {
        self.lists.mark_users_of_policy(id);
    }

    /// Schedules the lists that contain a profile.
    pub fn mark_users_of_profile(&mut self, name: &String) {
        self.lists.mark_users_of_profile(name);
    }

    /// Renders the set of interfaces of workloads with a proxy. The set exists only while rules refer to it.
    pub fn render_proxies(&mut self, diff: &mut TableDiff, referred_to: bool) {
        let set = names::PROXIED_WORKLOADS_SET;
        let mut stale = std::mem::take(&mut self.stale_proxies);
        if !referred_to {
            return diff.drop_set(set);
        }
        if !diff.wanted().sets.contains_key(set) {
            diff.put_set(set.into(), SetType::Interfaces);
            stale.extend(self.claims.keys().cloned());
        }
        for name in &stale {
            let proxied = self.owner(name).is_some_and(|(_, policy)| policy.http_proxy);
            diff.put_element(set, NftElement::key(interface(name)), proxied);
        }
    }

    /// Returns the workload that owns an interface.
    fn owner(&self, interface: &str) -> Option<(&WorkloadId, &WorkloadPolicy)> {
        find_owner(&self.claims, &self.policies, interface)
    }

    /// Renders the changed interfaces and policy lists. Returns whether there were any interfaces.
    pub fn render(
        &mut self,
        tables: &mut PolicyTables,
        tiers: TierRenderer<'_>,
        interfaces: WorkloadInterfaces<'_>,
    ) -> bool {
        let stale = std::mem::take(&mut self.stale);
        for name in &stale {
            let owner = find_owner(&self.claims, &self.policies, name);
            let policy = owner.map(|(_, policy)| policy);
            let unknown = WorkloadTraits::default();
            let traits = owner.and_then(|(id, _)| self.traits.get(id)).unwrap_or(&unknown);
            if policy.is_none_or(|policy| !policy.up) {
                self.lists.release(name);
            }
            render_chains(&mut tables.policy, name, policy, traits, tiers.settings, &mut self.lists);
            let is_up = policy.is_some_and(|policy| policy.up);
            tables.policy.put_element(names::UP_WORKLOADS_SET, NftElement::key(interface(name)), is_up);
            let uncovered = policy.is_some() && !interfaces.is_covered(name);
            render_uncovered(&mut tables.policy, name, uncovered);
            render_uncovered(&mut tables.arp, name, uncovered);
            render_sources(tables, name, policy, traits);
        }
        self.lists.render(&mut tables.policy, tiers);
        !stale.is_empty()
    }
}

/// Returns the workload that owns an interface.
fn find_owner<'w>(
    claims: &'w BTreeMap<String, BTreeSet<WorkloadId>>,
    policies: &'w BTreeMap<WorkloadId, WorkloadPolicy>,
    interface: &str,
) -> Option<(&'w WorkloadId, &'w WorkloadPolicy)> {
    let id = claims.get(interface)?.first()?;
    Some((id, policies.get(id)?))
}

/// Renders the chains of one interface and its entries in the maps that lead to them.
fn render_chains(
    diff: &mut TableDiff,
    name: &str,
    policy: Option<&WorkloadPolicy>,
    traits: &WorkloadTraits,
    settings: &PolicySettings,
    lists: &mut PolicyLists,
) {
    for direction in DIRECTIONS {
        let map = match direction {
            PolicyDirection::Ingress => names::TO_WORKLOAD_MAP,
            PolicyDirection::Egress => names::FROM_WORKLOAD_MAP,
        };
        let limits = traits.limits(direction);
        let connections = policy.filter(|policy| policy.up).and_then(|_| workloads::connections(limits));
        diff.set_chain(names::connections(name, direction), connections);
        let chain = names::workload(name, direction);
        diff.put_element(map, NftElement::goto(interface(name), &chain), policy.is_some());
        let rendered = policy.map(|policy| {
            if !policy.up {
                return workloads::down(settings, direction);
            }
            let list = lists.assign(name, direction, policy);
            workloads::chain(policy, limits, direction, settings, &list)
        });
        diff.set_chain(chain, rendered);
    }
}

/// Adds or removes an interface that no prefix covers. Their set exists only while it is not empty.
fn render_uncovered(diff: &mut TableDiff, name: &str, present: bool) {
    let set = names::UNCOVERED_WORKLOADS_SET;
    if present && !diff.wanted().sets.contains_key(set) {
        diff.put_set(set.into(), SetType::Interfaces);
    }
    diff.put_element(set, NftElement::key(interface(name)), present);
    drop_if_empty(diff, set);
}

/// Renders the addresses and nets from which an interface may send.
fn render_sources(
    tables: &mut PolicyTables,
    name: &str,
    policy: Option<&WorkloadPolicy>,
    traits: &WorkloadTraits,
) {
    for family in NftFamily::BOTH {
        let own = policy.map(|policy| workloads::sources(policy, traits.mac, family)).unwrap_or_default();
        if family == NftFamily::V4 {
            replace_sources(&mut tables.arp, names::ARP_SENDERS_SET, name, own.clone());
        }
        replace_sources(&mut tables.policy, &names::sources(family), name, own);
        let nets = policy.map(|policy| workloads::source_nets(policy, family)).unwrap_or_default();
        let set = names::source_nets(family);
        if !nets.is_empty() {
            tables.policy.put_set(set.clone(), SetType::SourceNets(family));
        }
        replace_sources(&mut tables.policy, &set, name, nets);
        drop_if_empty(&mut tables.policy, &set);
    }
}

/// Replaces the elements of one interface in a set of sources.
fn replace_sources(diff: &mut TableDiff, set: &str, name: &str, wanted: Vec<NftElement>) {
    let mine = interface(name);
    let old: Vec<NftElement> = diff
        .elements_from(set, &NftElement::key(mine.clone()))
        .take_while(|element| element.key.starts_with(&mine))
        .filter(|element| !wanted.contains(element))
        .cloned()
        .collect();
    old.iter().for_each(|element| diff.remove(set, element));
    wanted.into_iter().for_each(|element| diff.insert(set, element));
}

fn drop_if_empty(diff: &mut TableDiff, set: &str) {
    if !diff.has_elements(set) {
        diff.drop_set(set);
    }
}

/// Removes a member of an entry, and the entry with its last member.
fn remove_member<K: Ord>(map: &mut BTreeMap<K, BTreeSet<WorkloadId>>, key: &K, member: &WorkloadId) {
    if let Some(members) = map.get_mut(key) {
        members.remove(member);
        if members.is_empty() {
            map.remove(key);
        }
    }
}
