//! [`PlanCompute`]: receives entries of the datastore and returns updates of the plan.

use crate::address_owners::AddressOwners;
use crate::bgp::{BgpEnvironment, BgpResolver, ElevatedPriorities};
use crate::conversion_error::ConversionError;
use crate::floating::{FloatingClaims, FloatingRefusal};
use crate::interests;
use crate::migrations::LiveMigrations;
use crate::nat::OutgoingNat;
use crate::nodes::{MAX_PEER_ADDRESSES, NodeFacts};
use crate::parameters::{L2Reachability, NodeParameters, ParameterEnvironment};
use crate::policy::{EvaluationCounts, PolicyCompute};
use crate::pools::PoolFacts;
use crate::proxied::{ProxiedAddresses, ServiceRefusal};
use crate::routes::{RouteCompute, UnroutedPool};
use crate::services::ServiceRanges;
use crate::tunnels::TunnelCompute;
use crate::wireguard::WireguardCompute;
use crate::workloads::{
    EndpointName, EndpointPermissions, LocalWorkloads, addresses, local_workload, workload_id,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_model::kinds::{FelixConfiguration, IPPool, Node, WorkloadEndpoint};
use tortie_model::salvage::{SalvagedValue, salvage};
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_plan::{AddressIdentity, DataplaneSettings, PlanUpdate, ServiceIdentity, WorkloadId};

/// The kinds that define policy, besides workload endpoints.
pub const POLICY_KINDS: [Kind; 10] = [
    Kind::Tier,
    Kind::Profile,
    Kind::GlobalNetworkPolicy,
    Kind::NetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedKubernetesNetworkPolicy,
    Kind::GlobalNetworkSet,
    Kind::NetworkSet,
    Kind::HostEndpoint,
];

#[derive(Debug)]
pub struct PlanCompute {
    host: String,
    environment: ParameterEnvironment,
    configurations: BTreeMap<String, FelixConfiguration>,
    nodes: BTreeMap<String, Arc<NodeFacts>>,
    parameters: NodeParameters,
    settings: DataplaneSettings,
    permissions: EndpointPermissions,
    /// Endpoints of this node as stored, valid or not.
    local_endpoints: BTreeMap<StoreKey, WorkloadEndpoint>,
    workloads: LocalWorkloads,
    migrations: LiveMigrations,
    routes: RouteCompute,
    tunnels: TunnelCompute,
    wireguard: WireguardCompute,
    /// `None` if the node does not run BGP.
    bgp: Option<BgpResolver>,
    /// Whether the node writes the routes to other nodes if it does not run BGP and no setting decides.
    writes_cluster_routes: bool,
    service_ranges: ServiceRanges,
    nat: OutgoingNat,
    proxied: ProxiedAddresses,
    floating: FloatingClaims,
    node_addresses: AddressOwners<String>,
    service_addresses: AddressOwners<EndpointName>,
    policies: PolicyCompute,
    problems: BTreeMap<StoreKey, String>,
}

/// Counts of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    pub nodes: usize,
    pub workload_endpoints: usize,
    pub local_workloads: usize,
    pub host_endpoints: usize,
    pub policies: usize,
    /// Policies that apply to endpoints of this node.
    pub active_policies: usize,
    pub profiles: usize,
    pub tiers: usize,
    /// Address sets in use on this node.
    pub sets: usize,
    /// Workloads of this node without a proxy that have a rule which only an HTTP proxy could enforce.
    pub unproxied_workloads: usize,
    /// Endpoints and network sets.
    pub labelled: usize,
    pub selectors: usize,
    /// Selectors that are found by a label.
    pub indexed_selectors: usize,
    pub evaluations: EvaluationCounts,
}

impl PlanCompute {
    pub fn new(host: &str, environment: ParameterEnvironment) -> PlanCompute {
        let mut compute = PlanCompute {
            host: host.to_owned(),
            environment,
            configurations: BTreeMap::new(),
            nodes: BTreeMap::new(),
            parameters: NodeParameters::default(),
            settings: DataplaneSettings::default(),
            permissions: EndpointPermissions::default(),
            local_endpoints: BTreeMap::new(),
            workloads: LocalWorkloads::default(),
            migrations: LiveMigrations::default(),
            routes: RouteCompute::new(host),
            tunnels: TunnelCompute::new(host),
            wireguard: WireguardCompute::new(host),
            bgp: None,
            writes_cluster_routes: true,
            service_ranges: ServiceRanges::default(),
            nat: OutgoingNat::default(),
            proxied: ProxiedAddresses::new(host),
            floating: FloatingClaims::new(host),
            node_addresses: AddressOwners::default(),
            service_addresses: AddressOwners::default(),
            policies: PolicyCompute::new(host),
            problems: BTreeMap::new(),
        };
        compute.configure();
        compute
    }

    /// Enables BGP on this node. BGP then writes the routes of unencapsulated pools. Must be called before any entry
    /// is put.
    pub fn speak_bgp(&mut self, environment: BgpEnvironment) {
        self.bgp = Some(BgpResolver::new(&self.host, environment));
        self.configure();
    }

    /// Leaves the routes to other nodes to another component, unless the settings enable them. Must be called before
    /// any entry is put.
    pub fn leave_cluster_routes(&mut self) {
        self.writes_cluster_routes = false;
        self.configure();
    }

    /// Returns the key ranges that the plan depends on; a feed for this node carries these entries. Must be called
    /// after [`PlanCompute::speak_bgp`].
    pub fn interests(&self) -> Vec<KeyRange> {
        interests::node_interests(&self.host, self.bgp.is_some())
    }

    /// Adds or replaces an entry. Entries that do not concern a node are ignored.
    pub fn put(&mut self, key: &StoreKey, value: &StoreValue) {
        self.problems.remove(key);
        if let Some(bgp) = &mut self.bgp
            && let Err(error) = bgp.put(key, value)
        {
            self.problems.insert(key.clone(), error.to_string());
        }
        let outcome = match value {
            StoreValue::Resource(Resource::Node(node)) => {
                if let Some(problem) = self.put_node(node) {
                    self.add_problem(key, problem);
                }
                Ok(())
            }
            StoreValue::Resource(Resource::IPPool(pool)) => self.put_pool(pool),
            StoreValue::Resource(Resource::BGPConfiguration(configuration)) => {
                if let Some(problem) = self.service_ranges.put(configuration) {
                    self.add_problem(key, problem);
                }
                Ok(())
            }
            StoreValue::Resource(Resource::FelixConfiguration(configuration)) => {
                self.configurations.insert(configuration.metadata.name.clone(), (**configuration).clone());
                self.configure();
                Ok(())
            }
            // An endpoint without addresses has no traffic: it is not wired yet, or no longer.
            StoreValue::Resource(Resource::WorkloadEndpoint(endpoint))
                if addresses(endpoint).next().is_none() =>
            {
                self.remove(key);
                return;
            }
            StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)) => {
                self.policies.put_endpoint(key, endpoint);
                self.put_endpoint(key, endpoint);
                return;
            }
            StoreValue::Resource(Resource::LiveMigration(migration)) => {
                let outcome = self.migrations.put(key, migration);
                self.assess_migrations();
                outcome
            }
            StoreValue::Block(block) => {
                self.routes.put_block(block);
                Ok(())
            }
            StoreValue::Service(service) => {
                if let StoreKey::Service { namespace, name } = key {
                    self.proxied.put_service(namespace, name, service);
                    let owner = (namespace.clone(), name.clone());
                    self.service_addresses.put(owner, service.addresses());
                }
                Ok(())
            }
            StoreValue::EndpointSlice(slice) => {
                if let StoreKey::EndpointSlice { namespace, name } = key {
                    self.policies.put_slice(namespace, name, slice);
                }
                Ok(())
            }
            StoreValue::Resource(resource) => {
                if let Some(problem) = self.policies.put(key, resource) {
                    self.problems.insert(key.clone(), problem);
                }
                return;
            }
            _ => Ok(()),
        };
        if let Err(error) = outcome {
            self.problems.insert(key.clone(), error.to_string());
            // An invalid object is treated as absent.
            self.remove(key);
        }
    }

    /// Adds or replaces a node. Returns a description of the parts that cannot be used.
    fn put_node(&mut self, node: &Node) -> Option<String> {
        let name = &node.metadata.name;
        let facts = Arc::new(NodeFacts::from_node(node));
        let excess = facts.excess_peer_addresses;
        let problem = (excess > 0).then(|| {
            format!(
                "addresses: rules that select nodes use the first {MAX_PEER_ADDRESSES} and leave out {excess}"
            )
        });
        let old = self.nodes.insert(name.clone(), facts.clone());
        if old.as_ref() == Some(&facts) {
            return problem;
        }
        self.policies.put_node(name, facts.clone());
        if let Some(bgp) = &mut self.bgp {
            bgp.put_node(name, facts.clone());
        }
        self.routes.put_node(name, facts.clone());
        self.tunnels.put_node(name, facts.clone());
        self.wireguard.put_node(name, facts.clone());
        self.proxied.put_node(name, facts.clone());
        self.nat.put_host(name, facts.host_nets());
        self.node_addresses.put(name.clone(), facts.all_addresses.iter().copied());
        if *name == self.host && old.map_or(!facts.labels.is_empty(), |old| old.labels != facts.labels) {
            self.configure();
        }
        problem
    }

    fn put_pool(&mut self, pool: &IPPool) -> Result<(), ConversionError> {
        let name = &pool.metadata.name;
        let facts = PoolFacts::read(pool);
        if let Some(bgp) = &mut self.bgp {
            bgp.put_pool(name, facts.as_ref().ok());
        }
        let facts = facts?;
        self.routes.put_pool(name, &facts);
        self.tunnels.put_pool(name, &facts);
        self.nat.put_pool(name, &facts);
        self.proxied.put_pool(name, &facts);
        self.floating.put_pool(name, facts);
        Ok(())
    }

    /// Handles an entry that cannot be parsed as it is. The usable parts are used; a policy with a readable selector
    /// denies in place of unreadable rules. [`PlanCompute::problems`] lists the unused parts. If nothing is usable, a
    /// policy entry is removed, as it would be after a restart, and other entries stay as they were.
    pub fn put_unreadable(&mut self, key: &StoreKey, text: &str, reason: &str) {
        match salvage(key, text) {
            Some(SalvagedValue { value, lost }) => {
                self.put(key, &value);
                self.add_problem(key, format!("{reason}; not used: {}", lost.join(", ")));
            }
            None if is_policy(key) => {
                self.delete(key);
                self.add_problem(key, format!("it cannot be read and is not in force: {reason}"));
            }
            None => {
                self.add_problem(key, format!("it cannot be read; the previous version stays: {reason}"));
            }
        }
    }

    /// Adds a problem to those already known for an entry.
    fn add_problem(&mut self, key: &StoreKey, problem: String) {
        let known = self.problems.entry(key.clone()).or_default();
        *known = if known.is_empty() { problem } else { format!("{problem}; {known}") };
    }

    pub fn delete(&mut self, key: &StoreKey) {
        self.problems.remove(key);
        if let Some(resolver) = &mut self.bgp {
            resolver.remove(key);
        }
        self.remove(key);
    }

    fn remove(&mut self, key: &StoreKey) {
        match key {
            StoreKey::Resource { kind: Kind::Node, name, .. } => {
                self.routes.remove_node(name);
                self.nat.remove_host(name);
                self.tunnels.remove_node(name);
                self.wireguard.remove_node(name);
                self.proxied.remove_node(name);
                self.node_addresses.remove(name);
                self.policies.remove_node(name);
                let old = self.nodes.remove(name);
                if *name == self.host && old.is_some_and(|old| !old.labels.is_empty()) {
                    self.configure();
                }
            }
            StoreKey::Resource { kind: Kind::IPPool, name, .. } => {
                self.routes.remove_pool(name);
                self.nat.remove_pool(name);
                self.proxied.remove_pool(name);
                self.floating.remove_pool(name);
                self.tunnels.remove_pool(name);
            }
            StoreKey::Resource { kind: Kind::FelixConfiguration, name, .. } => {
                self.configurations.remove(name);
                self.configure();
            }
            StoreKey::Resource { kind: Kind::WorkloadEndpoint, namespace, name } => {
                let name = (namespace.clone(), name.clone());
                self.forget_local(key);
                self.workloads.remove(&name);
                self.floating.remove_endpoint(&name);
                self.routes.remove_remote(&name);
                self.policies.remove(key);
            }
            StoreKey::Resource { kind: Kind::BGPConfiguration, name, .. } => self.service_ranges.remove(name),
            StoreKey::Resource { kind: Kind::LiveMigration, .. } => {
                self.migrations.remove(key);
                self.assess_migrations();
            }
            StoreKey::Resource { .. } => self.policies.remove(key),
            StoreKey::Block { cidr } => self.routes.remove_block(*cidr),
            StoreKey::EndpointSlice { namespace, name } => self.policies.remove_slice(namespace, name),
            StoreKey::Service { namespace, name } => {
                self.proxied.remove_service(namespace, name);
                self.service_addresses.remove(&(namespace.clone(), name.clone()));
            }
            _ => {}
        }
    }

    /// Returns the updates of the plan since the last flush. Removed workloads and routes precede those that replace
    /// them.
    pub fn flush(&mut self) -> Vec<PlanUpdate> {
        let bgp = self.bgp.as_mut().and_then(BgpResolver::flush);
        if let Some(peers) = self.bgp.as_mut().and_then(BgpResolver::take_local_peers) {
            self.workloads.set_peers(peers);
        }
        self.decide_floating();
        let workloads = self.workloads.flush();
        let moved = !workloads.addresses.is_empty();
        let proxied = self.proxied.flush(moved, self.workloads.addresses(), |address| {
            if self.node_addresses.has(address) {
                Some(ServiceRefusal::Node)
            } else if self.policies.has_endpoint_address(address) {
                Some(ServiceRefusal::Endpoint)
            } else {
                self.routes.has_host_block_of(address).then_some(ServiceRefusal::Block)
            }
        });
        self.service_ranges.set_answered(self.proxied.services());
        for ((namespace, name), wired) in workloads.interface_changes {
            let key = StoreKey::resource(Kind::WorkloadEndpoint, &namespace, &name);
            self.policies.set_wired(&key, wired);
        }
        if let (Some(resolver), Some(bgp)) = (&self.bgp, &bgp) {
            self.routes.set_gateways(resolver.gateways(bgp));
        }
        let tunnels = self.tunnels.flush();
        for (node, end) in tunnels.ends {
            self.routes.set_tunnel_end(node, end);
        }
        let wireguard = self.wireguard.flush();
        for (kind, table) in wireguard.tables {
            self.routes.set_wireguard(kind, table);
        }
        for (kind, node, endpoint) in wireguard.peers {
            self.routes.set_wireguard_peer(kind, &node, endpoint);
        }
        let local = &self.workloads;
        let routes = self.routes.flush(workloads.addresses, |address| local.has_address(address));
        // The policy of a workload is added before the workload and removed after it.
        let policies = self.policies.flush();
        if !policies.is_empty() || !workloads.plan.is_empty() {
            self.nat.set_marking(self.workloads.any_sets_dscp() || self.policies.any_host_sets_dscp());
        }
        let parts = [
            policies.added,
            tunnels.plan.added,
            wireguard.plan.added,
            workloads.plan.removed,
            routes.removed,
            workloads.plan.added,
            routes.added,
            wireguard.plan.removed,
            tunnels.plan.removed,
            policies.removed,
        ];
        let last = self.service_ranges.flush().into_iter().chain(self.nat.flush());
        let last = last.chain(proxied).chain(bgp.map(PlanUpdate::Bgp));
        parts.into_iter().flatten().chain(last).collect()
    }

    /// Returns whether a profile is known.
    pub fn has_profile(&self, name: &str) -> bool {
        self.policies.has_profile(name)
    }

    /// Returns the object of the cluster that an address belongs to: a workload, a host endpoint or a network set.
    pub fn identify(&self, address: IpAddr) -> Option<AddressIdentity> {
        self.policies.identify(address)
    }

    /// Returns the service that an address belongs to. Services are known if the datastore contains those of Kubernetes.
    pub fn find_service(&self, address: IpAddr) -> Option<ServiceIdentity> {
        let (namespace, name) = self.service_addresses.find(address)?;
        Some(ServiceIdentity { namespace: namespace.clone(), name: name.clone() })
    }

    pub fn settings(&self) -> &DataplaneSettings {
        &self.settings
    }

    pub fn parameters(&self) -> &NodeParameters {
        &self.parameters
    }

    pub fn totals(&self) -> ObjectCounts {
        let mut totals = ObjectCounts {
            nodes: self.nodes.len(),
            local_workloads: self.workloads.len(),
            ..ObjectCounts::default()
        };
        self.policies.count(&mut totals);
        totals
    }

    /// Returns the objects that cannot take effect, with the reason.
    pub fn problems(&self) -> BTreeMap<String, String> {
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        for (key, reason) in self.problems.iter().chain(self.policies.problems()) {
            append_problem(&mut problems, key, reason);
        }
        for (namespace, name) in self.workloads.waiting() {
            let key = StoreKey::resource(Kind::WorkloadEndpoint, namespace, name);
            append_problem(&mut problems, &key, "its interface belongs to another endpoint");
        }
        for ((namespace, name), refusal) in self.floating.refusals() {
            let key = StoreKey::resource(Kind::WorkloadEndpoint, namespace, name);
            append_problem(&mut problems, &key, &refusal);
        }
        for ((namespace, name), address, refusal) in self.proxied.refusals() {
            let key = StoreKey::Service { namespace: namespace.to_string(), name: name.to_string() };
            append_problem(&mut problems, &key, &format!("no node answers for {address}: {refusal}"));
        }
        problems
    }

    /// Returns the pools with blocks on other nodes to which no component writes routes. Empty if routes belong to
    /// another program (`routeSyncDisabled`), or while the configuration of BGP is unknown.
    pub fn unrouted_pools(&self) -> Vec<UnroutedPool> {
        if self.parameters.route_sync_disabled {
            return Vec::new();
        }
        match &self.bgp {
            None => self.routes.unrouted_pools(None),
            Some(resolver) => resolver
                .published()
                .map(|config| self.routes.unrouted_pools(Some(config)))
                .unwrap_or_default(),
        }
    }

    /// Returns why an endpoint of this node may not be attached with the floating addresses that it requests.
    pub fn floating_refusal(&self, key: &StoreKey) -> Option<String> {
        let StoreKey::Resource { kind: Kind::WorkloadEndpoint, namespace, name } = key else { return None };
        self.floating.fatal_refusal(&(namespace.clone(), name.clone()))
    }

    fn decide_floating(&mut self) {
        let granted = self.floating.decide(
            |address| {
                if self.node_addresses.has(address) {
                    Some(FloatingRefusal::Node)
                } else if self.service_addresses.has(address) || self.service_ranges.contains(address) {
                    Some(FloatingRefusal::Service)
                } else {
                    self.policies.has_endpoint_address(address).then_some(FloatingRefusal::Endpoint)
                }
            },
            |address| self.routes.has_block_of(address),
        );
        self.workloads.set_floating(granted);
    }

    fn put_endpoint(&mut self, key: &StoreKey, endpoint: &WorkloadEndpoint) {
        let name = (endpoint.metadata.namespace.clone(), endpoint.metadata.name.clone());
        self.floating.put_endpoint(&name, endpoint);
        if endpoint.spec.node == self.host {
            self.routes.remove_remote(&name);
            let old = self.local_endpoints.insert(key.clone(), endpoint.clone());
            let id = workload_id(endpoint);
            if let Some(old) = old.map(|old| workload_id(&old)).filter(|old| *old != id) {
                self.migrations.remove_endpoint(&old);
            }
            self.migrations.assess(endpoint);
            self.program_endpoint(key);
            return;
        }
        if self.forget_local(key) {
            self.workloads.remove(&name);
            self.policies.remove_workload(key);
        }
        if self.routes.by_workload() {
            self.routes.put_remote(name, &endpoint.spec.node, addresses(endpoint).collect());
        }
    }

    fn program_endpoint(&mut self, key: &StoreKey) {
        let Some(endpoint) = self.local_endpoints.get(key) else { return };
        let name = (endpoint.metadata.namespace.clone(), endpoint.metadata.name.clone());
        match local_workload(endpoint, self.permissions) {
            Ok((id, mut workload)) => {
                workload.migration = self.migrations.state(&id);
                self.problems.remove(key);
                self.policies.put_workload(key, &id, &workload, endpoint);
                self.workloads.put(name, id, workload);
            }
            Err(error) => {
                self.problems.insert(key.clone(), error.to_string());
                self.policies.remove_workload(key);
                self.workloads.remove(&name);
            }
        }
    }

    /// Forgets a local endpoint. Returns whether it was known.
    fn forget_local(&mut self, key: &StoreKey) -> bool {
        let endpoint = self.local_endpoints.remove(key);
        endpoint.inspect(|endpoint| self.migrations.remove_endpoint(&workload_id(endpoint))).is_some()
    }

    fn assess_migrations(&mut self) {
        let endpoints = self.local_endpoints.iter();
        let moved = endpoints.filter(|(_, endpoint)| self.migrations.assess(endpoint));
        let moved: Vec<StoreKey> = moved.map(|(key, _)| key.clone()).collect();
        moved.iter().for_each(|key| self.program_endpoint(key));
    }

    /// Records that a machine that migrates to this node has announced that it runs here.
    pub fn announced(&mut self, id: &WorkloadId) {
        if self.migrations.record_announcement(id) {
            self.program_workload(id);
        }
    }

    /// Records that routes to a machine that migrated to this node have converged everywhere.
    pub fn settled(&mut self, id: &WorkloadId) {
        if self.migrations.record_convergence(id) {
            self.program_workload(id);
        }
    }

    /// Records whether the proxy of a workload receives its policy and is in sync: only then rules with HTTP conditions
    /// let connections pass to the proxy. Every workload that is reported as live must later be reported as not live;
    /// until then it is remembered, whether or not its endpoint exists.
    pub fn set_http_proxy(&mut self, id: WorkloadId, live: bool) {
        self.policies.set_http_proxy(id, live);
    }

    fn program_workload(&mut self, id: &WorkloadId) {
        let mut endpoints = self.local_endpoints.iter();
        if let Some(key) =
            endpoints.find(|(_, endpoint)| workload_id(endpoint) == *id).map(|(key, _)| key.clone())
        {
            self.program_endpoint(&key);
        }
    }

    fn configure(&mut self) {
        let no_labels = BTreeMap::new();
        let mut parameters = NodeParameters::resolve(
            &self.host,
            self.nodes.get(&self.host).map_or(&no_labels, |own| &own.labels),
            self.configurations.values(),
            &self.environment,
        );
        parameters.keep_marks(&self.parameters);
        self.parameters = parameters;
        self.settings = self.parameters.settings();
        let by_workload = self.routes.by_workload();
        self.routes
            .set_policy(self.parameters.route_policy(self.bgp.is_none() && self.writes_cluster_routes));
        if let Some(bgp) = &mut self.bgp {
            bgp.set_elevated(ElevatedPriorities {
                v4: self.settings.ipv4_elevated_priority,
                v6: self.settings.ipv6_elevated_priority,
            });
        }
        self.policies.set_http_rules(self.parameters.http_rules_without_proxy);
        self.policies.set_policy_sync(!self.parameters.policy_sync_path_prefix.is_empty());
        self.policies.set_ambient(self.parameters.istio_ambient_mode);
        self.nat.set_policy(self.parameters.nat_policy());
        self.proxied
            .configure(self.parameters.local_subnet_l2_reachability == L2Reachability::PodsAndLoadBalancers);
        self.floating.configure(self.parameters.floating_ips);
        self.tunnels.configure(self.parameters.tunnel_settings());
        self.wireguard.configure(self.parameters.wireguard_settings());
        match (by_workload, self.routes.by_workload()) {
            (false, true) => {
                for (name, node, addresses) in self.policies.remote_workloads() {
                    self.routes.put_remote(name, node, addresses);
                }
            }
            (true, false) => self.routes.forget_remote(),
            _ => {}
        }
        if self.permissions != self.parameters.permissions() {
            self.permissions = self.parameters.permissions();
            let keys: Vec<StoreKey> = self.local_endpoints.keys().cloned().collect();
            keys.iter().for_each(|key| self.program_endpoint(key));
        }
    }
}

fn is_policy(key: &StoreKey) -> bool {
    matches!(key, StoreKey::Resource { kind, .. } if POLICY_KINDS.contains(kind))
}

fn append_problem(problems: &mut BTreeMap<String, String>, key: &StoreKey, reason: &str) {
    let known = problems.entry(key.to_string()).or_default();
    if !known.is_empty() {
        known.push_str("; ");
    }
    known.push_str(reason);
}
