//! Route refresh (RFC 2918) and its enhanced form (RFC 7313), in both directions.

use super::{Core, Direction};
use crate::family::Family;
use crate::timers::{Time, Timer};
use rustbgpd_wire::{Message, RouteRefreshMessage, RouteRefreshSubtype};

impl Core {
    /// The peer asks for our routes again, or says that it begins or has finished repeating its own.
    pub(super) fn refresh(&mut self, now: Time, number: u16, family: Family, subtype: RouteRefreshSubtype) {
        match subtype {
            RouteRefreshSubtype::Normal => self.tell_again(number, family),
            RouteRefreshSubtype::BoRR => {
                self.doubt(number, family);
                self.timers.set(number, Timer::Stale(family), now + self.config.restart_wait);
            }
            RouteRefreshSubtype::EoRR => self.end_doubt(number, family),
            _ => {}
        }
    }

    /// Walks through the whole table for a peer again.
    pub(super) fn tell_again(&mut self, number: u16, family: Family) {
        let numbers = match family {
            Family::V4 => self.rib.v4.numbers(),
            Family::V6 => self.rib.v6.numbers(),
        };
        let Some(peer) = self.peer_mut(number) else { return };
        let enhanced = peer.negotiated().is_some_and(|negotiated| negotiated.peer_enhanced_route_refresh);
        if let Some(outlet) = peer.outlets.get_mut(family) {
            outlet.walk_again(numbers, enhanced);
        }
    }

    /// Asks a peer for its routes again.
    pub fn request_refresh(&mut self, now: Time, name: &str) {
        let number = self.peers.iter().flatten().find(|peer| &*peer.name == name).map(|peer| peer.number);
        if let Some(number) = number {
            self.ask_again(now, number);
        }
    }

    /// Asks a peer for its routes again, because what we make of them has changed. A peer that cannot do that
    /// is asked by a new session.
    pub(super) fn ask_again(&mut self, now: Time, number: u16) {
        let Some(peer) = self.peer(number) else { return };
        let Some(direction) = self.session_direction(number) else { return };
        let able = peer.negotiated().is_some_and(|negotiated| negotiated.peer_route_refresh);
        if !able {
            let subcode = rustbgpd_wire::notification::cease_subcode::OTHER_CONFIGURATION_CHANGE;
            self.cease(now, number, direction, subcode);
            return;
        }
        for family in peer.families() {
            self.request(number, direction, family);
        }
    }

    fn request(&mut self, number: u16, direction: Direction, family: Family) {
        let (afi, safi) = family.wire();
        self.send(number, direction, &Message::RouteRefresh(RouteRefreshMessage::new(afi, safi)));
    }
}
