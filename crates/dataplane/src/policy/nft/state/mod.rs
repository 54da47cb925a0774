//! Keeps the policy part of the plan, and renders the chains and sets again that a change affects. One module for each
//! kind of object owns the objects and their stale marks; this module distributes the updates.

mod failures;
mod global;
mod hosts;
mod lists;
mod policies;
mod sets;
#[cfg(test)]
mod tests;
mod workloads;

use super::diff::TableDiff;
use super::flow::FlowIdentities;
use super::render::{MarkedHook, RuleRenderer, WorkloadInterfaces, names};
use super::rule::NftFamily;
use super::table::SetType;
use global::{GlobalChains, GlobalInputs};
use hosts::HostEndpoints;
use policies::PolicyChains;
use sets::AddressSets;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_plan::{
    DataplaneSettings, HostEndpointPolicy, NodePlan, PlanUpdate, PlannedPolicy, PlannedWorkload,
    PolicyDirection, PolicyId, ProfileRules, RuleOwner, SetId, SetKind, WorkloadId, WorkloadPolicy,
};
use workloads::WorkloadEndpoints;

const DIRECTIONS: [PolicyDirection; 2] = [PolicyDirection::Ingress, PolicyDirection::Egress];

pub struct PolicyTableState {
    settings: DataplaneSettings,
    sets: AddressSets,
    policies: PolicyChains,
    workloads: WorkloadEndpoints,
    hosts: HostEndpoints,
    global: GlobalChains,
    /// Receives the identities of all decisions while flows are recorded.
    identities: FlowIdentities,
    pub tables: PolicyTables,
}

/// Our tables, each with its difference to the kernel's.
pub struct PolicyTables {
    pub policy: TableDiff,
    /// The table of the ARP family.
    pub arp: TableDiff,
}

impl PolicyTables {
    /// Returns tables with the sets that always exist.
    fn new() -> PolicyTables {
        let mut policy = TableDiff::new();
        policy.put_set(names::FROM_WORKLOAD_MAP.into(), SetType::Chains);
        policy.put_set(names::TO_WORKLOAD_MAP.into(), SetType::Chains);
        policy.put_set(names::UP_WORKLOADS_SET.into(), SetType::Interfaces);
        for family in NftFamily::BOTH {
            policy.put_set(names::sources(family), SetType::Sources(family));
        }
        let mut arp = TableDiff::new();
        arp.put_set(names::ARP_SENDERS_SET.into(), SetType::Sources(NftFamily::V4));
        PolicyTables { policy, arp }
    }
}

impl PolicyTableState {
    pub fn new(settings: DataplaneSettings, identities: FlowIdentities) -> PolicyTableState {
        let state = PolicyTableState {
            identities,
            settings,
            sets: AddressSets::default(),
            policies: PolicyChains::default(),
            workloads: WorkloadEndpoints::default(),
            hosts: HostEndpoints::default(),
            global: GlobalChains::default(),
            tables: PolicyTables::new(),
        };
        if state.records_flows() {
            state.register_identities();
        }
        state
    }

    pub fn settings(&self) -> &DataplaneSettings {
        &self.settings
    }

    /// Returns the hooks and priorities at which packets carry the mark of allowed packets.
    pub fn allowed(&self) -> &[MarkedHook] {
        &self.global.allowed
    }

    pub fn has_hosts(&self) -> bool {
        !self.hosts.endpoints().is_empty()
    }

    /// Returns the host endpoints by name with their interfaces; `None` means all interfaces.
    pub fn host_endpoints(&self) -> BTreeMap<String, Option<Vec<String>>> {
        self.hosts.interfaces_by_endpoint()
    }

    /// Schedules everything to be rendered with new settings; chains that remain the same are not rewritten in the
    /// kernel.
    pub fn configure(&mut self, settings: DataplaneSettings) {
        let had_flows = self.records_flows();
        self.settings = settings;
        if self.records_flows() && !had_flows {
            self.register_identities();
        }
        self.policies.mark_all();
        self.workloads.mark_all();
        self.global.stale = true;
        self.assign_hosts();
    }

    /// Sets the interfaces that do not belong to workloads.
    pub fn set_interfaces(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) {
        if self.hosts.set_interfaces(interfaces) {
            self.assign_hosts();
        }
    }

    /// Replaces the state with that of the plan.
    pub fn replace(&mut self, plan: &NodePlan) {
        for (id, workload) in changes(self.workloads.traits(), &plan.workloads) {
            self.put_workload(&id, workload);
        }
        // Sets are removed and added as a whole: the diff finds the unchanged elements.
        let known: Vec<SetId> = self.sets.known().0.keys().cloned().collect();
        known.iter().for_each(|id| self.put_set(id, None));
        for (id, set) in &plan.sets {
            self.put_set(id, Some(set.kind));
            self.sets.put_members(id, &set.members, true, &mut self.tables.policy);
        }
        for (kind, device) in changes(self.global.tunnels(), &plan.tunnels) {
            self.global.put_tunnel(&kind, device);
        }
        for (id, policy) in changes(self.policies.policies(), &plan.policies) {
            self.put_policy(&id, policy);
        }
        for (name, profile) in changes(self.policies.profiles(), &plan.profiles) {
            self.put_profile(&name, profile);
        }
        for (id, policy) in changes(self.workloads.policies(), &plan.workload_policies) {
            self.put_workload_policy(&id, policy);
        }
        for (name, endpoint) in changes(self.hosts.endpoints(), &plan.host_endpoints) {
            self.put_host(&name, endpoint);
        }
        self.global.set_service_ranges(&plan.service_ranges);
    }

    /// Applies an update. Returns whether it affects policy.
    pub fn apply(&mut self, update: &PlanUpdate) -> bool {
        match update {
            PlanUpdate::Workload(id, workload) => self.put_workload(id, workload.as_ref()),
            PlanUpdate::Tunnel(kind, device) => self.global.put_tunnel(kind, device.as_ref()),
            PlanUpdate::Set(id, kind) => self.put_set(id, *kind),
            PlanUpdate::Members { set, added, removed } => {
                self.sets.put_members(set, removed, false, &mut self.tables.policy);
                self.sets.put_members(set, added, true, &mut self.tables.policy);
            }
            PlanUpdate::Policy(id, policy) => self.put_policy(id, policy.as_ref()),
            PlanUpdate::Profile(name, profile) => self.put_profile(name, profile.as_ref()),
            PlanUpdate::WorkloadPolicy(id, policy) => self.put_workload_policy(id, policy.as_ref()),
            PlanUpdate::HostEndpoint(name, endpoint) => self.put_host(name, endpoint.as_ref()),
            PlanUpdate::ServiceRanges(ranges) => self.global.set_service_ranges(ranges),
            PlanUpdate::Route(..)
            | PlanUpdate::Vtep(..)
            | PlanUpdate::WireguardPeer(..)
            | PlanUpdate::RoutingRules(_)
            | PlanUpdate::Proxied(_)
            | PlanUpdate::Learnt(..)
            | PlanUpdate::LearntComplete
            | PlanUpdate::Bgp(_)
            | PlanUpdate::Namespace(..)
            | PlanUpdate::ServiceAccount(..) => return false,
        }
        true
    }

    fn records_flows(&self) -> bool {
        self.settings.policy.flows.is_some()
    }

    /// Registers the identities of everything that can decide about a flow.
    fn register_identities(&self) {
        self.identities.add_constants();
        for (id, policy) in self.policies.policies() {
            let rules = DIRECTIONS.map(|direction| (direction, policy.rules(direction)));
            self.identities.put_rules(&RuleOwner::Policy(id.clone()), rules);
        }
        for (name, profile) in self.policies.profiles() {
            let rules = DIRECTIONS.map(|direction| (direction, profile.rules(direction)));
            self.identities.put_rules(&RuleOwner::Profile(name.clone()), rules);
        }
        for policy in self.workloads.policies().values() {
            self.identities.add_endpoint(&policy.tiers, &policy.profiles);
        }
        for endpoint in self.hosts.endpoints().values() {
            self.identities.add_endpoint(endpoint.tiers.iter().chain(&endpoint.forward), &endpoint.profiles);
        }
    }

    fn put_workload(&mut self, id: &WorkloadId, workload: Option<&PlannedWorkload>) {
        self.global.stale |= self.workloads.put_traits(id, workload);
    }

    fn put_set(&mut self, id: &SetId, kind: Option<SetKind>) {
        if self.sets.put(id, kind, &mut self.tables.policy) {
            self.mark_users_of_set(id);
        }
    }

    fn put_workload_policy(&mut self, id: &WorkloadId, policy: Option<&WorkloadPolicy>) {
        if let Some(policy) = policy.filter(|_| self.records_flows()) {
            self.identities.add_endpoint(&policy.tiers, &policy.profiles);
        }
        self.workloads.put_policy(id, policy);
    }

    fn put_policy(&mut self, id: &PolicyId, policy: Option<&Arc<PlannedPolicy>>) {
        if self.records_flows() {
            let owner = RuleOwner::Policy(id.clone());
            self.identities.put_rules(
                &owner,
                policy
                    .into_iter()
                    .flat_map(|policy| DIRECTIONS.map(|direction| (direction, policy.rules(direction)))),
            );
        }
        if self.policies.put_policy(id, policy) {
            self.workloads.mark_users_of_policy(id);
            self.global.stale |= self.hosts.list_policy(id);
        }
    }

    fn put_profile(&mut self, name: &String, profile: Option<&Arc<ProfileRules>>) {
        if self.records_flows() {
            let owner = RuleOwner::Profile(name.clone());
            self.identities.put_rules(
                &owner,
                profile
                    .into_iter()
                    .flat_map(|profile| DIRECTIONS.map(|direction| (direction, profile.rules(direction)))),
            );
        }
        if self.policies.put_profile(name, profile) {
            self.workloads.mark_users_of_profile(name);
            self.global.stale |= self.hosts.list_profile(name);
        }
    }

    fn put_host(&mut self, name: &String, endpoint: Option<&HostEndpointPolicy>) {
        if let Some(endpoint) = endpoint.filter(|_| self.records_flows()) {
            self.identities.add_endpoint(endpoint.tiers.iter().chain(&endpoint.forward), &endpoint.profiles);
        }
        let listed = self.hosts.put(name, endpoint);
        self.policies.mark_policies(listed);
        self.assign_hosts();
        self.global.stale = true;
    }

    fn mark_users_of_set(&mut self, id: &SetId) {
        self.policies.mark_users_of_set(id);
        self.global.stale |= self.global.refers_to_set(id);
    }

    fn assign_hosts(&mut self) {
        let interfaces = WorkloadInterfaces { prefixes: &self.settings.interface_prefixes, others: false };
        let claims = self.workloads.claims();
        self.global.stale |=
            self.hosts.assign(|name| interfaces.is_covered(name) || claims.contains_key(name));
    }

    /// Renders everything that changed. Later parts refer to the objects of earlier ones.
    pub fn render(&mut self) {
        for set in self.sets.render(&mut self.tables.policy) {
            self.mark_users_of_set(&set);
        }
        let settings = &self.settings;
        let sets = self.sets.known();
        let rules = RuleRenderer { sets, settings: &settings.policy };
        self.workloads.render_proxies(&mut self.tables.policy, self.policies.refer_to_proxies());
        self.policies.render(&mut self.tables.policy, rules, &self.hosts);
        let tiers = self.policies.tier_renderer(&settings.policy);
        let interfaces = WorkloadInterfaces { prefixes: &settings.interface_prefixes, others: false };
        self.global.stale |= self.workloads.render(&mut self.tables, tiers, interfaces);
        if std::mem::take(&mut self.global.stale) {
            let inputs =
                GlobalInputs { settings, sets, tiers, workloads: &self.workloads, hosts: &self.hosts };
            self.global.render(inputs, &mut self.tables);
        }
    }
}

/// Sets or removes an entry, and returns the previous value.
fn put<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    }
}

/// Returns the keys that the plan no longer has, and all its entries.
fn changes<'p, K: Ord + Clone, V, W>(
    known: &BTreeMap<K, W>,
    plan: &'p BTreeMap<K, V>,
) -> Vec<(K, Option<&'p V>)> {
    let removed = known.keys().filter(|key| !plan.contains_key(key)).map(|key| (key.clone(), None));
    removed.chain(plan.iter().map(|(key, value)| (key.clone(), Some(value)))).collect()
}
