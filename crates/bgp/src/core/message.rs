//! Splits received bytes into messages and dispatches them.

use super::{ConnectionDirection, ConnectionId, SpeakerCore};
use crate::id::PeerId;
use crate::timers::SpeakerTime;
use bytes::Bytes;
use rustbgpd_fsm::Event;
use rustbgpd_wire::notification::cease_subcode;
use rustbgpd_wire::{Message, RouteRefreshMessage, decode_message};

/// Work for one connection per turn, before other connections are served: some milliseconds.
const WORK_PER_TURN: u64 = 16 * 1024;
/// Cost of a message in addition to its routes.
const WORK_PER_MESSAGE: u64 = 4;
/// Maximum number of bytes that a peer may send after an OPEN that we have not answered.
const MAX_DEFERRED_BYTES: usize = 8 * 1024;

impl SpeakerCore {
    /// Handles bytes that arrived on a connection. Returns whether [`SpeakerCore::resume`] has more to do with them; it must
    /// then be called before anything else is passed in for this connection.
    pub fn received(&mut self, now: SpeakerTime, conn: ConnectionId, bytes: Bytes) -> bool {
        let Some((peer_id, direction)) = self.conns.get(&conn).copied() else { return false };
        if let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) {
            connection.framer.push(bytes);
            // No legitimate peer sends this much before we have answered its OPEN.
            if connection.deferred.is_some() && connection.framer.len() > MAX_DEFERRED_BYTES {
                self.cease(now, peer_id, direction, cease_subcode::OUT_OF_RESOURCES);
            }
        }
        self.resume(now, conn)
    }

    /// Continues with received bytes, up to the work of one turn. Returns whether there is more.
    pub fn resume(&mut self, now: SpeakerTime, conn: ConnectionId) -> bool {
        let Some((peer_id, _)) = self.conns.get(&conn).copied() else { return false };
        let more = self.process(now, conn);
        self.settle_collision(now, peer_id);
        more
    }

    pub(super) fn process(&mut self, now: SpeakerTime, conn: ConnectionId) -> bool {
        let Some((peer_id, direction)) = self.conns.get(&conn).copied() else { return false };
        let mut updated = false;
        let end = self.work() + WORK_PER_TURN;
        loop {
            if self.work() >= end {
                return true;
            }
            let Some(peer) = self.peer_mut(peer_id) else { return false };
            // A message may end the connection; the bytes after it are then ignored.
            let current = peer.connection_mut(direction).filter(|connection| connection.conn == Some(conn));
            let Some(connection) = current.filter(|connection| connection.deferred.is_none()) else {
                return false;
            };
            let limit = connection.limit();
            let message = match connection.framer.next(limit) {
                Ok(None) => return false,
                Ok(Some(mut bytes)) => decode_message(&mut bytes, limit),
                Err(error) => Err(error),
            };
            peer.history.messages_in += 1;
            self.messages += 1;
            match message {
                Ok(Message::Update(update)) => {
                    // The state machine only restarts the hold timer, so once is enough for all UPDATEs that arrived
                    // together.
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
                    if let Some(peer) = self.peer_mut(peer_id) {
                        peer.history.refused += 1;
                    }
                    self.record_error(peer_id, error.to_string());
                    self.reset(now, peer_id, direction, Event::DecodeError(error));
                }
            }
        }
    }

    /// Returns the work done so far for received messages: messages and paths examined.
    pub fn work(&self) -> u64 {
        self.messages * WORK_PER_MESSAGE + self.rib.v4.work() + self.rib.v6.work()
    }

    fn message(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        message: Message,
    ) {
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

    fn route_refresh(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        refresh: &RouteRefreshMessage,
    ) {
        let (Some(afi), Some(safi)) = (refresh.afi(), refresh.safi()) else { return };
        self.event(now, peer_id, direction, Event::RouteRefreshReceived { afi, safi });
        if let Some(family) = crate::family::BgpFamily::from_wire(afi, safi)
            && self.is_established(peer_id, direction)
        {
            self.refresh(now, peer_id, family, refresh.subtype());
        }
    }

    fn is_established(&self, peer_id: PeerId, direction: ConnectionDirection) -> bool {
        self.peer(peer_id)
            .and_then(|peer| peer.connection(direction))
            .is_some_and(|connection| connection.is_established())
    }
}
