//! Bytes in, messages to where they belong.

use super::{Conn, Core, Direction};
use crate::timers::Time;
use bytes::Bytes;
use rustbgpd_fsm::{Event, SessionState};
use rustbgpd_wire::{Message, OpenMessage, RouteRefreshMessage, decode_message};

impl Core {
    /// Bytes arrived on a connection.
    pub fn received(&mut self, now: Time, conn: Conn, bytes: Bytes) {
        let Some((number, direction)) = self.conns.get(&conn).copied() else { return };
        if let Some(link) = self.peer_mut(number).and_then(|peer| peer.link_mut(direction)) {
            link.framer.push(bytes);
        }
        let mut updated = false;
        loop {
            let Some(peer) = self.peer_mut(number) else { return };
            // A message may end the connection, and what follows it is then no longer read.
            let Some(link) = peer.link_mut(direction).filter(|link| link.conn == Some(conn)) else { return };
            let limit = link.limit();
            let message = match link.framer.next(limit) {
                Ok(None) => return,
                Ok(Some(mut bytes)) => decode_message(&mut bytes, limit),
                Err(error) => Err(error),
            };
            peer.history.messages_in += 1;
            match message {
                Ok(Message::Update(update)) => {
                    // The state machine only lets the time run again: once is enough for all that came together.
                    if !(updated && self.is_established(number, direction)) {
                        self.event(now, number, direction, Event::UpdateReceived);
                    }
                    updated = true;
                    if self.is_established(number, direction) {
                        self.update(now, number, direction, &update);
                    }
                }
                Ok(message) => self.message(now, number, direction, message),
                Err(error) => {
                    peer.history.refused += 1;
                    self.note(number, error.to_string());
                    self.reset(now, number, direction, Event::DecodeError(error));
                }
            }
        }
    }

    fn message(&mut self, now: Time, number: u16, direction: Direction, message: Message) {
        match message {
            Message::Open(open) => self.open(now, number, direction, open),
            Message::Keepalive => self.event(now, number, direction, Event::KeepaliveReceived),
            Message::Notification(notification) => {
                self.note_notification(number, "received", &notification);
                self.event(now, number, direction, Event::NotificationReceived(notification));
                self.close(number, direction);
            }
            Message::RouteRefresh(refresh) => self.route_refresh(now, number, direction, &refresh),
            _ => {}
        }
    }

    fn open(&mut self, now: Time, number: u16, direction: Direction, open: OpenMessage) {
        let remote_id = open.bgp_identifier;
        self.event(now, number, direction, Event::OpenReceived(open));
        let Some(link) = self.peer_mut(number).and_then(|peer| peer.link_mut(direction)) else { return };
        if link.state() == SessionState::OpenConfirm {
            link.negotiated = link.fsm.negotiated_shared();
            self.collide(now, number, direction, remote_id);
        }
    }

    fn route_refresh(&mut self, now: Time, number: u16, direction: Direction, refresh: &RouteRefreshMessage) {
        let (Some(afi), Some(safi)) = (refresh.afi(), refresh.safi()) else { return };
        self.event(now, number, direction, Event::RouteRefreshReceived { afi, safi });
        if let Some(family) = crate::family::Family::from_wire(afi, safi)
            && self.is_established(number, direction)
        {
            self.refresh(now, number, family, refresh.subtype());
        }
    }

    fn is_established(&self, number: u16, direction: Direction) -> bool {
        self.peer(number).and_then(|peer| peer.link(direction)).is_some_and(|link| link.is_established())
    }
}
