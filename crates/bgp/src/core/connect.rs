//! Connections come and go; of two to the same peer one stays (RFC 4271 section 6.8).
//!
//! A connection counts once we have answered the peer's OPEN with a KEEPALIVE: from then on the peer may be Established,
//! and closing it for a collision would be a session that dies as it comes up. So the decision is made before:
//!
//! - An OPEN on a connection that the peer made waits as long as the peer may not have accepted the one that we make: BIRD
//!   takes a connection that it accepts beside a session for a restart, and ends the session, even if we have closed the
//!   connection meanwhile. That the peer has accepted it is known by its OPEN. An attempt that its host does not answer is
//!   given up, and the OPEN is answered once that is done.
//! - Of two connections with an OPEN the one that the speaker with the higher identifier made wins. Its OPEN is answered.
//! - The OPEN on the other one waits until the winner is up or gone.
//! - Where there is no second connection, the OPEN is answered, and a second connection that arrives later is refused.

use super::peer::PeerConnection;
use super::{ConnectionId, Core, Direction, SocketRequest, open};
use crate::id::PeerId;
use crate::timers::{Time, Timer};
use rustbgpd_fsm::{Event, Session, SessionState};
use rustbgpd_wire::notification::cease_subcode;
use rustbgpd_wire::{Capability, OpenMessage};
use std::net::SocketAddr;
use std::time::Duration;

/// How long an OPEN waits for the other connection to come up or to go.
const COLLISION_WAIT: Duration = Duration::from_secs(10);
/// The same for an attempt to which the peer's host has not answered: a host that will answers within a round trip.
const ATTEMPT_WAIT: Duration = Duration::from_secs(1);

/// A second connection beside a session this young was made before the session came up, unless its OPEN says that the
/// peer restarted.
const YOUNG_SESSION: Duration = Duration::from_secs(10);

/// What becomes of a connection whose OPEN has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collision {
    /// There is no other connection that counts.
    None,
    /// This one stays, the other one goes.
    Wins,
    /// The other one stays.
    Loses,
    /// The other one stays if it comes up.
    Waits,
}

impl Core {
    /// A connection the core asked for is there.
    pub fn connected(&mut self, now: Time, conn: ConnectionId, local: SocketAddr) {
        let Some((peer_id, direction)) = self.conns.get(&conn).copied() else { return };
        if let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) {
            connection.local = Some(local);
        }
        self.event(now, peer_id, direction, Event::TcpConnectionConfirmed);
        if self.timers.is_set(peer_id, Timer::Collision) {
            self.timers.set(peer_id, Timer::Collision, now + COLLISION_WAIT);
        }
    }

    /// Somebody connected. None: the connection is refused, because it is no peer of ours, or one that has a session
    /// already or must not have one.
    pub fn accepted(&mut self, now: Time, local: SocketAddr, remote: SocketAddr) -> Option<ConnectionId> {
        let peer_id = self.peer_of(local, remote)?;
        let peer = self.peer(peer_id)?;
        let blocked = peer.config.shutdown.is_some() || peer.blocked_until.is_some_and(|until| now < until);
        // A peer that restarted may be back before we miss it (RFC 4724 section 5); others have to wait.
        let has_session = peer.established().is_some() && !peer.restarts_gracefully();
        let decided = peer.outgoing.state() == SessionState::OpenConfirm;
        if self.down || blocked || has_session || decided {
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
        // The state machine would connect, which is what the other connection is for.
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
        connection.deferred = None;
        // The end of a second connection is none of the session's errors.
        let session_is_on_the_other = self
            .peer(peer_id)
            .and_then(|peer| peer.connection(direction.other()))
            .is_some_and(PeerConnection::is_established);
        if !session_is_on_the_other {
            self.record_error(peer_id, reason.to_owned());
        }
        self.event(now, peer_id, direction, Event::TcpConnectionFails);
        // Nobody connects again on behalf of a connection that was accepted, or while there is a session.
        let established = self.peer(peer_id).is_some_and(|peer| peer.established().is_some());
        if direction == Direction::Incoming || established {
            self.discard_connection(now, peer_id, direction);
        }
        self.settle_collision(now, peer_id);
    }

    /// An attempt to connect has been given up, and the peer will not hear of it.
    pub fn given_up(&mut self, now: Time, conn: ConnectionId) {
        let Some((peer_id, _)) = self.conns.get(&conn).copied() else { return };
        self.stop_connecting(now, peer_id);
        self.settle_collision(now, peer_id);
    }

    /// The peer a connection is from: by its address, and by ours if we would connect from a certain one.
    fn peer_of(&self, local: SocketAddr, remote: SocketAddr) -> Option<PeerId> {
        let candidates = self.peers.iter().flatten().filter(|peer| {
            peer.config.address == remote.ip() && peer.config.source.is_none_or(|own| own == local.ip())
        });
        candidates.min_by_key(|peer| peer.established().is_some()).map(|peer| peer.id)
    }

    /// The peer's OPEN came on a connection.
    pub(super) fn open(&mut self, now: Time, peer_id: PeerId, direction: Direction, open: OpenMessage) {
        match self.collision(now, peer_id, direction, &open) {
            Collision::Loses => {
                self.cease(now, peer_id, direction, cease_subcode::CONNECTION_COLLISION_RESOLUTION);
            }
            Collision::Waits => {
                let Some(peer) = self.peer_mut(peer_id) else { return };
                let attempt = peer.outgoing.state() == SessionState::Connect;
                if let Some(connection) = peer.connection_mut(direction) {
                    connection.deferred = Some(Box::new(open));
                    let wait = if attempt { ATTEMPT_WAIT } else { COLLISION_WAIT };
                    self.timers.set(peer_id, Timer::Collision, now + wait);
                }
            }
            collision => self.answer_open(now, peer_id, direction, open, collision == Collision::Wins),
        }
    }

    fn collision(&self, now: Time, peer_id: PeerId, direction: Direction, open: &OpenMessage) -> Collision {
        let Some(peer) = self.peer(peer_id) else { return Collision::None };
        let Some(other) = peer.connection(direction.other()) else { return Collision::None };
        match other.state() {
            SessionState::Established => {
                let young = now < peer.history.since + YOUNG_SESSION;
                if young && !says_restarted(open) { Collision::Loses } else { Collision::Wins }
            }
            SessionState::OpenConfirm => Collision::Loses,
            _ if direction == Direction::Incoming && other.may_be_unaccepted() => Collision::Waits,
            SessionState::OpenSent => {
                let own = (self.config.router_id, peer.local_as);
                let ours_wins = own > (open.bgp_identifier, peer.config.remote_as);
                let is_ours = direction == Direction::Outgoing;
                if is_ours == ours_wins { Collision::Wins } else { Collision::Waits }
            }
            _ => Collision::None,
        }
    }

    /// Gives an OPEN to the state machine, which answers it. From then on this connection is the one.
    fn answer_open(
        &mut self,
        now: Time,
        peer_id: PeerId,
        direction: Direction,
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
            Some(SessionState::Connect | SessionState::Active) if direction == Direction::Incoming => {
                self.stop_connecting(now, peer_id);
            }
            _ => {}
        }
    }

    /// Answers an OPEN that waited, if the other connection came to nothing or has lost.
    pub(super) fn settle_collision(&mut self, now: Time, peer_id: PeerId) {
        for direction in [Direction::Incoming, Direction::Outgoing] {
            let Some(peer) = self.peer(peer_id) else { return };
            let deferred = peer.connection(direction).and_then(|connection| connection.deferred.as_deref());
            let Some(open) = deferred else { continue };
            let other = peer.connection(direction.other()).map(PeerConnection::state);
            let undecided = self.collision(now, peer_id, direction, open) == Collision::Waits;
            if undecided || other == Some(SessionState::OpenConfirm) {
                continue;
            }
            self.timers.stop(peer_id, Timer::Collision);
            let connection = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction));
            let Some(connection) = connection else { return };
            let (Some(open), Some(conn)) = (connection.deferred.take(), connection.conn) else { return };
            self.open(now, peer_id, direction, *open);
            self.process(now, conn);
        }
    }

    /// The other connection has said nothing for too long: it goes.
    pub(super) fn collision_timeout(&mut self, now: Time, peer_id: PeerId) {
        for direction in [Direction::Incoming, Direction::Outgoing] {
            let Some(peer) = self.peer(peer_id) else { return };
            if peer.connection(direction).is_none_or(|connection| connection.deferred.is_none()) {
                continue;
            }
            let attempt = peer.outgoing.conn.filter(|_| peer.outgoing.state() == SessionState::Connect);
            if let (Direction::Incoming, Some(conn)) = (direction, attempt) {
                // The peer's host may have answered just now, and we have not heard of it: the sockets know.
                self.requests.push_back(SocketRequest::GiveUp { conn });
                self.timers.set(peer_id, Timer::Collision, now + COLLISION_WAIT);
            } else {
                let subcode = cease_subcode::CONNECTION_COLLISION_RESOLUTION;
                self.cease(now, peer_id, direction.other(), subcode);
            }
        }
        self.settle_collision(now, peer_id);
    }
}

/// Whether the peer says that it restarted (RFC 4724 section 3).
fn says_restarted(open: &OpenMessage) -> bool {
    let restarted = |capability: &Capability| {
        matches!(capability, Capability::GracefulRestart { restart_state: true, .. })
    };
    open.capabilities.iter().any(restarted)
}
