//! A new configuration: sessions that differ are dealt with, the others notice nothing.

use super::Core;
use super::peer::Peer;
use crate::config::{Config, ConfigError, PeerConfig};
use crate::family::Family;
use crate::rib::decide::Origin;
use crate::timers::{Time, Timer};
use rustbgpd_wire::notification::cease_subcode;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// What a difference between two configurations of a session asks for.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    /// A new session: what was agreed, or how the connection is made, has changed.
    session: bool,
    /// The peer's routes again.
    import: bool,
    /// Our routes told again.
    export: bool,
}

impl Core {
    /// Refuses a configuration that cannot work and leaves everything as it was.
    pub fn reconfigure(&mut self, now: Time, mut config: Config) -> Result<(), ConfigError> {
        config.check()?;
        let peers = std::mem::take(&mut config.peers);
        let identity = (config.asn, config.router_id) != (self.config.asn, self.config.router_id);
        let addresses = (config.local_v4, config.local_v6) != (self.config.local_v4, self.config.local_v6);
        let multipath = config.multipath != self.config.multipath;
        self.config = config;
        if multipath {
            self.install_again();
        }
        let known: Vec<(u16, Arc<str>)> =
            self.peers.iter().flatten().map(|peer| (peer.number, peer.name.clone())).collect();
        for (number, name) in &known {
            if !peers.contains_key(&**name) {
                self.remove_peer(now, *number);
            }
        }
        for (name, new) in peers {
            let number = known.iter().find(|(_, known)| **known == *name).map(|(number, _)| *number);
            match number {
                None => self.add_peer(now, name, new),
                Some(number) => {
                    let Some(peer) = self.peer(number) else { continue };
                    let mut needs = needs(&peer.config, &new);
                    needs.session |= identity || self.config.local_as(&new) != peer.local_as;
                    needs.export |= addresses;
                    self.change_peer(now, number, new, &needs);
                }
            }
        }
        self.check_restart(now);
        Ok(())
    }

    pub(super) fn add_peer(&mut self, now: Time, name: String, config: PeerConfig) {
        let number = match self.peers.iter().skip(1).position(Option::is_none) {
            Some(free) => free + 1,
            None => {
                self.peers.push(None);
                self.origins.push(Origin::LOCAL);
                self.peers.len() - 1
            }
        };
        let Ok(number) = u16::try_from(number) else {
            self.peers.pop();
            self.origins.pop();
            tracing::error!(name, "more peers than can be numbered");
            return;
        };
        let peer = Peer::new(number, name, config, &self.config, now);
        if let Some(origin) = self.origins.get_mut(usize::from(number)) {
            *origin = Origin {
                external: peer.external(),
                router_id: Ipv4Addr::UNSPECIFIED,
                address: peer.config.address,
            };
        }
        if let Some(slot) = self.peers.get_mut(usize::from(number)) {
            *slot = Some(peer);
        }
        self.start_peer(now, number);
    }

    fn remove_peer(&mut self, now: Time, number: u16) {
        self.end(now, number, cease_subcode::PEER_DECONFIGURED);
        if let Some(slot) = self.peers.get_mut(usize::from(number)) {
            *slot = None;
        }
    }

    /// Ends whatever a peer has: connections, timers, routes.
    fn end(&mut self, now: Time, number: u16, subcode: u8) {
        for direction in [super::Direction::In, super::Direction::Out] {
            self.cease(now, number, direction, subcode);
            self.abandon(now, number, direction);
        }
        for family in Family::ALL {
            self.drop_paths(number, family, false);
        }
        self.timers.stop_all(number);
    }

    fn change_peer(&mut self, now: Time, number: u16, new: PeerConfig, needs: &Needs) {
        if needs.session {
            let Some(name) = self.peer(number).map(|peer| peer.name.to_string()) else { return };
            self.end(now, number, cease_subcode::OTHER_CONFIGURATION_CHANGE);
            if let Some(slot) = self.peers.get_mut(usize::from(number)) {
                *slot = None;
            }
            return self.add_peer(now, name, new);
        }
        let Some(peer) = self.peer_mut(number) else { return };
        let passive = new.passive && !peer.config.passive;
        let active = !new.passive && peer.config.passive;
        peer.config = new;
        if needs.export {
            Family::ALL.into_iter().for_each(|family| self.tell_again(number, family));
        }
        if needs.import {
            self.ask_again(now, number);
        }
        if passive {
            self.timers.stop(number, Timer::Connect);
        }
        if active && self.peer(number).is_some_and(|peer| peer.established().is_none()) {
            self.start_peer(now, number);
        }
    }
}

fn needs(old: &PeerConfig, new: &PeerConfig) -> Needs {
    // What does not need a new session is taken over before the rest is compared.
    let mut same = old.clone();
    same.passive = new.passive;
    same.next_hop = new.next_hop;
    same.reflect = new.reflect;
    same.import = new.import.clone();
    same.export = new.export.clone();
    same.allow_own_as = new.allow_own_as;
    same.max_prefixes = new.max_prefixes;
    same.connect_retry = new.connect_retry;
    same.idle_hold = new.idle_hold;
    Needs {
        session: same != *new,
        import: old.import != new.import
            || old.allow_own_as != new.allow_own_as
            || old.reflect != new.reflect,
        export: old.export != new.export || old.next_hop != new.next_hop || old.reflect != new.reflect,
    }
}
