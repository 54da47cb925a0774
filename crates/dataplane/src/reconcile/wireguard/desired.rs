//! The desired configuration of a WireGuard device: the peers of the plan, each with the destinations routed to it as
//! its allowed IPs.

use super::super::DataplaneCore;
use crate::kernel::{WireguardPeerState, WireguardState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::{RouteTarget, TunnelKind, TunnelProtocol};

impl DataplaneCore {
    /// Returns the device name of a WireGuard tunnel in the plan if the device exists.
    pub fn wireguard_device(&self, kind: TunnelKind) -> Option<String> {
        self.plan.tunnel(kind)?;
        self.tunnel_link(kind).map(|link| link.name.clone())
    }

    pub fn wanted_threaded(&self, kind: TunnelKind) -> bool {
        let protocol = self.plan.tunnel(kind).map(|device| device.protocol);
        matches!(protocol, Some(TunnelProtocol::Wireguard { threaded: true, .. }))
    }

    pub fn index_of(&self, device: &str) -> Option<u32> {
        self.links.named(device).map(|link| link.index)
    }

    /// Returns the desired state, except for the public key, which follows from the private one.
    pub(in crate::reconcile) fn wanted_wireguard(&self, kind: TunnelKind) -> Option<WireguardState> {
        let TunnelProtocol::Wireguard { port, mark, .. } = self.plan.tunnel(kind)?.protocol else {
            return None;
        };
        let mut allowed: BTreeMap<IpAddr, BTreeSet<_>> = BTreeMap::new();
        for key in self.plan.destinations_through(kind) {
            if let Some(RouteTarget::Tunnel { gateway: Some(peer), .. }) =
                self.plan.route(&key).map(|route| route.target)
            {
                allowed.entry(peer).or_default().insert(key.destination);
            }
        }
        let mut peers = BTreeMap::new();
        for peer in self.plan.wireguard_peers(kind) {
            // If several nodes have one address, the first by name gets the destinations routed there.
            let allowed = allowed.remove(&peer.endpoint.ip()).unwrap_or_default();
            let (endpoint, keepalive) = (Some(peer.endpoint), peer.keepalive);
            peers.insert(peer.key, WireguardPeerState { endpoint, keepalive, allowed });
        }
        let private_key = self.wireguards.get(&kind)?.key.clone();
        Some(WireguardState { private_key, public_key: None, port, mark, peers })
    }
}
