//! Applies a new configuration. Only sessions that differ are affected.

use super::SpeakerCore;
use super::peer::PeerSession;
use crate::config::{ConfigError, PeerConfig, SpeakerConfig};
use crate::family::BgpFamily;
use crate::id::PeerId;
use crate::rib::decide::PathOrigin;
use crate::timers::{SessionTimer, SpeakerTime};
use rustbgpd_wire::notification::cease_subcode;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The actions that a difference between two configurations of a session requires.
#[derive(Debug, PartialEq, Eq)]
struct PeerChangeActions {
    /// A new session, because negotiated values or the parameters of the connection have changed.
    session: bool,
    /// A route refresh from the peer.
    import: bool,
    /// Advertising our routes again.
    export: bool,
}

impl SpeakerCore {
    /// Applies a new configuration. Rejects one that cannot work and then changes nothing.
    pub fn reconfigure(&mut self, now: SpeakerTime, mut config: SpeakerConfig) -> Result<(), ConfigError> {
        config.check()?;
        let peers = std::mem::take(&mut config.peers);
        let identity = (config.asn, config.router_id) != (self.config.asn, self.config.router_id);
        let addresses = (config.local_v4, config.local_v6) != (self.config.local_v4, self.config.local_v6);
        let multipath = config.multipath != self.config.multipath;
        self.config = config;
        if multipath {
            self.install_again();
        }
        let known: Vec<(PeerId, Arc<str>)> =
            self.peers.iter().flatten().map(|peer| (peer.id, peer.name.clone())).collect();
        for (peer_id, name) in &known {
            if !peers.contains_key(&**name) {
                self.remove_peer(now, *peer_id);
            }
        }
        for (name, new) in peers {
            let peer_id = known.iter().find(|(_, known)| **known == *name).map(|(peer_id, _)| *peer_id);
            match peer_id {
                None => self.add_peer(now, name, new),
                Some(peer_id) => {
                    let Some(peer) = self.peer(peer_id) else { continue };
                    let mut needs = needs(&peer.config, &new);
                    needs.session |= identity || self.config.local_as(&new) != peer.local_as;
                    needs.export |= addresses;
                    self.change_peer(now, peer_id, new, &needs);
                }
            }
        }
        self.check_restart(now);
        Ok(())
    }

    pub(super) fn add_peer(&mut self, now: SpeakerTime, name: String, config: PeerConfig) {
        let index = match self.peers.iter().skip(1).position(Option::is_none) {
            Some(free) => free + 1,
            None => {
                self.peers.push(None);
                self.origins.push(PathOrigin::LOCAL);
                self.peers.len() - 1
            }
        };
        let Some(peer_id) = PeerId::from_index(index) else {
            self.peers.pop();
            self.origins.pop();
            tracing::error!(name, "cannot add the BGP peer: too many peers");
            return;
        };
        let peer = PeerSession::new(peer_id, name, config, &self.config, now);
        if let Some(origin) = self.origins.get_mut(peer_id.index()) {
            *origin = PathOrigin {
                external: peer.external(),
                router_id: Ipv4Addr::UNSPECIFIED,
                address: peer.config.address,
            };
        }
        if let Some(slot) = self.peers.get_mut(peer_id.index()) {
            *slot = Some(peer);
        }
        self.start_peer(now, peer_id);
    }

    fn remove_peer(&mut self, now: SpeakerTime, peer_id: PeerId) {
        self.end(now, peer_id, cease_subcode::PEER_DECONFIGURED);
        if let Some(slot) = self.peers.get_mut(peer_id.index()) {
            *slot = None;
        }
    }

    /// Ends all connections, timers and routes of a peer.
    fn end(&mut self, now: SpeakerTime, peer_id: PeerId, subcode: u8) {
        for direction in [super::ConnectionDirection::Incoming, super::ConnectionDirection::Outgoing] {
            self.cease(now, peer_id, direction, subcode);
            self.discard_connection(now, peer_id, direction);
        }
        for family in BgpFamily::ALL {
            self.drop_paths(peer_id, family, false);
        }
        self.timers.stop_all(peer_id);
    }

    fn change_peer(&mut self, now: SpeakerTime, peer_id: PeerId, new: PeerConfig, needs: &PeerChangeActions) {
        if needs.session {
            let Some(name) = self.peer(peer_id).map(|peer| peer.name.to_string()) else { return };
            self.end(now, peer_id, cease_subcode::OTHER_CONFIGURATION_CHANGE);
            if let Some(slot) = self.peers.get_mut(peer_id.index()) {
                *slot = None;
            }
            return self.add_peer(now, name, new);
        }
        let Some(peer) = self.peer_mut(peer_id) else { return };
        let passive = new.passive && !peer.config.passive;
        let active = !new.passive && peer.config.passive;
        peer.config = new;
        if needs.export {
            BgpFamily::ALL.into_iter().for_each(|family| self.readvertise(peer_id, family));
        }
        if needs.import {
            self.request_routes(now, peer_id);
        }
        if passive {
            self.timers.stop(peer_id, SessionTimer::Connect);
        }
        if active && self.peer(peer_id).is_some_and(|peer| peer.established().is_none()) {
            self.start_peer(now, peer_id);
        }
    }
}

fn needs(old: &PeerConfig, new: &PeerConfig) -> PeerChangeActions {
    // Copy the fields that do not require a new session before comparing the rest.
    let mut same = old.clone();
    same.passive = new.passive;
    same.next_hop = new.next_hop;
    same.reflect = new.reflect;
    same.import = new.import.clone();
    same.export = new.export.clone();
    same.allow_own_as = new.allow_own_as;
    same.max_prefixes = new.max_prefixes;
    same.max_paths_per_prefix = new.max_paths_per_prefix;
    same.limit_hold = new.limit_hold;
    same.connect_retry = new.connect_retry;
    same.idle_hold = new.idle_hold;
    PeerChangeActions {
        session: same != *new,
        import: old.import != new.import
            || old.allow_own_as != new.allow_own_as
            || old.reflect != new.reflect,
        export: old.export != new.export || old.next_hop != new.next_hop || old.reflect != new.reflect,
    }
}
