//! Garbage collection of addresses: which of them nobody holds any more, and which blocks nobody needs.
//!
//! Pure: entries of the datastore, pods and nodes of Kubernetes and the time in, actions out. What an action does comes back
//! as a changed block, so whatever fails is found again by the next scan.

use super::pods::{PodName, Pods, holds};
use crate::absence::{Claim, References, Subject, SubjectClass};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_ipam::block::{self, Allocation, Release};
use tortie_ipam::owner::{WINDOWS_RESERVED_HANDLE, attribute};
use tortie_ipam::{Owner, Tunnel, space};
use tortie_model::ipam::Block;
use tortie_model::key::AffinityType;

/// Of virtual machines, whose addresses outlive their pods.
const VIRTUAL_MACHINES: [&str; 3] = ["vmi-name", "vmi-uid", "vm-uid"];
/// Between scans when nothing else asks for one.
const USUAL_PERIOD: Duration = Duration::from_secs(300);
/// After a change: several come together.
const AFTER_A_CHANGE: Duration = Duration::from_secs(2);

/// Time since some moment; only differences count.
pub type Time = Duration;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// All addresses of a handle, which nobody holds.
    Release { handle: String, addresses: Vec<Release> },
    /// An empty block that its owner does not need.
    ReleaseBlock { owner: Owner, cidr: IpNet },
}

/// Which nodes there are: those of Kubernetes by the names they have in the datastore.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// The name that Kubernetes has for each node of the datastore; empty for one that is not Kubernetes'.
    pub kubernetes_names: BTreeMap<String, String>,
    pub kubernetes: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub struct Garbage {
    grace: Option<Duration>,
    blocks: BTreeMap<IpNet, Block>,
    affinities: BTreeSet<(String, IpNet)>,
    /// Since when nobody seems to hold an address, by handle and address.
    suspects: BTreeMap<(String, IpAddr), Time>,
    /// Since when a block is empty.
    empty: BTreeMap<IpNet, Time>,
    /// Handles of pods and nodes that the last scan found.
    references: References,
    next_scan: Option<Time>,
}

/// What is to be said of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Somebody holds it, or nothing says otherwise.
    Held,
    /// Nobody holds it; whether its node is gone too.
    Leaked { node_gone: bool },
    /// A node's own, of a node that is gone.
    OfGoneNode,
}

/// What is to be released of a handle, and who must be gone for it.
#[derive(Debug, Default)]
struct Leak {
    addresses: Vec<Release>,
    /// By pod and node, the addresses that were assigned to it.
    pods: BTreeMap<(PodName, Option<String>), Vec<IpAddr>>,
    nodes: BTreeSet<String>,
}

/// What the scan knows of an allocation.
struct JudgedAllocation<'a> {
    allocation: Allocation<'a>,
    verdict: Verdict,
}

impl Nodes {
    /// Whether Kubernetes no longer has a node. One that is not Kubernetes' is not ours to judge.
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

impl Garbage {
    /// How long an address must look leaked before it is released; `None` releases only what gone nodes had.
    pub fn set_grace(&mut self, grace: Option<Duration>) {
        if self.grace != grace {
            self.grace = grace;
            self.next_scan = None;
        }
    }

    pub fn put_block(&mut self, block: Block, now: Time) {
        self.blocks.insert(block.cidr, block);
        self.hurry(now);
    }

    pub fn remove_block(&mut self, cidr: &IpNet) {
        self.blocks.remove(cidr);
        self.empty.remove(cidr);
    }

    pub fn put_affinity(&mut self, owner: &str, cidr: IpNet, now: Time) {
        self.affinities.insert((owner.to_owned(), cidr));
        self.hurry(now);
    }

    pub fn remove_affinity(&mut self, owner: &str, cidr: IpNet) {
        self.affinities.remove(&(owner.to_owned(), cidr));
    }

    /// Something changed that may make an address a leak; a scan follows soon.
    pub fn hurry(&mut self, now: Time) {
        self.scan_by(now + AFTER_A_CHANGE);
    }

    /// A node is gone: everything is looked at, at once.
    pub fn hurry_at_once(&mut self) {
        self.next_scan = None;
    }

    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// How many addresses look leaked.
    pub fn suspects(&self) -> usize {
        self.suspects.len()
    }

    /// What the last scan has seen, gone or not.
    pub fn references(&self) -> &References {
        &self.references
    }

    /// A scan not later than this.
    pub fn scan_by(&mut self, time: Time) {
        if let Some(next) = &mut self.next_scan {
            *next = time.min(*next);
        }
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.next_scan.is_none_or(|next| next <= now)
    }

    /// Looks at every address. What is to be done is the same however often it is asked, until it is done.
    pub fn scan(&mut self, pods: &Pods, nodes: &Nodes, now: Time) -> Vec<Claim<Action>> {
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

    /// Handles of which every address is a leak, for long enough or of a node that is gone.
    fn releases(&mut self, seen: &[JudgedAllocation<'_>], nodes: &Nodes, now: Time) -> Vec<Claim<Action>> {
        let inhabited = inhabited_nodes(seen);
        let mut suspects = BTreeMap::new();
        // Nothing for a handle of which an address is held.
        let mut handles: BTreeMap<&str, Option<Leak>> = BTreeMap::new();
        let mut pods = 0;
        for JudgedAllocation { allocation, verdict } in seen {
            let Some(handle) = allocation.handle().filter(|handle| !handle.is_empty()) else { continue };
            let node = allocation.attribute(attribute::NODE);
            let (leaked, relies_on_node) = match verdict {
                Verdict::Held => (false, false),
                Verdict::Leaked { node_gone } => {
                    let id = (handle.to_owned(), allocation.address);
                    let since = *self.suspects.get(&id).unwrap_or(&now);
                    suspects.insert(id, since);
                    let long = self.grace.is_some_and(|grace| now.saturating_sub(since) >= grace);
                    (long || *node_gone, !long)
                }
                Verdict::OfGoneNode => (!inhabited.contains(node.unwrap_or_default()), true),
            };
            let entry = handles.entry(handle).or_insert_with(|| {
                pods += usize::from(PodName::of(allocation).is_some());
                Some(Leak::default())
            });
            let Some(leak) = entry.as_mut().filter(|_| leaked) else {
                *entry = None;
                continue;
            };
            let node = node.map(|node| nodes.kubernetes_name(node).to_owned());
            leak.addresses.push(Release {
                address: allocation.address,
                handle: Some(handle.to_owned()),
                sequence_number: Some(allocation.sequence_number),
            });
            leak.nodes.extend(node.clone().filter(|_| relies_on_node));
            if *verdict != Verdict::OfGoneNode
                && let Some(pod) = PodName::of(allocation)
            {
                leak.pods.entry((pod, node)).or_default().push(allocation.address);
            }
        }
        self.suspects = suspects;
        self.references.insert(SubjectClass::Pods, pods);
        handles.into_iter().filter_map(|(handle, leak)| Some(leak?.into_claim(handle))).collect()
    }

    /// Empty blocks of nodes that are gone, claims of theirs without a block, and what a node has had empty for long while
    /// it has others.
    fn unneeded_blocks(
        &mut self,
        blocks: &BTreeMap<IpNet, Block>,
        seen: &[JudgedAllocation<'_>],
        nodes: &Nodes,
        now: Time,
    ) -> Vec<Claim<Action>> {
        let inhabited = inhabited_nodes(seen);
        let mut claims = Vec::new();
        let mut empty = BTreeMap::new();
        let mut owned: BTreeMap<(&str, u8), usize> = BTreeMap::new();
        let hosts = || {
            blocks.values().filter_map(|block| match block.owner() {
                Some((AffinityType::Host, host)) => Some((block, host)),
                _ => None,
            })
        };
        for (block, host) in hosts() {
            *owned.entry((host, space::version(&block.cidr))).or_default() += 1;
        }
        for (block, host) in hosts().filter(|(block, _)| block::is_empty(block)) {
            let since = *self.empty.get(&block.cidr).unwrap_or(&now);
            empty.insert(block.cidr, since);
            let count = owned.entry((host, space::version(&block.cidr))).or_default();
            let long = self.grace.is_some_and(|grace| now.saturating_sub(since) > grace);
            let is_gone = nodes.is_gone(host);
            let unneeded = match is_gone {
                true => !inhabited.contains(host),
                false => long && *count > 1,
            };
            if unneeded {
                *count -= 1;
                let action = Action::ReleaseBlock { owner: Owner::host(host), cidr: block.cidr };
                claims.push(match is_gone {
                    true => Claim::if_absent(action, Subject::node(nodes.kubernetes_name(host))),
                    false => Claim::certain(action),
                });
            }
        }
        self.empty = empty;
        let alone = self.affinities.iter().filter(|(host, cidr)| {
            nodes.is_gone(host) && !inhabited.contains(host.as_str()) && !blocks.contains_key(cidr)
        });
        claims.extend(alone.map(|(host, cidr)| {
            let action = Action::ReleaseBlock { owner: Owner::host(host), cidr: *cidr };
            Claim::if_absent(action, Subject::node(nodes.kubernetes_name(host)))
        }));
        claims
    }

    /// When the next suspect becomes a leak, but not later than usual.
    fn plan_next_scan(&mut self, now: Time) {
        let period = self.grace.filter(|grace| !grace.is_zero()).map_or(USUAL_PERIOD, |grace| grace / 2);
        let due = self.grace.and_then(|grace| self.suspects.values().map(|since| *since + grace).min());
        // What could not be done is tried again, but not all the time.
        let due = due.map(|due| due.max(now + AFTER_A_CHANGE));
        self.next_scan = Some(due.unwrap_or(now + period).min(now + period));
    }
}

impl Leak {
    fn into_claim(self, handle: &str) -> Claim<Action> {
        let pods = self.pods.into_iter();
        let pods = pods.map(|((pod, node), addresses)| Subject::PodHold { pod, node, addresses });
        let absent = pods.chain(self.nodes.iter().map(|node| Subject::node(node))).collect();
        Claim { action: Action::Release { handle: handle.to_owned(), addresses: self.addresses }, absent }
    }
}

/// How many nodes of Kubernetes the datastore refers to.
fn count_nodes(
    blocks: &BTreeMap<IpNet, Block>,
    affinities: &BTreeSet<(String, IpNet)>,
    seen: &[JudgedAllocation<'_>],
    nodes: &Nodes,
) -> usize {
    let owners = blocks.values().filter_map(|block| match block.owner() {
        Some((AffinityType::Host, host)) => Some(host),
        _ => None,
    });
    let users = seen.iter().filter_map(|seen| seen.allocation.attribute(attribute::NODE));
    let names = owners.chain(users).chain(affinities.iter().map(|(host, _)| host.as_str()));
    names.filter(|name| nodes.is_of_kubernetes(name)).collect::<BTreeSet<&str>>().len()
}

/// Nodes on which somebody holds an address; what else they have stays as long.
fn inhabited_nodes<'a>(seen: &'a [JudgedAllocation<'_>]) -> BTreeSet<&'a str> {
    let held = seen.iter().filter(|seen| seen.verdict == Verdict::Held);
    held.filter_map(|seen| seen.allocation.attribute(attribute::NODE)).collect()
}

fn judge(allocation: &Allocation<'_>, pods: &Pods, nodes: &Nodes) -> Verdict {
    let handle = allocation.handle().unwrap_or_default();
    if handle.is_empty() || handle == WINDOWS_RESERVED_HANDLE {
        return Verdict::Held;
    }
    let node = allocation.attribute(attribute::NODE);
    let node_gone = node.is_some_and(|node| nodes.is_gone(node));
    match allocation.attribute(attribute::TYPE) {
        Some(kind) if Tunnel::of_attribute(kind).is_some() && node_gone => return Verdict::OfGoneNode,
        // Of a node that is there, or of a kind that is not known here.
        Some(_) => return Verdict::Held,
        None => {}
    }
    let moving = allocation.record.is_some_and(|record| !record.alternate_owner.is_empty());
    if moving || VIRTUAL_MACHINES.iter().any(|name| allocation.attribute(name).is_some()) {
        return Verdict::Held;
    }
    let Some(pod) = PodName::of(allocation) else { return Verdict::Held };
    let node = node.map(|node| nodes.kubernetes_name(node));
    match holds(pods.get(&pod), node, allocation.address) {
        true => Verdict::Held,
        false => Verdict::Leaked { node_gone },
    }
}

#[cfg(test)]
mod tests;
