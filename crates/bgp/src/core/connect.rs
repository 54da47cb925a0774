//! Connections come and go; two to the same peer are resolved (RFC 4271 section 6.8).

use super::peer::PeerConnection;
use super::{ConnectionId, Core, Direction, open};
use crate::id::PeerId;
use crate::timers::Time;
use rustbgpd_fsm::{Event, Session, SessionState};
use rustbgpd_wire::notification::cease_subcode;
use std::net::{Ipv4Addr, SocketAddr};

impl Core {
    /// A connection the core ordered is there.
    pub fn connected(&mut self, now: Time, conn: ConnectionId, local: SocketAddr) {
        let Some((peer_id, direction)) = self.conns.get(&conn).copied() else { return };
        if let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) {
            connection.local = Some(local);
        }
        self.event(now, peer_id, direction, Event::TcpConnectionConfirmed);
    }

    /// Somebody connected. None: it is no peer of ours, or one that has a session already.
    pub fn accepted(&mut self, now: Time, local: SocketAddr, remote: SocketAddr) -> Option<ConnectionId> {
        let peer_id = self.peer_of(local, remote)?;
        let peer = self.peer(peer_id)?;
        // A peer that restarted may be back before we miss it (RFC 4724 section 5); others are told to wait.
        if self.down || (peer.established().is_some() && !peer.restarts_gracefully()) {
            return None;
        }
        let session = Session::new(open::fsm_config(&self.config, &peer.config));
        if peer.incoming.as_ref().is_some_and(|connection| !connection.is_established()) {
            self.discard_connection(now, peer_id, Direction::Incoming);
        } else if peer.incoming.is_some() {
            // The session runs over an accepted connection; the newcomer takes the place of the one we would make.
            return self.accept_beside_session(now, peer_id, local, session);
        }
        let conn = self.new_conn(peer_id, Direction::Incoming);
        let peer = self.peer_mut(peer_id)?;
        let mut connection = PeerConnection::new(session);
        connection.conn = Some(conn);
        connection.local = Some(local);
        peer.incoming = Some(connection);
        // Dialling is what the other connection is for.
        if let Some(connection) = peer.connection_mut(Direction::Incoming) {
            connection.fsm.handle_event(Event::ManualStart);
        }
        self.event(now, peer_id, Direction::Incoming, Event::TcpConnectionAcknowledged);
        Some(conn)
    }

    /// How many hops away the peer of a connection may be, if that is to be enforced.
    pub fn ttl_security(&self, conn: ConnectionId) -> Option<u8> {
        let (peer_id, _) = self.conns.get(&conn)?;
        self.peer(*peer_id)?.config.ttl_security
    }

    /// Accepts a connection while an accepted one carries the session.
    fn accept_beside_session(
        &mut self,
        now: Time,
        peer_id: PeerId,
        local: SocketAddr,
        session: Session,
    ) -> Option<ConnectionId> {
        self.discard_connection(now, peer_id, Direction::Outgoing);
        let conn = self.new_conn(peer_id, Direction::Outgoing);
        let peer = self.peer_mut(peer_id)?;
        peer.outgoing = PeerConnection::new(session);
        peer.outgoing.conn = Some(conn);
        peer.outgoing.local = Some(local);
        peer.outgoing.fsm.handle_event(Event::ManualStart);
        self.event(now, peer_id, Direction::Outgoing, Event::TcpConnectionAcknowledged);
        Some(conn)
    }

    /// A connection could not be made, or ended.
    pub fn closed(&mut self, now: Time, conn: ConnectionId, reason: &str) {
        let Some((peer_id, direction)) = self.conns.remove(&conn) else { return };
        let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) else {
            return;
        };
        connection.conn = None;
        self.record_error(peer_id, reason.to_owned());
        self.event(now, peer_id, direction, Event::TcpConnectionFails);
        // Nobody dials again on behalf of a connection that was accepted, or while there is a session.
        let established = self.peer(peer_id).is_some_and(|peer| peer.established().is_some());
        if direction == Direction::Incoming || established {
            self.discard_connection(now, peer_id, direction);
        }
    }

    /// The peer a connection is from: by its address, and by ours if we would dial from a certain one.
    fn peer_of(&self, local: SocketAddr, remote: SocketAddr) -> Option<PeerId> {
        let candidates = self.peers.iter().flatten().filter(|peer| {
            peer.config.address == remote.ip() && peer.config.source.is_none_or(|own| own == local.ip())
        });
        candidates.min_by_key(|peer| peer.established().is_some()).map(|peer| peer.id)
    }

    /// The peer's OPEN on one connection was good: if there is another connection, one of them must go.
    pub(super) fn resolve_collision(
        &mut self,
        now: Time,
        peer_id: PeerId,
        direction: Direction,
        remote_id: Ipv4Addr,
    ) {
        let Some(peer) = self.peer(peer_id) else { return };
        let Some(other) = peer.connection(direction.other()) else { return };
        match other.state() {
            SessionState::Established => {
                // Only a peer that restarted gets this far; its old connection is dead.
                self.event(now, peer_id, direction.other(), Event::TcpConnectionFails);
                self.close(peer_id, direction.other());
            }
            SessionState::OpenSent | SessionState::OpenConfirm => {
                let own = (self.config.router_id, peer.local_as);
                let keep = match own > (remote_id, peer.config.remote_as) {
                    true => Direction::Outgoing,
                    false => Direction::Incoming,
                };
                self.cease(now, peer_id, keep.other(), cease_subcode::CONNECTION_COLLISION_RESOLUTION);
            }
            _ => {}
        }
    }
}
