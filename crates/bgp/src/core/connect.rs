//! Connections come and go; two to the same peer are resolved (RFC 4271 section 6.8).

use super::peer::Link;
use super::{Conn, Core, Direction, open};
use crate::timers::Time;
use rustbgpd_fsm::{Event, Session, SessionState};
use rustbgpd_wire::notification::cease_subcode;
use std::net::{Ipv4Addr, SocketAddr};

impl Core {
    /// A connection the core ordered is there.
    pub fn connected(&mut self, now: Time, conn: Conn, local: SocketAddr) {
        let Some((number, direction)) = self.conns.get(&conn).copied() else { return };
        if let Some(link) = self.peer_mut(number).and_then(|peer| peer.link_mut(direction)) {
            link.local = Some(local);
        }
        self.event(now, number, direction, Event::TcpConnectionConfirmed);
    }

    /// Somebody connected. None: it is no peer of ours, or one that has a session already.
    pub fn accepted(&mut self, now: Time, local: SocketAddr, remote: SocketAddr) -> Option<Conn> {
        let number = self.expected(local, remote)?;
        let peer = self.peer(number)?;
        // A peer that restarted may be back before we miss it (RFC 4724 section 5); others are told to wait.
        if self.down || (peer.established().is_some() && !peer.restarts_gracefully()) {
            return None;
        }
        let session = Session::new(open::fsm_config(&self.config, &peer.config));
        if peer.incoming.as_ref().is_some_and(|link| !link.is_established()) {
            self.abandon(now, number, Direction::In);
        } else if peer.incoming.is_some() {
            // The session runs over an accepted connection; the newcomer takes the place of the one we would make.
            return self.second(now, number, local, session);
        }
        let conn = self.new_conn(number, Direction::In);
        let peer = self.peer_mut(number)?;
        let mut link = Link::new(session);
        link.conn = Some(conn);
        link.local = Some(local);
        peer.incoming = Some(link);
        // Dialling is what the other connection is for.
        if let Some(link) = peer.link_mut(Direction::In) {
            link.fsm.handle_event(Event::ManualStart);
        }
        self.event(now, number, Direction::In, Event::TcpConnectionAcknowledged);
        Some(conn)
    }

    /// How many hops away the peer of a connection may be, if that is to be enforced.
    pub fn ttl_security(&self, conn: Conn) -> Option<u8> {
        let (number, _) = self.conns.get(&conn)?;
        self.peer(*number)?.config.ttl_security
    }

    /// Accepts a connection while an accepted one carries the session.
    fn second(&mut self, now: Time, number: u16, local: SocketAddr, session: Session) -> Option<Conn> {
        self.abandon(now, number, Direction::Out);
        let conn = self.new_conn(number, Direction::Out);
        let peer = self.peer_mut(number)?;
        peer.out = Link::new(session);
        peer.out.conn = Some(conn);
        peer.out.local = Some(local);
        peer.out.fsm.handle_event(Event::ManualStart);
        self.event(now, number, Direction::Out, Event::TcpConnectionAcknowledged);
        Some(conn)
    }

    /// A connection could not be made, or ended.
    pub fn closed(&mut self, now: Time, conn: Conn, reason: &str) {
        let Some((number, direction)) = self.conns.remove(&conn) else { return };
        let Some(link) = self.peer_mut(number).and_then(|peer| peer.link_mut(direction)) else { return };
        link.conn = None;
        self.note(number, reason.to_owned());
        self.event(now, number, direction, Event::TcpConnectionFails);
        // Nobody dials again on behalf of a connection that was accepted, or while there is a session.
        let established = self.peer(number).is_some_and(|peer| peer.established().is_some());
        if direction == Direction::In || established {
            self.abandon(now, number, direction);
        }
    }

    /// The peer a connection is from: by its address, and by ours if we would dial from a certain one.
    fn expected(&self, local: SocketAddr, remote: SocketAddr) -> Option<u16> {
        let candidates = self.peers.iter().flatten().filter(|peer| {
            peer.config.address == remote.ip() && peer.config.source.is_none_or(|own| own == local.ip())
        });
        candidates.min_by_key(|peer| peer.established().is_some()).map(|peer| peer.number)
    }

    /// The peer's OPEN on one connection was good: if there is another connection, one of them must go.
    pub(super) fn collide(&mut self, now: Time, number: u16, direction: Direction, remote_id: Ipv4Addr) {
        let Some(peer) = self.peer(number) else { return };
        let Some(other) = peer.link(direction.other()) else { return };
        match other.state() {
            SessionState::Established => {
                // Only a peer that restarted gets this far; its old connection is dead.
                self.event(now, number, direction.other(), Event::TcpConnectionFails);
                self.close(number, direction.other());
            }
            SessionState::OpenSent | SessionState::OpenConfirm => {
                let own = (self.config.router_id, peer.local_as);
                let keep = match own > (remote_id, peer.config.remote_as) {
                    true => Direction::Out,
                    false => Direction::In,
                };
                self.cease(now, number, keep.other(), cease_subcode::CONNECTION_COLLISION_RESOLUTION);
            }
            _ => {}
        }
    }
}
