//! Handles changes of interfaces, and computes the operations for tunnel devices.

use super::super::DataplaneCore;
use super::super::shaping::{is_device, is_shaped};
use super::desired::{DesiredLink, LinkForm, link_kind};
use crate::kernel::KernelLink;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;
use tortie_plan::{RouteKey, TunnelKind};

/// Time for the BGP speaker to close a session before its local address is removed.
const BGP_CLOSE_DELAY: Duration = Duration::from_secs(5);

impl DataplaneCore {
    /// Records that an interface was set down, whatever its current state: its IPv4 routes are gone.
    pub fn link_was_down(&mut self, index: u32) {
        let touched = self.routes.drop_ipv4_of(index);
        self.dirty.extend(touched);
    }

    pub fn link_is(&mut self, index: u32, link: Option<KernelLink>, now: Duration) {
        let old = self.links.get(index).cloned();
        if old == link {
            return;
        }
        self.unchecked.insert(index);
        self.unchecked_forwarding.insert(index);
        let known = |link: &Option<KernelLink>| link.as_ref().map(|link| (link.name.clone(), link.is_up()));
        let same = known(&old) == known(&link);
        let mtu = |link: &Option<KernelLink>| link.as_ref().map(|link| link.mtu);
        let resized = mtu(&old) != mtu(&link);
        match link {
            Some(link) => {
                self.first_seen.entry(index).or_insert(now);
                self.links.set(link);
            }
            None => {
                self.links.remove(index);
                self.kernel_neighbours.drop_of(index);
                self.forwarding.drop_of(index);
                let touched = self.routes.drop_of(index);
                self.dirty.extend(touched);
                self.first_seen.remove(&index);
                self.settled.remove(&index);
                self.conf_errors.remove(&index);
                self.proxies.prepared.retain(|(device, _)| *device != index);
            }
        }
        if resized {
            // Routes through a tunnel carry its MTU.
            let tunnel = self.links.get(index).and_then(|link| self.tunnel_called(&link.name));
            self.dirty.extend(tunnel.into_iter().flat_map(|kind| self.plan.destinations_through(kind)));
        }
        let concerned = |name: &str| self.plan.active(name).is_some_and(|(_, workload)| is_shaped(workload));
        let mut links = old.as_ref().into_iter().chain(self.links.get(index));
        if links.any(|link| is_device(link) || concerned(&link.name)) {
            self.shaping_changed();
        }
        if same {
            return;
        }
        self.prepared.remove(&index);
        for name in [old.map(|old| old.name), self.links.get(index).map(|link| link.name.clone())] {
            let workload = name.as_deref().and_then(|name| self.plan.active(name));
            if let Some((_, workload)) = workload {
                let addresses = workload.routed().map(IpNet::from);
                self.dirty.extend(addresses.map(RouteKey::from));
            } else {
                self.lookups_stale = true;
            }
            let tunnel = name.as_deref().and_then(|name| self.tunnel_called(name));
            if let Some(kind) = tunnel.filter(|kind| kind.is_wireguard()) {
                self.wireguard(kind).forget();
            }
            self.dirty.extend(tunnel.into_iter().flat_map(|kind| self.plan.destinations_through(kind)));
        }
        if self.lookups_stale {
            self.next_hops_dirty();
        }
    }
}

/// A change of a tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkOperation {
    Create(DesiredLink),
    Delete { index: u32 },
    SetUp { index: u32 },
    SetMtu { index: u32, mtu: u32 },
    AddAddress { index: u32, net: IpNet },
    RemoveAddress { index: u32, net: IpNet },
}

impl DataplaneCore {
    /// Returns the next operations for a desired tunnel device; empty if it is as desired. The caller reads the kernel
    /// again after each step.
    pub fn link_work(&mut self, kind: TunnelKind) -> Result<Vec<LinkOperation>, String> {
        if self.tunnel_errors.get(&kind).is_some_and(|error| !error.retry) {
            return Ok(Vec::new());
        }
        let Some(wanted) = self.wanted_link(kind)? else { return Ok(Vec::new()) };
        let Some(link) = self.links.named(&wanted.name) else {
            return Ok(vec![LinkOperation::Create(wanted)]);
        };
        let index = link.index;
        if link.kind.as_deref() != Some(wanted.kind()) {
            let other = link.kind.as_deref().unwrap_or("another kind of interface");
            return Err(format!("an interface of this name exists and is not ours ({other}); remove it"));
        }
        if let LinkForm::Vxlan(vxlan, mac) = wanted.form
            && (link.vxlan != Some(vxlan) || link.mac != Some(mac))
            && self.in_sync
        {
            return Ok(vec![LinkOperation::Delete { index }]);
        }
        let mut operations = Vec::new();
        if link.mtu != wanted.mtu {
            operations.push(LinkOperation::SetMtu { index, mtu: wanted.mtu });
        }
        if !link.enabled {
            operations.push(LinkOperation::SetUp { index });
        }
        let there: Vec<IpNet> = self.links.nets_of(index).collect();
        // Add the new address first: a device without addresses would lose its routes.
        let missing = wanted.address.filter(|address| !there.contains(address));
        operations.extend(missing.map(|net| LinkOperation::AddAddress { index, net }));
        let others = there.into_iter().filter(|net| Some(*net) != wanted.address && self.is_ours(kind, net));
        operations.extend(others.map(|net| LinkOperation::RemoveAddress { index, net }));
        if operations.is_empty() {
            self.tunnel_errors.remove(&kind);
        }
        Ok(operations)
    }

    /// Returns the operations that remove the remains of a tunnel which is not in the plan.
    pub fn unwanted_links(&self, kind: TunnelKind) -> Vec<LinkOperation> {
        if !self.in_sync {
            return Vec::new();
        }
        let called =
            |name: &str| self.links.named(name).filter(|link| link.kind.as_deref() == Some(link_kind(kind)));
        let wanted = self.plan.tunnel(kind).map(|device| device.name.as_str());
        let former =
            self.former_names.iter().filter(|(other, _)| *other == kind).map(|(_, name)| name.as_str());
        let mut names = former.chain([kind.device()]).filter(|name| Some(*name) != wanted);
        let by_default_name = called(kind.device()).filter(|_| wanted.is_none());
        let Some(link) = (if kind.is_wireguard() { names.find_map(called) } else { by_default_name }) else {
            return Vec::new();
        };
        let index = link.index;
        match kind {
            TunnelKind::VxlanV4 | TunnelKind::VxlanV6 | TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => {
                vec![LinkOperation::Delete { index }]
            }
            // The device was created by the kernel, and other programs may use it.
            TunnelKind::Ipip => {
                let ours = self.links.nets_of(index).filter(|net| self.is_ours(kind, net));
                ours.map(|net| LinkOperation::RemoveAddress { index, net }).collect()
            }
        }
    }

    /// Returns the changes to the host's addresses on links of workloads that are BGP peers. Removes only addresses
    /// that were added for a peer, and not before the speaker had time to close the session.
    pub fn peering_work(&mut self, now: Duration) -> Vec<LinkOperation> {
        let mut wanted = BTreeSet::new();
        for workload in self.plan.workloads().values() {
            let Some(peer) = &workload.bgp_peer else { continue };
            let Some(link) = self.links.named(&workload.interface).filter(|link| link.enabled) else {
                continue;
            };
            wanted.extend(peer.addresses.iter().map(|address| (link.index, IpNet::from(*address))));
        }
        let there = |(index, net): &(u32, IpNet)| self.links.nets_of(*index).any(|other| other == *net);
        let known = |entry: &&(u32, IpNet)| !self.peering.contains(entry) || !there(entry);
        let missing = wanted
            .iter()
            .filter(known)
            .map(|(index, net)| LinkOperation::AddAddress { index: *index, net: *net });
        for entry in self.peering.difference(&wanted) {
            self.peering_ends.entry(*entry).or_insert(now + BGP_CLOSE_DELAY);
        }
        self.peering_ends.retain(|entry, _| !wanted.contains(entry) && there(entry));
        let gone = self.peering_ends.iter().filter(|(_, end)| **end <= now);
        let gone = gone.map(|((index, net), _)| LinkOperation::RemoveAddress { index: *index, net: *net });
        let work = missing.chain(gone).collect();
        self.peering_errors.retain(|entry, _| wanted.contains(entry));
        self.peering = wanted;
        work
    }

    pub fn peering_failed(&mut self, index: u32, net: IpNet, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.peering_errors.remove(&(index, net)),
            Err(reason) => self.peering_errors.insert((index, net), reason),
        };
    }

    /// Whether an address on a tunnel device can only be ours. The IPIP device may have foreign addresses: ours are
    /// those in a block of the cluster.
    fn is_ours(&self, kind: TunnelKind, net: &IpNet) -> bool {
        let single = net.prefix_len() == net.max_prefix_len();
        kind != TunnelKind::Ipip || single && self.plan.covers(net.addr())
    }

    /// Records the name of a device in a plan; the device is removed if the tunnel gets another name.
    pub(in crate::reconcile) fn note_name(&mut self, kind: TunnelKind, name: &str) {
        if kind.is_wireguard() && name != kind.device() {
            self.former_names.insert((kind, name.to_owned()));
        }
    }

    /// Records that a tunnel device could not be created; it is retried at the next tick, and when its plan changes.
    pub fn tunnel_failed(&mut self, kind: TunnelKind, reason: String) {
        self.tunnel_errors.insert(kind, TunnelError { reason, retry: false });
    }
}

/// The reason why a tunnel device is not as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TunnelError {
    pub reason: String,
    /// Whether the next attempt is due.
    pub retry: bool,
}
