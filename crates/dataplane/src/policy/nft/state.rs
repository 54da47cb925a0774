//! Keeps the policy part of the plan, and renders the chains and sets again that a change affects.

use super::diff::TableDiff;
use super::ranges;
use super::render::tunnels::{TunnelProperties, TunnelRenderer};
use super::render::{
    KnownSet, KnownSets, MarkedHook, PolicyOrProfile, PolicyStage, TierRenderer, dscp, entry, floating,
    holder_chain, hosts, metadata, names, nat, workloads,
};
use super::rule::{NftFamily, interface};
use super::table::{NftElement, SetType, join};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tortie_plan::{
    DataplaneSettings, DirectionQos, EndpointTier, FloatingIp, HostEndpointAssignment, HostEndpointPolicy,
    NodePlan, PlanUpdate, PlannedPolicy, PlannedRule, PlannedWorkload, PolicyDirection, PolicyId,
    ProfileRules, QosSettings, RuleSide, SetId, SetKind, SetMember, TunnelKind, WorkloadId, WorkloadPolicy,
};

pub(super) const DIRECTIONS: [PolicyDirection; 2] = [PolicyDirection::Ingress, PolicyDirection::Egress];

pub(crate) struct PolicyTableState {
    settings: DataplaneSettings,
    sets: KnownSets,
    policies: BTreeMap<PolicyId, Arc<PlannedPolicy>>,
    profiles: BTreeMap<String, Arc<ProfileRules>>,
    workload_policies: BTreeMap<WorkloadId, WorkloadPolicy>,
    traits: BTreeMap<WorkloadId, WorkloadTraits>,
    hosts: BTreeMap<String, HostEndpointPolicy>,
    /// Policies that host endpoints list in stages other than the normal one.
    listed: BTreeSet<PolicyId>,
    service_ranges: BTreeSet<IpNet>,
    tunnels: BTreeMap<TunnelKind, TunnelProperties>,
    /// Workloads by the policies that apply to them.
    users: BTreeMap<PolicyId, BTreeSet<WorkloadId>>,
    /// Workloads that claim an interface; the first in order owns it.
    claims: BTreeMap<String, BTreeSet<WorkloadId>>,
    /// Interfaces that do not belong to workloads, and their addresses.
    interfaces: BTreeMap<String, Vec<IpAddr>>,
    assignment: HostEndpointAssignment,
    /// Hooks and priorities at which packets carry the mark of allowed packets.
    pub allowed: Vec<MarkedHook>,
    /// Names of chains, sets and maps that do not belong to a single object.
    fixed: BTreeSet<String>,
    stale: StaleObjects,
    /// The policy table.
    pub diff: TableDiff,
    /// The table of the ARP family.
    pub arp: TableDiff,
}

/// Properties of a workload, other than its policy, that affect the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WorkloadTraits {
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

/// Objects that have to be rendered again.
#[derive(Default)]
struct StaleObjects {
    policies: BTreeSet<PolicyId>,
    profiles: BTreeSet<String>,
    interfaces: BTreeSet<String>,
    /// Sets whose nets changed.
    nets: BTreeSet<SetId>,
    fixed: bool,
}

impl PolicyTableState {
    pub fn new(settings: DataplaneSettings) -> PolicyTableState {
        let mut diff = TableDiff::new();
        diff.put_set(names::FROM_WORKLOAD_MAP.into(), SetType::Chains);
        diff.put_set(names::TO_WORKLOAD_MAP.into(), SetType::Chains);
        diff.put_set(names::UP_WORKLOADS_SET.into(), SetType::Interfaces);
        for family in NftFamily::BOTH {
            diff.put_set(names::sources(family), SetType::Sources(family));
        }
        let mut arp = TableDiff::new();
        arp.put_set(names::ARP_SENDERS_SET.into(), SetType::Sources(NftFamily::V4));
        PolicyTableState {
            settings,
            sets: KnownSets::default(),
            policies: BTreeMap::new(),
            profiles: BTreeMap::new(),
            workload_policies: BTreeMap::new(),
            traits: BTreeMap::new(),
            hosts: BTreeMap::new(),
            listed: BTreeSet::new(),
            service_ranges: BTreeSet::new(),
            tunnels: BTreeMap::new(),
            users: BTreeMap::new(),
            claims: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            assignment: HostEndpointAssignment::default(),
            allowed: Vec::new(),
            fixed: BTreeSet::new(),
            stale: StaleObjects { fixed: true, ..StaleObjects::default() },
            diff,
            arp,
        }
    }

    pub fn settings(&self) -> &DataplaneSettings {
        &self.settings
    }

    /// Schedules everything to be rendered with new settings; chains that remain the same are not rewritten in the
    /// kernel.
    pub fn configure(&mut self, settings: DataplaneSettings) {
        self.settings = settings;
        self.stale.policies.extend(self.policies.keys().cloned());
        self.stale.profiles.extend(self.profiles.keys().cloned());
        self.stale.interfaces.extend(self.claims.keys().cloned());
        self.stale.fixed = true;
        self.assign();
    }

    /// Replaces the state with that of the plan.
    pub fn replace(&mut self, plan: &NodePlan) {
        let gone = |keys: Vec<PlanUpdate>, state: &mut PolicyTableState| {
            keys.iter().for_each(|key| {
                state.apply(key);
            });
        };
        let traits = self.traits.keys().filter(|id| !plan.workloads.contains_key(id));
        gone(traits.map(|id| PlanUpdate::Workload(id.clone(), None)).collect(), self);
        let workload_policies =
            self.workload_policies.keys().filter(|id| !plan.workload_policies.contains_key(id));
        gone(workload_policies.map(|id| PlanUpdate::WorkloadPolicy(id.clone(), None)).collect(), self);
        let hosts = self.hosts.keys().filter(|name| !plan.host_endpoints.contains_key(*name));
        gone(hosts.map(|name| PlanUpdate::HostEndpoint(name.clone(), None)).collect(), self);
        let policies = self.policies.keys().filter(|id| !plan.policies.contains_key(id));
        gone(policies.map(|id| PlanUpdate::Policy(id.clone(), None)).collect(), self);
        let profiles = self.profiles.keys().filter(|name| !plan.profiles.contains_key(*name));
        gone(profiles.map(|name| PlanUpdate::Profile(name.clone(), None)).collect(), self);
        let tunnels = self.tunnels.keys().filter(|kind| !plan.tunnels.contains_key(kind));
        gone(tunnels.map(|kind| PlanUpdate::Tunnel(*kind, None)).collect(), self);
        // Sets are removed and added as a whole: the diff finds the unchanged elements.
        gone(self.sets.0.keys().map(|id| PlanUpdate::Set(id.clone(), None)).collect(), self);

        for (id, workload) in &plan.workloads {
            self.apply(&PlanUpdate::Workload(id.clone(), Some(workload.clone())));
        }
        for (id, set) in &plan.sets {
            self.apply(&PlanUpdate::Set(id.clone(), Some(set.kind)));
            let added = set.members.iter().copied().collect();
            self.apply(&PlanUpdate::Members { set: id.clone(), added, removed: Vec::new() });
        }
        for (kind, device) in &plan.tunnels {
            self.apply(&PlanUpdate::Tunnel(*kind, Some(device.clone())));
        }
        for (id, policy) in &plan.policies {
            self.apply(&PlanUpdate::Policy(id.clone(), Some(policy.clone())));
        }
        for (name, profile) in &plan.profiles {
            self.apply(&PlanUpdate::Profile(name.clone(), Some(profile.clone())));
        }
        for (id, policy) in &plan.workload_policies {
            self.apply(&PlanUpdate::WorkloadPolicy(id.clone(), Some(policy.clone())));
        }
        for (name, endpoint) in &plan.host_endpoints {
            self.apply(&PlanUpdate::HostEndpoint(name.clone(), Some(endpoint.clone())));
        }
        self.apply(&PlanUpdate::ServiceRanges(plan.service_ranges.clone()));
    }

    /// Applies an update. Returns whether it affects policy.
    pub fn apply(&mut self, update: &PlanUpdate) -> bool {
        match update {
            PlanUpdate::Workload(id, workload) => self.traits(id, workload.as_ref()),
            PlanUpdate::Route(..)
            | PlanUpdate::Vtep(..)
            | PlanUpdate::WireguardPeer(..)
            | PlanUpdate::RoutingRules(_)
            | PlanUpdate::Proxied(_)
            | PlanUpdate::Learnt(..)
            | PlanUpdate::LearntComplete
            | PlanUpdate::Bgp(_) => return false,
            PlanUpdate::Tunnel(kind, device) => {
                let tunnel = device.as_ref().map(TunnelProperties::from);
                self.stale.fixed |= put(&mut self.tunnels, kind, tunnel.clone()) != tunnel;
            }
            PlanUpdate::Set(id, kind) => self.set(id, *kind),
            PlanUpdate::Members { set, added, removed } => {
                removed.iter().for_each(|member| self.member(set, member, false));
                added.iter().for_each(|member| self.member(set, member, true));
            }
            PlanUpdate::Policy(id, policy) => self.policy(id, policy.as_ref()),
            PlanUpdate::Profile(name, profile) => {
                let before = put(&mut self.profiles, name, profile.clone());
                let shape = |profile: Option<&Arc<ProfileRules>>| {
                    profile.map(|profile| DIRECTIONS.map(|direction| profile.rules(direction).is_empty()))
                };
                if shape(before.as_ref()) != shape(profile.as_ref()) {
                    let users =
                        self.workload_policies.values().filter(|policy| policy.profiles.contains(name));
                    self.stale.interfaces.extend(users.map(|policy| policy.interface.clone()));
                    self.stale.fixed |= self.hosts.values().any(|host| host.profiles.contains(name));
                }
                self.stale.profiles.insert(name.clone());
            }
            PlanUpdate::WorkloadPolicy(id, policy) => self.apply_workload_policy(id, policy.as_ref()),
            PlanUpdate::HostEndpoint(name, endpoint) => {
                let old = put(&mut self.hosts, name, endpoint.clone());
                // The chains that a policy needs depend on the lists that it is in.
                let named = old.iter().chain(endpoint).flat_map(lists).flat_map(|(_, tiers)| policies(tiers));
                self.stale.policies.extend(named.cloned());
                self.assign();
                self.stale.fixed = true;
            }
            PlanUpdate::ServiceRanges(ranges) => {
                self.service_ranges.clone_from(ranges);
                self.stale.fixed = true;
            }
        }
        true
    }

    fn traits(&mut self, id: &WorkloadId, workload: Option<&PlannedWorkload>) {
        let traits = workload.map(WorkloadTraits::from);
        let old = put(&mut self.traits, id, traits.clone());
        if old == traits {
            return;
        }
        if let Some(policy) = self.workload_policies.get(id) {
            self.stale.interfaces.insert(policy.interface.clone());
        }
        let mut of_both = old.iter().chain(&traits);
        self.stale.fixed |= of_both.any(|traits| !traits.floating.is_empty() || traits.qos.dscp.is_some());
    }

    fn policy(&mut self, id: &PolicyId, policy: Option<&Arc<PlannedPolicy>>) {
        let before = put(&mut self.policies, id, policy.cloned());
        // The properties of a policy that chains of endpoints depend on.
        let shape = |policy: Option<&Arc<PlannedPolicy>>| {
            policy.map(|policy| {
                DIRECTIONS.map(|direction| {
                    let rules = policy.rules(direction);
                    (rules.is_empty(), super::render::passes(rules))
                })
            })
        };
        if shape(before.as_ref()) != shape(policy) {
            let users =
                self.users.get(id).into_iter().flatten().filter_map(|user| self.workload_policies.get(user));
            self.stale.interfaces.extend(users.map(|policy| policy.interface.clone()));
            let mut of_hosts = self.hosts.values().flat_map(lists).flat_map(|(_, tiers)| policies(tiers));
            self.stale.fixed |= of_hosts.any(|named| named == id);
        }
        self.stale.policies.insert(id.clone());
    }

    fn apply_workload_policy(&mut self, id: &WorkloadId, policy: Option<&WorkloadPolicy>) {
        if let Some(new) = policy {
            self.claims.entry(new.interface.clone()).or_default().insert(id.clone());
            self.stale.interfaces.insert(new.interface.clone());
        }
        let old = put(&mut self.workload_policies, id, policy.cloned());
        self.list(id, old.as_ref(), policy);
        if let Some(old) = old {
            if policy.is_none_or(|new| new.interface != old.interface)
                && let Some(ids) = self.claims.get_mut(&old.interface)
            {
                ids.remove(id);
                if ids.is_empty() {
                    self.claims.remove(&old.interface);
                }
            }
            self.stale.interfaces.insert(old.interface);
        }
    }

    /// Updates `users` after a change of a workload's policy.
    fn list(&mut self, id: &WorkloadId, old: Option<&WorkloadPolicy>, new: Option<&WorkloadPolicy>) {
        let named = |policy: Option<&'_ WorkloadPolicy>| -> BTreeSet<PolicyId> {
            policy.into_iter().flat_map(|policy| policies(&policy.tiers)).cloned().collect()
        };
        let (old, new) = (named(old), named(new));
        for policy in new.difference(&old) {
            self.users.entry(policy.clone()).or_default().insert(id.clone());
        }
        for policy in old.difference(&new) {
            if let Some(users) = self.users.get_mut(policy) {
                users.remove(id);
                if users.is_empty() {
                    self.users.remove(policy);
                }
            }
        }
    }

    fn set(&mut self, id: &SetId, kind: Option<SetKind>) {
        for family in NftFamily::BOTH {
            self.diff.drop_set(&names::set(id, family));
            if let Some(kind) = kind {
                let kind = match kind {
                    SetKind::Nets => SetType::Addresses(family),
                    SetKind::Ports => SetType::Ports(family),
                };
                self.diff.put_set(names::set(id, family), kind);
            }
        }
        let old = put(&mut self.sets.0, id, kind.map(|kind| KnownSet { kind, nets: BTreeSet::new() }));
        // Render its nets again, even if the set has none.
        self.stale.nets.insert(id.clone());
        if old.map(|old| old.kind) != kind {
            self.mark_users(id);
        }
    }

    fn member(&mut self, id: &SetId, member: &SetMember, present: bool) {
        let Some(collection) = self.sets.0.get_mut(id) else { return };
        let (address, element) = match member {
            SetMember::Net(net) if net.prefix_len() < net.max_prefix_len() => {
                if present {
                    collection.nets.insert(*net);
                } else {
                    collection.nets.remove(net);
                }
                self.stale.nets.insert(id.clone());
                return;
            }
            SetMember::Net(net) => (net.addr(), NftElement::key(bytes(net.addr()))),
            SetMember::Port { address, protocol, port } => {
                let key = join(&[&bytes(*address), &[*protocol], &port.to_be_bytes()]);
                (*address, NftElement::key(key))
            }
        };
        let name = names::set(id, NftFamily::of(address));
        match present {
            true => self.diff.insert(&name, element),
            false => self.diff.remove(&name, &element),
        }
    }

    /// Schedules the policies and profiles that refer to a set.
    fn mark_users(&mut self, id: &SetId) {
        let policies = self
            .policies
            .iter()
            .filter(|(_, policy)| DIRECTIONS.iter().any(|direction| name_set(policy.rules(*direction), id)));
        self.stale.policies.extend(policies.map(|(policy, _)| policy.clone()));
        let profiles = self.profiles.iter().filter(|(_, profile)| {
            DIRECTIONS.iter().any(|direction| name_set(profile.rules(*direction), id))
        });
        self.stale.profiles.extend(profiles.map(|(name, _)| name.clone()));
        self.stale.fixed |= nat::looks_into(id) || dscp::looks_into(id);
        self.stale.fixed |= self.tunnels.keys().any(|kind| kind.peers().as_ref() == Some(id));
    }

    /// Returns the interfaces that workloads claim.
    pub fn interfaces_of_workloads(&self) -> impl Iterator<Item = &String> {
        self.claims.keys()
    }

    /// Returns the workloads that claim an interface.
    pub fn at_interface(&self, interface: &str) -> impl Iterator<Item = &WorkloadId> {
        self.claims.get(interface).into_iter().flatten()
    }

    pub fn policies(&self) -> impl Iterator<Item = (&PolicyId, &Arc<PlannedPolicy>)> {
        self.policies.iter()
    }

    pub fn with_policy(&self, id: &PolicyId) -> impl Iterator<Item = &WorkloadId> {
        self.users.get(id).into_iter().flatten()
    }

    pub fn profiles(&self) -> impl Iterator<Item = &String> {
        self.profiles.keys()
    }

    pub fn with_profile(&self, name: &str) -> impl Iterator<Item = &WorkloadId> {
        let listing = self
            .workload_policies
            .iter()
            .filter(move |(_, policy)| policy.profiles.iter().any(|p| p == name));
        listing.map(|(id, _)| id)
    }

    /// Renders everything that changed.
    pub fn render(&mut self) {
        for id in std::mem::take(&mut self.stale.nets) {
            self.render_nets(&id);
        }
        for id in std::mem::take(&mut self.stale.policies) {
            self.render_policy(&id);
        }
        for name in std::mem::take(&mut self.stale.profiles) {
            self.render_profile(&name);
        }
        for name in std::mem::take(&mut self.stale.interfaces) {
            self.render_workload(&name);
        }
        if std::mem::take(&mut self.stale.fixed) {
            self.render_fixed();
        }
    }

    fn render_nets(&mut self, id: &SetId) {
        let empty = BTreeSet::new();
        for family in NftFamily::BOTH {
            let name = names::nets(id, family);
            let nets = self.sets.0.get(id).map_or(&empty, |collection| &collection.nets);
            let wanted: BTreeSet<NftElement> = ranges::of_nets(nets, family)
                .into_iter()
                .map(|(first, last)| NftElement::range(first, last))
                .collect();
            let there = self.diff.wanted().sets.contains_key(&name);
            if wanted.is_empty() {
                self.diff.drop_set(&name);
            } else {
                self.diff.put_set(name.clone(), SetType::Nets(family));
                replace(&mut self.diff, &name, wanted.clone());
            }
            if there == wanted.is_empty() {
                self.mark_users(id);
            }
        }
    }

    fn render_policy(&mut self, id: &PolicyId) {
        let policy = self.policies.get(id);
        let stages = policy.map(|_| self.stages(id)).unwrap_or_default();
        // Few policies are in lists of host endpoints: skip the chains of these stages for all others.
        let was_listed = match stages.is_empty() {
            true => self.listed.remove(id),
            false => !self.listed.insert(id.clone()),
        };
        for stage in [PolicyStage::Normal, PolicyStage::PreDnat, PolicyStage::Untracked] {
            let wanted = policy.filter(|_| stage == PolicyStage::Normal || stages.contains(&stage));
            if wanted.is_none() && stage != PolicyStage::Normal && !was_listed {
                continue;
            }
            for direction in DIRECTIONS {
                let name = names::policy(id, direction, stage);
                match wanted.filter(|policy| !policy.rules(direction).is_empty()) {
                    Some(policy) => {
                        let holder = PolicyOrProfile::Policy { id, tier: &policy.tier };
                        let rules = policy.rules(direction);
                        let chain =
                            holder_chain(holder, rules, direction, stage, &self.sets, &self.settings.policy);
                        self.diff.put_chain(name, chain);
                    }
                    None => self.diff.drop_chain(&name),
                }
            }
        }
    }

    /// Returns the stages, besides the normal one, that a policy needs a chain for: those in which a host endpoint
    /// lists it.
    fn stages(&self, id: &PolicyId) -> BTreeSet<PolicyStage> {
        let of_hosts = self.hosts.values().flat_map(lists).filter(|(stage, _)| *stage != PolicyStage::Normal);
        let listed = of_hosts.filter(|(_, tiers)| policies(tiers).any(|named| named == id));
        listed.map(|(stage, _)| stage).collect()
    }

    fn render_profile(&mut self, name: &str) {
        for direction in DIRECTIONS {
            let holder = PolicyOrProfile::Profile(name);
            let chain_name = holder.chain_name(direction, PolicyStage::Normal);
            let profile = self.profiles.get(name);
            match profile.filter(|profile| !profile.rules(direction).is_empty()) {
                Some(profile) => {
                    let rules = profile.rules(direction);
                    let chain = holder_chain(
                        holder,
                        rules,
                        direction,
                        PolicyStage::Normal,
                        &self.sets,
                        &self.settings.policy,
                    );
                    self.diff.put_chain(chain_name, chain);
                }
                None => self.diff.drop_chain(&chain_name),
            }
        }
    }

    fn tiers(&self) -> TierRenderer<'_> {
        TierRenderer { policies: &self.policies, profiles: &self.profiles, settings: &self.settings.policy }
    }

    fn render_workload(&mut self, name: &str) {
        let active = self.claims.get(name).and_then(BTreeSet::first);
        let traits = active.and_then(|id| self.traits.get(id)).cloned().unwrap_or_default();
        let policy = active.and_then(|id| self.workload_policies.get(id)).cloned();
        for (direction, map) in [
            (PolicyDirection::Ingress, names::TO_WORKLOAD_MAP),
            (PolicyDirection::Egress, names::FROM_WORKLOAD_MAP),
        ] {
            let chain = names::workload(name, direction);
            let limits = match direction {
                PolicyDirection::Ingress => traits.qos.ingress,
                PolicyDirection::Egress => traits.qos.egress,
            };
            self.render_connections(name, direction, limits, policy.as_ref());
            let element = NftElement::goto(interface(name), &chain);
            match &policy {
                Some(policy) => {
                    let rendered = workloads::chain(policy, limits, direction, self.tiers());
                    self.diff.put_chain(chain, rendered);
                    self.diff.insert(map, element);
                }
                None => {
                    self.diff.remove(map, &element);
                    self.diff.drop_chain(&chain);
                }
            }
        }
        let element = NftElement::key(interface(name));
        match policy.as_ref().is_some_and(|policy| policy.up) {
            true => self.diff.insert(names::UP_WORKLOADS_SET, element),
            false => self.diff.remove(names::UP_WORKLOADS_SET, &element),
        }
        let covered = self.workloads(false).is_covered(name);
        for diff in [&mut self.diff, &mut self.arp] {
            render_uncovered(diff, name, policy.is_some() && !covered);
        }
        for family in NftFamily::BOTH {
            let own = policy
                .as_ref()
                .map(|policy| workloads::sources(policy, traits.mac, family))
                .unwrap_or_default();
            if family == NftFamily::V4 {
                render_sources(&mut self.arp, names::ARP_SENDERS_SET, name, own.clone());
            }
            render_sources(&mut self.diff, &names::sources(family), name, own);
            let nets =
                policy.as_ref().map(|policy| workloads::source_nets(policy, family)).unwrap_or_default();
            let set = names::source_nets(family);
            if !nets.is_empty() {
                self.diff.put_set(set.clone(), SetType::SourceNets(family));
            }
            render_sources(&mut self.diff, &set, name, nets);
            if self.diff.elements(&set).next().is_none() {
                self.diff.drop_set(&set);
            }
        }
        self.stale.fixed = true;
    }

    fn render_connections(
        &mut self,
        interface: &str,
        direction: PolicyDirection,
        limits: DirectionQos,
        policy: Option<&WorkloadPolicy>,
    ) {
        let chain = names::connections(interface, direction);
        match policy.filter(|policy| policy.up).and_then(|_| workloads::connections(limits)) {
            Some(rendered) => self.diff.put_chain(chain, rendered),
            None => self.diff.drop_chain(&chain),
        }
    }

    /// Returns all addresses of workloads and hosts that have a DSCP value, with that value.
    fn marked(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let workloads = self.traits.values().map(|traits| (&traits.addresses, traits.qos.dscp));
        let hosts = self.hosts.values().map(|host| (&host.expected, host.dscp));
        workloads
            .chain(hosts)
            .flat_map(|(addresses, dscp)| addresses.iter().filter_map(move |address| Some((*address, dscp?))))
    }

    /// Sets the interfaces that do not belong to workloads.
    pub fn interfaces_are(&mut self, interfaces: BTreeMap<String, Vec<IpAddr>>) {
        if self.interfaces != interfaces {
            self.interfaces = interfaces;
            self.assign();
        }
    }

    pub fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Returns the host endpoints by name with their interfaces; `None` means all interfaces.
    pub fn host_endpoints(&self) -> BTreeMap<String, Option<Vec<String>>> {
        let interfaces = |name: &String| {
            if self.assignment.everywhere.as_ref() == Some(name) {
                return None;
            }
            let specific = self.assignment.specific.iter().filter(|(_, owner)| *owner == name);
            Some(specific.map(|(interface, _)| interface.clone()).collect())
        };
        self.hosts.keys().map(|name| (name.clone(), interfaces(name))).collect()
    }

    fn assign(&mut self) {
        // An interface that an endpoint names is guarded before it exists.
        let mut interfaces = self.interfaces.clone();
        let leads_to_workload =
            |name: &str| self.workloads(false).is_covered(name) || self.claims.contains_key(name);
        for host in self.hosts.values().filter(|host| !["", "*"].contains(&host.interface.as_str())) {
            if !leads_to_workload(&host.interface) {
                interfaces.entry(host.interface.clone()).or_default();
            }
        }
        let assignment = tortie_plan::assign(&self.hosts, &interfaces);
        if assignment != self.assignment {
            self.assignment = assignment;
            self.stale.fixed = true;
        }
    }

    fn render_fixed(&mut self) {
        let nets = NftFamily::BOTH.map(|family| {
            let there = self.diff.elements(&names::source_nets(family)).next().is_some();
            (family, there)
        });
        let there = |family| nets.contains(&(family, true));
        let part = hosts::render(&self.hosts, &self.assignment, self.tiers());
        let others = self.diff.elements(names::UNCOVERED_WORKLOADS_SET).next().is_some();
        let workloads = self.workloads(others);
        let of_arp = super::render::arp::chains(&workloads);
        let tunnels = TunnelRenderer { tunnels: &self.tunnels, sets: &self.sets };
        let hooks = &part.hooks;
        let (mut chains, allowed) =
            entry::chains(&self.settings, workloads, &self.service_ranges, there, hooks, tunnels);
        chains.extend(metadata::chains(self.settings.policy.metadata, workloads));
        self.allowed = allowed;
        chains.extend(part.chains);
        let floating = floating::render(self.traits.values().flat_map(|traits| &traits.floating));
        let marking = dscp::render(self.marked(), &self.sets);
        chains.extend(nat::chains(&self.settings.nat, &self.sets, &self.tunnels, floating.outgoing));
        chains.extend(floating.chains.into_iter().chain(marking.chains));
        let sets: Vec<_> = floating.sets.into_iter().chain(marking.sets).collect();
        let covered = &part.hooks.covered.interfaces;
        let host_interfaces = (!covered.is_empty()).then(|| names::HOST_INTERFACES.to_owned());
        let rendered = chains.keys().chain(part.maps.keys()).chain(&host_interfaces).cloned();
        let rendered: BTreeSet<String> = rendered.chain(sets.iter().map(|(name, ..)| name.clone())).collect();
        for name in std::mem::replace(&mut self.fixed, rendered.clone()).difference(&rendered) {
            self.diff.drop_chain(name);
            self.diff.drop_set(name);
        }
        if let Some(name) = host_interfaces {
            self.diff.put_set(name.clone(), SetType::Interfaces);
            replace(&mut self.diff, &name, covered.clone());
        }
        for (name, kind, elements) in sets {
            self.diff.put_set(name.clone(), kind);
            replace(&mut self.diff, &name, elements);
        }
        for (name, elements) in part.maps {
            self.diff.put_set(name.clone(), SetType::Chains);
            replace(&mut self.diff, &name, elements);
        }
        for (name, chain) in chains {
            self.diff.put_chain(name, chain);
        }
        for (name, chain) in of_arp {
            self.arp.put_chain(name, chain);
        }
    }

    fn workloads(&self, others: bool) -> super::render::WorkloadInterfaces<'_> {
        super::render::WorkloadInterfaces { prefixes: &self.settings.interface_prefixes, others }
    }
}

/// Adds or removes an interface that no prefix covers. Their set exists only while it is not empty.
fn render_uncovered(diff: &mut TableDiff, name: &str, present: bool) {
    let element = NftElement::key(interface(name));
    if present {
        if !diff.wanted().sets.contains_key(names::UNCOVERED_WORKLOADS_SET) {
            diff.put_set(names::UNCOVERED_WORKLOADS_SET.into(), SetType::Interfaces);
        }
        diff.insert(names::UNCOVERED_WORKLOADS_SET, element);
    } else {
        diff.remove(names::UNCOVERED_WORKLOADS_SET, &element);
        if diff.elements(names::UNCOVERED_WORKLOADS_SET).next().is_none() {
            diff.drop_set(names::UNCOVERED_WORKLOADS_SET);
        }
    }
}

/// Replaces the elements of one interface in a set of sources.
fn render_sources(diff: &mut TableDiff, set: &str, name: &str, wanted: Vec<NftElement>) {
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

/// Returns the policy lists of a host endpoint.
fn lists(host: &HostEndpointPolicy) -> [(PolicyStage, &[EndpointTier]); 4] {
    [
        (PolicyStage::Normal, &host.tiers),
        (PolicyStage::Forward, &host.forward),
        (PolicyStage::PreDnat, &host.pre_dnat),
        (PolicyStage::Untracked, &host.untracked),
    ]
}

fn policies(tiers: &[EndpointTier]) -> impl Iterator<Item = &PolicyId> {
    tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()))
}

fn put<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    }
}

fn replace(diff: &mut TableDiff, set: &str, wanted: BTreeSet<NftElement>) {
    let old: Vec<NftElement> =
        diff.elements(set).filter(|element| !wanted.contains(element)).cloned().collect();
    old.iter().for_each(|element| diff.remove(set, element));
    wanted.into_iter().for_each(|element| diff.insert(set, element));
}

fn name_set(rules: &[PlannedRule], id: &SetId) -> bool {
    let names = |side: &RuleSide| {
        let lists = [&side.sets, &side.not_sets, &side.named_ports, &side.not_named_ports];
        lists.into_iter().any(|list| list.contains(id)) || side.service.as_ref() == Some(id)
    };
    rules.iter().any(|rule| names(&rule.source) || names(&rule.destination))
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_plan::{PolicyKind, RuleAction, TierDefaultAction};

    /// Returns the chains of policies.
    fn chains(state: &mut PolicyTableState) -> BTreeSet<String> {
        state.render();
        let of_policies = state.diff.wanted().chains.keys().filter(|name| name.contains("guard"));
        of_policies.cloned().collect()
    }

    #[test]
    fn a_policy_has_chains_for_the_stages_in_which_hosts_list_it() {
        let id = PolicyId {
            kind: PolicyKind::GlobalNetworkPolicy,
            namespace: String::new(),
            name: "guard".to_owned(),
        };
        let name = |stage| names::policy(&id, PolicyDirection::Ingress, stage);
        let (normal, pre_dnat, untracked) =
            (name(PolicyStage::Normal), name(PolicyStage::PreDnat), name(PolicyStage::Untracked));
        let listing = || {
            let (ingress, egress) = ([id.clone()].into(), [].into());
            vec![EndpointTier { name: "default".to_owned(), end: TierDefaultAction::Deny, ingress, egress }]
        };
        let host = |pre_dnat: bool, untracked: bool| {
            let given = |given: bool| given.then(listing).unwrap_or_default();
            let host = HostEndpointPolicy {
                pre_dnat: given(pre_dnat),
                untracked: given(untracked),
                tiers: listing(),
                ..HostEndpointPolicy::default()
            };
            PlanUpdate::HostEndpoint("eth0".to_owned(), Some(host))
        };
        let policy =
            PlannedPolicy { ingress: vec![PlannedRule::new(RuleAction::Allow)], ..PlannedPolicy::default() };
        let present = PlanUpdate::Policy(id.clone(), Some(Arc::new(policy)));

        let mut state = PolicyTableState::new(DataplaneSettings::default());
        state.apply(&present);
        assert_eq!(chains(&mut state), BTreeSet::from([normal.clone()]));
        state.apply(&host(true, false));
        assert_eq!(chains(&mut state), BTreeSet::from([normal.clone(), pre_dnat.clone()]));
        state.apply(&host(true, true));
        assert_eq!(chains(&mut state), BTreeSet::from([normal.clone(), pre_dnat, untracked]));
        state.apply(&host(false, false));
        assert_eq!(chains(&mut state), BTreeSet::from([normal.clone()]));
        state.apply(&host(true, true));
        state.render();
        state.apply(&PlanUpdate::Policy(id.clone(), None));
        assert_eq!(chains(&mut state), BTreeSet::new());
        state.apply(&present);
        assert_eq!(chains(&mut state).len(), 3);
        state.apply(&PlanUpdate::HostEndpoint("eth0".to_owned(), None));
        assert_eq!(chains(&mut state), BTreeSet::from([normal]));
    }
}
