//! WireGuard between nodes: the devices of this node, its peers, and the routing rule that sends packets through the
//! devices.

use crate::changes::{PlanChanges, set_entry};
use crate::nodes::NodeFacts;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tortie_plan::{
    PlanUpdate, RoutingRule, RoutingTable, TunnelDevice, TunnelKind, TunnelProtocol, WireguardPeer,
    WireguardPeerId,
};

const WIREGUARD_KINDS: [TunnelKind; 2] = [TunnelKind::WireguardV4, TunnelKind::WireguardV6];

type PublicKey = [u8; 32];

/// WireGuard settings from the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireguardSettings {
    pub v4: WireguardDeviceSettings,
    pub v6: WireguardDeviceSettings,
    /// Table of the routes through the devices.
    pub table: u32,
    /// Priority of the routing rule for that table.
    pub priority: u32,
    /// Whether traffic between the nodes themselves is encrypted too.
    pub hosts: bool,
    /// Keepalive interval in seconds; 0 disables it.
    pub keepalive: u16,
    pub threaded: bool,
    /// Mark of the encrypted packets that the devices send, so that the routing rule does not match them.
    pub mark: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireguardDeviceSettings {
    pub enabled: bool,
    pub name: String,
    pub port: u16,
    /// `None` means the MTU of the underlay interface minus the overhead.
    pub mtu: Option<u32>,
}

impl WireguardSettings {
    fn device(&self, kind: TunnelKind) -> &WireguardDeviceSettings {
        if kind.is_ipv4() { &self.v4 } else { &self.v6 }
    }

    fn table(&self) -> (RoutingTable, bool) {
        (RoutingTable(self.table), self.hosts)
    }
}

#[derive(Debug, Default)]
pub(crate) struct WireguardCompute {
    host: String,
    settings: WireguardSettings,
    nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// The nodes that have published each key. A key that two nodes publish is used for neither.
    holders: BTreeMap<(TunnelKind, PublicKey), BTreeSet<String>>,
    /// Nodes whose peers may have changed since the last flush.
    changed: BTreeSet<String>,
    /// Whether the devices or their settings may have changed since the last flush.
    stale: bool,
    devices: BTreeMap<TunnelKind, TunnelDevice>,
    tables: BTreeMap<TunnelKind, (RoutingTable, bool)>,
    peers: BTreeMap<WireguardPeerId, WireguardPeer>,
    rules: BTreeSet<RoutingRule>,
}

/// Result of [`WireguardCompute::flush`]: `plan` holds the updates of the plan, the other fields are for the routes.
#[derive(Debug, Default)]
pub(crate) struct WireguardChanges {
    pub plan: PlanChanges,
    /// Table of the routes through a device, and whether they include routes to the nodes themselves.
    pub tables: Vec<(TunnelKind, Option<(RoutingTable, bool)>)>,
    /// Nodes whose peer changed, with the address of its endpoint; `None` if the node is no longer a peer.
    pub peers: Vec<(TunnelKind, String, Option<IpAddr>)>,
}

impl WireguardCompute {
    pub fn new(host: &str) -> WireguardCompute {
        WireguardCompute { host: host.to_owned(), ..WireguardCompute::default() }
    }

    pub fn configure(&mut self, settings: WireguardSettings) {
        if self.settings != settings {
            self.settings = settings;
            self.stale = true;
        }
    }

    pub fn put_node(&mut self, name: &str, facts: Arc<NodeFacts>) {
        let old = self.nodes.insert(name.to_owned(), facts.clone());
        self.node_changed(name, old.as_deref(), Some(&facts));
    }

    pub fn remove_node(&mut self, name: &str) {
        if let Some(old) = self.nodes.remove(name) {
            self.node_changed(name, Some(&old), None);
        }
    }

    fn node_changed(&mut self, name: &str, old: Option<&NodeFacts>, new: Option<&NodeFacts>) {
        self.stale |= name == self.host;
        self.changed.insert(name.to_owned());
        for kind in WIREGUARD_KINDS {
            let old = old.and_then(|facts| facts.wireguard(kind.is_ipv4()).key);
            let new = new.and_then(|facts| facts.wireguard(kind.is_ipv4()).key);
            if old == new {
                continue;
            }
            if let Some(old) = old
                && let Some(holders) = self.holders.get_mut(&(kind, old))
            {
                holders.remove(name);
                // The key becomes usable if one holder remains.
                self.changed.extend(holders.iter().cloned());
                if holders.is_empty() {
                    self.holders.remove(&(kind, old));
                }
            }
            if let Some(new) = new {
                let holders = self.holders.entry((kind, new)).or_default();
                holders.insert(name.to_owned());
                self.changed.extend(holders.iter().cloned());
            }
        }
    }

    /// Returns the device, or `None` if it is disabled or the node has no underlay address yet.
    fn device(&self, kind: TunnelKind) -> Option<TunnelDevice> {
        let settings = self.settings.device(kind);
        let own = self.nodes.get(&self.host).filter(|_| settings.enabled)?;
        let protocol = TunnelProtocol::Wireguard {
            port: settings.port,
            mark: self.settings.mark,
            threaded: self.settings.threaded,
        };
        Some(TunnelDevice {
            name: settings.name.clone(),
            // With host encryption, nodes use the addresses that they already have.
            address: own.tunnel_address(kind).filter(|_| !self.settings.hosts),
            local: own.address(kind.is_ipv4())?.addr(),
            mtu: settings.mtu,
            protocol,
        })
    }

    fn peer(&self, kind: TunnelKind, node: &str) -> Option<WireguardPeer> {
        let facts = self.nodes.get(node).filter(|_| node != self.host && self.devices.contains_key(&kind))?;
        let key = facts.wireguard(kind.is_ipv4()).key?;
        let owned = self.holders.get(&(kind, key)).is_some_and(|holders| holders.len() == 1);
        let address = facts.address(kind.is_ipv4()).filter(|_| owned)?.addr();
        // Every node listens on the configured port.
        let endpoint = SocketAddr::new(address, self.settings.device(kind).port);
        Some(WireguardPeer { key, endpoint, keepalive: self.settings.keepalive })
    }

    /// Returns the changes since the last flush.
    pub fn flush(&mut self) -> WireguardChanges {
        let mut changes = WireguardChanges::default();
        let mut changed = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.stale) {
            WIREGUARD_KINDS.into_iter().for_each(|kind| self.flush_device(kind, &mut changes));
            let rules = self.devices.keys().map(|kind| RoutingRule {
                is_ipv4: kind.is_ipv4(),
                priority: self.settings.priority,
                mark: self.settings.mark,
                table: RoutingTable(self.settings.table),
            });
            let rules: BTreeSet<RoutingRule> = rules.collect();
            if rules != self.rules {
                self.rules.clone_from(&rules);
                changes.plan.added.push(PlanUpdate::RoutingRules(rules));
            }
            changed = self.nodes.keys().cloned().chain(changed).collect();
        }
        for kind in WIREGUARD_KINDS {
            for node in &changed {
                let peer = self.peer(kind, node);
                self.set_peer(kind, node, peer, &mut changes);
            }
        }
        changes
    }

    fn flush_device(&mut self, kind: TunnelKind, changes: &mut WireguardChanges) {
        let new = self.device(kind);
        let old = set_entry(&mut self.devices, kind, new.clone());
        if old != new {
            changes.plan.push(new.is_some(), PlanUpdate::Tunnel(kind, new.clone()));
        }
        let table = new.is_some().then(|| self.settings.table());
        if set_entry(&mut self.tables, kind, table) != table {
            changes.tables.push((kind, table));
        }
    }

    fn set_peer(
        &mut self,
        kind: TunnelKind,
        node: &str,
        peer: Option<WireguardPeer>,
        changes: &mut WireguardChanges,
    ) {
        let id = WireguardPeerId { tunnel: kind, node: node.to_owned() };
        let old = set_entry(&mut self.peers, id.clone(), peer);
        if old == peer {
            return;
        }
        let endpoint = peer.map(|peer| peer.endpoint.ip());
        if old.map(|old| old.endpoint.ip()) != endpoint {
            changes.peers.push((kind, node.to_owned(), endpoint));
        }
        changes.plan.push(peer.is_some(), PlanUpdate::WireguardPeer(id, peer));
    }
}
