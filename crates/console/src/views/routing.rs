//! Address pools and blocks, BGP peers and sessions, routes and tunnels.

use super::{ApiResult, SharedState};
use crate::snapshot::ClusterSnapshot;
use axum::extract::State;
use serde::Serialize;
use tortie_ctl::ipam::BlockUsage;
use tortie_ipam::usage::AddressUsage;
use tortie_model::Resource;
use tortie_model::kinds::{CalicoNodeStatus, IPPool, NodePeer};

/// Maximum number of routes in a response.
const MAX_ROUTES: usize = 2000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RoutingData {
    pools: Vec<PoolItem>,
    /// Blocks that no pool contains.
    orphans: Vec<BlockItem>,
    peers: Vec<PeerItem>,
    sessions: Vec<SessionItem>,
    routes: Vec<RouteItem>,
    omitted_routes: usize,
    tunnels: Vec<TunnelItem>,
    /// Whether nodes report sessions and routes.
    reports: bool,
}

/// Numbers of addresses. Pools of IPv6 have more than an integer of JavaScript holds.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageItem {
    total: f64,
    in_use: f64,
    reserved: f64,
    free: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolItem {
    name: String,
    cidr: String,
    enabled: bool,
    encapsulation: String,
    nat_outgoing: bool,
    block_size: u8,
    pub usage: UsageItem,
    blocks: Vec<BlockItem>,
}

#[derive(Serialize)]
struct BlockItem {
    cidr: String,
    owner: Option<String>,
    usage: UsageItem,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerItem {
    name: String,
    nodes: String,
    peer: String,
    as_number: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionItem {
    node: String,
    peer: String,
    kind: String,
    pub state: String,
    since: String,
}

#[derive(Serialize)]
struct RouteItem {
    node: String,
    destination: String,
    gateway: String,
    interface: String,
    installed: bool,
}

#[derive(Serialize)]
struct TunnelItem {
    node: String,
    kind: &'static str,
    address: String,
}

impl UsageItem {
    fn new(usage: AddressUsage) -> UsageItem {
        UsageItem {
            total: usage.total as f64,
            in_use: usage.in_use as f64,
            reserved: usage.reserved as f64,
            free: usage.free as f64,
        }
    }

    /// Returns the share of addresses that cannot be assigned any more.
    pub fn share(&self) -> f64 {
        if self.total > 0.0 { 1.0 - self.free / self.total } else { 1.0 }
    }
}

impl BlockItem {
    fn new(block: &BlockUsage) -> BlockItem {
        BlockItem {
            cidr: block.cidr.to_string(),
            owner: block.owner.clone(),
            usage: UsageItem::new(block.usage),
        }
    }
}

pub async fn show(State(state): SharedState) -> ApiResult {
    state.render_cluster(describe).await
}

fn describe(snapshot: &ClusterSnapshot) -> RoutingData {
    let peers = snapshot.cluster.resources().filter_map(|resource| match resource {
        Resource::BGPPeer(peer) => {
            let spec = &peer.spec;
            let nodes = [&spec.node, &spec.node_selector].into_iter().find(|text| !text.is_empty());
            let to = if spec.peer_ip.is_empty() { &spec.peer_selector } else { &spec.peer_ip };
            Some(PeerItem {
                name: peer.metadata.name.clone(),
                nodes: nodes.map_or_else(|| "all nodes".to_owned(), Clone::clone),
                peer: to.clone(),
                as_number: spec.as_number.to_string(),
            })
        }
        _ => None,
    });
    let mut routes = list_routes(snapshot);
    let omitted_routes = routes.len().saturating_sub(MAX_ROUTES);
    routes.truncate(MAX_ROUTES);
    RoutingData {
        pools: list_pools(snapshot),
        orphans: snapshot.addresses.orphans.iter().map(BlockItem::new).collect(),
        peers: peers.collect(),
        sessions: list_sessions(snapshot),
        routes,
        omitted_routes,
        tunnels: list_tunnels(snapshot),
        reports: statuses(snapshot).next().is_some(),
    }
}

pub fn list_pools(snapshot: &ClusterSnapshot) -> Vec<PoolItem> {
    let find = |name: &str| -> Option<&IPPool> {
        snapshot.cluster.resources().find_map(|resource| match resource {
            Resource::IPPool(pool) if pool.metadata.name == name => Some(&**pool),
            _ => None,
        })
    };
    let pools = snapshot.addresses.pools.iter().map(|used| {
        let spec = find(&used.pool.name).map(|pool| &pool.spec);
        let encapsulation = match spec {
            Some(spec) if used.pool.vxlan => format!("VXLAN ({})", spec.vxlan_mode),
            Some(spec) if used.pool.ipip => format!("IPIP ({})", spec.ipip_mode),
            _ => "none".to_owned(),
        };
        PoolItem {
            name: used.pool.name.clone(),
            cidr: used.pool.cidr.to_string(),
            enabled: used.pool.enabled,
            encapsulation,
            nat_outgoing: spec.is_some_and(|spec| spec.nat_outgoing),
            block_size: used.pool.block_prefix,
            usage: UsageItem::new(used.usage),
            blocks: used.blocks.iter().map(BlockItem::new).collect(),
        }
    });
    pools.collect()
}

pub fn statuses(snapshot: &ClusterSnapshot) -> impl Iterator<Item = &CalicoNodeStatus> {
    snapshot.cluster.resources().filter_map(|resource| match resource {
        Resource::CalicoNodeStatus(status) => Some(&**status),
        _ => None,
    })
}

/// Returns the BGP sessions that nodes report in CalicoNodeStatus objects.
pub fn list_sessions(snapshot: &ClusterSnapshot) -> Vec<SessionItem> {
    let mut sessions = Vec::new();
    for object in statuses(snapshot) {
        let peers = object.status.bgp.iter().flat_map(|bgp| bgp.peers_v4.iter().chain(&bgp.peers_v6));
        sessions.extend(peers.map(|peer: &NodePeer| SessionItem {
            node: object.spec.node.clone(),
            peer: peer.peer_ip.clone(),
            kind: peer.type_.to_string(),
            state: peer.state.to_string(),
            since: peer.since.clone(),
        }));
    }
    sessions
}

fn list_routes(snapshot: &ClusterSnapshot) -> Vec<RouteItem> {
    let mut routes = Vec::new();
    for object in statuses(snapshot) {
        let reported = object.status.routes.iter().flat_map(|all| all.routes_v4.iter().chain(&all.routes_v6));
        routes.extend(reported.map(|route| RouteItem {
            node: object.spec.node.clone(),
            destination: route.destination.clone(),
            gateway: route.gateway.clone(),
            interface: route.interface.clone(),
            installed: route.type_.to_string() == "FIB",
        }));
    }
    routes
}

fn list_tunnels(snapshot: &ClusterSnapshot) -> Vec<TunnelItem> {
    let mut tunnels = Vec::new();
    for node in snapshot.cluster.nodes() {
        let spec = &node.spec;
        let ipip = spec.bgp.as_ref().map(|bgp| bgp.ipv4_ipip_tunnel_addr.as_str()).unwrap_or_default();
        let wireguard = spec.wireguard.as_ref();
        let all = [
            ("IPIP", ipip),
            ("VXLAN", spec.ipv4_vxlan_tunnel_addr.as_str()),
            ("VXLAN", spec.ipv6_vxlan_tunnel_addr.as_str()),
            ("WireGuard", wireguard.map(|w| w.interface_ipv4_address.as_str()).unwrap_or_default()),
            ("WireGuard", wireguard.map(|w| w.interface_ipv6_address.as_str()).unwrap_or_default()),
        ];
        let named = all.into_iter().filter(|(_, address)| !address.is_empty());
        tunnels.extend(named.map(|(kind, address)| TunnelItem {
            node: node.metadata.name.clone(),
            kind,
            address: address.to_owned(),
        }));
    }
    tunnels
}
