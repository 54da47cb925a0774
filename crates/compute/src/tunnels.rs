//! The tunnels of this node: its devices, the tunnel endpoints of other nodes, and the nodes from which encapsulated
//! packets are accepted.

use crate::changes::{PlanChanges, set_entry};
use crate::counted_nets::CountedNets;
use crate::nodes::NodeFacts;
use crate::pools::{PoolEncapsulation, PoolFacts};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tortie_plan::{PlanUpdate, SetKind, TunnelDevice, TunnelKind, TunnelProtocol, Vtep, VtepId};

/// Tunnel settings from the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunnelSettings {
    /// Whether there are such tunnels; if `None`, the pools decide.
    pub vxlan: Option<bool>,
    pub ipip: Option<bool>,
    pub vni: u32,
    pub port: u16,
    /// `None` means the MTU of the underlay interface minus the overhead.
    pub vxlan_mtu: Option<u32>,
    pub vxlan_mtu_v6: Option<u32>,
    pub ipip_mtu: Option<u32>,
    /// Encapsulated packets are accepted from these too.
    pub external: Vec<IpNet>,
}

/// The kinds of tunnels that a pool can need.
const POOL_TUNNEL_KINDS: [TunnelKind; 3] = [TunnelKind::VxlanV4, TunnelKind::VxlanV6, TunnelKind::Ipip];

#[derive(Debug, Default)]
pub(crate) struct TunnelCompute {
    host: String,
    settings: TunnelSettings,
    /// The kind of tunnel that each pool needs.
    pools: BTreeMap<String, Option<TunnelKind>>,
    nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// Nodes to re-evaluate at the next flush.
    changed: BTreeSet<String>,
    /// The devices may have changed.
    stale: bool,
    devices: BTreeMap<TunnelKind, TunnelDevice>,
    vteps: BTreeMap<VtepId, Vtep>,
    /// Members of the sets of peers.
    peers: BTreeMap<TunnelKind, CountedNets>,
    /// The member of each peer in those sets.
    members: BTreeMap<(TunnelKind, TunnelPeer), IpNet>,
}

/// A peer from which encapsulated packets are accepted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum TunnelPeer {
    Node(String),
    /// Listed in the settings.
    External(IpNet),
}

/// Result of [`TunnelCompute::flush`]: `plan` holds the updates of the plan, `ends` the endpoints of IPv6 tunnels that were
/// added, changed or removed.
#[derive(Debug, Default)]
pub(crate) struct TunnelChanges {
    pub plan: PlanChanges,
    pub ends: Vec<(String, Option<IpAddr>)>,
}

impl TunnelCompute {
    pub fn new(host: &str) -> TunnelCompute {
        TunnelCompute { host: host.to_owned(), ..TunnelCompute::default() }
    }

    pub fn configure(&mut self, settings: TunnelSettings) {
        if self.settings != settings {
            self.settings = settings;
            self.stale = true;
        }
    }

    pub fn put_pool(&mut self, name: &str, pool: &PoolFacts) {
        if pool.only_balancers {
            return self.remove_pool(name);
        }
        let is_ipv4 = pool.cidr.addr().is_ipv4();
        let kind = match pool.encapsulation {
            PoolEncapsulation::Vxlan(_) if is_ipv4 => Some(TunnelKind::VxlanV4),
            PoolEncapsulation::Vxlan(_) => Some(TunnelKind::VxlanV6),
            PoolEncapsulation::Ipip(_) if is_ipv4 => Some(TunnelKind::Ipip),
            PoolEncapsulation::Ipip(_) | PoolEncapsulation::None => None,
        };
        self.stale |= self.pools.insert(name.to_owned(), kind) != Some(kind);
    }

    pub fn remove_pool(&mut self, name: &str) {
        self.stale |= self.pools.remove(name).is_some();
    }

    pub fn put_node(&mut self, name: &str, facts: Arc<NodeFacts>) {
        self.nodes.insert(name.to_owned(), facts);
        self.node_changed(name);
    }

    pub fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.node_changed(name);
        }
    }

    fn node_changed(&mut self, name: &str) {
        self.stale |= name == self.host;
        self.changed.insert(name.to_owned());
    }

    fn is_wanted(&self, kind: TunnelKind) -> bool {
        let setting = match kind {
            TunnelKind::VxlanV4 | TunnelKind::VxlanV6 => self.settings.vxlan,
            TunnelKind::Ipip => self.settings.ipip,
            TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => None,
        };
        setting.unwrap_or_else(|| self.pools.values().any(|needed| *needed == Some(kind)))
    }

    /// Returns the device, or `None` if it is not needed or the node has no underlay address yet.
    fn device(&self, kind: TunnelKind) -> Option<TunnelDevice> {
        let own = self.nodes.get(&self.host).filter(|_| self.is_wanted(kind))?;
        let local = own.address(kind.is_ipv4())?.addr();
        let settings = &self.settings;
        let vxlan = TunnelProtocol::Vxlan {
            vni: settings.vni,
            port: settings.port,
            mac: own.vxlan(kind.is_ipv4()).mac,
        };
        let (protocol, mtu) = match kind {
            TunnelKind::VxlanV4 => (vxlan, settings.vxlan_mtu),
            TunnelKind::VxlanV6 => (vxlan, settings.vxlan_mtu_v6),
            TunnelKind::Ipip => (TunnelProtocol::Ipip, settings.ipip_mtu),
            TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => return None,
        };
        let name = kind.device().to_owned();
        Some(TunnelDevice { name, address: own.tunnel_address(kind), local, mtu, protocol })
    }

    fn vtep(&self, kind: TunnelKind, node: &str) -> Option<Vtep> {
        let facts = self.nodes.get(node).filter(|_| node != self.host && kind != TunnelKind::Ipip)?;
        let end = facts.vxlan(kind.is_ipv4());
        let node = facts.address(kind.is_ipv4())?.addr();
        Some(Vtep { address: end.address?, mac: end.mac, node })
    }

    /// Returns the member for a node: with VXLAN, nodes whose tunnel endpoint is known; with IPIP, every node
    /// including this one.
    fn peer(&self, kind: TunnelKind, node: &str) -> Option<IpNet> {
        let address = match kind {
            TunnelKind::VxlanV4 | TunnelKind::VxlanV6 => self.vtep(kind, node)?.node,
            TunnelKind::Ipip => self.nodes.get(node)?.v4?.addr(),
            TunnelKind::WireguardV4 | TunnelKind::WireguardV6 => return None,
        };
        Some(IpNet::from(address))
    }

    /// Returns the changes since the last flush.
    pub fn flush(&mut self) -> TunnelChanges {
        let mut changes = TunnelChanges::default();
        let changed = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.stale) {
            for kind in POOL_TUNNEL_KINDS {
                self.flush_device(kind, &mut changes);
            }
        }
        for kind in POOL_TUNNEL_KINDS {
            if self.devices.contains_key(&kind) {
                self.flush_nodes(kind, changed.iter(), &mut changes);
            }
        }
        for (kind, nets) in &mut self.peers {
            let (added, removed) = nets.take_changes();
            if !added.is_empty() || !removed.is_empty() {
                let update = kind.peers().map(|set| PlanUpdate::Members { set, added, removed });
                changes.plan.added.extend(update);
            }
        }
        changes
    }

    fn flush_device(&mut self, kind: TunnelKind, changes: &mut TunnelChanges) {
        let new = self.device(kind);
        let old = set_entry(&mut self.devices, kind, new.clone());
        if old != new {
            changes.plan.push(new.is_some(), PlanUpdate::Tunnel(kind, new.clone()));
        }
        match (old.is_some(), new.is_some()) {
            (false, true) => {
                let set = kind.peers().map(|set| PlanUpdate::Set(set, Some(SetKind::Nets)));
                changes.plan.added.extend(set);
                let names: Vec<String> = self.nodes.keys().cloned().collect();
                self.flush_nodes(kind, names.iter(), changes);
            }
            (true, false) => {
                let gone: Vec<VtepId> = self.vteps.keys().filter(|id| id.tunnel == kind).cloned().collect();
                gone.into_iter().for_each(|id| self.set_vtep(id, None, changes));
                self.members.retain(|(other, _), _| *other != kind);
                self.peers.remove(&kind);
                changes.plan.removed.extend(kind.peers().map(|set| PlanUpdate::Set(set, None)));
            }
            _ => {}
        }
        if new.is_some() {
            self.update_external_peers(kind);
        }
    }

    fn flush_nodes<'n>(
        &mut self,
        kind: TunnelKind,
        nodes: impl Iterator<Item = &'n String>,
        changes: &mut TunnelChanges,
    ) {
        for node in nodes {
            let vtep = self.vtep(kind, node);
            self.set_vtep(VtepId { tunnel: kind, node: node.clone() }, vtep, changes);
            self.set_peer(kind, TunnelPeer::Node(node.clone()), self.peer(kind, node));
        }
    }

    /// Sets or removes the net of a peer in the set of peers. Several peers may have the same net.
    fn set_peer(&mut self, kind: TunnelKind, peer: TunnelPeer, net: Option<IpNet>) {
        let old = set_entry(&mut self.members, (kind, peer), net);
        if old != net {
            let nets = self.peers.entry(kind).or_default();
            net.into_iter().for_each(|net| nets.add(net));
            old.into_iter().for_each(|net| nets.remove(net));
        }
    }

    fn set_vtep(&mut self, id: VtepId, vtep: Option<Vtep>, changes: &mut TunnelChanges) {
        let old = set_entry(&mut self.vteps, id.clone(), vtep);
        if old == vtep {
            return;
        }
        if id.tunnel == TunnelKind::VxlanV6 {
            changes.ends.push((id.node.clone(), vtep.map(|vtep| vtep.address)));
        }
        changes.plan.push(vtep.is_some(), PlanUpdate::Vtep(id, vtep));
    }

    /// Updates the peers that the settings list.
    fn update_external_peers(&mut self, kind: TunnelKind) {
        let external = self.settings.external.iter().map(IpNet::trunc);
        let wanted: BTreeSet<IpNet> = external.filter(|net| net.addr().is_ipv4() == kind.is_ipv4()).collect();
        let planned = self.members.keys().filter_map(|(other, peer)| match peer {
            TunnelPeer::External(net) if *other == kind => Some(*net),
            _ => None,
        });
        let planned: BTreeSet<IpNet> = planned.collect();
        for net in wanted.symmetric_difference(&planned) {
            self.set_peer(kind, TunnelPeer::External(*net), wanted.get(net).copied());
        }
    }
}
