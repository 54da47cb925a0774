//! Opens and closes connections and resolves collisions: of two connections to the same peer one survives (RFC 4271
//! section 6.8).
//!
//! A connection is committed once we have answered the peer's OPEN with a KEEPALIVE: from then on the peer may be
//! Established, and closing the connection for a collision would end a session that has just come up. The collision
//! is therefore resolved before that:
//!
//! - An OPEN on a connection that the peer initiated is held back as long as the peer may not have accepted the one
//!   that we initiated: BIRD treats a connection that it accepts beside a session as a restart and ends the session,
//!   even if we have closed the connection in the meantime. The peer's OPEN proves that it has accepted ours. An
//!   attempt that the host of the peer does not answer is abandoned, and the OPEN is answered after that.
//! - Of two connections with an OPEN, the one initiated by the speaker with the higher identifier wins. Its OPEN is
//!   answered.
//! - The OPEN on the other connection waits until the winner is established or gone.
//! - If there is no second connection, the OPEN is answered, and a second connection that arrives later is rejected.

use super::peer::PeerConnection;
use super::{ConnectionDirection, ConnectionId, SocketRequest, SpeakerCore, open};
use crate::id::PeerId;
use crate::timers::{SessionTimer, SpeakerTime};
use rustbgpd_fsm::{Event, Session, SessionState};
use rustbgpd_wire::notification::cease_subcode;
use rustbgpd_wire::{Capability, OpenMessage};
use std::net::SocketAddr;
use std::time::Duration;

/// How long an OPEN waits for the other connection to come up or to end.
const COLLISION_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for an attempt that the host of the peer has not answered: a reachable host answers within a round trip.
const CONNECT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// A second connection beside a session younger than this was initiated before the session came up, unless its OPEN
/// carries the restart flag.
const YOUNG_SESSION_AGE: Duration = Duration::from_secs(10);

/// The decision about a connection whose OPEN has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollisionDecision {
    /// There is no competing connection.
    None,
    /// This connection stays, the other is closed.
    Wins,
    /// The other connection stays.
    Loses,
    /// The other connection stays if it comes up.
    Waits,
}

impl SpeakerCore {
    /// Handles the success of a connection attempt that the core requested.
    pub fn connected(&mut self, now: SpeakerTime, conn: ConnectionId, local: SocketAddr) {
        let Some((peer_id, direction)) = self.conns.get(&conn).copied() else { return };
        if let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) {
            connection.local = Some(local);
        }
        self.event(now, peer_id, direction, Event::TcpConnectionConfirmed);
        if self.timers.is_set(peer_id, SessionTimer::Collision) {
            self.timers.set(peer_id, SessionTimer::Collision, now + COLLISION_TIMEOUT);
        }
    }

    /// Handles an incoming connection. Returns `None` if it is rejected, because it is not from a configured peer, or
    /// the peer already has a session or must not have one.
    pub fn accepted(
        &mut self,
        now: SpeakerTime,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ConnectionId> {
        let peer_id = self.peer_of(local, remote)?;
        let peer = self.peer(peer_id)?;
        let blocked = peer.config.shutdown.is_some() || peer.blocked_until.is_some_and(|until| now < until);
        // A peer that restarted may reconnect before we detect the loss of the old connection (RFC 4724 section 5);
        // others have to wait.
        let has_session = peer.established().is_some() && !peer.restarts_gracefully();
        let decided = peer.outgoing.state() == SessionState::OpenConfirm;
        if self.down || blocked || has_session || decided {
            return None;
        }
        let session = Session::new(open::fsm_config(&self.config, &peer.config));
        if peer.incoming.as_ref().is_some_and(|connection| !connection.is_established()) {
            self.discard_connection(now, peer_id, ConnectionDirection::Incoming);
        } else if peer.incoming.is_some() {
            // The session runs over an accepted connection, so the new one takes the slot of our outgoing connection.
            return self.accept_beside_session(now, peer_id, local, session);
        }
        let conn = self.new_conn(peer_id, ConnectionDirection::Incoming);
        let peer = self.peer_mut(peer_id)?;
        let mut connection = PeerConnection::new(session);
        connection.conn = Some(conn);
        connection.local = Some(local);
        peer.incoming = Some(connection);
        // The state machine would connect now; that is the task of the outgoing connection, so its actions are
        // dropped.
        if let Some(connection) = peer.connection_mut(ConnectionDirection::Incoming) {
            connection.fsm.handle_event(Event::ManualStart);
        }
        self.event(now, peer_id, ConnectionDirection::Incoming, Event::TcpConnectionAcknowledged);
        Some(conn)
    }

    /// Returns the maximum number of hops to the peer of a connection, if it is to be enforced.
    pub fn ttl_security(&self, conn: ConnectionId) -> Option<u8> {
        let (peer_id, _) = self.conns.get(&conn)?;
        self.peer(*peer_id)?.config.ttl_security
    }

    /// Accepts a connection while another accepted one carries the session.
    fn accept_beside_session(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        local: SocketAddr,
        session: Session,
    ) -> Option<ConnectionId> {
        self.discard_connection(now, peer_id, ConnectionDirection::Outgoing);
        let conn = self.new_conn(peer_id, ConnectionDirection::Outgoing);
        let peer = self.peer_mut(peer_id)?;
        peer.outgoing = PeerConnection::new(session);
        peer.outgoing.conn = Some(conn);
        peer.outgoing.local = Some(local);
        peer.outgoing.fsm.handle_event(Event::ManualStart);
        self.event(now, peer_id, ConnectionDirection::Outgoing, Event::TcpConnectionAcknowledged);
        Some(conn)
    }

    /// Handles a connection attempt that failed, or a connection that ended.
    pub fn closed(&mut self, now: SpeakerTime, conn: ConnectionId, reason: &str) {
        let Some((peer_id, direction)) = self.conns.remove(&conn) else { return };
        let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) else {
            return;
        };
        connection.conn = None;
        connection.deferred = None;
        // The end of a second connection is not an error of the session.
        let session_is_on_the_other = self
            .peer(peer_id)
            .and_then(|peer| peer.connection(direction.other()))
            .is_some_and(PeerConnection::is_established);
        if !session_is_on_the_other {
            self.record_error(peer_id, reason.to_owned());
        }
        self.event(now, peer_id, direction, Event::TcpConnectionFails);
        // Do not reconnect for an accepted connection, or while there is a session.
        let established = self.peer(peer_id).is_some_and(|peer| peer.established().is_some());
        if direction == ConnectionDirection::Incoming || established {
            self.discard_connection(now, peer_id, direction);
        }
        self.settle_collision(now, peer_id);
    }

    /// Handles an attempt that was abandoned before the peer could see it.
    pub fn given_up(&mut self, now: SpeakerTime, conn: ConnectionId) {
        let Some((peer_id, _)) = self.conns.get(&conn).copied() else { return };
        self.stop_connecting(now, peer_id);
        self.settle_collision(now, peer_id);
    }

    /// Finds the peer of an incoming connection by its address, and by our own address if a source address is
    /// configured.
    fn peer_of(&self, local: SocketAddr, remote: SocketAddr) -> Option<PeerId> {
        let candidates = self.peers.iter().flatten().filter(|peer| {
            peer.config.address == remote.ip() && peer.config.source.is_none_or(|own| own == local.ip())
        });
        candidates.min_by_key(|peer| peer.established().is_some()).map(|peer| peer.id)
    }

    /// Handles the peer's OPEN on a connection.
    pub(super) fn open(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        open: OpenMessage,
    ) {
        match self.collision(now, peer_id, direction, &open) {
            CollisionDecision::Loses => {
                self.cease(now, peer_id, direction, cease_subcode::CONNECTION_COLLISION_RESOLUTION);
            }
            CollisionDecision::Waits => {
                let Some(peer) = self.peer_mut(peer_id) else { return };
                let attempt = peer.outgoing.state() == SessionState::Connect;
                if let Some(connection) = peer.connection_mut(direction) {
                    connection.deferred = Some(Box::new(open));
                    let wait = if attempt { CONNECT_ATTEMPT_TIMEOUT } else { COLLISION_TIMEOUT };
                    self.timers.set(peer_id, SessionTimer::Collision, now + wait);
                }
            }
            collision => {
                self.answer_open(now, peer_id, direction, open, collision == CollisionDecision::Wins)
            }
        }
    }

    fn collision(
        &self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        open: &OpenMessage,
    ) -> CollisionDecision {
        let Some(peer) = self.peer(peer_id) else { return CollisionDecision::None };
        let Some(other) = peer.connection(direction.other()) else { return CollisionDecision::None };
        match other.state() {
            SessionState::Established => {
                let young = now < peer.history.since + YOUNG_SESSION_AGE;
                if young && !says_restarted(open) {
                    CollisionDecision::Loses
                } else {
                    CollisionDecision::Wins
                }
            }
            SessionState::OpenConfirm => CollisionDecision::Loses,
            _ if direction == ConnectionDirection::Incoming && other.may_be_unaccepted() => {
                CollisionDecision::Waits
            }
            SessionState::OpenSent => {
                let own = (self.config.router_id, peer.local_as);
                let ours_wins = own > (open.bgp_identifier, peer.config.remote_as);
                let is_ours = direction == ConnectionDirection::Outgoing;
                if is_ours == ours_wins { CollisionDecision::Wins } else { CollisionDecision::Waits }
            }
            _ => CollisionDecision::None,
        }
    }

    /// Passes an OPEN to the state machine, which answers it. From then on this connection is the chosen one.
    fn answer_open(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        open: OpenMessage,
        wins: bool,
    ) {
        self.event(now, peer_id, direction, Event::OpenReceived(open));
        let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) else {
            return;
        };
        if connection.state() != SessionState::OpenConfirm {
            return;
        }
        connection.negotiated = connection.fsm.negotiated_shared();
        let other = self.peer(peer_id).and_then(|peer| peer.connection(direction.other()));
        match other.map(PeerConnection::state) {
            // The peer restarted; its old connection is dead.
            Some(SessionState::Established) => {
                self.event(now, peer_id, direction.other(), Event::TcpConnectionFails);
                self.close(peer_id, direction.other());
            }
            _ if wins => {
                let subcode = cease_subcode::CONNECTION_COLLISION_RESOLUTION;
                self.cease(now, peer_id, direction.other(), subcode);
            }
            Some(SessionState::Connect | SessionState::Active)
                if direction == ConnectionDirection::Incoming =>
            {
                self.stop_connecting(now, peer_id);
            }
            _ => {}
        }
    }

    /// Answers an OPEN that was held back, if the other connection failed or lost the collision.
    pub(super) fn settle_collision(&mut self, now: SpeakerTime, peer_id: PeerId) {
        for direction in [ConnectionDirection::Incoming, ConnectionDirection::Outgoing] {
            let Some(peer) = self.peer(peer_id) else { return };
            let deferred = peer.connection(direction).and_then(|connection| connection.deferred.as_deref());
            let Some(open) = deferred else { continue };
            let other = peer.connection(direction.other()).map(PeerConnection::state);
            let undecided = self.collision(now, peer_id, direction, open) == CollisionDecision::Waits;
            if undecided || other == Some(SessionState::OpenConfirm) {
                continue;
            }
            self.timers.stop(peer_id, SessionTimer::Collision);
            let connection = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction));
            let Some(connection) = connection else { return };
            let (Some(open), Some(conn)) = (connection.deferred.take(), connection.conn) else { return };
            self.open(now, peer_id, direction, *open);
            self.process(now, conn);
        }
    }

    /// Closes the other connection after it has been silent for too long.
    pub(super) fn collision_timeout(&mut self, now: SpeakerTime, peer_id: PeerId) {
        for direction in [ConnectionDirection::Incoming, ConnectionDirection::Outgoing] {
            let Some(peer) = self.peer(peer_id) else { return };
            if peer.connection(direction).is_none_or(|connection| connection.deferred.is_none()) {
                continue;
            }
            let attempt = peer.outgoing.conn.filter(|_| peer.outgoing.state() == SessionState::Connect);
            if let (ConnectionDirection::Incoming, Some(conn)) = (direction, attempt) {
                // The host of the peer may have answered just now without our knowledge; only the sockets can decide
                // that.
                self.requests.push_back(SocketRequest::GiveUp { conn });
                self.timers.set(peer_id, SessionTimer::Collision, now + COLLISION_TIMEOUT);
            } else {
                let subcode = cease_subcode::CONNECTION_COLLISION_RESOLUTION;
                self.cease(now, peer_id, direction.other(), subcode);
            }
        }
        self.settle_collision(now, peer_id);
    }
}

/// Returns whether the restart flag is set in the peer's OPEN (RFC 4724 section 3).
fn says_restarted(open: &OpenMessage) -> bool {
    let mut capabilities = open.capabilities.iter();
    capabilities
        .any(|capability| matches!(capability, Capability::GracefulRestart { restart_state: true, .. }))
}
