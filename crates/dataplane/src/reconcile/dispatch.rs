//! Passes each change of the plan and of the kernel to all reconcilers.

use super::arrivals::MigrationArrivals;
use super::excluded::ExcludedInterfaces;
use super::fdb::FdbReconciler;
use super::link_gate::LinkGate;
use super::links::{LinkReconciler, ObservedLinks, PeeringReconciler};
use super::neighbours::NeighbourReconciler;
use super::plan_index::PlanIndex;
use super::proxies::ProxyReconciler;
use super::routes::RouteReconciler;
use super::rules::RuleReconciler;
use super::shaping::ShapingReconciler;
use super::sysctls::SysctlReconciler;
use super::wireguard::WireguardReconciler;
use super::{KernelObservation, LinkChange, ReconcileContext, Reconciler};
use crate::failure::KernelFailure;
use crate::kernel::{KernelEvent, KernelLink, KernelRoute, KernelSnapshot, RouteLookupError};
use regex::Regex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::{DataplaneSettings, NodePlan, PlanUpdate, WorkloadId};

pub struct DataplaneCore {
    pub context: ReconcileContext,
    pub reconcilers: Reconcilers,
    pub(super) excluded: ExcludedInterfaces,
    pub(super) mtu_pattern: Regex,
    arrivals: MigrationArrivals,
    gate: LinkGate,
}

#[derive(Default)]
pub struct Reconcilers {
    pub sysctls: SysctlReconciler,
    pub links: LinkReconciler,
    pub peering: PeeringReconciler,
    pub shaping: ShapingReconciler,
    pub fdb: FdbReconciler,
    pub neighbours: NeighbourReconciler,
    pub wireguard: WireguardReconciler,
    pub rules: RuleReconciler,
    pub routes: RouteReconciler,
    pub proxies: ProxyReconciler,
}

impl Reconcilers {
    fn each(&mut self) -> [&mut dyn Reconciler; 10] {
        [
            &mut self.sysctls,
            &mut self.links,
            &mut self.peering,
            &mut self.shaping,
            &mut self.fdb,
            &mut self.neighbours,
            &mut self.wireguard,
            &mut self.rules,
            &mut self.routes,
            &mut self.proxies,
        ]
    }
}

impl DataplaneCore {
    /// `rp_filter` is the value of this sysctl for workload interfaces.
    pub fn new(
        settings: DataplaneSettings,
        mtu_pattern: Regex,
        rp_filter: i32,
        snapshot: KernelSnapshot,
    ) -> DataplaneCore {
        let mut core = DataplaneCore {
            excluded: ExcludedInterfaces::new(&settings.excluded_interfaces),
            context: ReconcileContext { settings, ..ReconcileContext::default() },
            reconcilers: Reconcilers { sysctls: SysctlReconciler::new(rp_filter), ..Reconcilers::default() },
            mtu_pattern,
            arrivals: MigrationArrivals::default(),
            gate: LinkGate::default(),
        };
        core.resync(snapshot);
        core
    }

    /// Sets the current time. Call it before changes that depend on the time, and before operations are requested.
    pub fn set_time(&mut self, now: Duration) {
        self.context.now = now;
    }

    /// Applies new settings; kernel state that already conforms stays as it is.
    pub fn configure(&mut self, settings: DataplaneSettings, mtu_pattern: Regex) {
        self.excluded = ExcludedInterfaces::new(&settings.excluded_interfaces);
        self.context.settings = settings;
        self.mtu_pattern = mtu_pattern;
        self.check_all();
    }

    /// Replaces the plan. From the first plan on, our objects that are not in it are removed.
    pub fn replace(&mut self, plan: NodePlan) {
        let old = std::mem::replace(&mut self.context.plan, PlanIndex::new(plan));
        self.context.in_sync = true;
        self.arrivals.replace(self.context.plan.workloads());
        self.reconcilers.links.plan_replaced(&old);
        self.reconcilers.routes.plan_replaced(&old, &self.context);
        self.check_all();
    }

    pub fn apply(&mut self, update: PlanUpdate) {
        if let PlanUpdate::Workload(id, workload) = &update {
            self.arrivals.update(id, workload.as_ref());
        }
        for reconciler in self.reconcilers.each() {
            reconciler.plan_changes(&update, &self.context);
        }
        let destinations = self.context.plan.apply(update);
        self.reconcilers.routes.check(destinations);
    }

    /// Replaces the known kernel state with a new snapshot.
    pub fn resync(&mut self, mut snapshot: KernelSnapshot) {
        let links = std::mem::take(&mut snapshot.links);
        let addresses = std::mem::take(&mut snapshot.addresses);
        self.context.links = ObservedLinks::new(links, addresses);
        for reconciler in self.reconcilers.each() {
            reconciler.resync(&mut snapshot, &self.context);
        }
        self.check_all();
    }

    /// Replaces the known routes.
    pub fn resync_routes(&mut self, routes: Vec<KernelRoute>) {
        self.reconcilers.routes.replace_observed(routes);
        self.check_all();
    }

    fn check_all(&mut self) {
        for reconciler in self.reconcilers.each() {
            reconciler.check_all(&self.context);
        }
    }

    /// Schedules the periodic checks and retries.
    pub fn tick(&mut self) {
        for reconciler in self.reconcilers.each() {
            reconciler.tick(&self.context);
        }
    }

    /// Processes an event. After a link event the caller reads the link and calls `set_link`.
    pub fn handle_event(&mut self, event: KernelEvent) {
        let Reconcilers { fdb, neighbours, rules, routes, proxies, shaping, .. } = &mut self.reconcilers;
        match event {
            KernelEvent::Address { device, net, present } => {
                self.context.links.set_address(device, net, present);
                routes.address_changed(device, net, present, &self.context);
            }
            KernelEvent::Route { entry, present } => routes.route_changed(entry, present, &self.context),
            KernelEvent::Neighbour { key, mac } => neighbours.observe(key, mac),
            KernelEvent::ForwardingEntry { key, node, present } => fdb.observe(key, node, present),
            KernelEvent::RoutingRules => rules.invalidate(),
            KernelEvent::TrafficControl => shaping.invalidate(),
            KernelEvent::Link { index, down: true } => {
                proxies.invalidate_if_used(&self.context);
                routes.link_was_down(index, &self.context);
            }
            KernelEvent::Link { .. } | KernelEvent::GlobalSettings | KernelEvent::Overrun => {}
        }
    }

    /// Processes state that was read from the kernel.
    pub fn observe(&mut self, observation: KernelObservation) {
        match observation {
            KernelObservation::Link { index, link } => self.set_link(index, link),
            KernelObservation::Address { device, net, present } => {
                self.handle_event(KernelEvent::Address { device, net, present });
            }
            KernelObservation::Qdiscs(qdiscs) => self.reconcilers.shaping.replace_observed(qdiscs),
            KernelObservation::Wireguard { tunnel, state } => {
                self.reconcilers.wireguard.observe(tunnel, state);
            }
            KernelObservation::WireguardKey { tunnel, key } => {
                self.reconcilers.wireguard.set_key(tunnel, key);
            }
        }
    }

    /// Updates an interface; `None` if it no longer exists.
    pub fn set_link(&mut self, index: u32, link: Option<KernelLink>) {
        if self.context.links.get(index) == link.as_ref() {
            return;
        }
        let old = self.context.links.replace(index, link);
        let change = LinkChange { index, old: old.as_ref(), new: self.context.links.get(index) };
        for reconciler in self.reconcilers.each() {
            reconciler.link_changed(&change, &self.context);
        }
    }

    /// Removes the workloads on links of the host from a new plan.
    pub fn withhold(&mut self, plan: &mut NodePlan) {
        self.gate.withhold(plan, &self.context, &self.reconcilers.routes);
    }

    /// Returns the updates to apply: for a workload on a link of the host, updates that remove its previous state.
    pub fn sift(&mut self, update: PlanUpdate) -> Vec<PlanUpdate> {
        self.gate.sift(update, &self.context, &self.reconcilers.routes)
    }

    /// Checks again which workloads are on links of the host, and returns the resulting updates.
    pub fn review_links(&mut self) -> Vec<PlanUpdate> {
        self.gate.review(&self.context, &self.reconcilers.routes)
    }

    /// Returns a failure for each workload that is kept off its link.
    pub fn withheld(&self) -> impl Iterator<Item = KernelFailure> {
        self.gate.failures()
    }

    /// Returns the indexes of the interfaces on which the announcement of a virtual machine is still expected.
    pub fn expected_arrivals(&self) -> BTreeSet<u32> {
        self.arrivals.expected_interfaces(&self.context)
    }

    /// Records the announcement of a virtual machine on an interface.
    pub fn announced_on(&mut self, index: u32) {
        self.arrivals.announced_on(index, &self.context);
    }

    pub fn announced(&self) -> &BTreeSet<WorkloadId> {
        self.arrivals.announced()
    }

    /// Returns the nodes for which the kernel's route has to be looked up, and resets the request for it.
    pub fn take_lookups(&mut self) -> Vec<IpAddr> {
        self.reconcilers.routes.take_lookups(&self.context)
    }

    /// Stores the kernel's next hop towards a node.
    pub fn set_next_hop(&mut self, node: IpAddr, result: Result<(IpAddr, u32), RouteLookupError>) {
        self.reconcilers.routes.set_next_hop(node, result, &self.context);
    }

    /// Returns the proxied addresses that are answered, with the names of their interfaces.
    pub fn answered_addresses(&self) -> Vec<(String, IpAddr)> {
        let keys = self.reconcilers.proxies.answered(&self.context).into_iter();
        keys.map(|key| (self.context.interface_name(key.device), key.address)).collect()
    }

    /// Returns the failures of the plan's tunnels, including those of earlier attempts.
    pub fn tunnel_failures(&self) -> Vec<KernelFailure> {
        let Reconcilers { links, wireguard, fdb, rules, peering, .. } = &self.reconcilers;
        let kinds: [&dyn Reconciler; 5] = [links, wireguard, fdb, rules, peering];
        kinds.iter().flat_map(|kind| kind.failures(&self.context)).collect()
    }

    /// Returns all failures that concern workloads of the plan, including those of earlier attempts.
    pub fn workload_failures(&self) -> Vec<KernelFailure> {
        let Reconcilers { routes, neighbours, sysctls, shaping, .. } = &self.reconcilers;
        let kinds: [&dyn Reconciler; 4] = [routes, neighbours, sysctls, shaping];
        let failures = kinds.iter().flat_map(|kind| kind.failures(&self.context));
        failures.chain(self.withheld()).collect()
    }
}
