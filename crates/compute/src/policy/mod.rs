//! Policy: the policies and profiles that apply to the endpoints of this node, and the address sets of their rules.
//!
//! ```text
//! endpoints, network sets --> symbols (labels, classes) --> cluster_matches --> sets --> members of sets in use
//! profiles -------------------^                        \--> local_matches --> locals: policy of each endpoint here
//! policies, tiers --> parsed --> policy_table (which are in force, in which order) --^
//! ```
//!
//! Incoming objects are indexed immediately; their effects are computed in [`PolicyCompute::flush`], so that intermediate
//! states cost nothing further.

mod ambient;
mod archive;
mod arena;
mod chunked;
mod convert;
mod hash_index;
mod id_set;
mod identities;
mod ids;
mod interner;
mod label_index;
mod labelled;
mod labels;
mod locals;
mod matcher;
mod node_addresses;
mod order;
mod parsed;
mod peers;
mod policy_table;
mod pool;
mod profiles;
mod service_endpoints;
mod sets;
mod subject;
mod symbols;

use crate::ObjectCounts;
use crate::changes::PlanChanges;
use crate::conversion_error::{ConversionError, ConversionReason};
use crate::nodes::NodeFacts;
use crate::parameters::HttpRulesWithoutProxy;
use crate::workloads::EndpointName;
use archive::RuleArchive;
use convert::RuleConverter;
use ids::{ClassId, LabelledId, Symbol};
use ipnet::IpNet;
use labelled::{LabelledItem, LabelledKind, LabelledName, LabelledParts, LabelledTable, NamedPort};
use locals::{EndpointBase, LocalEndpoint, LocalEndpoints, TierPolicies};
pub use matcher::EvaluationCounts;
use matcher::SelectorMatcher;
use node_addresses::NodeAddresses;
use peers::PeerTable;
use policy_table::{PolicyChanges, PolicyTable};
use profiles::ProfileTable;
use service_endpoints::ServiceEndpoints;
use sets::{MatchView, NeededSet, SetTable};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use subject::LabelledSource;
use symbols::SymbolTable;
use tortie_model::kinds::{HostEndpoint, Profile, Tier, TierAction, WorkloadEndpoint};
use tortie_model::{Kind, Resource, StoreKey};
use tortie_plan::{EndpointId, PlannedWorkload, WorkloadId, WorkloadPolicy};

#[derive(Debug, Default)]
pub(crate) struct PolicyCompute {
    host: String,
    symbols: SymbolTable,
    /// The rules of policies and profiles.
    archive: RuleArchive,
    labelled: LabelledTable,
    /// Matches all classes against the selectors of sets in use.
    cluster_matches: SelectorMatcher,
    /// Matches the classes with endpoints of this node against the selectors of policies.
    local_matches: SelectorMatcher,
    sets: SetTable,
    /// The set of workloads in the ambient mesh, while it is enabled.
    ambient: Option<Arc<NeededSet>>,
    services: ServiceEndpoints,
    nodes: NodeAddresses,
    policies: PolicyTable,
    profiles: ProfileTable,
    peers: PeerTable,
    locals: LocalEndpoints,
    /// Workloads whose proxy receives policy and is in sync, as reported. Their endpoints may not have been received.
    http_proxies: BTreeSet<WorkloadId>,
    workloads: usize,
    host_endpoints: usize,
    http: HttpRulesWithoutProxy,
    /// Workloads of this node without a proxy that have a rule which only an HTTP proxy could enforce.
    unproxied_workloads: usize,
}

impl PolicyCompute {
    pub fn new(host: &str) -> PolicyCompute {
        PolicyCompute { host: host.to_owned(), ..PolicyCompute::default() }
    }

    pub fn set_http_rules(&mut self, http: HttpRulesWithoutProxy) {
        if std::mem::replace(&mut self.http, http) != http {
            self.policies.convert_again();
            self.profiles.convert_again();
        }
    }

    /// Sets whether proxies of workloads receive policy. Only then the plan contains the selectors and labels that proxies
    /// compare with authenticated peers.
    pub fn set_policy_sync(&mut self, enabled: bool) {
        if self.peers.enable(enabled, self.profiles.names(&self.symbols)) {
            self.policies.convert_again();
            self.profiles.convert_again();
        }
    }

    /// Sets whether the plan contains the set of all workloads in the ambient mesh.
    pub fn set_ambient(&mut self, enabled: bool) {
        if enabled == self.ambient.is_some() {
            return;
        }
        if let Some(set) = self.ambient.take() {
            self.sets.release(&set.id);
            return;
        }
        self.ambient = ambient::ambient_set().map(Arc::new);
        self.sets.hold_all(&mut self.symbols, &mut self.cluster_matches, self.ambient.as_slice());
    }

    /// Sets whether the proxy of a workload receives policy and is in sync. A workload that is not known (yet) is
    /// remembered until its proxy is reported as gone.
    pub fn set_http_proxy(&mut self, id: WorkloadId, live: bool) {
        let changed = if live { self.http_proxies.insert(id.clone()) } else { self.http_proxies.remove(&id) };
        if !changed {
            return;
        }
        let Some(item) = self.locals.by_id.get(&EndpointId::Workload(id)).copied() else { return };
        if let Some(LocalEndpoint { base: EndpointBase::Workload(_, policy), .. }) =
            self.locals.all.get_mut(&item)
        {
            policy.http_proxy = live;
            self.locals.mark(item);
        }
    }

    /// Adds or replaces a resource. Returns a description of the parts that cannot be used. The limits of the API are not
    /// checked here: the API server checks them when a client writes the object.
    pub fn put(&mut self, key: &StoreKey, resource: &Resource) -> Option<String> {
        match resource {
            Resource::Profile(profile) => {
                self.put_profile(profile);
                None
            }
            Resource::Tier(tier) => {
                self.put_tier(tier);
                match &tier.spec.default_action {
                    TierAction::Unknown(text) if !text.is_empty() => {
                        Some(format!("defaultAction {text:?} is not known; Deny is used"))
                    }
                    _ => None,
                }
            }
            Resource::NetworkSet(set) => {
                let (nets, problem) = parse_nets(&set.spec.nets);
                self.put_item(LabelledName::new(key), LabelledSource::of_network_set(set, nets));
                problem
            }
            Resource::GlobalNetworkSet(set) => {
                let (nets, problem) = parse_nets(&set.spec.nets);
                self.put_item(LabelledName::new(key), LabelledSource::of_global_network_set(set, nets));
                problem
            }
            Resource::HostEndpoint(endpoint) => {
                self.put_item(LabelledName::new(key), LabelledSource::of_host_endpoint(endpoint));
                self.put_host(key, endpoint)
            }
            _ => {
                let parsed = parsed::read_policy(&mut self.archive, resource)?;
                let symbols = &mut self.symbols;
                let matches = &mut self.local_matches;
                let concerned = match parsed.policy {
                    Some(policy) => self.policies.put(symbols, matches, &mut self.archive, key, policy),
                    None => self.policies.remove(symbols, matches, key),
                };
                self.mark(concerned);
                parsed.problem
            }
        }
    }

    pub fn remove(&mut self, key: &StoreKey) {
        let StoreKey::Resource { kind, name, .. } = key else { return };
        match kind {
            Kind::Profile => {
                self.profiles.remove(&mut self.symbols, &mut self.archive, name);
                self.peers.mark(name);
                self.set_inherited_labels(name, &BTreeMap::new());
            }
            Kind::Tier => {
                let concerned = self.policies.remove_tier(&self.local_matches, name);
                self.mark(concerned);
            }
            Kind::NetworkSet | Kind::GlobalNetworkSet | Kind::HostEndpoint | Kind::WorkloadEndpoint => {
                self.remove_item(LabelledName::new(key));
            }
            _ => {
                let concerned = self.policies.remove(&mut self.symbols, &mut self.local_matches, key);
                self.mark(concerned);
            }
        }
    }

    /// Adds or replaces a node of the cluster, for rules that select nodes.
    pub fn put_node(&mut self, name: &str, node: Arc<NodeFacts>) {
        self.touch_node(name);
        let view = MatchView::new(&self.labelled, &self.cluster_matches, &self.services, &self.nodes);
        self.sets.touch_node(&view, &node);
        self.nodes.put(name, node);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.touch_node(name);
        self.nodes.remove(name);
    }

    fn touch_node(&mut self, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        let view = MatchView::new(&self.labelled, &self.cluster_matches, &self.services, &self.nodes);
        self.sets.touch_node(&view, node);
    }

    /// Adds or replaces an endpoint of any node of the cluster, as the rules of other endpoints see it.
    pub fn put_endpoint(&mut self, key: &StoreKey, endpoint: &WorkloadEndpoint) {
        self.put_item(LabelledName::new(key), LabelledSource::of_workload(endpoint));
    }

    /// Adds or replaces an endpoint of this node, without its tiers, which are computed. `put_endpoint` must be
    /// called first.
    pub fn put_workload(
        &mut self,
        key: &StoreKey,
        id: &WorkloadId,
        workload: &PlannedWorkload,
        endpoint: &WorkloadEndpoint,
    ) {
        let Some(item) = self.labelled.find(&self.symbols, LabelledName::new(key)) else { return };
        let sources = endpoint.spec.allow_spoofed_source_prefixes.iter();
        let policy = WorkloadPolicy {
            interface: workload.interface.clone(),
            up: true,
            addresses: workload.addresses.clone(),
            allowed_sources: sources.filter_map(|net| convert::parse_net(net)).collect(),
            tiers: Vec::new(),
            profiles: subject::deduplicate(&endpoint.spec.profiles),
            http_proxy: self.http_proxies.contains(id),
        };
        self.put_local(item, EndpointBase::Workload(id.clone(), policy), None);
    }

    /// Removes an endpoint that does not belong to this node or is invalid.
    pub fn remove_workload(&mut self, key: &StoreKey) {
        if let Some(item) = self.labelled.find(&self.symbols, LabelledName::new(key)) {
            self.remove_local(item);
        }
    }

    /// Sets whether an endpoint of this node has the interface it requests.
    pub fn set_wired(&mut self, key: &StoreKey, wired: bool) {
        let Some(item) = self.labelled.find(&self.symbols, LabelledName::new(key)) else { return };
        if let Some(local) = self.locals.all.get_mut(&item) {
            local.wired = wired;
            self.settle(item);
        }
    }

    fn put_profile(&mut self, profile: &Profile) {
        let name = &profile.metadata.name;
        let Profile { spec, .. } = profile;
        self.profiles.put(&mut self.symbols, &mut self.archive, name, &spec.ingress, &spec.egress);
        self.set_inherited_labels(name, &profile.spec.labels_to_apply);
        self.peers.mark(name);
    }

    fn put_tier(&mut self, tier: &Tier) {
        let concerned = self.policies.put_tier(&self.local_matches, tier);
        self.mark(concerned);
    }

    /// Returns whether a host endpoint of this node sets the DSCP of its packets.
    pub fn any_host_sets_dscp(&self) -> bool {
        let mut hosts = self.locals.in_plan.range(EndpointId::Host(String::new())..);
        hosts.any(|(_, (base, _))| matches!(base, EndpointBase::Host(_, host) if host.dscp.is_some()))
    }

    fn put_host(&mut self, key: &StoreKey, endpoint: &HostEndpoint) -> Option<String> {
        let item = self.labelled.find(&self.symbols, LabelledName::new(key))?;
        let spec = &endpoint.spec;
        if spec.node != self.host {
            self.remove_local(item);
            return None;
        }
        let mut expected = Vec::new();
        let mut wrong = Vec::new();
        for text in &spec.expected_ips {
            match text.parse::<IpAddr>() {
                Ok(address) => expected.push(address),
                Err(_) => {
                    let error = ConversionError::new("expectedIPs", text, ConversionReason::NotAddress);
                    wrong.push(error.to_string());
                }
            }
        }
        if spec.interface_name.is_empty() && expected.is_empty() {
            wrong.push("it specifies neither an interface nor an address, so it protects nothing".to_owned());
        }
        let base = tortie_plan::HostEndpointPolicy {
            interface: spec.interface_name.clone(),
            expected,
            profiles: subject::deduplicate(&spec.profiles),
            dscp: read_dscp(&endpoint.metadata.annotations),
            ..tortie_plan::HostEndpointPolicy::default()
        };
        self.put_local(item, EndpointBase::Host(endpoint.metadata.name.clone(), base), Some(true));
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }

    fn put_item(&mut self, name: LabelledName<'_>, subject: LabelledSource) {
        let known = self.labelled.find(&self.symbols, name);
        let namespace = self.symbols.hold(name.namespace);
        let class = subject.hold_class(&mut self.symbols);
        let ports: Vec<NamedPort> = subject.hold_ports(&mut self.symbols);
        let node = subject.hold_node(&mut self.symbols);
        let name_prefix = subject.hold_name_prefix(&mut self.symbols);
        let nets = subject.nets();
        let parts = LabelledParts { namespace, class, node, name_prefix, nets, ports: &ports };
        if known.is_some_and(|known| self.labelled.is(known, &parts)) {
            self.symbols.release_class(class);
            self.release_symbols([namespace, node, name_prefix], &ports);
            return;
        }
        if self.symbols.holders(class) == 1 {
            self.cluster_matches.enter(&self.symbols, class);
        }
        if let Some(known) = known {
            self.touch_item(known);
        }
        let view = MatchView::new(&self.labelled, &self.cluster_matches, &self.services, &self.nodes);
        self.sets.touch(&view, class, parts.nets, &ports);
        // A known item keeps its ID: the ID is reused immediately.
        let local = known.and_then(|known| self.locals.all.remove(&known));
        let old = known.and_then(|known| self.labelled.remove(known));
        let item = self.labelled.insert(name.kind, name.name, parts);
        if known.is_none() {
            self.workloads += usize::from(name.kind == LabelledKind::Workload);
            self.host_endpoints += usize::from(name.kind == LabelledKind::Host);
        }
        if let Some(local) = local {
            self.locals.all.insert(item, local);
            self.settle(item);
        }
        if let Some((old, ports)) = old {
            self.forget_item(&old, &ports);
        }
    }

    fn remove_item(&mut self, name: LabelledName<'_>) {
        let Some(item) = self.labelled.find(&self.symbols, name) else { return };
        self.remove_local(item);
        self.touch_item(item);
        self.workloads -= usize::from(name.kind == LabelledKind::Workload);
        self.host_endpoints -= usize::from(name.kind == LabelledKind::Host);
        if let Some((old, ports)) = self.labelled.remove(item) {
            self.forget_item(&old, &ports);
        }
    }

    fn forget_item(&mut self, old: &LabelledItem, ports: &[NamedPort]) {
        self.drop_class(old.class);
        self.release_symbols([old.namespace, old.node, old.name_prefix], ports);
    }

    fn touch_item(&mut self, item: LabelledId) {
        let Some(class) = self.labelled.get(item).map(|item| item.class) else { return };
        let view = MatchView::new(&self.labelled, &self.cluster_matches, &self.services, &self.nodes);
        self.sets.touch(&view, class, self.labelled.nets(item), self.labelled.ports(item));
    }

    fn drop_class(&mut self, class: ClassId) {
        if self.symbols.holders(class) == 1 {
            self.cluster_matches.leave(&self.symbols, class);
        }
        self.symbols.release_class(class);
    }

    fn release_symbols(&mut self, names: [Symbol; 3], ports: &[NamedPort]) {
        names.into_iter().for_each(|symbol| self.symbols.release(symbol));
        ports.iter().for_each(|port| self.symbols.release(port.name));
    }

    /// Sets the labels that endpoints inherit from a profile.
    fn set_inherited_labels(&mut self, profile: &str, labels: &BTreeMap<String, String>) {
        let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let Some(change) = self.symbols.set_inherited(profile, labels) else { return };
        let profile = change.profile;
        self.cluster_matches.inherited_changed(&self.symbols, &change);
        self.local_matches.inherited_changed(&self.symbols, &change);
        for class in self.cluster_matches.inheriting(profile) {
            let difference = self.cluster_matches.compare(&self.symbols, class);
            let view = MatchView::new(&self.labelled, &self.cluster_matches, &self.services, &self.nodes);
            for selector in difference.gone.iter().chain(&difference.come) {
                for item in self.labelled.of_class(class).iter() {
                    let nets = self.labelled.nets(item);
                    self.sets.touch_selector(&view, *selector, nets, self.labelled.ports(item));
                }
            }
            self.cluster_matches.settle(class, &difference);
        }
        for class in self.local_matches.inheriting(profile) {
            let difference = self.local_matches.compare(&self.symbols, class);
            self.local_matches.settle(class, &difference);
            for selector in difference.gone.into_iter().chain(difference.come) {
                self.policies.selector_changed(selector);
                self.locals.mark_class(class);
            }
        }
        self.symbols.forget(change);
    }

    fn put_local(&mut self, item: LabelledId, base: EndpointBase, wired: Option<bool>) {
        self.locals.mark(item);
        let id = base.id();
        let old = match self.locals.all.get_mut(&item) {
            Some(local) => {
                local.wired = wired.unwrap_or(local.wired);
                Some(std::mem::replace(&mut local.base, base))
            }
            None => {
                let local = LocalEndpoint {
                    base,
                    wired: wired.unwrap_or_default(),
                    class: None,
                    profiles: Vec::new(),
                };
                self.locals.all.insert(item, local);
                None
            }
        };
        if let Some(old) = old {
            self.forget_name(item, &old);
        }
        self.locals.by_id.insert(id, item);
        self.locals.mark(item);
        self.settle(item);
    }

    fn remove_local(&mut self, item: LabelledId) {
        if let Some(local) = self.locals.all.get_mut(&item) {
            local.wired = false;
            self.settle(item);
        }
        if let Some(local) = self.locals.all.remove(&item) {
            self.forget_name(item, &local.base);
        }
    }

    fn forget_name(&mut self, item: LabelledId, base: &EndpointBase) {
        let id = base.id();
        if self.locals.by_id.get(&id) == Some(&item) {
            self.locals.by_id.remove(&id);
        }
    }

    /// Updates the class and the profiles for which a local endpoint is counted.
    fn settle(&mut self, item: LabelledId) {
        let class = self.labelled.get(item).map(|item| item.class);
        let Some(local) = self.locals.all.get_mut(&item) else { return };
        let class = class.filter(|_| local.wired);
        let profiles = if class.is_some() { local.base.profiles().to_vec() } else { Vec::new() };
        profiles.iter().for_each(|name| self.profiles.hold(name));
        let held = std::mem::replace(&mut local.profiles, profiles);
        held.iter().for_each(|name| self.profiles.release(name));
        let old = std::mem::replace(&mut local.class, class);
        if old == class {
            return;
        }
        self.locals.mark(item);
        if let Some(class) = class {
            let items = self.locals.of_class.entry(class).or_default();
            let first = items.is_empty();
            items.insert(item);
            if first {
                self.local_matches.enter(&self.symbols, class);
                self.class_changed(class);
            }
        }
        if let Some(class) = old {
            let items = self.locals.of_class.entry(class).or_default();
            items.remove(item);
            if items.is_empty() {
                self.locals.of_class.remove(&class);
                self.class_changed(class);
                self.local_matches.leave(&self.symbols, class);
            }
        }
    }

    /// Marks the policies that match a class: they may come into force or cease to be in force with it.
    fn class_changed(&mut self, class: ClassId) {
        for selector in self.local_matches.matched(class).iter() {
            self.policies.selector_changed(selector);
        }
    }

    fn mark(&mut self, classes: Vec<ClassId>) {
        classes.into_iter().for_each(|class| self.locals.mark_class(class));
    }

    /// Returns the changes of the plan. Referenced objects come first in `added` and last in `removed`.
    pub fn flush(&mut self) -> PlanChanges {
        let converter = RuleConverter {
            archive: &self.archive,
            sets: &self.sets,
            matcher: &self.cluster_matches,
            http: self.http,
            peers: self.peers.is_enabled(),
        };
        let PolicyChanges { changes: policies, mut usage, gone } =
            self.policies.flush(&self.symbols, &self.local_matches, converter);
        let (profiles, of_profiles) = self.profiles.flush(&self.symbols, converter);
        usage.extend(of_profiles);
        self.sets.hold_all(&mut self.symbols, &mut self.cluster_matches, &usage.new);
        for set in &usage.old {
            self.sets.release(&set.id);
        }
        let sets = self.sets.flush(
            &mut self.symbols,
            &self.labelled,
            &self.services,
            &self.nodes,
            &mut self.cluster_matches,
        );
        let endpoints = self.locals.flush(
            |class| self.local_matches.matched(class),
            |class| self.policies.applied_tiers(&self.local_matches, class),
            |slot| self.policies.id(&self.symbols, slot),
        );
        let peers = self.peers.flush(&self.symbols, |name| self.profiles.has(&self.symbols, name));
        self.policies.forget(&mut self.symbols, &mut self.archive, gone);
        if ![&policies, &profiles, &endpoints].into_iter().all(PlanChanges::is_empty) {
            self.unproxied_workloads = self.count_unproxied_workloads();
        }
        let added = [sets.added, policies.added, profiles.added, peers.added, endpoints.added];
        let removed = [endpoints.removed, peers.removed, profiles.removed, policies.removed, sets.removed];
        PlanChanges {
            added: added.into_iter().flatten().collect(),
            removed: removed.into_iter().flatten().collect(),
        }
    }

    fn count_unproxied_workloads(&self) -> usize {
        let policies = &self.policies.unproxied;
        let profiles = &self.profiles.unproxied;
        if policies.is_empty() && profiles.is_empty() {
            return 0;
        }
        let workloads = self
            .locals
            .in_plan
            .values()
            .filter(|(base, _)| matches!(base, EndpointBase::Workload(_, policy) if !policy.http_proxy));
        workloads
            .filter(|(base, applied)| {
                applied.normal.iter().flat_map(TierPolicies::slots).any(|slot| policies.contains(slot))
                    || base.profiles().iter().any(|profile| profiles.contains(profile))
            })
            .count()
    }

    /// Returns the endpoints of other nodes: name, node, addresses.
    pub fn remote_workloads(&self) -> impl Iterator<Item = (EndpointName, &str, Vec<IpAddr>)> {
        self.labelled.workloads().filter_map(|(name, item, nets)| {
            let node = self.symbols.text(item.node);
            let namespace = self.symbols.text(item.namespace);
            let addresses = nets.iter().map(IpNet::addr).collect();
            (node != self.host).then(|| ((namespace.to_owned(), name.to_owned()), node, addresses))
        })
    }

    /// Returns whether a workload endpoint of the cluster has the address, or a host endpoint is expected to have it.
    pub fn has_endpoint_address(&self, address: IpAddr) -> bool {
        self.labelled.having(IpNet::from(address)).any(|(_, item)| item.is_endpoint())
    }

    pub fn has_profile(&self, name: &str) -> bool {
        self.profiles.has(&self.symbols, name)
    }

    pub fn count(&self, totals: &mut ObjectCounts) {
        (totals.policies, totals.active_policies) = self.policies.totals();
        totals.tiers = self.policies.tiers();
        totals.profiles = self.profiles.len();
        totals.sets = self.sets.len();
        totals.workload_endpoints = self.workloads;
        totals.host_endpoints = self.host_endpoints;
        totals.labelled = self.labelled.len();
        totals.selectors = self.cluster_matches.len() + self.local_matches.len();
        totals.indexed_selectors = self.cluster_matches.indexed() + self.local_matches.indexed();
        totals.unproxied_workloads = self.unproxied_workloads;
        totals.evaluations = self.cluster_matches.evaluations;
    }

    pub fn problems(&self) -> impl Iterator<Item = (&StoreKey, &String)> {
        self.policies.problems.iter().chain(&self.profiles.problems)
    }
}

/// Returns the nets of a network set, and a description of the entries that are not nets.
fn parse_nets(texts: &[String]) -> (Vec<IpNet>, Option<String>) {
    let mut nets = Vec::with_capacity(texts.len());
    let mut wrong = Vec::new();
    for text in texts {
        match convert::parse_net(text) {
            Some(net) => nets.push(net),
            None => wrong.push(ConversionError::new("nets", text, ConversionReason::NotCidr).to_string()),
        }
    }
    let problem = (!wrong.is_empty()).then(|| wrong.join(", ") + "; the other nets are used");
    (nets, problem)
}

/// Returns the DSCP that an annotation requests.
fn read_dscp(annotations: &BTreeMap<String, String>) -> Option<u8> {
    const DSCP_ANNOTATION: &str = "qos.projectcalico.org/dscp";
    annotations.get(DSCP_ANNOTATION)?.parse::<tortie_model::scalar::Dscp>().ok()?.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be a million endpoints and a hundred thousand policies, so a size may only grow deliberately.
    #[test]
    fn hot_structures_keep_their_sizes() {
        assert_eq!(size_of::<Option<LabelledItem>>(), 56, "an endpoint or network set of the cluster");
        assert_eq!(policy_table::record_size(), 88, "a policy that is not in force");
        assert_eq!(size_of::<id_set::IdSet<ClassId>>(), 16);
        assert_eq!(size_of::<NamedPort>(), 8);
    }
}
