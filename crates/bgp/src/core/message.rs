//! Bytes in, messages to where they belong.

use super::{ConnectionId, Core, Direction};
use crate::id::PeerId;
use crate::timers::Time;
use bytes::Bytes;
use rustbgpd_fsm::{Event, SessionState};
use rustbgpd_wire::{Message, OpenMessage, RouteRefreshMessage, decode_message};

impl Core {
    /// Bytes arrived on a connection.
    pub fn received(&mut self, now: Time, conn: ConnectionId, bytes: Bytes) {
        let Some((peer_id, direction)) = self.conns.get(&conn).copied() else { return };
        if let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) {
            connection.framer.push(bytes);
        }
        let mut updated = false;
        loop {
            let Some(peer) = self.peer_mut(peer_id) else { return };
            // A message may end the connection, and what follows it is then no longer read.
            let Some(connection) =
                peer.connection_mut(direction).filter(|connection| connection.conn == Some(conn))
            else {
                return;
            };
            let limit = connection.limit();
            let message = match connection.framer.next(limit) {
                Ok(None) => return,
                Ok(Some(mut bytes)) => decode_message(&mut bytes, limit),
                Err(error) => Err(error),
            };
            peer.history.messages_in += 1;
            match message {
                Ok(Message::Update(update)) => {
                    // The state machine only lets the time run again: once is enough for all that came together.
                    if !(updated && self.is_established(peer_id, direction)) {
                        self.event(now, peer_id, direction, Event::UpdateReceived);
                    }
                    updated = true;
                    if self.is_established(peer_id, direction) {
                        self.update(now, peer_id, direction, &update);
                    }
                }
                Ok(message) => self.message(now, peer_id, direction, message),
                Err(error) => {
                    peer.history.refused += 1;
                    self.record_error(peer_id, error.to_string());
                    self.reset(now, peer_id, direction, Event::DecodeError(error));
                }
            }
        }
    }

    fn message(&mut self, now: Time, peer_id: PeerId, direction: Direction, message: Message) {
        match message {
            Message::Open(open) => self.open(now, peer_id, direction, open),
            Message::Keepalive => self.event(now, peer_id, direction, Event::KeepaliveReceived),
            Message::Notification(notification) => {
                self.record_notification(peer_id, "received", &notification);
                self.event(now, peer_id, direction, Event::NotificationReceived(notification));
                self.close(peer_id, direction);
            }
            Message::RouteRefresh(refresh) => self.route_refresh(now, peer_id, direction, &refresh),
            _ => {}
        }
    }

    fn open(&mut self, now: Time, peer_id: PeerId, direction: Direction, open: OpenMessage) {
        let remote_id = open.bgp_identifier;
        self.event(now, peer_id, direction, Event::OpenReceived(open));
        let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) else {
            return;
        };
        if connection.state() == SessionState::OpenConfirm {
            connection.negotiated = connection.fsm.negotiated_shared();
            self.resolve_collision(now, peer_id, direction, remote_id);
        }
    }

    fn route_refresh(
        &mut self,
        now: Time,
        peer_id: PeerId,
        direction: Direction,
        refresh: &RouteRefreshMessage,
    ) {
        let (Some(afi), Some(safi)) = (refresh.afi(), refresh.safi()) else { return };
        self.event(now, peer_id, direction, Event::RouteRefreshReceived { afi, safi });
        if let Some(family) = crate::family::Family::from_wire(afi, safi)
            && self.is_established(peer_id, direction)
        {
            self.refresh(now, peer_id, family, refresh.subtype());
        }
    }

    fn is_established(&self, peer_id: PeerId, direction: Direction) -> bool {
        self.peer(peer_id)
            .and_then(|peer| peer.connection(direction))
            .is_some_and(|connection| connection.is_established())
    }
}
