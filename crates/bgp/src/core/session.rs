//! Drives the state machine of each connection and executes its actions.

use super::advertise::AdjRibOut;
use super::peer::PeerConnection;
use super::{ConnectionDirection, DialRequest, ShutdownMode, SocketRequest, SpeakerCore, open};
use crate::family::BgpFamily;
use crate::id::PeerId;
use crate::timers::{SessionTimer, SpeakerTime};
use bytes::Bytes;
use rustbgpd_fsm::{Action, Event, NegotiatedSession, Session, SessionState, TimerType};
use rustbgpd_wire::notification::{
    NotificationCode, cease_subcode, description, encode_shutdown_communication,
    extract_shutdown_communication,
};
use rustbgpd_wire::{AddPathMode, Message, NotificationMessage, encode_message_with_limit};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// Minimum send hold time. A peer that reads nothing for this long, or for twice the hold time if that is more, is
/// disconnected (RFC 9687).
const MIN_SEND_HOLD_TIME: Duration = Duration::from_secs(480);

/// Delay before a lost connection is made again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The way in which a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionEnd {
    /// One side gave a reason (NOTIFICATION or error): the peer's routes are removed.
    Said,
    /// The connection was lost without a NOTIFICATION, as by a peer that restarts gracefully.
    Lost,
    /// The peer preferred the other of two connections after we had chosen this one; its routes are not affected.
    Collision,
}

impl SessionEnd {
    fn of(event: &Event) -> SessionEnd {
        match event {
            Event::TcpConnectionFails => SessionEnd::Lost,
            Event::NotificationReceived(notification) if is_collision(notification) => SessionEnd::Collision,
            _ => SessionEnd::Said,
        }
    }
}

impl SpeakerCore {
    /// Passes an event to the state machine of a connection and executes the resulting actions.
    pub(super) fn event(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        event: Event,
    ) {
        let end = SessionEnd::of(&event);
        let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) else {
            return;
        };
        for action in connection.fsm.handle_event(event) {
            self.act(now, peer_id, direction, action, end);
        }
    }

    fn act(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        action: Action,
        end: SessionEnd,
    ) {
        match action {
            Action::SendOpen(mut message) => {
                let restarting = self.restart.announces(now);
                let Some(peer) = self.peer(peer_id) else { return };
                open::complete(&mut message, restarting, restarting || peer.history.established > 0);
                self.send(peer_id, direction, &Message::Open(message));
            }
            Action::SendKeepalive => self.send(peer_id, direction, &Message::Keepalive),
            Action::SendNotification(notification) => {
                self.record_notification(peer_id, "sent", &notification);
                self.send(peer_id, direction, &Message::Notification(notification));
            }
            Action::StartTimer(timer, seconds) => self.start_timer(now, peer_id, direction, timer, seconds),
            Action::StopTimer(timer) => self.timers.stop(peer_id, named(timer, direction)),
            Action::InitiateTcpConnection => self.dial(peer_id),
            Action::CloseTcpConnection => self.close(peer_id, direction),
            Action::StateChanged { new: SessionState::Idle, .. } => {
                self.start_idle_hold(now, peer_id, direction, end)
            }
            Action::SessionEstablished(negotiated) => {
                self.established(now, peer_id, direction, Arc::new(*negotiated));
            }
            Action::SessionDown => self.session_down(now, peer_id, direction, end),
            _ => {}
        }
    }

    fn start_timer(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        timer: TimerType,
        seconds: u32,
    ) {
        let Some(peer) = self.peer(peer_id) else { return };
        let wait = match timer {
            // The state machine backs off up to five minutes; a node that comes back must be reached sooner.
            TimerType::ConnectRetry => Duration::from_secs(seconds.into()).min(peer.config.connect_retry),
            TimerType::Keepalive => match peer.config.keepalive {
                Some(own) if u32::from(own) < seconds => Duration::from_secs(own.max(1).into()),
                _ => Duration::from_secs(seconds.max(1).into()),
            },
            _ => Duration::from_secs(seconds.into()),
        };
        // We do not connect to a passive peer.
        if timer != TimerType::ConnectRetry || !peer.config.passive {
            self.timers.set(peer_id, named(timer, direction), now + wait);
        }
    }

    pub(super) fn timer(&mut self, now: SpeakerTime, peer_id: PeerId, timer: SessionTimer) {
        match timer {
            SessionTimer::Connect => {
                self.note_unanswered(peer_id);
                self.event(now, peer_id, ConnectionDirection::Outgoing, Event::ConnectRetryTimerExpires);
            }
            SessionTimer::Collision => self.collision_timeout(now, peer_id),
            SessionTimer::Idle => self.start_peer(now, peer_id),
            SessionTimer::Hold(direction) => self.event(now, peer_id, direction, Event::HoldTimerExpires),
            SessionTimer::Keepalive(direction) => {
                self.event(now, peer_id, direction, Event::KeepaliveTimerExpires)
            }
            SessionTimer::SendHold(direction) => {
                self.record_error(peer_id, "the peer takes nothing we send".into());
                // A NOTIFICATION would not get through either.
                self.reset(now, peer_id, direction, Event::TcpConnectionFails);
            }
            SessionTimer::Restart => {
                for family in BgpFamily::ALL {
                    self.drop_paths(peer_id, family, false);
                }
            }
            SessionTimer::Stale(family) => self.drop_paths(peer_id, family, true),
        }
    }

    /// Starts to connect, or to wait for a connection.
    pub(super) fn start_peer(&mut self, now: SpeakerTime, peer_id: PeerId) {
        let Some(peer) = self.peer(peer_id) else { return };
        // While there is an accepted connection, do not connect: if it fails, the peer is started again.
        let idle = peer.outgoing.state() == SessionState::Idle && peer.incoming.is_none();
        let blocked = peer.config.shutdown.is_some() || peer.blocked_until.is_some_and(|until| now < until);
        if !self.down && !peer.config.passive && idle && !blocked {
            self.event(now, peer_id, ConnectionDirection::Outgoing, Event::ManualStart);
        }
    }

    /// Records the error of a connection attempt without any answer: the peer is down, or it drops our packets
    /// because of the password.
    fn note_unanswered(&mut self, peer_id: PeerId) {
        let Some(peer) = self.peer(peer_id) else { return };
        if peer.outgoing.state() == SessionState::Connect && peer.outgoing.conn.is_some() {
            let hint = match peer.config.password {
                Some(_) => "is the password right?",
                None => "is the peer up, and does it expect a password?",
            };
            self.record_error(peer_id, format!("no answer to our SYN; {hint}"));
        }
    }

    pub(super) fn stop_peer(&mut self, now: SpeakerTime, peer_id: PeerId, how: &ShutdownMode) {
        for direction in [ConnectionDirection::Incoming, ConnectionDirection::Outgoing] {
            match how {
                // Close without a NOTIFICATION, so that the peer keeps our routes.
                ShutdownMode::Graceful => {
                    if let Some(connection) =
                        self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction))
                    {
                        connection.control.clear();
                    }
                    self.close(peer_id, direction);
                }
                ShutdownMode::Administrative { reason } => {
                    let reason = encode_shutdown_communication(reason);
                    self.event(now, peer_id, direction, Event::ManualStop { reason: Some(reason) });
                }
            }
        }
        self.timers.stop_all(peer_id);
    }

    /// Ends a connection with a Cease NOTIFICATION.
    pub(super) fn cease(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        subcode: u8,
    ) {
        let notification = NotificationMessage::new(NotificationCode::Cease, subcode, Bytes::new());
        let Some(connection) = self.peer(peer_id).and_then(|peer| peer.connection(direction)) else { return };
        if connection.is_established() {
            self.event(now, peer_id, direction, Event::UpdateValidationError(notification));
        } else if connection.conn.is_some() {
            self.record_notification(peer_id, "sent", &notification);
            self.send(peer_id, direction, &Message::Notification(notification));
            self.discard_connection(now, peer_id, direction);
        }
    }

    /// Closes a connection that is not established and discards its state machine.
    pub(super) fn discard_connection(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
    ) {
        self.discard(now, peer_id, direction, SessionEnd::Said);
    }

    /// Stops a connection attempt because the other connection is used.
    pub(super) fn stop_connecting(&mut self, now: SpeakerTime, peer_id: PeerId) {
        self.discard(now, peer_id, ConnectionDirection::Outgoing, SessionEnd::Collision);
    }

    fn discard(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        end: SessionEnd,
    ) {
        self.close(peer_id, direction);
        for timer in [
            SessionTimer::Hold(direction),
            SessionTimer::Keepalive(direction),
            SessionTimer::SendHold(direction),
        ] {
            self.timers.stop(peer_id, timer);
        }
        if direction == ConnectionDirection::Outgoing {
            self.timers.stop(peer_id, SessionTimer::Connect);
        }
        let Some(peer) = self.peers.get_mut(peer_id.index()).and_then(Option::as_mut) else { return };
        match direction {
            ConnectionDirection::Incoming => peer.incoming = None,
            ConnectionDirection::Outgoing => {
                let session = Session::new(open::fsm_config(&self.config, &peer.config));
                peer.outgoing = PeerConnection::new(session);
            }
        }
        let idle = peer.established().is_none() && peer.outgoing.state() == SessionState::Idle;
        if idle && !self.timers.is_set(peer_id, SessionTimer::Idle) {
            self.start_idle_hold(now, peer_id, direction, end);
        }
    }

    /// Ends a session as if by `event` and closes its connection.
    pub(super) fn reset(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        event: Event,
    ) {
        self.event(now, peer_id, direction, event);
        self.close(peer_id, direction);
    }

    /// Waits before the next attempt: longer every time, except after a connection that was merely lost.
    fn start_idle_hold(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        end: SessionEnd,
    ) {
        let down = self.down;
        let Some(peer) = self.peers.get_mut(peer_id.index()).and_then(Option::as_mut) else { return };
        if direction == ConnectionDirection::Incoming {
            peer.incoming = None;
        }
        peer.history.since = now;
        if down || peer.established().is_some() {
            return;
        }
        let wait = if end == SessionEnd::Said { peer.idle_hold } else { RECONNECT_DELAY.min(peer.idle_hold) };
        if end == SessionEnd::Said {
            peer.idle_hold = (peer.idle_hold * 2).min(peer.config.idle_hold.1);
        }
        self.timers.set(peer_id, SessionTimer::Idle, now + wait);
    }

    fn dial(&mut self, peer_id: PeerId) {
        let Some(peer) = self.peer(peer_id) else { return };
        let dial = DialRequest {
            to: SocketAddr::new(peer.config.address, peer.config.port),
            from: peer.config.source,
            password: peer.config.password.clone(),
            ttl_security: peer.config.ttl_security,
        };
        let conn = self.new_conn(peer_id, ConnectionDirection::Outgoing);
        if let Some(peer) = self.peer_mut(peer_id) {
            peer.outgoing.conn = Some(conn);
            self.requests.push_back(SocketRequest::Connect { conn, dial });
        }
    }

    pub(super) fn close(&mut self, peer_id: PeerId, direction: ConnectionDirection) {
        let Some(connection) = self.peer_mut(peer_id).and_then(|peer| peer.connection_mut(direction)) else {
            return;
        };
        let last = connection.control.split().freeze();
        connection.framer = Default::default();
        connection.negotiated = None;
        connection.deferred = None;
        if let Some(conn) = connection.conn.take() {
            self.conns.remove(&conn);
            self.requests.push_back(SocketRequest::Close { conn, last });
        }
    }

    pub(super) fn send(&mut self, peer_id: PeerId, direction: ConnectionDirection, message: &Message) {
        let Some(peer) = self.peer_mut(peer_id) else { return };
        let Some(connection) = peer.connection_mut(direction) else { return };
        match encode_message_with_limit(message, connection.limit()) {
            Ok(bytes) => {
                connection.control.extend_from_slice(&bytes);
                peer.history.messages_out += 1;
            }
            Err(error) => warn!(peer = %peer.name, %error, "cannot encode a message"),
        }
    }

    /// Records a NOTIFICATION as the last error, unless it resolves a connection collision.
    pub(super) fn record_notification(
        &mut self,
        peer_id: PeerId,
        verb: &str,
        notification: &NotificationMessage,
    ) {
        if !is_collision(notification) {
            self.record_error(peer_id, format!("{verb} {}", describe(notification)));
        }
    }

    pub(super) fn record_error(&mut self, peer_id: PeerId, error: String) {
        if let Some(peer) = self.peer_mut(peer_id) {
            debug!(peer = %peer.name, error);
            peer.history.last_error = Some(error);
        }
    }

    fn established(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        negotiated: Arc<NegotiatedSession>,
    ) {
        // Whatever the state of the other connection, this one has won.
        self.discard_connection(now, peer_id, direction.other());
        self.timers.stop(peer_id, SessionTimer::Idle);
        self.timers.stop(peer_id, SessionTimer::Restart);
        let Some(peer) = self.peers.get_mut(peer_id.index()).and_then(Option::as_mut) else { return };
        peer.history.since = now;
        peer.history.established += 1;
        peer.history.last_error = None;
        peer.blocked_until = None;
        peer.idle_hold = peer.config.idle_hold.0;
        peer.end_of_rib_received = Default::default();
        info!(peer = %peer.name, address = %peer.config.address, asn = negotiated.peer_asn, "BGP session established");
        if let Some(connection) = peer.connection_mut(direction) {
            connection.negotiated = Some(negotiated.clone());
        }
        if let Some(origin) = self.origins.get_mut(peer_id.index()) {
            origin.router_id = negotiated.peer_router_id;
        }
        self.session_returned(now, peer_id, &negotiated);
        let Some(peer) = self.peers.get_mut(peer_id.index()).and_then(Option::as_mut) else { return };
        for family in peer.families() {
            let add_path = sends_add_path(&negotiated, family);
            let (end, numbers) = match family {
                BgpFamily::V4 => self.rib.v4.start_reader(add_path),
                BgpFamily::V6 => self.rib.v6.start_reader(add_path),
            };
            let rib_out = AdjRibOut::new(end, numbers, knows_restart(&negotiated), add_path);
            *peer.adj_ribs_out.get_mut(family) = Some(rib_out);
        }
        self.check_restart(now);
    }

    fn session_down(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        end: SessionEnd,
    ) {
        let Some(peer) = self.peer_mut(peer_id) else { return };
        peer.adj_ribs_out = Default::default();
        peer.near_limit = false;
        let negotiated = peer.connection(direction).and_then(|connection| connection.negotiated.clone());
        let keep = negotiated.filter(|_| end != SessionEnd::Said && peer.config.restart_time.is_some());
        let reason = peer.history.last_error.as_deref().unwrap_or("connection lost");
        info!(peer = %peer.name, address = %peer.config.address, reason, "BGP session down");
        self.session_lost(now, peer_id, keep.as_deref(), end == SessionEnd::Collision);
        self.check_restart(now);
    }

    /// Starts the send hold timer when a write to the peer begins, and stops it when all bytes have been written.
    pub fn sending(&mut self, now: SpeakerTime, conn: super::ConnectionId, sending: bool) {
        let Some((peer_id, direction)) = self.conns.get(&conn).copied() else { return };
        if !sending {
            self.timers.stop(peer_id, SessionTimer::SendHold(direction));
            return;
        }
        let Some(peer) = self.peer(peer_id) else { return };
        let hold = Duration::from_secs(u64::from(peer.config.hold_time) * 2).max(MIN_SEND_HOLD_TIME);
        self.timers.set(peer_id, SessionTimer::SendHold(direction), now + hold);
    }

    /// Ends the session of a peer that exceeded a route limit, and blocks the peer for a while.
    pub(super) fn limit_exceeded(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        direction: ConnectionDirection,
        reason: String,
    ) {
        let Some(peer) = self.peer_mut(peer_id) else { return };
        let hold = peer.config.limit_hold;
        peer.idle_hold = hold;
        peer.blocked_until = Some(now + hold);
        warn!(
            peer = %peer.name, address = %peer.config.address, reason, seconds = hold.as_secs(),
            "the peer exceeded a route limit: the session is closed and the peer is blocked for a while; \
             filter the routes at the peer or raise the limit",
        );
        self.cease(now, peer_id, direction, cease_subcode::MAX_PREFIXES);
        let notification =
            NotificationMessage::new(NotificationCode::Cease, cease_subcode::MAX_PREFIXES, Bytes::new());
        let sent = describe(&notification);
        self.record_error(peer_id, format!("sent {sent}: {reason}; next attempt after {} s", hold.as_secs()));
    }
}

fn named(timer: TimerType, direction: ConnectionDirection) -> SessionTimer {
    match timer {
        TimerType::ConnectRetry => SessionTimer::Connect,
        TimerType::Hold => SessionTimer::Hold(direction),
        _ => SessionTimer::Keepalive(direction),
    }
}

fn is_collision(notification: &NotificationMessage) -> bool {
    notification.code == NotificationCode::Cease
        && notification.subcode == cease_subcode::CONNECTION_COLLISION_RESOLUTION
}

/// Returns whether the peer accepts several paths to one prefix from us.
fn sends_add_path(negotiated: &NegotiatedSession, family: BgpFamily) -> bool {
    let mode = negotiated.add_path_families.get(&family.wire());
    matches!(mode, Some(AddPathMode::Send | AddPathMode::Both))
}

/// Returns whether the peer has the graceful restart capability and therefore expects End-of-RIB.
fn knows_restart(negotiated: &NegotiatedSession) -> bool {
    let mut capabilities = negotiated.peer_capabilities.iter();
    capabilities.any(|capability| matches!(capability, rustbgpd_wire::Capability::GracefulRestart { .. }))
}

/// Formats a NOTIFICATION as `Cease: Administrative Shutdown (6/2): maintenance`.
fn describe(notification: &NotificationMessage) -> String {
    let NotificationMessage { code, subcode, .. } = *notification;
    let text = format!("{} ({}/{subcode})", description(code, subcode), code.as_u8());
    match extract_shutdown_communication(notification) {
        Ok(Some(reason)) if !reason.is_empty() => format!("{text}: {reason}"),
        _ => text,
    }
}
