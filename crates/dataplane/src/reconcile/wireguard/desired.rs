//! The desired configuration of a WireGuard device: the peers of the plan, each with the destinations routed to it as
//! its allowed IPs.

use super::super::ReconcileContext;
use crate::kernel::{PrivateKey, WireguardPeerState, WireguardState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{RouteTarget, TunnelKind, TunnelProtocol};

pub fn is_threading_desired(tunnel: TunnelKind, context: &ReconcileContext) -> bool {
    let protocol = context.plan.tunnel(tunnel).map(|device| device.protocol);
    matches!(protocol, Some(TunnelProtocol::Wireguard { threaded: true, .. }))
}

/// Returns the desired state, except for the public key, which follows from the private one.
pub fn desired_state(
    tunnel: TunnelKind,
    private_key: Option<PrivateKey>,
    context: &ReconcileContext,
) -> Option<WireguardState> {
    let TunnelProtocol::Wireguard { port, mark, .. } = context.plan.tunnel(tunnel)?.protocol else {
        return None;
    };
    let mut allowed: BTreeMap<IpAddr, BTreeSet<_>> = BTreeMap::new();
    for key in context.plan.destinations_through(tunnel) {
        if let Some(RouteTarget::Tunnel { gateway: Some(peer), .. }) =
            context.plan.route(&key).map(|route| route.target)
        {
            allowed.entry(peer).or_default().insert(key.destination);
        }
    }
    let mut peers = BTreeMap::new();
    for peer in context.plan.wireguard_peers(tunnel) {
        // If several nodes have one address, the first by name gets the destinations routed there.
        let allowed = allowed.remove(&peer.endpoint.ip()).unwrap_or_default();
        let endpoint = Some(peer.endpoint);
        peers.insert(peer.key, WireguardPeerState { endpoint, keepalive: peer.keepalive, allowed });
    }
    Some(WireguardState { private_key, public_key: None, port, mark, peers })
}
