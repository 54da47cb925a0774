//! Garbage collection of addresses: finds addresses that no workload or node holds, and blocks that are no longer
//! needed.
//!
//! Pure: datastore entries, Kubernetes pods and nodes and the time in, actions out. The effect of an action arrives
//! as a changed block, so the next scan finds failed actions again.

use super::pods::{PodIndex, PodName, holds};
use crate::absence::{AbsenceClaim, AbsenceSubject, ReferenceCounts, SubjectClass};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_ipam::block::{self, AddressAllocation, ReleaseRequest};
use tortie_ipam::owner::{WINDOWS_RESERVED_HANDLE, attribute};
use tortie_ipam::{BlockOwner, TunnelType, space};
use tortie_model::ipam::AddressBlock;
use tortie_model::key::AffinityType;

/// Attributes of virtual machines, whose addresses outlive their pods.
const VIRTUAL_MACHINE_ATTRIBUTES: [&str; 3] = ["vmi-name", "vmi-uid", "vm-uid"];
/// Interval between scans without other triggers.
const DEFAULT_SCAN_INTERVAL: Duration = Duration::from_secs(300);
/// Delay after a change, to coalesce several.
const CHANGE_SCAN_DELAY: Duration = Duration::from_secs(2);

/// Time since an arbitrary start; only differences matter.
pub type MonotonicTime = Duration;

/// Action of the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GarbageAction {
    /// Releases all addresses of a handle that nothing holds.
    Release { handle: String, addresses: Vec<ReleaseRequest> },
    /// Releases an empty block that its owner does not need.
    ReleaseBlock { owner: BlockOwner, cidr: IpNet },
}

/// Existing nodes, and the mapping between their names in the datastore and in Kubernetes.
#[derive(Clone, Debug, Default)]
pub struct NodeIndex {
    /// Kubernetes name of each node of the datastore; empty for nodes that are not from Kubernetes.
    pub kubernetes_names: BTreeMap<String, String>,
    pub kubernetes: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub struct AddressCollector {
    grace: Option<Duration>,
    blocks: BTreeMap<IpNet, AddressBlock>,
    affinities: BTreeSet<(String, IpNet)>,
    /// Time since which an address appears leaked, by handle and address.
    suspects: BTreeMap<(String, IpAddr), MonotonicTime>,
    /// Time since which a block is empty.
    empty: BTreeMap<IpNet, MonotonicTime>,
    /// Number of handles of pods and of nodes that the last scan found.
    references: ReferenceCounts,
    next_scan: Option<MonotonicTime>,
}

/// State of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllocationVerdict {
    /// In use, or there is no evidence otherwise.
    Held,
    /// Not held by any pod; `node_gone` if its node does not exist either.
    Leaked { node_gone: bool },
    /// Tunnel address of a node that does not exist.
    OfGoneNode,
}

/// Addresses of a handle to release, and the objects that must be absent for it.
#[derive(Debug, Default)]
struct HandleLeak {
    addresses: Vec<ReleaseRequest>,
    /// Addresses by the pod and node that they were assigned to.
    pods: BTreeMap<(PodName, Option<String>), Vec<IpAddr>>,
    nodes: BTreeSet<String>,
}

/// An allocation and its verdict in the current scan.
struct JudgedAllocation<'a> {
    allocation: AddressAllocation<'a>,
    verdict: AllocationVerdict,
}

impl NodeIndex {
    /// Returns whether Kubernetes no longer has the node. A node that is not from Kubernetes is never considered
    /// gone.
    fn is_gone(&self, name: &str) -> bool {
        match self.kubernetes_names.get(name).map(String::as_str) {
            Some("") => false,
            Some(kubernetes) => !self.kubernetes.contains(kubernetes),
            None => !self.kubernetes.contains(name),
        }
    }

    fn is_of_kubernetes(&self, name: &str) -> bool {
        self.kubernetes_names.get(name).is_none_or(|known| !known.is_empty())
    }

    fn kubernetes_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.kubernetes_names.get(name).map(String::as_str).filter(|known| !known.is_empty()).unwrap_or(name)
    }
}

impl AddressCollector {
    /// Sets how long an address must appear leaked before it is released; `None` releases only addresses of deleted
    /// nodes.
    pub fn set_grace(&mut self, grace: Option<Duration>) {
        if self.grace != grace {
            self.grace = grace;
            self.next_scan = None;
        }
    }

    pub fn put_block(&mut self, block: AddressBlock, now: MonotonicTime) {
        self.blocks.insert(block.cidr, block);
        self.scan_soon(now);
    }

    pub fn remove_block(&mut self, cidr: &IpNet) {
        self.blocks.remove(cidr);
        self.empty.remove(cidr);
    }

    pub fn put_affinity(&mut self, owner: &str, cidr: IpNet, now: MonotonicTime) {
        self.affinities.insert((owner.to_owned(), cidr));
        self.scan_soon(now);
    }

    pub fn remove_affinity(&mut self, owner: &str, cidr: IpNet) {
        self.affinities.remove(&(owner.to_owned(), cidr));
    }

    /// Schedules a scan soon, after a change that may have leaked an address.
    pub fn scan_soon(&mut self, now: MonotonicTime) {
        self.scan_by(now + CHANGE_SCAN_DELAY);
    }

    /// Schedules an immediate scan, after a node was deleted.
    pub fn scan_now(&mut self) {
        self.next_scan = None;
    }

    pub fn blocks(&self) -> impl Iterator<Item = &AddressBlock> {
        self.blocks.values()
    }

    /// Returns the number of addresses that appear leaked.
    pub fn suspects(&self) -> usize {
        self.suspects.len()
    }

    /// Returns the number of objects that the last scan found references to, missing or not.
    pub fn references(&self) -> &ReferenceCounts {
        &self.references
    }

    /// Schedules a scan no later than this.
    pub fn scan_by(&mut self, time: MonotonicTime) {
        if let Some(next) = &mut self.next_scan {
            *next = time.min(*next);
        }
    }

    pub fn is_due(&self, now: MonotonicTime) -> bool {
        self.next_scan.is_none_or(|next| next <= now)
    }

    /// Scans all addresses. Returns the same actions on every call until they have been executed.
    pub fn scan(
        &mut self,
        pods: &PodIndex,
        nodes: &NodeIndex,
        now: MonotonicTime,
    ) -> Vec<AbsenceClaim<GarbageAction>> {
        let blocks = std::mem::take(&mut self.blocks);
        let seen: Vec<JudgedAllocation<'_>> = blocks
            .values()
            .flat_map(block::allocations)
            .filter(|allocation| !allocation.is_cooling_down())
            .map(|allocation| JudgedAllocation { verdict: judge(&allocation, pods, nodes), allocation })
            .collect();
        let mut claims = self.releases(&seen, nodes, now);
        claims.extend(self.unneeded_blocks(&blocks, &seen, nodes, now));
        let referenced = count_nodes(&blocks, &self.affinities, &seen, nodes);
        self.references.insert(SubjectClass::Nodes, referenced);
        drop(seen);
        self.blocks = blocks;
        self.plan_next_scan(now);
        claims
    }

    /// Returns claims for handles of which all addresses are leaked, for longer than the grace period or on a deleted
    /// node.
    fn releases(
        &mut self,
        seen: &[JudgedAllocation<'_>],
        nodes: &NodeIndex,
        now: MonotonicTime,
    ) -> Vec<AbsenceClaim<GarbageAction>> {
        let inhabited = list_inhabited_nodes(seen);
        let mut suspects = BTreeMap::new();
        // `None` for a handle with an address that is held.
        let mut handles: BTreeMap<&str, Option<HandleLeak>> = BTreeMap::new();
        let mut pods = 0;
        for JudgedAllocation { allocation, verdict } in seen {
            let Some(handle) = allocation.handle().filter(|handle| !handle.is_empty()) else { continue };
            let node = allocation.attribute(attribute::NODE_ATTRIBUTE);
            let (leaked, relies_on_node) = match verdict {
                AllocationVerdict::Held => (false, false),
                AllocationVerdict::Leaked { node_gone } => {
                    let id = (handle.to_owned(), allocation.address);
                    let since = *self.suspects.get(&id).unwrap_or(&now);
                    suspects.insert(id, since);
                    let long = self.grace.is_some_and(|grace| now.saturating_sub(since) >= grace);
                    (long || *node_gone, !long)
                }
                AllocationVerdict::OfGoneNode => (!inhabited.contains(node.unwrap_or_default()), true),
            };
            let entry = handles.entry(handle).or_insert_with(|| {
                pods += usize::from(PodName::from_allocation(allocation).is_some());
                Some(HandleLeak::default())
            });
            let Some(leak) = entry.as_mut().filter(|_| leaked) else {
                *entry = None;
                continue;
            };
            let node = node.map(|node| nodes.kubernetes_name(node).to_owned());
            leak.addresses.push(ReleaseRequest {
                address: allocation.address,
                handle: Some(handle.to_owned()),
                sequence_number: Some(allocation.sequence_number),
            });
            leak.nodes.extend(node.clone().filter(|_| relies_on_node));
            if *verdict != AllocationVerdict::OfGoneNode
                && let Some(pod) = PodName::from_allocation(allocation)
            {
                leak.pods.entry((pod, node)).or_default().push(allocation.address);
            }
        }
        self.suspects = suspects;
        self.references.insert(SubjectClass::Pods, pods);
        handles.into_iter().filter_map(|(handle, leak)| Some(leak?.into_claim(handle))).collect()
    }

    /// Returns claims for empty blocks and for affinities without a block of deleted nodes, and for blocks that have
    /// been empty for longer than the grace period on nodes that have others.
    fn unneeded_blocks(
        &mut self,
        blocks: &BTreeMap<IpNet, AddressBlock>,
        seen: &[JudgedAllocation<'_>],
        nodes: &NodeIndex,
        now: MonotonicTime,
    ) -> Vec<AbsenceClaim<GarbageAction>> {
        let inhabited = list_inhabited_nodes(seen);
        let mut claims = Vec::new();
        let mut empty = BTreeMap::new();
        let mut owned: BTreeMap<(&str, u8), usize> = BTreeMap::new();
        for (block, host) in list_host_blocks(blocks) {
            *owned.entry((host, space::version(&block.cidr))).or_default() += 1;
        }
        for (block, host) in list_host_blocks(blocks).filter(|(block, _)| block::is_empty(block)) {
            let since = *self.empty.get(&block.cidr).unwrap_or(&now);
            empty.insert(block.cidr, since);
            let count = owned.entry((host, space::version(&block.cidr))).or_default();
            let long = self.grace.is_some_and(|grace| now.saturating_sub(since) > grace);
            let is_gone = nodes.is_gone(host);
            let action = GarbageAction::ReleaseBlock { owner: BlockOwner::host(host), cidr: block.cidr };
            if is_gone && !inhabited.contains(host) {
                *count -= 1;
                let node = AbsenceSubject::node(nodes.kubernetes_name(host));
                claims.push(AbsenceClaim::if_absent(action, node));
            } else if !is_gone && long && *count > 1 {
                *count -= 1;
                claims.push(AbsenceClaim::certain(action));
            }
        }
        self.empty = empty;
        let alone = self.affinities.iter().filter(|(host, cidr)| {
            nodes.is_gone(host) && !inhabited.contains(host.as_str()) && !blocks.contains_key(cidr)
        });
        claims.extend(alone.map(|(host, cidr)| {
            let action = GarbageAction::ReleaseBlock { owner: BlockOwner::host(host), cidr: *cidr };
            AbsenceClaim::if_absent(action, AbsenceSubject::node(nodes.kubernetes_name(host)))
        }));
        claims
    }

    /// Schedules the next scan for when the next suspect becomes a leak, at the latest after the usual interval.
    fn plan_next_scan(&mut self, now: MonotonicTime) {
        let period =
            self.grace.filter(|grace| !grace.is_zero()).map_or(DEFAULT_SCAN_INTERVAL, |grace| grace / 2);
        let due = self.grace.and_then(|grace| self.suspects.values().map(|since| *since + grace).min());
        // Failed actions are retried, with a minimum delay.
        let due = due.map(|due| due.max(now + CHANGE_SCAN_DELAY));
        self.next_scan = Some(due.unwrap_or(now + period).min(now + period));
    }
}

impl HandleLeak {
    fn into_claim(self, handle: &str) -> AbsenceClaim<GarbageAction> {
        let pods = self.pods.into_iter();
        let pods = pods.map(|((pod, node), addresses)| AbsenceSubject::PodHold { pod, node, addresses });
        let absent = pods.chain(self.nodes.iter().map(|node| AbsenceSubject::node(node))).collect();
        AbsenceClaim {
            action: GarbageAction::Release { handle: handle.to_owned(), addresses: self.addresses },
            absent,
        }
    }
}

/// Returns the blocks of nodes, with the name of the node.
fn list_host_blocks(blocks: &BTreeMap<IpNet, AddressBlock>) -> impl Iterator<Item = (&AddressBlock, &str)> {
    blocks.values().filter_map(|block| match block.owner() {
        Some((AffinityType::Host, host)) => Some((block, host)),
        _ => None,
    })
}

/// Returns the number of Kubernetes nodes that the datastore refers to.
fn count_nodes(
    blocks: &BTreeMap<IpNet, AddressBlock>,
    affinities: &BTreeSet<(String, IpNet)>,
    seen: &[JudgedAllocation<'_>],
    nodes: &NodeIndex,
) -> usize {
    let owners = list_host_blocks(blocks).map(|(_, host)| host);
    let users = seen.iter().filter_map(|seen| seen.allocation.attribute(attribute::NODE_ATTRIBUTE));
    let names = owners.chain(users).chain(affinities.iter().map(|(host, _)| host.as_str()));
    names.filter(|name| nodes.is_of_kubernetes(name)).collect::<BTreeSet<&str>>().len()
}

/// Returns the nodes with an address in use; their other addresses and blocks are kept as well.
fn list_inhabited_nodes<'a>(seen: &'a [JudgedAllocation<'_>]) -> BTreeSet<&'a str> {
    let held = seen.iter().filter(|seen| seen.verdict == AllocationVerdict::Held);
    held.filter_map(|seen| seen.allocation.attribute(attribute::NODE_ATTRIBUTE)).collect()
}

fn judge(allocation: &AddressAllocation<'_>, pods: &PodIndex, nodes: &NodeIndex) -> AllocationVerdict {
    let handle = allocation.handle().unwrap_or_default();
    if handle.is_empty() || handle == WINDOWS_RESERVED_HANDLE {
        return AllocationVerdict::Held;
    }
    let node = allocation.attribute(attribute::NODE_ATTRIBUTE);
    let node_gone = node.is_some_and(|node| nodes.is_gone(node));
    match allocation.attribute(attribute::TYPE_ATTRIBUTE) {
        Some(kind) if TunnelType::of_attribute(kind).is_some() && node_gone => {
            return AllocationVerdict::OfGoneNode;
        }
        // The node exists, or the type is unknown.
        Some(_) => return AllocationVerdict::Held,
        None => {}
    }
    let moving = allocation.record.is_some_and(|record| !record.alternate_owner.is_empty());
    if moving || VIRTUAL_MACHINE_ATTRIBUTES.iter().any(|name| allocation.attribute(name).is_some()) {
        return AllocationVerdict::Held;
    }
    let Some(pod) = PodName::from_allocation(allocation) else { return AllocationVerdict::Held };
    let node = node.map(|node| nodes.kubernetes_name(node));
    if holds(pods.get(&pod), node, allocation.address) {
        return AllocationVerdict::Held;
    }
    AllocationVerdict::Leaked { node_gone }
}

#[cfg(test)]
mod tests;
