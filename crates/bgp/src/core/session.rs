//! Drives the state machine of each connection and does what it says.

use super::advertise::Outlet;
use super::peer::Link;
use super::{Core, Dial, Direction, Order, Shutdown, open};
use crate::family::Family;
use crate::timers::{Time, Timer};
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

/// A peer that takes nothing for this long, or for twice the hold time if that is more, is given up (RFC 9687).
const SEND_HOLD: Duration = Duration::from_secs(480);

/// How soon a connection that was lost is made again.
const RECONNECT: Duration = Duration::from_secs(1);

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// One side said why: its routes go.
    Said,
    /// The connection was lost without a word: a peer that restarts gracefully does just that.
    Lost,
    /// The peer preferred the other of two connections when we had already settled for this one; that says nothing
    /// about routes.
    Collision,
}

impl End {
    fn of(event: &Event) -> End {
        match event {
            Event::TcpConnectionFails => End::Lost,
            Event::NotificationReceived(notification) if is_collision(notification) => End::Collision,
            _ => End::Said,
        }
    }
}

impl Core {
    /// Gives an event to the state machine of a connection and does what follows from it.
    pub(super) fn event(&mut self, now: Time, number: u16, direction: Direction, event: Event) {
        let end = End::of(&event);
        let Some(link) = self.peer_mut(number).and_then(|peer| peer.link_mut(direction)) else { return };
        for action in link.fsm.handle_event(event) {
            self.act(now, number, direction, action, end);
        }
    }

    fn act(&mut self, now: Time, number: u16, direction: Direction, action: Action, end: End) {
        match action {
            Action::SendOpen(mut message) => {
                let restarting = self.restart.announces(now);
                let Some(peer) = self.peer(number) else { return };
                open::complete(&mut message, restarting, restarting || peer.history.established > 0);
                self.send(number, direction, &Message::Open(message));
            }
            Action::SendKeepalive => self.send(number, direction, &Message::Keepalive),
            Action::SendNotification(notification) => {
                self.note_notification(number, "sent", &notification);
                self.send(number, direction, &Message::Notification(notification));
            }
            Action::StartTimer(timer, seconds) => self.start_timer(now, number, direction, timer, seconds),
            Action::StopTimer(timer) => self.timers.stop(number, named(timer, direction)),
            Action::InitiateTcpConnection => self.dial(number),
            Action::CloseTcpConnection => self.close(number, direction),
            Action::StateChanged { new: SessionState::Idle, .. } => self.rest(now, number, direction, end),
            Action::SessionEstablished(negotiated) => {
                self.established(now, number, direction, Arc::new(*negotiated));
            }
            Action::SessionDown => self.session_down(now, number, direction, end),
            _ => {}
        }
    }

    fn start_timer(&mut self, now: Time, number: u16, direction: Direction, timer: TimerType, seconds: u32) {
        let Some(peer) = self.peer(number) else { return };
        let wait = match timer {
            // The state machine waits ever longer, up to five minutes; a node that comes back is wanted sooner.
            TimerType::ConnectRetry => Duration::from_secs(seconds.into()).min(peer.config.connect_retry),
            TimerType::Keepalive => match peer.config.keepalive {
                Some(own) if u32::from(own) < seconds => Duration::from_secs(own.max(1).into()),
                _ => Duration::from_secs(seconds.max(1).into()),
            },
            _ => Duration::from_secs(seconds.into()),
        };
        // Nothing is dialled for a passive peer.
        if timer != TimerType::ConnectRetry || !peer.config.passive {
            self.timers.set(number, named(timer, direction), now + wait);
        }
    }

    pub(super) fn timer(&mut self, now: Time, number: u16, timer: Timer) {
        match timer {
            Timer::Connect => self.event(now, number, Direction::Out, Event::ConnectRetryTimerExpires),
            Timer::Idle => self.start_peer(now, number),
            Timer::Hold(direction) => self.event(now, number, direction, Event::HoldTimerExpires),
            Timer::Keepalive(direction) => self.event(now, number, direction, Event::KeepaliveTimerExpires),
            Timer::SendHold(direction) => {
                self.note(number, "the peer takes nothing we send".into());
                // A notification would not get through either.
                self.reset(now, number, direction, Event::TcpConnectionFails);
            }
            Timer::Restart => {
                for family in Family::ALL {
                    self.drop_paths(number, family, false);
                }
            }
            Timer::Stale(family) => self.drop_paths(number, family, true),
        }
    }

    /// Begins to connect, or to wait for a connection.
    pub(super) fn start_peer(&mut self, now: Time, number: u16) {
        let Some(peer) = self.peer(number) else { return };
        // An accepted connection that comes to nothing starts the rest anew.
        let idle = peer.out.state() == SessionState::Idle && peer.incoming.is_none();
        if !self.down && !peer.config.passive && idle {
            self.event(now, number, Direction::Out, Event::ManualStart);
        }
    }

    pub(super) fn stop_peer(&mut self, now: Time, number: u16, how: &Shutdown) {
        for direction in [Direction::In, Direction::Out] {
            match how {
                // The connection goes with the process; the routes stay where they are.
                Shutdown::Graceful => {
                    if let Some(link) = self.peer_mut(number).and_then(|peer| peer.link_mut(direction)) {
                        link.control.clear();
                    }
                    self.close(number, direction);
                }
                Shutdown::Administrative { reason } => {
                    let reason = encode_shutdown_communication(reason);
                    self.event(now, number, direction, Event::ManualStop { reason: Some(reason) });
                }
            }
        }
        self.timers.stop_all(number);
    }

    /// Ends a connection for a reason that is ours.
    pub(super) fn cease(&mut self, now: Time, number: u16, direction: Direction, subcode: u8) {
        let notification = NotificationMessage::new(NotificationCode::Cease, subcode, Bytes::new());
        let Some(link) = self.peer(number).and_then(|peer| peer.link(direction)) else { return };
        if link.is_established() {
            self.event(now, number, direction, Event::UpdateValidationError(notification));
        } else if link.conn.is_some() {
            self.note_notification(number, "sent", &notification);
            self.send(number, direction, &Message::Notification(notification));
            self.abandon(now, number, direction);
        }
    }

    /// Forgets a connection that is not up, with its state machine.
    pub(super) fn abandon(&mut self, now: Time, number: u16, direction: Direction) {
        self.close(number, direction);
        for timer in [Timer::Hold(direction), Timer::Keepalive(direction), Timer::SendHold(direction)] {
            self.timers.stop(number, timer);
        }
        if direction == Direction::Out {
            self.timers.stop(number, Timer::Connect);
        }
        let Some(peer) = self.peers.get_mut(usize::from(number)).and_then(Option::as_mut) else { return };
        let fresh = || Link::new(Session::new(open::fsm_config(&self.config, &peer.config)));
        match direction {
            Direction::In => peer.incoming = None,
            Direction::Out => peer.out = fresh(),
        }
        let idle = peer.established().is_none() && peer.out.state() == SessionState::Idle;
        if idle && !self.timers.is_set(number, Timer::Idle) {
            self.rest(now, number, direction, End::Said);
        }
    }

    /// Ends a session as if by `event` and lets go of its connection.
    pub(super) fn reset(&mut self, now: Time, number: u16, direction: Direction, event: Event) {
        self.event(now, number, direction, event);
        self.close(number, direction);
    }

    /// Rests before the next attempt: longer every time, but not after a connection that was just lost.
    fn rest(&mut self, now: Time, number: u16, direction: Direction, end: End) {
        let down = self.down;
        let Some(peer) = self.peers.get_mut(usize::from(number)).and_then(Option::as_mut) else { return };
        if direction == Direction::In {
            peer.incoming = None;
        }
        peer.history.since = now;
        if down || peer.established().is_some() {
            return;
        }
        let rest = if end == End::Said { peer.rest } else { RECONNECT.min(peer.rest) };
        if end == End::Said {
            peer.rest = (peer.rest * 2).min(peer.config.idle_hold.1);
        }
        self.timers.set(number, Timer::Idle, now + rest);
    }

    fn dial(&mut self, number: u16) {
        let Some(peer) = self.peer(number) else { return };
        let dial = Dial {
            to: SocketAddr::new(peer.config.address, peer.config.port),
            from: peer.config.source,
            password: peer.config.password.clone(),
            ttl_security: peer.config.ttl_security,
        };
        let conn = self.new_conn(number, Direction::Out);
        if let Some(peer) = self.peer_mut(number) {
            peer.out.conn = Some(conn);
            self.orders.push_back(Order::Connect { conn, dial });
        }
    }

    pub(super) fn close(&mut self, number: u16, direction: Direction) {
        let Some(link) = self.peer_mut(number).and_then(|peer| peer.link_mut(direction)) else { return };
        let last = link.control.split().freeze();
        link.framer = Default::default();
        link.negotiated = None;
        if let Some(conn) = link.conn.take() {
            self.conns.remove(&conn);
            self.orders.push_back(Order::Close { conn, last });
        }
    }

    pub(super) fn send(&mut self, number: u16, direction: Direction, message: &Message) {
        let Some(peer) = self.peer_mut(number) else { return };
        let Some(link) = peer.link_mut(direction) else { return };
        match encode_message_with_limit(message, link.limit()) {
            Ok(bytes) => {
                link.control.extend_from_slice(&bytes);
                peer.history.messages_out += 1;
            }
            Err(error) => warn!(peer = %peer.name, %error, "cannot encode a message"),
        }
    }

    /// Remembers a NOTIFICATION, unless it is the ordinary end of one of two connections.
    pub(super) fn note_notification(&mut self, number: u16, verb: &str, notification: &NotificationMessage) {
        if !is_collision(notification) {
            self.note(number, format!("{verb} {}", describe(notification)));
        }
    }

    pub(super) fn note(&mut self, number: u16, error: String) {
        if let Some(peer) = self.peer_mut(number) {
            debug!(peer = %peer.name, error);
            peer.history.last_error = Some(error);
        }
    }

    fn established(
        &mut self,
        now: Time,
        number: u16,
        direction: Direction,
        negotiated: Arc<NegotiatedSession>,
    ) {
        // Whatever the other connection was doing, this one has won.
        self.abandon(now, number, direction.other());
        self.timers.stop(number, Timer::Idle);
        self.timers.stop(number, Timer::Restart);
        let Some(peer) = self.peers.get_mut(usize::from(number)).and_then(Option::as_mut) else { return };
        peer.history.since = now;
        peer.history.established += 1;
        peer.rest = peer.config.idle_hold.0;
        peer.told_all = Default::default();
        info!(peer = %peer.name, address = %peer.config.address, asn = negotiated.peer_asn, "session up");
        if let Some(link) = peer.link_mut(direction) {
            link.negotiated = Some(negotiated.clone());
        }
        if let Some(origin) = self.origins.get_mut(usize::from(number)) {
            origin.router_id = negotiated.peer_router_id;
        }
        self.returned(now, number, &negotiated);
        let Some(peer) = self.peers.get_mut(usize::from(number)).and_then(Option::as_mut) else { return };
        for family in peer.families() {
            let several = tells_several_paths(&negotiated, family);
            let (end, numbers) = match family {
                Family::V4 => self.rib.v4.begin_telling(several),
                Family::V6 => self.rib.v6.begin_telling(several),
            };
            let outlet = Outlet::new(end, numbers, knows_restart(&negotiated), several);
            *peer.outlets.get_mut(family) = Some(outlet);
        }
        self.check_restart(now);
    }

    fn session_down(&mut self, now: Time, number: u16, direction: Direction, end: End) {
        let Some(peer) = self.peer_mut(number) else { return };
        peer.outlets = Default::default();
        let negotiated = peer.link(direction).and_then(|link| link.negotiated.clone());
        let keep = negotiated.filter(|_| end != End::Said && peer.config.restart_time.is_some());
        let reason = peer.history.last_error.as_deref().unwrap_or("connection lost");
        info!(peer = %peer.name, reason, "session down");
        self.left(now, number, keep.as_deref(), end == End::Collision);
        self.check_restart(now);
    }

    /// Bytes are on their way to the peer since now, or all have been taken.
    pub fn sending(&mut self, now: Time, conn: super::Conn, sending: bool) {
        let Some((number, direction)) = self.conns.get(&conn).copied() else { return };
        if !sending {
            self.timers.stop(number, Timer::SendHold(direction));
            return;
        }
        let Some(peer) = self.peer(number) else { return };
        let hold = Duration::from_secs(u64::from(peer.config.hold_time) * 2).max(SEND_HOLD);
        self.timers.set(number, Timer::SendHold(direction), now + hold);
    }

    /// Ends the session because of more prefixes than allowed; it rests as long as it may.
    pub(super) fn too_many(&mut self, now: Time, number: u16, direction: Direction) {
        if let Some(peer) = self.peer_mut(number) {
            peer.rest = peer.config.idle_hold.1;
        }
        self.cease(now, number, direction, cease_subcode::MAX_PREFIXES);
    }
}

fn named(timer: TimerType, direction: Direction) -> Timer {
    match timer {
        TimerType::ConnectRetry => Timer::Connect,
        TimerType::Hold => Timer::Hold(direction),
        _ => Timer::Keepalive(direction),
    }
}

fn is_collision(notification: &NotificationMessage) -> bool {
    notification.code == NotificationCode::Cease
        && notification.subcode == cease_subcode::CONNECTION_COLLISION_RESOLUTION
}

/// Whether the peer takes several paths to one prefix from us.
fn tells_several_paths(negotiated: &NegotiatedSession, family: Family) -> bool {
    let mode = negotiated.add_path_families.get(&family.wire());
    matches!(mode, Some(AddPathMode::Send | AddPathMode::Both))
}

/// Whether the peer wants to hear when it knows all.
fn knows_restart(negotiated: &NegotiatedSession) -> bool {
    let is_restart = |capability: &rustbgpd_wire::Capability| {
        matches!(capability, rustbgpd_wire::Capability::GracefulRestart { .. })
    };
    negotiated.peer_capabilities.iter().any(is_restart)
}

/// `Cease: Administrative Shutdown (6/2): maintenance`
fn describe(notification: &NotificationMessage) -> String {
    let (code, subcode) = (notification.code, notification.subcode);
    let text = format!("{} ({}/{subcode})", description(code, subcode), code.as_u8());
    match extract_shutdown_communication(notification) {
        Ok(Some(reason)) if !reason.is_empty() => format!("{text}: {reason}"),
        _ => text,
    }
}
