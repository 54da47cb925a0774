//! The thinking of the dataplane: plan and kernel in, operations out. No I/O, no clock: the time is an argument.

mod conf;
mod diff;
mod failures;
mod index;
mod mirror;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use diff::Operation;
pub use view::WorkloadState;

use crate::failure::KernelObject;
use crate::kernel::{Entry, Event, Link, NeighbourKey, Snapshot, Target};
use crate::sysctl::Setting;
use diff::Ownership;
use index::Index;
use ipnet::IpNet;
use mirror::Mirror;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use tortie_plan::{Plan, Route, Settings, Update, Workload};

/// How long a route on a new workload interface may wait for someone to tell us about the workload.
const GRACE: Duration = Duration::from_secs(10);
const PROTOCOL_BOOT: u8 = 3;
const PROTOCOL_BIRD: u8 = 12;
const PROTOCOL_OURS: u8 = 80;

/// Routes to change, found by [`Core::route_work`].
#[derive(Debug, Default)]
pub(crate) struct RouteWork {
    pub operations: Vec<Operation>,
    /// What cannot be done now, and why.
    pub failures: Vec<(IpNet, String)>,
}

pub(crate) struct Core {
    settings: Settings,
    mtu_pattern: Regex,
    /// What `rp_filter` workload interfaces get.
    rp_filter: i32,
    in_sync: bool,
    plan: Index,
    mirror: Mirror,
    /// How the kernel reaches nodes that are on no subnet of ours.
    lookups: BTreeMap<IpAddr, Result<(IpAddr, u32), String>>,
    lookups_stale: bool,
    first_seen: BTreeMap<u32, Duration>,
    /// Workload interfaces that have had routes of ours: no more grace.
    settled: BTreeSet<u32>,
    /// Interfaces that have all settings of which the kernel does not tell the value.
    prepared: BTreeSet<u32>,
    /// Settings that interfaces do not have although they should.
    conf_errors: BTreeMap<u32, (KernelObject, String)>,
    /// Neighbour entries that we made.
    neighbours: BTreeSet<NeighbourKey>,
    /// Neighbour entries that the kernel refused.
    neighbour_errors: BTreeMap<NeighbourKey, String>,
    dirty: BTreeSet<IpNet>,
    /// Interfaces whose settings and neighbours are to be looked at.
    unchecked: BTreeSet<u32>,
    /// To be looked at again when some time has passed.
    later: BTreeSet<IpNet>,
    failures: BTreeMap<IpNet, String>,
    /// Those among them that are addresses of workloads.
    workload_failures: BTreeSet<IpNet>,
    /// Addresses that a workload had and has no more.
    departed: BTreeSet<IpAddr>,
}

impl Core {
    pub fn new(
        settings: Settings,
        mtu_pattern: Regex,
        rp_filter: i32,
        snapshot: Snapshot,
        now: Duration,
    ) -> Core {
        let mut core = Core {
            settings,
            mtu_pattern,
            rp_filter,
            in_sync: false,
            plan: Index::default(),
            mirror: Mirror::default(),
            lookups: BTreeMap::new(),
            lookups_stale: true,
            first_seen: BTreeMap::new(),
            settled: BTreeSet::new(),
            prepared: BTreeSet::new(),
            conf_errors: BTreeMap::new(),
            neighbours: BTreeSet::new(),
            neighbour_errors: BTreeMap::new(),
            dirty: BTreeSet::new(),
            unchecked: BTreeSet::new(),
            later: BTreeSet::new(),
            failures: BTreeMap::new(),
            workload_failures: BTreeSet::new(),
            departed: BTreeSet::new(),
        };
        core.resync(snapshot, now);
        core
    }

    /// Other settings: what is as they say already stays as it is.
    pub fn configure(&mut self, settings: Settings, mtu_pattern: Regex) {
        self.settings = settings;
        self.mtu_pattern = mtu_pattern;
        self.everything_dirty();
        self.lookups_stale = true;
    }

    /// A new whole plan. From the first one on, what is ours and unwanted goes.
    pub fn replace(&mut self, plan: Plan) {
        self.dirty.extend(self.plan.destinations());
        let old = std::mem::replace(&mut self.plan, Index::new(plan));
        for (id, workload) in old.workloads() {
            self.departed.extend(departed(workload, self.plan.workloads().get(id)));
        }
        self.in_sync = true;
        self.everything_dirty();
        self.lookups_stale = true;
    }

    pub fn apply(&mut self, update: Update) {
        let next_hops = match &update {
            Update::Route(_, Some(Route::Via(node))) => std::slice::from_ref(node),
            Update::Learnt(_, Some(learnt)) => learnt.next_hops.as_slice(),
            _ => &[],
        };
        self.lookups_stale |= next_hops.iter().any(|node| !self.lookups.contains_key(node));
        if update == Update::LearntComplete {
            self.dirty.extend(self.mirror.destinations());
        }
        if let Update::Workload(id, new) = &update {
            let old = self.plan.workloads().get(id);
            if let Some(old) = old {
                self.departed.extend(departed(old, new.as_ref()));
            }
            let links = old.into_iter().chain(new).filter_map(|w| self.mirror.named(&w.interface));
            self.unchecked.extend(links.map(|link| link.index));
        }
        let touched = self.plan.apply(update);
        self.dirty.extend(touched);
    }

    fn everything_dirty(&mut self) {
        self.dirty.extend(self.plan.destinations());
        self.dirty.extend(self.mirror.destinations());
        self.interfaces_unchecked();
    }

    fn interfaces_unchecked(&mut self) {
        self.unchecked.extend(self.mirror.links().map(|link| link.index));
        self.unchecked.extend(self.neighbours.iter().map(|key| key.device));
    }

    /// Takes a fresh look at the kernel in.
    pub fn resync(&mut self, snapshot: Snapshot, now: Duration) {
        self.mirror = Mirror::new(snapshot);
        let present: BTreeSet<u32> = self.mirror.links().map(|link| link.index).collect();
        self.first_seen.retain(|index, _| present.contains(index));
        self.settled.retain(|index| present.contains(index));
        self.conf_errors.retain(|index, _| present.contains(index));
        for index in present {
            self.first_seen.entry(index).or_insert(now);
        }
        // Also rewrites the settings that cannot be read back.
        self.prepared.clear();
        self.everything_dirty();
        self.lookups_stale = true;
    }

    /// Takes a fresh list of routes in.
    pub fn resync_routes(&mut self, routes: Vec<Entry>) {
        self.dirty.extend(self.mirror.destinations());
        self.mirror.set_routes(routes);
        self.everything_dirty();
        self.lookups_stale = true;
    }

    /// Takes in an event other than a link's, which has to be looked at first. Says whether the list of routes has to
    /// be read again.
    pub fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Address { device, net, present } => {
                self.mirror.set_address(device, net, present);
                if self.mirror.link(device).is_none_or(|link| !self.is_workload(&link.name)) {
                    self.lookups_stale = true;
                    self.next_hops_dirty();
                }
                // With its last IPv4 address an interface loses its IPv4 routes, without a word.
                !present && net.addr().is_ipv4()
            }
            Event::Route { entry, present } => {
                if self.ownership(&entry, Duration::MAX) != Ownership::Ours {
                    self.lookups_stale = true;
                }
                self.dirty.insert(entry.destination);
                if present {
                    self.mirror.set_route(entry)
                } else {
                    self.mirror.remove_route(&entry)
                }
                false
            }
            Event::Neighbour { key, mac } => {
                self.unchecked.insert(key.device);
                self.mirror.set_neighbour(key, mac);
                false
            }
            Event::Link { .. } | Event::GlobalSettings | Event::Overrun => false,
        }
    }

    /// An interface was set down, whatever it is by now.
    pub fn link_was_down(&mut self, index: u32) {
        let touched = self.mirror.drop_ipv4_routes(index);
        self.dirty.extend(touched);
    }

    pub fn link_is(&mut self, index: u32, link: Option<Link>, now: Duration) {
        let old = self.mirror.link(index).cloned();
        if old == link {
            return;
        }
        self.unchecked.insert(index);
        let known = |link: &Option<Link>| link.as_ref().map(|link| (link.name.clone(), link.is_up()));
        let same = known(&old) == known(&link);
        match link {
            Some(link) => {
                self.first_seen.entry(index).or_insert(now);
                self.mirror.set_link(link);
            }
            None => {
                let touched = self.mirror.remove_link(index);
                self.dirty.extend(touched);
                self.first_seen.remove(&index);
                self.settled.remove(&index);
                self.conf_errors.remove(&index);
            }
        }
        if same {
            return;
        }
        self.prepared.remove(&index);
        for name in [old.map(|old| old.name), self.mirror.link(index).map(|link| link.name.clone())] {
            let workload = name.as_deref().and_then(|name| self.plan.active(name));
            if let Some((_, workload)) = workload {
                self.dirty.extend(workload.addresses.iter().map(|address| IpNet::from(*address)));
            } else {
                self.lookups_stale = true;
            }
        }
        if self.lookups_stale {
            self.next_hops_dirty();
        }
    }

    fn next_hops_dirty(&mut self) {
        let destinations = self.plan.nodes().flat_map(|node| self.plan.destinations_by(node));
        self.dirty.extend(destinations);
    }

    /// Whether an interface leads to a workload: one of the plan has it, or its name is one that only they have.
    fn is_workload(&self, interface: &str) -> bool {
        self.settings.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
            || self.plan.active(interface).is_some()
    }

    /// The protocol that only we use.
    fn own_protocol(&self) -> u8 {
        match self.settings.device_route_protocol {
            PROTOCOL_BOOT => PROTOCOL_OURS,
            configured => configured,
        }
    }

    fn ownership(&self, entry: &Entry, now: Duration) -> Ownership {
        const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
        if entry.destination.network() == IpAddr::V6(LINK_LOCAL) {
            return Ownership::Foreign;
        }
        let of_bgp = entry.protocol == PROTOCOL_BIRD && self.plan.is_learnt_complete();
        if entry.protocol == self.own_protocol() || of_bgp {
            return Ownership::Ours;
        }
        let link = entry.target.device().and_then(|device| self.mirror.link(device));
        let Some(link) = link.filter(|link| self.is_workload(&link.name)) else {
            // BIRD leaves its routes behind when it stops, and we ours when our protocol number is changed.
            let predecessor = [PROTOCOL_BIRD, PROTOCOL_OURS].contains(&entry.protocol);
            return if predecessor { Ownership::Predecessor } else { Ownership::Foreign };
        };
        let known = [self.settings.device_route_protocol, PROTOCOL_BOOT, PROTOCOL_OURS];
        if !self.settings.remove_external_routes && !known.contains(&entry.protocol) {
            return Ownership::Foreign;
        }
        let age = now.saturating_sub(self.first_seen.get(&link.index).copied().unwrap_or(now));
        if age >= GRACE || self.settled.contains(&link.index) { Ownership::Ours } else { Ownership::InGrace }
    }

    /// What must be at a destination; an error says why nothing can be there now although something should.
    fn wanted(&self, destination: &IpNet) -> Result<Option<Entry>, String> {
        let single = destination.prefix_len() == destination.max_prefix_len();
        if destination.addr().is_ipv6() && !self.settings.ipv6 {
            return Ok(None);
        }
        if single && let Some(link) = self.workload_link(destination.addr()) {
            let metric = match destination {
                IpNet::V4(_) => self.settings.ipv4_route_priority,
                IpNet::V6(_) => self.settings.ipv6_route_priority,
            };
            let protocol = self.settings.device_route_protocol;
            return Ok(Some(Entry::new(*destination, metric, protocol, Target::Device(link.index))));
        }
        let target = match self.plan.route(destination) {
            None => return self.wanted_of_bgp(destination),
            Some(Route::Blackhole) => Target::Blackhole,
            Some(Route::Via(node)) => self.next_hop(node)?,
        };
        Ok(Some(Entry::new(*destination, 0, self.own_protocol(), target)))
    }

    /// Next hops that cannot be reached are left out as long as there are others.
    fn wanted_of_bgp(&self, destination: &IpNet) -> Result<Option<Entry>, String> {
        let Some(learnt) = self.plan.learnt(destination) else { return Ok(None) };
        let (mut hops, mut failure) = (Vec::new(), None);
        for hop in &learnt.next_hops {
            match self.next_hop(*hop) {
                Ok(Target::Gateway { via, device }) => hops.push((via, device)),
                Ok(_) => {}
                Err(reason) => failure = Some(reason),
            }
        }
        let target = match (Target::gateways(hops), failure) {
            (Some(target), _) => target,
            (None, Some(failure)) => return Err(failure),
            (None, None) => Target::Blackhole,
        };
        Ok(Some(Entry::new(*destination, learnt.metric, PROTOCOL_BIRD, target)))
    }

    /// The interface behind which an address lives; the youngest when several workloads claim it.
    fn workload_link(&self, address: IpAddr) -> Option<&Link> {
        let links = self.plan.at_address(address).filter_map(|w| self.mirror.named(&w.interface));
        links.filter(|link| link.is_up()).max_by_key(|link| link.index)
    }

    fn next_hop(&self, node: IpAddr) -> Result<Target, String> {
        if let Some(link) = self.mirror.connected(node).filter(|link| !self.is_workload(&link.name)) {
            return Ok(Target::Gateway { via: node, device: link.index });
        }
        match self.lookups.get(&node) {
            Some(Ok((via, device))) => Ok(Target::Gateway { via: *via, device: *device }),
            Some(Err(reason)) => Err(format!("node {node} cannot be reached: {reason}")),
            None => Err(format!("node {node} has not been looked up yet")),
        }
    }

    /// The nodes for which the kernel must be asked; empties the list.
    pub fn take_lookups(&mut self) -> Vec<IpAddr> {
        if !std::mem::take(&mut self.lookups_stale) {
            return Vec::new();
        }
        let nodes: Vec<IpAddr> =
            self.plan.nodes().filter(|node| self.mirror.connected(*node).is_none()).collect();
        self.lookups.retain(|node, _| nodes.contains(node));
        nodes
    }

    pub fn looked_up(&mut self, node: IpAddr, answer: Result<(IpAddr, u32), String>) {
        if self.lookups.get(&node) != Some(&answer) {
            self.lookups.insert(node, answer);
            let destinations: Vec<IpNet> = self.plan.destinations_by(node).collect();
            self.dirty.extend(destinations);
        }
    }

    /// Some time has passed: what had to wait is looked at again.
    pub fn tick(&mut self) {
        self.interfaces_unchecked();
        self.dirty.append(&mut self.later);
        self.dirty.extend(self.failures.keys());
        self.lookups_stale |= self.lookups.values().any(Result::is_err);
    }

    /// The route changes that are due.
    pub fn route_work(&mut self, now: Duration) -> RouteWork {
        let mut work = RouteWork::default();
        for destination in std::mem::take(&mut self.dirty) {
            self.succeeded(&destination);
            let wanted = self.wanted(&destination).unwrap_or_else(|reason| {
                work.failures.push((destination, reason));
                None
            });
            if let Some(Target::Device(device)) = wanted.as_ref().map(|entry| &entry.target) {
                self.settled.insert(*device);
            }
            // A route that cannot be had now is no reason to take away the one that is there.
            let unknown = work.failures.last().is_some_and(|(failed, _)| *failed == destination);
            let change = diff::difference(
                wanted.as_ref(),
                self.mirror.routes(&destination),
                self.in_sync && !unknown,
                |entry| self.ownership(entry, now),
            );
            work.operations.extend(change.operations);
            if change.later {
                self.later.insert(destination);
            }
            if let Some(obstacle) = change.obstacle {
                let reason = format!(
                    "a route that is not ours is in its place (protocol {}, metric {}, interface {}); remove it",
                    obstacle.protocol,
                    obstacle.metric,
                    obstacle.target.device().map_or_else(|| "none".into(), |device| self.name(device)),
                );
                work.failures.push((destination, reason));
            }
        }
        for (destination, reason) in &work.failures {
            self.failed(*destination, reason.clone());
        }
        work
    }

    pub fn name(&self, device: u32) -> String {
        self.mirror.link(device).map_or_else(|| format!("#{device}"), |link| link.name.clone())
    }

    /// An operation went through.
    pub fn done(&mut self, operation: &Operation) {
        match operation {
            Operation::Add(entry) => self.mirror.set_route(entry.clone()),
            Operation::Replace { old, new } => {
                self.mirror.remove_route(old);
                self.mirror.set_route(new.clone());
            }
            Operation::Delete(entry) => self.mirror.remove_route(entry),
        }
    }

    /// Whether this operation gives an address to another workload interface.
    pub fn moves(&self, operation: &Operation) -> Option<IpAddr> {
        let Operation::Replace { old, new } = operation else { return None };
        let single = old.destination.prefix_len() == old.destination.max_prefix_len();
        let device = old.target.device()?;
        let workload = self.mirror.link(device).is_some_and(|link| self.is_workload(&link.name));
        (single && workload && new.target.device() != Some(device)).then(|| old.destination.addr())
    }

    /// The addresses that left since the last call: those that another workload has by now, and the others.
    pub fn take_departed(&mut self) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let departed = std::mem::take(&mut self.departed);
        departed.into_iter().partition(|address| self.plan.at_address(*address).next().is_some())
    }

    /// The workload that an interface leads to, if it can.
    fn leads_to(&self, index: u32) -> Option<(&Link, &Workload)> {
        let link = self.mirror.link(index).filter(|link| link.is_up())?;
        self.plan.active(&link.name).map(|(_, workload)| (link, workload))
    }

    /// The neighbour entries that are missing, and those of ours that are no longer wanted.
    pub fn neighbour_work(&mut self) -> (Vec<(NeighbourKey, [u8; 6])>, Vec<NeighbourKey>) {
        let (mut missing, mut unwanted) = (Vec::new(), Vec::new());
        for device in std::mem::take(&mut self.unchecked) {
            self.neighbour_errors.retain(|key, _| key.device != device);
            let workload = self.leads_to(device).map(|(_, workload)| workload);
            let mut wanted = BTreeMap::new();
            if let Some((workload, mac)) = workload.and_then(|workload| Some((workload, workload.mac?))) {
                let addresses = workload.addresses.iter().filter(|address| address.is_ipv4());
                wanted.extend(addresses.map(|address| (NeighbourKey { device, address: *address }, mac)));
            }
            let ours = self.neighbours.range(NeighbourKey::all_of(device));
            unwanted.extend(ours.filter(|key| !wanted.contains_key(*key)));
            self.neighbours.extend(wanted.keys());
            missing.extend(wanted.into_iter().filter(|(key, mac)| self.mirror.neighbour(key) != Some(*mac)));
        }
        (missing, unwanted)
    }

    pub fn neighbour_is(&mut self, key: NeighbourKey, mac: Option<[u8; 6]>) {
        self.mirror.set_neighbour(key, mac);
        if mac.is_none() {
            self.neighbours.remove(&key);
        }
    }

    /// The settings that workload interfaces still need.
    pub fn conf_work(&self) -> Vec<(u32, Vec<Setting>)> {
        let mut work = Vec::new();
        for (link, workload) in self.unchecked.iter().filter_map(|index| self.leads_to(*index)) {
            let first = !self.prepared.contains(&link.index);
            let rp_filter = if workload.may_spoof { 0 } else { self.rp_filter };
            let with_v6 = self.settings.ipv6;
            let settings = conf::missing(&link.name, &link.conf, workload, rp_filter, with_v6, first);
            if !settings.is_empty() {
                work.push((link.index, settings));
            }
        }
        work
    }

    pub fn conf_written(&mut self, index: u32, outcome: Result<(), (KernelObject, String)>) {
        match outcome {
            Ok(()) => {
                self.prepared.insert(index);
                self.conf_errors.remove(&index);
            }
            Err(reason) => {
                self.conf_errors.insert(index, reason);
            }
        }
    }
}

/// The addresses of a workload that it no longer has on that interface.
fn departed(old: &Workload, new: Option<&Workload>) -> Vec<IpAddr> {
    let same = new.filter(|new| new.interface == old.interface);
    let kept = |address: &&IpAddr| same.is_some_and(|new| new.addresses.contains(address));
    old.addresses.iter().filter(|address| !kept(address)).copied().collect()
}
