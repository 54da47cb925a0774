//! The loop of the leading replica: receives events, passes them to the cores and executes the actions that they
//! return.

use crate::absence::{AbsenceClaim, AbsenceGuard, ClaimAdmission, ReferenceCounts, SubjectOrigin};
use crate::action_executor::ActionExecutor;
use crate::balancer::{LoadBalancerServiceName, ServiceBalancer};
use crate::compaction::PeriodicCompaction;
use crate::lifecycle;
use crate::metrics::{self, ControllerCounters};
use crate::mirror::{KubernetesMirror, MirrorSelection};
use crate::node::garbage::{AddressCollector, NodeIndex};
use crate::node::host_endpoints;
use crate::node::pods::{PodIndex, PodName};
use crate::policy_names::{self, MisnamedPolicies};
use crate::settings::ControllerSettings;
use crate::state::{ABSENCE_COMPONENT, ControllerState};
use crate::write::ObjectWrite;
use futures::future::OptionFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tortie_http::liveness::ComponentHeartbeat;
use tortie_ipam::facts;
use tortie_ipam::pool::AllocationPool;
use tortie_model::key::AffinityType;
use tortie_model::kinds::{EnabledSwitch, HostEndpoint, IPPool, Node, Tier};
use tortie_model::names::split_workload_endpoint_name;
use tortie_model::{FeedEvent, KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::StoreClient;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_sync::Feed;

/// Maximum number of events that are received before the cores run.
const MAX_EVENTS_PER_ROUND: usize = 4096;
const LEADER_TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before the next reconciliation after a failure.
const FAILURE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Delay of the reconciliation after an event, so that it covers several events.
const EVENT_COALESCE_DELAY: Duration = Duration::from_millis(100);
/// Interval between updates of the address metrics.
const METRICS_UPDATE_INTERVAL: Duration = Duration::from_secs(5);

/// Components with a heartbeat while this replica leads.
pub const LEADER_COMPONENTS: [&str; 3] = [LEADER, DATASTORE_WATCH, KUBERNETES_WATCH];
const LEADER: &str = "leader";
const DATASTORE_WATCH: &str = "datastore-watch";
const KUBERNETES_WATCH: &str = "kubernetes-watch";

/// Interval between checks whether all nodes run a version that allows policies to be renamed.
const ROLLOUT_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Connections and state shared by the controllers.
#[derive(Clone, Debug)]
pub struct ControllerContext {
    pub client: StoreClient,
    /// Client for Kubernetes; `None` if it is the datastore.
    pub kubernetes: Option<StoreClient>,
    pub orchestrator: OrchestratorClient,
    /// Namespace in which nodes and controllers run.
    pub namespace: String,
    pub state: Arc<ControllerState>,
}

/// Origin of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventSource {
    /// A datastore other than Kubernetes.
    Datastore,
    Kubernetes,
    /// Kubernetes as the datastore.
    Both,
}

impl EventSource {
    fn is_datastore(self) -> bool {
        self != EventSource::Kubernetes
    }

    fn is_kubernetes(self) -> bool {
        self != EventSource::Datastore
    }
}

/// The cores, with the objects received so far.
#[derive(Debug, Default)]
struct ControllerCores {
    garbage: AddressCollector,
    pods: PodIndex,
    nodes: NodeIndex,
    datastore_nodes: BTreeMap<String, Node>,
    host_endpoints: BTreeMap<String, HostEndpoint>,
    pools: BTreeMap<String, AllocationPool>,
    stored_pools: BTreeMap<String, IPPool>,
    tiers: BTreeMap<String, Tier>,
    /// Tier of each policy.
    policies: BTreeMap<StoreKey, String>,
    policy_names: MisnamedPolicies,
    balancer: ServiceBalancer,
    mirror: KubernetesMirror,
    guard: AbsenceGuard,
    /// The datastore is not Kubernetes.
    is_separate: bool,
    /// The datastore is locked: the controllers must not write.
    locked: bool,
}

/// State of the leading replica.
struct LeaderState {
    cores: ControllerCores,
    executor: ActionExecutor,
    counters: ControllerCounters,
}

/// Runs the controllers until a feed ends, which only happens on a fatal error.
pub async fn run_leader_loop(
    context: ControllerContext,
    mut settings: watch::Receiver<Arc<ControllerSettings>>,
) {
    let mut feeds = EventFeeds::new(&context);
    let heartbeat = context.state.liveness.part(LEADER);
    let mut leader = LeaderState {
        cores: ControllerCores { is_separate: context.kubernetes.is_some(), ..ControllerCores::default() },
        executor: ActionExecutor::new(&context, heartbeat),
        counters: ControllerCounters::default(),
    };
    let started = Instant::now();
    let mut tick = tokio::time::interval(LEADER_TICK_INTERVAL);
    let mut next_reconciliation: Option<Instant> = Some(started);
    let mut metrics_updated = started;
    let mut compaction = PeriodicCompaction::new(context.client.compactor());
    loop {
        leader.executor.heartbeat.beat();
        let period = settings.borrow().compaction_period();
        compaction.run(period, &mut leader.counters).await;
        let may_reconcile = feeds.are_in_sync() && !leader.cores.locked;
        tokio::select! {
            events = feeds.next() => match events {
                Some(events) => {
                    for (source, event) in events {
                        leader.cores.apply_event(source, event, started.elapsed());
                    }
                    next_reconciliation = schedule_by(next_reconciliation, EVENT_COALESCE_DELAY);
                }
                None => return,
            },
            changed = settings.changed() => match changed {
                Ok(()) => next_reconciliation = schedule_by(next_reconciliation, Duration::ZERO),
                Err(_) => return,
            },
            Some(()) = OptionFuture::from(next_reconciliation.map(tokio::time::sleep_until)), if may_reconcile => {}
            _ = tick.tick() => {}
        }
        if !feeds.are_in_sync() || leader.cores.locked {
            continue;
        }
        leader.cores.guard.mark_synced(started.elapsed());
        let current = settings.borrow().clone();
        leader.cores.guard.set_leak_grace(current.leak_grace());
        let before = leader.counters.failures;
        leader.collect_garbage(&current, started.elapsed()).await;
        leader.rename_policies(&current, started.elapsed()).await;
        if next_reconciliation.is_some_and(|time| time <= Instant::now()) {
            let now = started.elapsed();
            let retry = leader.reconcile(&current, now).await;
            next_reconciliation = retry.map(|time| started + time);
            if context.client.stores_v3_as_written() {
                leader.update_finalizers().await;
            }
        }
        context.state.set_problem(ABSENCE_COMPONENT, leader.cores.guard.describe_withheld());
        leader.counters.absence = leader.cores.guard.counters();
        leader.counters.withheld = leader.cores.guard.withheld();
        if leader.counters.failures > before {
            next_reconciliation = schedule_by(next_reconciliation, FAILURE_RETRY_DELAY);
        }
        if metrics_updated.elapsed() >= METRICS_UPDATE_INTERVAL {
            metrics_updated = Instant::now();
            context.state.set_metrics(metrics::render_page(
                &leader.cores.pools,
                leader.cores.garbage.blocks(),
                &leader.counters,
                true,
            ));
        }
    }
}

/// Returns the earlier of the planned time and the time after a delay.
fn schedule_by(planned: Option<Instant>, delay: Duration) -> Option<Instant> {
    let soon = Instant::now() + delay;
    Some(planned.map_or(soon, |planned| planned.min(soon)))
}

impl LeaderState {
    /// Runs the garbage collection of addresses if it is due.
    async fn collect_garbage(&mut self, settings: &ControllerSettings, now: Duration) {
        if settings.node().is_none() {
            return;
        }
        self.cores.garbage.set_grace(settings.leak_grace());
        if !self.cores.garbage.is_due(now) {
            return;
        }
        let began = Instant::now();
        self.cores.nodes.kubernetes_names = self.cores.mirror.kubernetes_names();
        let claims = self.cores.garbage.scan(&self.cores.pods, &self.cores.nodes, now);
        self.counters.scans += 1;
        self.counters.scan_seconds = began.elapsed().as_secs_f64();
        self.counters.suspects = self.cores.garbage.suspects();
        let references = self.cores.garbage.references().clone();
        let admission = self.admit("garbage", claims, &references, now).await;
        if let Some(retry) = admission.retry {
            self.cores.garbage.scan_by(retry);
        }
        if admission.actions.is_empty() {
            return;
        }
        let outcome = self.executor.collect_garbage(admission.actions).await;
        self.counters.failures += outcome.failures;
        let blocks: Vec<_> = self.cores.garbage.blocks().collect();
        for address in outcome.released {
            let pool_and_node = metrics::find_pool_and_node(&self.cores.pools, &blocks, address);
            *self.counters.reclaimed.entry(pool_and_node).or_default() += 1;
        }
    }

    /// Renames misnamed policies once all nodes look them up by their new names.
    async fn rename_policies(&mut self, settings: &ControllerSettings, now: Duration) {
        self.counters.misnamed_policies = self.cores.policy_names.count();
        if !settings.migrates_policy_names() || !self.cores.policy_names.is_due(now) {
            return;
        }
        match self.executor.find_rename_obstacle().await {
            Ok(None) => {}
            Ok(Some(reason)) => {
                tracing::info!(
                    reason,
                    policies = self.cores.policy_names.count(),
                    "postponing the renaming of policies"
                );
                self.cores.policy_names.postpone(now + ROLLOUT_CHECK_INTERVAL);
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot rename policies: cannot read the DaemonSets of the nodes");
                self.counters.failures += 1;
                self.cores.policy_names.postpone(now + ROLLOUT_CHECK_INTERVAL);
                return;
            }
        }
        for rename in self.cores.policy_names.take_renames(now) {
            if self.executor.rename(rename).await {
                self.counters.renamed_policies += 1;
            } else {
                self.counters.failures += 1;
            }
        }
    }

    /// Lets the guard verify the absences that the claims rely on. Returns the admitted actions.
    async fn admit<A>(
        &mut self,
        scope: &'static str,
        claims: Vec<AbsenceClaim<A>>,
        references: &ReferenceCounts,
        now: Duration,
    ) -> ClaimAdmission<A> {
        let executor = &self.executor;
        let guard = &mut self.cores.guard;
        guard.admit(scope, claims, references, now, async |subject| executor.is_absent(subject).await).await
    }

    /// Runs the reconciliations that depend on objects only, not on time. Returns when to run them again.
    async fn reconcile(&mut self, settings: &ControllerSettings, now: Duration) -> Option<Duration> {
        let mut retries = Vec::new();
        if let Some(node) = settings.node() {
            let origin =
                if self.cores.is_separate { SubjectOrigin::Datastore } else { SubjectOrigin::Kubernetes };
            let config = node.host_endpoint.as_ref();
            let claims = host_endpoints::decide_writes(
                config,
                &self.cores.datastore_nodes,
                &self.cores.host_endpoints,
                origin,
            );
            let references = host_endpoints::count_references(&self.cores.host_endpoints);
            let admission = self.admit("host endpoints", claims, &references, now).await;
            retries.push(admission.retry);
            self.execute_writes(admission.actions).await;
        }
        let claims = self.cores.balancer.decide(settings.balancer().as_ref());
        let references = self.cores.balancer.references();
        let admission = self.admit("services", claims, &references, now).await;
        retries.push(admission.retry);
        for action in admission.actions {
            self.counters.failures += u64::from(!self.executor.execute_balancer_action(action).await);
        }
        if self.cores.is_separate {
            let selection = select_mirrored(settings);
            let claims = self.cores.mirror.writes(selection);
            let references = self.cores.mirror.references(selection);
            let admission = self.admit("mirror", claims, &references, now).await;
            retries.push(admission.retry);
            self.execute_writes(admission.actions).await;
        }
        retries.into_iter().flatten().min()
    }

    /// Executes writes. The next reconciliation returns failed writes again.
    async fn execute_writes(&mut self, writes: Vec<ObjectWrite>) {
        for write in writes {
            self.executor.heartbeat.beat();
            let key = write.key();
            let written = match key {
                // Validated like the write of a user. The deletion of a node also deletes the objects that depend on
                // it.
                StoreKey::Resource { kind: Kind::Node | Kind::HostEndpoint, .. } => {
                    write.execute(&self.executor.resources).await
                }
                // Other objects are copies of Kubernetes objects.
                _ => write.execute_unchanged(self.executor.resources.client()).await,
            };
            if let Err(error) = written {
                tracing::warn!(%error, %key, "cannot write an object; retrying");
                self.counters.failures += 1;
            }
        }
    }

    /// Updates the conditions and finalizers of pools and tiers.
    async fn update_finalizers(&mut self) {
        let now = format!("{:.0}", jiff::Timestamp::now());
        let blocks = self.cores.garbage.blocks().map(|block| (block.cidr, block)).collect();
        let mut policies_per_tier: BTreeMap<&str, usize> = BTreeMap::new();
        self.cores.policies.values().for_each(|tier| *policies_per_tier.entry(tier).or_default() += 1);
        let mut actions = lifecycle::decide_pool_actions(&self.cores.stored_pools, &blocks, &now);
        actions.extend(lifecycle::decide_tier_actions(&self.cores.tiers, &policies_per_tier, &now));
        for action in actions {
            self.counters.failures += u64::from(!self.executor.execute_lifecycle_action(action).await);
        }
    }
}

fn select_mirrored(settings: &ControllerSettings) -> MirrorSelection {
    let controllers = settings.controllers();
    let node_labels =
        controllers.node.as_ref().is_some_and(|node| node.sync_labels != EnabledSwitch::Disabled);
    MirrorSelection {
        namespaces: controllers.namespace.is_some(),
        service_accounts: controllers.service_account.is_some(),
        policies: controllers.policy.is_some(),
        endpoints: controllers.workload_endpoint.is_some(),
        nodes: controllers.node.is_some(),
        node_labels,
    }
}

impl ControllerCores {
    fn apply_event(&mut self, source: EventSource, event: FeedEvent, now: Duration) {
        match event {
            FeedEvent::Put { key, value, .. } => self.put(source, key, value, now),
            FeedEvent::Delete { key, .. } => self.remove(source, &key, now),
            FeedEvent::Unreadable { key, reason, .. } => {
                // Ignore unreadable entries: addresses and objects that they reference must not be garbage-collected.
                tracing::warn!(%key, reason, "ignoring an unreadable entry; its previous value remains in effect");
            }
            FeedEvent::ConnectionLost { reason } => {
                tracing::warn!(reason, ?source, "lost the connection to the store")
            }
            FeedEvent::ConnectionBack { .. } => {
                tracing::info!(?source, "restored the connection to the store")
            }
            FeedEvent::InSync => {}
        }
    }

    fn put(&mut self, source: EventSource, key: StoreKey, value: StoreValue, now: Duration) {
        match (&key, value) {
            (_, StoreValue::Block(block)) => {
                self.balancer.put_block(&block);
                self.garbage.put_block(block, now);
            }
            (StoreKey::BlockAffinity { affinity: AffinityType::Host, owner, cidr }, _) => {
                self.garbage.put_affinity(owner, *cidr, now);
            }
            (StoreKey::Service { namespace, name }, StoreValue::Service(service)) => {
                let name = LoadBalancerServiceName { namespace: namespace.clone(), name: name.clone() };
                self.balancer.put_service(name, *service);
            }
            (_, StoreValue::Resource(resource)) => self.put_resource(source, key, resource, now),
            _ => {}
        }
    }

    fn put_resource(&mut self, source: EventSource, key: StoreKey, resource: Resource, now: Duration) {
        match &resource {
            Resource::ClusterInformation(information) => {
                self.locked = information.spec.datastore_ready == Some(false);
            }
            Resource::Tier(tier) => _ = self.tiers.insert(tier.metadata.name.clone(), (**tier).clone()),
            Resource::IPPool(pool) => {
                let name = &pool.metadata.name;
                self.stored_pools.insert(name.clone(), (**pool).clone());
                let usable = facts::pool(&resource);
                self.balancer.put_pool(name, usable.clone());
                match usable {
                    Some(usable) => self.pools.insert(name.clone(), usable),
                    None => self.pools.remove(name),
                };
            }
            Resource::HostEndpoint(endpoint) => {
                self.host_endpoints.insert(endpoint.metadata.name.clone(), (**endpoint).clone());
            }
            Resource::Node(node) => {
                if source.is_kubernetes() {
                    self.guard.put_node(&node.metadata.name);
                    self.nodes.kubernetes.insert(node.metadata.name.clone());
                }
                if source.is_datastore() {
                    self.datastore_nodes.insert(node.metadata.name.clone(), (**node).clone());
                }
            }
            Resource::WorkloadEndpoint(endpoint) if source.is_kubernetes() => {
                self.pods.put(endpoint);
                self.garbage.scan_soon(now);
            }
            _ => {
                if let Some(tier) = tortie_store::tier_of(&resource) {
                    self.policies.insert(key.clone(), tier.to_owned());
                    if source == EventSource::Both {
                        self.policy_names.put(&key, &resource, now);
                    }
                }
            }
        }
        match source {
            EventSource::Datastore => self.mirror.put_datastore(key, resource),
            EventSource::Kubernetes => self.mirror.put_kubernetes(key, resource),
            EventSource::Both => {}
        }
    }

    fn remove(&mut self, source: EventSource, key: &StoreKey, now: Duration) {
        match key {
            StoreKey::Block { cidr } => {
                self.balancer.remove_block(cidr);
                self.garbage.remove_block(cidr);
            }
            StoreKey::BlockAffinity { affinity: AffinityType::Host, owner, cidr } => {
                self.garbage.remove_affinity(owner, *cidr);
            }
            StoreKey::Service { namespace, name } => {
                let name = LoadBalancerServiceName { namespace: namespace.clone(), name: name.clone() };
                self.balancer.remove_service(&name);
            }
            StoreKey::Resource { kind: Kind::IPPool, name, .. } => {
                self.balancer.put_pool(name, None);
                self.pools.remove(name);
                self.stored_pools.remove(name);
            }
            StoreKey::Resource { kind: Kind::Tier, name, .. } => _ = self.tiers.remove(name),
            StoreKey::Resource { kind: Kind::HostEndpoint, name, .. } => _ = self.host_endpoints.remove(name),
            StoreKey::Resource { kind: Kind::Node, name, .. } => {
                if source.is_kubernetes() {
                    self.guard.remove_node(name, now);
                    self.nodes.kubernetes.remove(name);
                    self.garbage.scan_now();
                }
                if source.is_datastore() {
                    self.datastore_nodes.remove(name);
                }
            }
            StoreKey::Resource { kind: Kind::WorkloadEndpoint, namespace, name }
                if source.is_kubernetes() =>
            {
                if let Some([node, _, pod, _]) = split_workload_endpoint_name(name) {
                    let pod = PodName { namespace: namespace.clone(), name: pod };
                    self.pods.remove(&pod, &node);
                    self.garbage.scan_soon(now);
                }
            }
            _ => {
                self.policies.remove(key);
                self.policy_names.remove(key);
            }
        }
        match source {
            EventSource::Datastore => self.mirror.remove_datastore(key),
            EventSource::Kubernetes => self.mirror.remove_kubernetes(key),
            EventSource::Both => {}
        }
    }
}

/// The feed of the datastore and, if the datastore is not Kubernetes, the feed of Kubernetes.
struct EventFeeds {
    datastore: EventFeed,
    kubernetes: Option<EventFeed>,
}

struct EventFeed {
    source: EventSource,
    feed: Feed,
    in_sync: bool,
}

type SourceEvents = Vec<(EventSource, FeedEvent)>;

impl EventFeeds {
    fn new(context: &ControllerContext) -> EventFeeds {
        let affinities =
            KeyRange::BlockAffinities { affinity: AffinityType::Host, owner: None, ip_version: None };
        let mut datastore_ranges = vec![KeyRange::Blocks { ip_version: None }, affinities];
        datastore_ranges.extend(
            [Kind::IPPool, Kind::HostEndpoint, Kind::ClusterInformation, Kind::Node, Kind::WorkloadEndpoint]
                .map(KeyRange::all),
        );
        let heartbeat = context.state.liveness.part(DATASTORE_WATCH);
        let Some(kubernetes) = &context.kubernetes else {
            datastore_ranges.push(KeyRange::Services);
            datastore_ranges
                .extend(policy_names::TIERED_KINDS.map(|kind| KeyRange::Written { kind, namespace: None }));
            if context.client.stores_v3_as_written() {
                datastore_ranges.push(KeyRange::all(Kind::Tier));
            }
            let datastore =
                EventFeed::follow(EventSource::Both, &context.client, datastore_ranges, heartbeat);
            return EventFeeds { datastore, kubernetes: None };
        };
        datastore_ranges.extend([Kind::Profile, Kind::NetworkPolicy].map(KeyRange::all));
        let mut kubernetes_ranges = vec![KeyRange::Services];
        kubernetes_ranges.extend(
            [Kind::Node, Kind::WorkloadEndpoint, Kind::Profile, Kind::NetworkPolicy].map(KeyRange::all),
        );
        let datastore =
            EventFeed::follow(EventSource::Datastore, &context.client, datastore_ranges, heartbeat);
        let heartbeat = context.state.liveness.part(KUBERNETES_WATCH);
        let kubernetes = EventFeed::follow(EventSource::Kubernetes, kubernetes, kubernetes_ranges, heartbeat);
        EventFeeds { datastore, kubernetes: Some(kubernetes) }
    }

    fn are_in_sync(&self) -> bool {
        self.datastore.in_sync && self.kubernetes.as_ref().is_none_or(|feed| feed.in_sync)
    }

    /// Returns all pending events, or `None` when a feed has ended.
    async fn next(&mut self) -> Option<SourceEvents> {
        let kubernetes = OptionFuture::from(self.kubernetes.as_mut().map(EventFeed::next));
        tokio::select! {
            events = self.datastore.next() => events,
            Some(events) = kubernetes => events,
        }
    }
}

impl EventFeed {
    fn follow(
        source: EventSource,
        client: &StoreClient,
        ranges: Vec<KeyRange>,
        heartbeat: ComponentHeartbeat,
    ) -> EventFeed {
        let feed = tortie_sync::follow(client, ranges, move || heartbeat.beat());
        EventFeed { source, feed, in_sync: false }
    }

    async fn next(&mut self) -> Option<SourceEvents> {
        let mut events = Vec::new();
        self.feed.recv_many(&mut events, MAX_EVENTS_PER_ROUND).await;
        self.in_sync |= events.contains(&FeedEvent::InSync);
        (!events.is_empty()).then(|| events.into_iter().map(|event| (self.source, event)).collect())
    }
}
