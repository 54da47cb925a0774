//! Route refresh (RFC 2918) and enhanced route refresh (RFC 7313), in both directions.

use super::{ConnectionDirection, SpeakerCore};
use crate::family::BgpFamily;
use crate::id::PeerId;
use crate::timers::{SessionTimer, SpeakerTime};
use rustbgpd_wire::{Message, RouteRefreshMessage, RouteRefreshSubtype};

impl SpeakerCore {
    /// Handles a ROUTE-REFRESH message: a request for our routes, or the beginning or end of a refresh by the peer.
    pub(super) fn refresh(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        family: BgpFamily,
        subtype: RouteRefreshSubtype,
    ) {
        match subtype {
            RouteRefreshSubtype::Normal => self.readvertise(peer_id, family),
            RouteRefreshSubtype::BoRR => {
                self.mark_stale(peer_id, family);
                self.timers.set(peer_id, SessionTimer::Stale(family), now + self.config.restart_wait);
            }
            RouteRefreshSubtype::EoRR => self.remove_stale(peer_id, family),
            _ => {}
        }
    }

    /// Advertises the whole table to a peer again.
    pub(super) fn readvertise(&mut self, peer_id: PeerId, family: BgpFamily) {
        let numbers = match family {
            BgpFamily::V4 => self.rib.v4.id_end(),
            BgpFamily::V6 => self.rib.v6.id_end(),
        };
        let Some(peer) = self.peer_mut(peer_id) else { return };
        let enhanced = peer.negotiated().is_some_and(|negotiated| negotiated.peer_enhanced_route_refresh);
        if let Some(rib_out) = peer.adj_ribs_out.get_mut(family) {
            rib_out.restart_walk(numbers, enhanced);
        }
    }

    /// Requests a route refresh from the peer with this name.
    pub fn request_refresh(&mut self, now: SpeakerTime, name: &str) {
        let peer_id = self.peers.iter().flatten().find(|peer| &*peer.name == name).map(|peer| peer.id);
        if let Some(peer_id) = peer_id {
            self.request_routes(now, peer_id);
        }
    }

    /// Requests a peer's routes again because the import policy has changed. The session of a peer without the route
    /// refresh capability is restarted.
    pub(super) fn request_routes(&mut self, now: SpeakerTime, peer_id: PeerId) {
        let Some(peer) = self.peer(peer_id) else { return };
        let Some(direction) = self.session_direction(peer_id) else { return };
        let able = peer.negotiated().is_some_and(|negotiated| negotiated.peer_route_refresh);
        if !able {
            let subcode = rustbgpd_wire::notification::cease_subcode::OTHER_CONFIGURATION_CHANGE;
            self.cease(now, peer_id, direction, subcode);
            return;
        }
        for family in peer.families() {
            self.request(peer_id, direction, family);
        }
    }

    fn request(&mut self, peer_id: PeerId, direction: ConnectionDirection, family: BgpFamily) {
        let (afi, safi) = family.wire();
        self.send(peer_id, direction, &Message::RouteRefresh(RouteRefreshMessage::new(afi, safi)));
    }
}
