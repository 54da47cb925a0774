//! Determines the sessions of a node: the mesh between all nodes, and those of BGPPeers, seen from both ends.

use super::settings::{BgpSettings, seconds, secret};
use super::workloads::is_for_workloads;
use crate::nodes::NodeFacts;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_model::kinds::{self, BGPPeer, BGPPeerSpec, ReversePeering, SourceAddress};
use tortie_model::selector::Selector;
use tortie_plan::bgp::{AdvertisedNextHop, BgpSession, BgpSessionKind};

const DEFAULT_BGP_PORT: u16 = 179;

pub(super) struct SessionBuilder<'a> {
    pub host: &'a str,
    pub own: &'a NodeFacts,
    pub as_number: u32,
    pub settings: &'a BgpSettings,
    pub nodes: &'a BTreeMap<String, Arc<NodeFacts>>,
    pub peers: &'a BTreeMap<String, BGPPeer>,
    /// Addresses of workloads of this node, by the BGPPeer that selects them.
    pub workloads: BTreeMap<&'a str, Vec<IpAddr>>,
}

/// The remote end of a session.
struct RemotePeer<'a> {
    address: IpAddr,
    port: u16,
    as_number: u32,
    /// The node, if a selector matched it.
    node: Option<&'a NodeFacts>,
}

/// The nodes that a BGPPeer gives a session.
pub(super) enum NodeScope {
    All,
    Node(String),
    Selected(Option<Selector>),
}

impl NodeScope {
    pub fn new(spec: &BGPPeerSpec) -> NodeScope {
        match (spec.node_selector.as_str(), spec.node.as_str()) {
            ("", "") => NodeScope::All,
            ("", node) => NodeScope::Node(node.to_owned()),
            (selector, _) => NodeScope::Selected(Selector::parse(selector).ok()),
        }
    }

    pub fn has(&self, name: &str, node: &NodeFacts) -> bool {
        match self {
            NodeScope::All => true,
            NodeScope::Node(wanted) => wanted == name,
            NodeScope::Selected(selector) => {
                selector.as_ref().is_some_and(|selector| selector.matches(&node.labels))
            }
        }
    }
}

impl<'a> SessionBuilder<'a> {
    /// Returns the sessions by name. If two BGPPeers define the same session, the more general one wins, then the
    /// first by name.
    pub fn sessions(&self) -> BTreeMap<String, BgpSession> {
        let mut found = SessionSet::default();
        let between_nodes = self.peers.values().filter(|peer| !is_for_workloads(peer));
        let (global, of_nodes): (Vec<&BGPPeer>, Vec<&BGPPeer>) =
            between_nodes.partition(|peer| matches!(NodeScope::new(&peer.spec), NodeScope::All));
        for (kind, peers) in [(BgpSessionKind::Global, &global), (BgpSessionKind::Node, &of_nodes)] {
            for peer in peers.iter().filter(|peer| NodeScope::new(&peer.spec).has(self.host, self.own)) {
                for remote in self.remotes(&peer.spec) {
                    found.add(self.session(kind, &peer.spec, &remote));
                }
            }
        }
        for peer in global.iter().chain(&of_nodes) {
            for remote in self.reverse(&peer.spec) {
                found.add(self.session(BgpSessionKind::Node, &peer.spec, &remote));
            }
        }
        for (name, addresses) in &self.workloads {
            let Some(peer) = self.peers.get(*name) else { continue };
            for address in addresses {
                found.add(Some(self.workload_session(&peer.spec, *address)));
            }
        }
        let mut sessions = found.sessions;
        sessions.extend(self.mesh());
        sessions
    }

    fn mesh(&self) -> BTreeMap<String, BgpSession> {
        let mut sessions = BTreeMap::new();
        if !self.settings.mesh || self.own.cluster_id.is_some() {
            return sessions;
        }
        for (name, node) in self.nodes.iter().filter(|(name, _)| *name != self.host) {
            if node.cluster_id.is_some() {
                continue;
            }
            for peer in node.bgp_addresses() {
                let Some(source) = self.own.bgp_address_like(peer).filter(|own| *own != peer) else {
                    continue;
                };
                let session = BgpSession {
                    kind: BgpSessionKind::Mesh,
                    peer,
                    port: self.settings.port_of(name),
                    remote_as: node.as_number.unwrap_or(self.as_number),
                    local_as: None,
                    source: Some(source),
                    passive: is_passive_end(source, peer),
                    password: self.settings.mesh_password.clone(),
                    restart_time: self.settings.mesh_restart_time,
                    keepalive: None,
                    ttl_security: None,
                    next_hop: AdvertisedNextHop::Auto,
                    reflect: None,
                    allow_own_as: 0,
                    filters: Vec::new(),
                    reachable_by: None,
                };
                sessions.insert(format!("Mesh_{}", name_part(peer)), session);
            }
        }
        sessions
    }

    /// Returns the remote ends of a BGPPeer that applies to this node.
    fn remotes(&self, spec: &BGPPeerSpec) -> Vec<RemotePeer<'a>> {
        if !spec.peer_selector.is_empty() {
            return self
                .selected(&spec.peer_selector)
                .flat_map(|(name, node)| self.remotes_of(name, node))
                .collect();
        }
        let Some((address, port)) = spec.peer_address() else { return Vec::new() };
        let as_number = match spec.as_number.0 {
            0 => self.settings.as_number,
            given => given,
        };
        let at_node = self.node_at(address, as_number);
        let port = port.or_else(|| at_node.map(|(name, _)| self.settings.port_of(name)));
        let port = port.unwrap_or(DEFAULT_BGP_PORT);
        vec![RemotePeer { address, port, as_number, node: None }]
    }

    /// Returns the nodes for which this node is the remote end of a BGPPeer, so that it needs a session back to them.
    fn reverse(&self, spec: &BGPPeerSpec) -> Vec<RemotePeer<'a>> {
        if spec.reverse_peering == ReversePeering::Manual || !spec.local_workload_selector.is_empty() {
            return Vec::new();
        }
        let (meant, family) = match spec.peer_address() {
            _ if !spec.peer_selector.is_empty() => {
                (self.selected(&spec.peer_selector).any(|(name, _)| name == self.host), None)
            }
            Some((address, port)) => {
                let as_number = Some(spec.as_number.0).filter(|number| *number != 0);
                let same_as = as_number.unwrap_or(self.settings.as_number) == self.as_number;
                let same_port = port.is_none_or(|port| port == self.settings.listen_port);
                (self.own.bgp_addresses().any(|own| own == address) && same_as && same_port, Some(address))
            }
            None => (false, None),
        };
        if !meant {
            return Vec::new();
        }
        let side = NodeScope::new(spec);
        let givers = self.nodes.iter().filter(|(name, node)| side.has(name, node));
        let ends = givers.flat_map(|(name, node)| self.remotes_of(name, node));
        ends.filter(|end| family.is_none_or(|family| family.is_ipv4() == end.address.is_ipv4())).collect()
    }

    fn selected(&self, selector: &str) -> impl Iterator<Item = (&'a String, &'a NodeFacts)> + use<'a> {
        let selector = Selector::parse(selector).ok();
        let nodes = self.nodes.iter().map(|(name, node)| (name, node.as_ref()));
        nodes
            .filter(move |(_, node)| selector.as_ref().is_some_and(|selector| selector.matches(&node.labels)))
    }

    fn remotes_of(&self, name: &str, node: &'a NodeFacts) -> Vec<RemotePeer<'a>> {
        let port = self.settings.port_of(name);
        let as_number = node.as_number.unwrap_or(self.settings.as_number);
        node.bgp_addresses()
            .map(|address| RemotePeer { address, port, as_number, node: Some(node) })
            .collect()
    }

    fn node_at(&self, address: IpAddr, as_number: u32) -> Option<(&'a String, &'a NodeFacts)> {
        let mut nodes = self.nodes.iter().map(|(name, node)| (name, node.as_ref()));
        nodes.find(|(_, node)| {
            node.bgp_addresses().any(|own| own == address)
                && node.as_number.unwrap_or(self.settings.as_number) == as_number
        })
    }

    /// Returns the session with a local workload. The workload connects to the address of the host on its link.
    fn workload_session(&self, spec: &BGPPeerSpec, peer: IpAddr) -> BgpSession {
        let remote_as = spec.as_number.0;
        let local_as = spec.local_as_number.map(|number| number.0).filter(|number| *number != 0);
        let internal = local_as.unwrap_or(self.as_number) == remote_as;
        BgpSession {
            kind: BgpSessionKind::LocalWorkload,
            peer,
            port: DEFAULT_BGP_PORT,
            remote_as,
            local_as,
            source: None,
            passive: true,
            password: None,
            restart_time: None,
            keepalive: None,
            ttl_security: None,
            next_hop: AdvertisedNextHop::Auto,
            reflect: self.own.cluster_id.filter(|_| internal),
            allow_own_as: 0,
            filters: spec.filters.clone(),
            reachable_by: None,
        }
    }

    /// Returns the session with a remote end, or `None` if that is this node itself or of a family that this node
    /// lacks.
    fn session(
        &self,
        kind: BgpSessionKind,
        spec: &BGPPeerSpec,
        remote: &RemotePeer<'_>,
    ) -> Option<BgpSession> {
        let own = self.own.bgp_address_like(remote.address).filter(|own| *own != remote.address)?;
        let by_address = remote.node.is_none();
        let local_as =
            spec.local_as_number.map(|number| number.0).filter(|number| by_address && *number != 0);
        let internal = local_as.unwrap_or(self.as_number) == remote.as_number;
        let another_cluster = remote.node.is_none_or(|node| node.cluster_id != self.own.cluster_id);
        let is_node =
            self.nodes.values().any(|node| node.bgp_address_like(remote.address) == Some(remote.address));
        let next_hop = match spec.next_hop_mode {
            kinds::NextHopMode::Self_ => AdvertisedNextHop::Own,
            kinds::NextHopMode::Keep => AdvertisedNextHop::Keep,
            _ if spec.keep_original_next_hop && !internal => AdvertisedNextHop::Keep,
            _ => AdvertisedNextHop::Auto,
        };
        let allowed = spec.num_allowed_local_as_numbers.filter(|_| by_address).unwrap_or(0);
        Some(BgpSession {
            kind,
            peer: remote.address,
            port: remote.port,
            remote_as: remote.as_number,
            local_as,
            source: (spec.source_address != SourceAddress::None).then_some(own),
            passive: kind == BgpSessionKind::Global
                && by_address
                && is_node
                && is_passive_end(own, remote.address),
            password: secret(spec.password.as_ref()),
            restart_time: seconds(spec.max_restart_time.as_ref()),
            keepalive: seconds(spec.keepalive_time.as_ref()),
            ttl_security: spec.ttl_security.filter(|hops| *hops > 0),
            next_hop,
            reflect: self.own.cluster_id.filter(|_| internal && another_cluster),
            allow_own_as: u32::try_from(allowed).unwrap_or(0),
            filters: spec.filters.clone(),
            reachable_by: spec.reachable_by.parse().ok(),
        })
    }
}

#[derive(Default)]
struct SessionSet {
    sessions: BTreeMap<String, BgpSession>,
}

impl SessionSet {
    fn add(&mut self, session: Option<BgpSession>) {
        let Some(session) = session else { return };
        let port =
            if session.port == DEFAULT_BGP_PORT { String::new() } else { format!("_port_{}", session.port) };
        let rest = format!("{}{port}", name_part(session.peer));
        let name = match session.kind {
            BgpSessionKind::Mesh => format!("Mesh_{rest}"),
            BgpSessionKind::Global => format!("Global_{rest}"),
            BgpSessionKind::Node if self.sessions.contains_key(&format!("Global_{rest}")) => return,
            BgpSessionKind::Node => format!("Node_{rest}"),
            BgpSessionKind::LocalWorkload => format!("Local_Workload_{rest}"),
        };
        self.sessions.entry(name).or_insert(session);
    }
}

/// Returns whether this end waits for the peer to connect: of two nodes, the one with the larger address as text
/// connects.
fn is_passive_end(own: IpAddr, peer: IpAddr) -> bool {
    peer.to_string() > own.to_string()
}

/// Formats an address as part of a session name.
fn name_part(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "_")
}
