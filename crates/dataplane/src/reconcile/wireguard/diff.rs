//! Computes the changes to a WireGuard device: additions before routes lead to a peer, and removals after the routes
//! are gone.

use super::super::DataplaneCore;
use crate::kernel::{WireguardChange, WireguardPeerState};
use ipnet::IpNet;
use std::collections::BTreeSet;
use tortie_plan::TunnelKind;

impl DataplaneCore {
    /// Returns the missing configuration, to be written before the routes. `None` if nothing is missing, or if the
    /// device has not been read.
    pub fn missing_of_wireguard(&self, kind: TunnelKind) -> Option<WireguardChange> {
        let there = self.wireguards.get(&kind)?.state.as_ref()?;
        let wanted = self.wanted_wireguard(kind)?;
        let mut change = WireguardChange {
            private_key: wanted.private_key.filter(|key| there.private_key.as_ref() != Some(key)),
            port: Some(wanted.port).filter(|port| *port != there.port),
            mark: Some(wanted.mark).filter(|mark| *mark != there.mark),
            ..WireguardChange::default()
        };
        for (key, peer) in wanted.peers {
            let Some(known) = there.peers.get(&key) else {
                change.new.insert(key);
                change.set.insert(key, peer);
                continue;
            };
            let allowed: BTreeSet<IpNet> = peer.allowed.difference(&known.allowed).copied().collect();
            let same = known.endpoint == peer.endpoint && known.keepalive == peer.keepalive;
            if !same || !allowed.is_empty() {
                change.set.insert(key, WireguardPeerState { allowed, ..peer });
            }
        }
        (change != WireguardChange::default()).then_some(change)
    }

    /// Returns the surplus configuration, to be removed after the routes.
    pub fn unwanted_of_wireguard(&self, kind: TunnelKind) -> Option<WireguardChange> {
        let there = self.wireguards.get(&kind)?.state.as_ref().filter(|_| self.in_sync)?;
        let wanted = self.wanted_wireguard(kind)?;
        let mut change = WireguardChange::default();
        for (key, known) in &there.peers {
            match wanted.peers.get(key) {
                None => {
                    change.removed.insert(*key);
                }
                Some(peer) if !known.allowed.is_subset(&peer.allowed) => {
                    change.narrowed.insert(*key, peer.allowed.clone());
                }
                Some(_) => {}
            }
        }
        (change != WireguardChange::default()).then_some(change)
    }
}
