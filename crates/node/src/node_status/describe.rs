//! Converts the status of the speaker to the fields of CalicoNodeStatus.

use crate::queries::RunningBgp;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;
use tortie_bgp::core::{BgpPeerState, PeerStatus, RouteStatus, SpeakerStatus};
use tortie_model::kinds::{
    BGPDaemonState, BGPDaemonStatus, BGPPeerType, BGPSessionState, NodeAgentStatus, NodeBGPStatus, NodePeer,
    NodeRoute, NodeRouteLearnedFrom, NodeRouteSource, NodeRouteStatus, NodeRouteType,
};

/// The BGP backend and its status.
type BgpWithStatus = (RunningBgp, SpeakerStatus);

/// Returns the agent status for both families. One speaker serves both.
pub fn list_families(of: impl Fn(bool) -> BGPDaemonStatus) -> NodeAgentStatus {
    NodeAgentStatus { bird_v4: Some(of(false)), bird_v6: Some(of(true)) }
}

pub fn describe_agent(bgp: Option<&BgpWithStatus>) -> BGPDaemonStatus {
    match bgp {
        Some((running, status)) => BGPDaemonStatus {
            state: BGPDaemonState::Ready,
            version: format!("tortie {}", env!("CARGO_PKG_VERSION")),
            router_id: status.router_id.to_string(),
            last_boot_time: time(running.started),
            last_reconfiguration_time: time(running.configured),
        },
        None => BGPDaemonStatus { state: BGPDaemonState::NotReady, ..BGPDaemonStatus::default() },
    }
}

pub fn list_peers(bgp: Option<&BgpWithStatus>) -> NodeBGPStatus {
    let mut answer = NodeBGPStatus::default();
    let Some((running, status)) = bgp else { return answer };
    for peer in &status.peers {
        // CalicoNodeStatus has no type for peers that are workloads.
        let Some(type_) = convert_peer_type(&peer.name) else { continue };
        let up = peer.state == BgpPeerState::Established;
        let (list, established, others) = match peer.address {
            IpAddr::V4(_) => (
                &mut answer.peers_v4,
                &mut answer.number_established_v4,
                &mut answer.number_not_established_v4,
            ),
            IpAddr::V6(_) => (
                &mut answer.peers_v6,
                &mut answer.number_established_v6,
                &mut answer.number_not_established_v6,
            ),
        };
        *if up { established } else { others } += 1;
        list.push(NodePeer {
            peer_ip: peer.address.to_string(),
            type_,
            state: convert_session_state(peer.state),
            since: time(running.started + peer.since),
        });
    }
    answer
}

fn convert_peer_type(name: &str) -> Option<BGPPeerType> {
    match name.split_once('_')?.0 {
        "Mesh" => Some(BGPPeerType::NodeMesh),
        "Global" => Some(BGPPeerType::GlobalPeer),
        "Node" => Some(BGPPeerType::NodePeer),
        _ => None,
    }
}

fn convert_session_state(state: BgpPeerState) -> BGPSessionState {
    match state {
        BgpPeerState::Idle => BGPSessionState::Idle,
        BgpPeerState::Connect => BGPSessionState::Connect,
        BgpPeerState::Active => BGPSessionState::Active,
        BgpPeerState::OpenSent => BGPSessionState::OpenSent,
        BgpPeerState::OpenConfirm => BGPSessionState::OpenConfirm,
        BgpPeerState::Established => BGPSessionState::Established,
    }
}

/// Returns the routes. `interfaces` contains the outgoing interface of each next hop.
pub fn list_routes(
    known: &[Vec<RouteStatus>; 2],
    bgp: Option<&BgpWithStatus>,
    interfaces: &BTreeMap<IpAddr, String>,
) -> NodeRouteStatus {
    let peers = bgp.map_or(&[][..], |(_, status)| &status.peers);
    let [routes_v4, routes_v6] = known.each_ref().map(|routes| {
        let mut routes: Vec<&RouteStatus> = routes.iter().collect();
        // Sort the routes, because a different order would make each report look like a change.
        routes.sort_by_key(|route| (route.prefix, !route.best, route.peer.clone()));
        routes.into_iter().map(|route| describe(route, peers, interfaces)).collect()
    });
    NodeRouteStatus { routes_v4, routes_v6 }
}

fn describe(route: &RouteStatus, peers: &[PeerStatus], interfaces: &BTreeMap<IpAddr, String>) -> NodeRoute {
    let next_hop = route.attrs.next_hop.filter(|_| route.peer.is_some());
    let interface = match (&next_hop, &route.attrs.device) {
        (Some(next_hop), _) => interfaces.get(next_hop).cloned().unwrap_or_else(|| "unreachable".to_owned()),
        (None, Some(device)) => device.to_string(),
        (None, None) => "blackhole".to_owned(),
    };
    let mut peer_ip = String::new();
    let source_type = match &route.peer {
        Some(name) => {
            let peer = peers.iter().find(|peer| peer.name == *name);
            let mesh = convert_peer_type(name) == Some(BGPPeerType::NodeMesh);
            peer_ip = peer.map(|peer| peer.address.to_string()).unwrap_or_default();
            if mesh { NodeRouteSource::NodeMesh } else { NodeRouteSource::BGPPeer }
        }
        // A route with a device is the address of a workload, which the kernel has; otherwise it is one of our
        // blocks.
        None if route.attrs.device.is_some() => NodeRouteSource::Kernel,
        None => NodeRouteSource::Static,
    };
    NodeRoute {
        type_: if route.used { NodeRouteType::FIB } else { NodeRouteType::RIB },
        destination: route.prefix.to_string(),
        gateway: next_hop.map_or_else(|| "N/A".to_owned(), |next_hop| next_hop.to_string()),
        interface,
        learned_from: Some(NodeRouteLearnedFrom { source_type, peer_ip }),
    }
}

/// Formats a time as RFC 3339 in UTC with whole seconds.
fn time(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| format!("{time:.0}")).unwrap_or_default()
}
