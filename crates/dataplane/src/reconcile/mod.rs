//! The decisions of the dataplane: takes the plan and the state of the kernel, and returns operations. Without I/O and
//! without a clock: the time is an argument.
//!
//! Each kind of object has a directory with the same file names: `desired` (the state that the plan requires),
//! `observed` (the state of the kernel), `diff` (the operations that are due), and `apply`, which alone performs them,
//! as part of the task that owns the kernel.

mod arrivals;
mod excluded;
mod failures;
mod fdb;
mod link_gate;
mod links;
mod neighbours;
mod plan_index;
mod proxies;
mod report;
mod routes;
mod rules;
mod shaping;
mod sysctls;
#[cfg(test)]
mod tests;
mod wireguard;

pub use report::WorkloadState;
pub(crate) use routes::{PROTOCOL_BIRD, PROTOCOL_OURS};

use crate::failure::KernelObject;
use crate::kernel::{FdbKey, KernelEvent, KernelSnapshot, NeighbourKey};
use arrivals::MigrationArrivals;
use excluded::ExcludedInterfaces;
use fdb::ObservedForwarding;
use ipnet::IpNet;
use link_gate::LinkGate;
use links::{ObservedLinks, TunnelError};
use neighbours::ObservedNeighbours;
use plan_index::PlanIndex;
use proxies::ObservedProxies;
use regex::Regex;
use routes::{ObservedRoutes, RouteOwnership};
use rules::ObservedRules;
use shaping::ShapingState;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_plan::{
    DataplaneSettings, NodePlan, PlanUpdate, PlannedWorkload, RouteKey, RoutingRule, TunnelKind,
};
use wireguard::WireguardDevice;

pub(crate) struct DataplaneCore {
    settings: DataplaneSettings,
    excluded: ExcludedInterfaces,
    mtu_pattern: Regex,
    /// The `rp_filter` value for workload interfaces.
    rp_filter: i32,
    in_sync: bool,
    plan: PlanIndex,
    links: ObservedLinks,
    routes: ObservedRoutes,
    kernel_neighbours: ObservedNeighbours,
    forwarding: ObservedForwarding,
    rules: ObservedRules,
    proxies: ObservedProxies,
    shaping: ShapingState,
    wireguards: BTreeMap<TunnelKind, WireguardDevice>,
    /// Route lookups for nodes that are not on a connected subnet.
    lookups: BTreeMap<IpAddr, Result<(IpAddr, u32), String>>,
    lookups_stale: bool,
    first_seen: BTreeMap<u32, Duration>,
    /// Workload interfaces that have had routes from us: the grace period no longer applies.
    settled: BTreeSet<u32>,
    /// Interfaces that have all settings whose values the kernel does not report.
    prepared: BTreeSet<u32>,
    /// Settings that could not be applied to interfaces.
    conf_errors: BTreeMap<u32, (KernelObject, String)>,
    /// Neighbour entries that we have written.
    neighbours: BTreeSet<NeighbourKey>,
    /// Neighbour entries that the kernel rejected.
    neighbour_errors: BTreeMap<NeighbourKey, String>,
    /// Forwarding entries that the kernel rejected.
    forwarding_errors: BTreeMap<FdbKey, String>,
    /// Routing rules that the kernel rejected.
    rule_errors: BTreeMap<RoutingRule, String>,
    /// Former names of our devices.
    former_names: BTreeSet<(TunnelKind, String)>,
    /// Addresses of the host on links of workloads for BGP sessions.
    peering: BTreeSet<(u32, IpNet)>,
    /// Times at which addresses without BGP sessions are removed.
    peering_ends: BTreeMap<(u32, IpNet), Duration>,
    peering_errors: BTreeMap<(u32, IpNet), String>,
    /// Tunnel devices that could not be created or changed.
    tunnel_errors: BTreeMap<TunnelKind, TunnelError>,
    dirty: BTreeSet<RouteKey>,
    /// Interfaces whose settings and neighbours have to be checked.
    unchecked: BTreeSet<u32>,
    /// Interfaces whose forwarding entries have to be checked.
    unchecked_forwarding: BTreeSet<u32>,
    /// Destinations to check again at the next tick.
    later: BTreeSet<RouteKey>,
    failures: BTreeMap<RouteKey, String>,
    /// The keys in `failures` that are addresses of workloads.
    workload_failures: BTreeSet<RouteKey>,
    /// Addresses that no longer belong to their workload.
    departed: BTreeSet<IpAddr>,
    arrivals: MigrationArrivals,
    gate: LinkGate,
}

impl DataplaneCore {
    pub fn new(
        settings: DataplaneSettings,
        mtu_pattern: Regex,
        rp_filter: i32,
        snapshot: KernelSnapshot,
        now: Duration,
    ) -> DataplaneCore {
        let mut core = DataplaneCore {
            excluded: ExcludedInterfaces::new(&settings.excluded_interfaces),
            settings,
            mtu_pattern,
            rp_filter,
            in_sync: false,
            plan: PlanIndex::default(),
            links: ObservedLinks::default(),
            routes: ObservedRoutes::default(),
            kernel_neighbours: ObservedNeighbours::default(),
            forwarding: ObservedForwarding::default(),
            rules: ObservedRules::default(),
            proxies: ObservedProxies::default(),
            shaping: ShapingState::default(),
            wireguards: BTreeMap::new(),
            lookups: BTreeMap::new(),
            lookups_stale: true,
            first_seen: BTreeMap::new(),
            settled: BTreeSet::new(),
            prepared: BTreeSet::new(),
            conf_errors: BTreeMap::new(),
            neighbours: BTreeSet::new(),
            neighbour_errors: BTreeMap::new(),
            forwarding_errors: BTreeMap::new(),
            rule_errors: BTreeMap::new(),
            former_names: BTreeSet::new(),
            peering: BTreeSet::new(),
            peering_ends: BTreeMap::new(),
            peering_errors: BTreeMap::new(),
            tunnel_errors: BTreeMap::new(),
            dirty: BTreeSet::new(),
            unchecked: BTreeSet::new(),
            unchecked_forwarding: BTreeSet::new(),
            later: BTreeSet::new(),
            failures: BTreeMap::new(),
            workload_failures: BTreeSet::new(),
            departed: BTreeSet::new(),
            arrivals: MigrationArrivals::default(),
            gate: LinkGate::default(),
        };
        core.resync(snapshot, now);
        core
    }

    /// Applies new settings; kernel state that already conforms stays as it is.
    pub fn configure(&mut self, settings: DataplaneSettings, mtu_pattern: Regex) {
        self.excluded = ExcludedInterfaces::new(&settings.excluded_interfaces);
        self.settings = settings;
        self.mtu_pattern = mtu_pattern;
        self.everything_dirty();
        self.lookups_stale = true;
    }

    /// Replaces the plan. From the first plan on, our objects that are not in it are removed.
    pub fn replace(&mut self, plan: NodePlan) {
        self.dirty.extend(self.plan.destinations());
        let old = std::mem::replace(&mut self.plan, PlanIndex::new(plan));
        for (id, workload) in old.workloads() {
            self.departed.extend(departed(workload, self.plan.workloads().get(id)));
        }
        self.arrivals.replace(self.plan.workloads());
        for (kind, device) in old.tunnels() {
            self.note_name(*kind, &device.name);
        }
        self.in_sync = true;
        self.tunnel_errors.clear();
        self.everything_dirty();
        self.lookups_stale = true;
    }

    pub fn apply(&mut self, update: PlanUpdate) {
        let unknown = |node: &IpAddr| !self.lookups.contains_key(node);
        self.lookups_stale |= match &update {
            PlanUpdate::Route(_, Some(route)) => route.node().is_some_and(|node| unknown(&node)),
            PlanUpdate::Learnt(_, Some(learnt)) => {
                learnt.next_hops.iter().filter(|hop| hop.tunnel.is_none()).any(|hop| unknown(&hop.address))
            }
            _ => false,
        };
        if update == PlanUpdate::LearntComplete {
            self.dirty.extend(self.routes.destinations());
        }
        if let PlanUpdate::Workload(id, new) = &update {
            let old = self.plan.workloads().get(id);
            if let Some(old) = old {
                self.departed.extend(departed(old, new.as_ref()));
            }
            if old.into_iter().chain(new).any(shaping::is_shaped) {
                self.shaping.dirty = true;
            }
            self.arrivals.note(id, new.as_ref());
            let links = old.into_iter().chain(new).filter_map(|w| self.links.named(&w.interface));
            self.unchecked.extend(links.map(|link| link.index));
        }
        match &update {
            PlanUpdate::Tunnel(kind, _) => {
                if let Some(name) = self.plan.tunnel(*kind).map(|device| device.name.clone()) {
                    self.note_name(*kind, &name);
                }
                self.tunnel_errors.remove(kind);
                self.tunnel_unchecked(*kind);
            }
            PlanUpdate::Vtep(id, _) => self.tunnel_unchecked(id.tunnel),
            _ => {}
        }
        let touched = self.plan.apply(update);
        self.dirty.extend(touched);
    }

    /// Schedules a check of the tunnel's neighbours and forwarding entries.
    fn tunnel_unchecked(&mut self, kind: TunnelKind) {
        if let Some(link) = self.links.named(self.device_name(kind)) {
            self.unchecked.insert(link.index);
            self.unchecked_forwarding.insert(link.index);
        }
    }

    fn everything_dirty(&mut self) {
        self.dirty.extend(self.plan.destinations());
        self.dirty.extend(self.routes.destinations());
        self.interfaces_unchecked();
    }

    fn interfaces_unchecked(&mut self) {
        self.unchecked.extend(self.links.iter().map(|link| link.index));
        self.unchecked.extend(self.neighbours.iter().map(|key| key.device));
        self.unchecked_forwarding.extend(self.links.iter().map(|link| link.index));
        self.shaping_changed();
    }

    /// Replaces the known kernel state with a new snapshot.
    pub fn resync(&mut self, snapshot: KernelSnapshot, now: Duration) {
        self.links = ObservedLinks::new(snapshot.links, snapshot.addresses);
        self.routes.replace(snapshot.routes);
        self.kernel_neighbours = ObservedNeighbours::new(snapshot.neighbours);
        self.forwarding = ObservedForwarding::new(snapshot.fdb);
        self.rules_are(snapshot.rules);
        self.proxies_are(snapshot.proxies);
        self.qdiscs_are(snapshot.qdiscs);
        self.wireguards_unread();
        let present: BTreeSet<u32> = self.links.iter().map(|link| link.index).collect();
        self.first_seen.retain(|index, _| present.contains(index));
        self.settled.retain(|index| present.contains(index));
        self.conf_errors.retain(|index, _| present.contains(index));
        for index in present {
            self.first_seen.entry(index).or_insert(now);
        }
        // This also rewrites the settings that cannot be read back.
        self.prepared.clear();
        self.proxies.prepared.clear();
        self.everything_dirty();
        self.lookups_stale = true;
    }

    /// Processes an event, except for link events, which require a read first. Returns whether the routes have to be
    /// read again.
    pub fn event(&mut self, event: KernelEvent) -> bool {
        match event {
            KernelEvent::Address { device, net, present } => {
                self.links.set_address(device, net, present);
                if self.links.get(device).is_none_or(|link| !self.is_workload(&link.name)) {
                    self.lookups_stale = true;
                    self.next_hops_dirty();
                }
                // An interface that loses its last IPv4 address also loses its IPv4 routes, without notification.
                !present && net.addr().is_ipv4()
            }
            KernelEvent::Route { entry, present } => {
                if self.ownership(&entry, Duration::MAX) != RouteOwnership::Ours {
                    self.lookups_stale = true;
                }
                self.dirty.insert(entry.key);
                if present {
                    self.routes.set(entry)
                } else {
                    self.routes.remove(&entry)
                }
                false
            }
            KernelEvent::Neighbour { key, mac } => {
                self.unchecked.insert(key.device);
                self.kernel_neighbours.set(key, mac);
                false
            }
            KernelEvent::ForwardingEntry { key, node, present } => {
                self.unchecked_forwarding.insert(key.device);
                self.forwarding.set(key, node, present);
                false
            }
            KernelEvent::Link { .. }
            | KernelEvent::RoutingRules
            | KernelEvent::TrafficControl
            | KernelEvent::GlobalSettings
            | KernelEvent::Overrun => false,
        }
    }

    /// Schedules the periodic checks and retries.
    pub fn tick(&mut self) {
        self.interfaces_unchecked();
        self.tunnel_errors.values_mut().for_each(|error| error.retry = true);
        self.dirty.append(&mut self.later);
        self.dirty.extend(self.failures.keys());
        self.lookups_stale |= self.lookups.values().any(Result::is_err);
    }
}

/// Returns the addresses that a workload no longer has on its interface.
fn departed(old: &PlannedWorkload, new: Option<&PlannedWorkload>) -> Vec<IpAddr> {
    let same = new.filter(|new| new.interface == old.interface);
    let kept = |address: &IpAddr| same.is_some_and(|new| new.routed().any(|other| other == *address));
    old.routed().filter(|address| !kept(address)).collect()
}
