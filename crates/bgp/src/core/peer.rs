//! The state of one peer.

use super::advertise::AdjRibOut;
use super::{ConnectionDirection, ConnectionId};
use crate::config::{PeerConfig, SpeakerConfig};
use crate::family::{BgpFamily, PerFamily};
use crate::frame::MessageFramer;
use crate::id::PeerId;
use crate::timers::SpeakerTime;
use bytes::BytesMut;
use rustbgpd_fsm::{NegotiatedSession, Session, SessionState};
use rustbgpd_wire::OpenMessage;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct PeerSession {
    pub name: Arc<str>,
    pub id: PeerId,
    pub config: PeerConfig,
    pub local_as: u32,
    /// The connection that we initiate. Also present without a TCP connection, in Connect or Active.
    pub outgoing: PeerConnection,
    /// The connection that we accepted.
    pub incoming: Option<PeerConnection>,
    /// How long the peer stays in Idle after the next error.
    pub idle_hold: Duration,
    /// Incremented whenever the peer's routes become stale. Paths of older epochs are stale.
    pub epoch: PerFamily<u8>,
    /// Number of paths of the peer in our table.
    pub received: PerFamily<u32>,
    /// The Adj-RIB-Out of each family that the session carries, while it is established.
    pub adj_ribs_out: PerFamily<Option<AdjRibOut>>,
    /// Whether the peer has sent End-of-RIB since the session came up.
    pub end_of_rib_received: PerFamily<bool>,
    /// Set after a route limit was exceeded: until then we neither connect to the peer nor accept its connections.
    pub blocked_until: Option<SpeakerTime>,
    /// Whether the peer announced more paths to one prefix than its limit.
    pub too_many_paths: bool,
    /// Whether the warning about an approaching limit has been logged.
    pub near_limit: bool,
    pub history: SessionHistory,
}

#[derive(Debug, Default)]
pub(super) struct SessionHistory {
    pub since: SpeakerTime,
    pub last_error: Option<String>,
    pub messages_in: u64,
    pub messages_out: u64,
    pub updates_in: u64,
    pub updates_out: u64,
    pub established: u64,
    /// UPDATEs whose routes were treated as withdrawn (RFC 7606).
    pub malformed: u64,
    /// Messages that ended the session.
    pub refused: u64,
}

/// One of the two possible connections of a peer.
#[derive(Debug)]
pub(super) struct PeerConnection {
    pub fsm: Session,
    pub conn: Option<ConnectionId>,
    pub framer: MessageFramer,
    /// Messages to send before any UPDATE.
    pub control: BytesMut,
    /// Our address and port on the connection.
    pub local: Option<SocketAddr>,
    pub negotiated: Option<Arc<NegotiatedSession>>,
    /// The peer's OPEN while a connection collision is unresolved (RFC 4271 section 6.8). Bytes that follow it wait
    /// in the framer.
    pub deferred: Option<Box<OpenMessage>>,
}

impl PeerConnection {
    pub fn new(fsm: Session) -> PeerConnection {
        PeerConnection {
            fsm,
            conn: None,
            framer: MessageFramer::default(),
            control: BytesMut::new(),
            local: None,
            negotiated: None,
            deferred: None,
        }
    }

    pub fn state(&self) -> SessionState {
        self.fsm.state()
    }

    pub fn is_established(&self) -> bool {
        self.state() == SessionState::Established
    }

    /// Returns whether the peer may not have accepted this outgoing connection yet: it is being made, or no OPEN has
    /// arrived on it.
    pub fn may_be_unaccepted(&self) -> bool {
        match self.state() {
            SessionState::Connect => self.conn.is_some(),
            SessionState::OpenSent => self.deferred.is_none(),
            _ => false,
        }
    }

    /// Returns the maximum message length on this connection.
    pub fn limit(&self) -> u16 {
        match &self.negotiated {
            Some(negotiated) if negotiated.peer_extended_message => rustbgpd_wire::EXTENDED_MAX_MESSAGE_LEN,
            _ => rustbgpd_wire::MAX_MESSAGE_LEN,
        }
    }
}

impl PeerSession {
    pub fn new(
        id: PeerId,
        name: String,
        config: PeerConfig,
        all: &SpeakerConfig,
        now: SpeakerTime,
    ) -> PeerSession {
        PeerSession {
            name: name.into(),
            id,
            local_as: all.local_as(&config),
            outgoing: PeerConnection::new(Session::new(super::open::fsm_config(all, &config))),
            incoming: None,
            idle_hold: config.idle_hold.0,
            epoch: PerFamily::default(),
            received: PerFamily::default(),
            adj_ribs_out: PerFamily::default(),
            end_of_rib_received: PerFamily::default(),
            blocked_until: None,
            too_many_paths: false,
            near_limit: false,
            history: SessionHistory {
                since: now,
                last_error: config.shutdown.clone(),
                ..SessionHistory::default()
            },
            config,
        }
    }

    pub fn external(&self) -> bool {
        self.config.remote_as != self.local_as
    }

    pub fn connection(&self, direction: ConnectionDirection) -> Option<&PeerConnection> {
        match direction {
            ConnectionDirection::Outgoing => Some(&self.outgoing),
            ConnectionDirection::Incoming => self.incoming.as_ref(),
        }
    }

    pub fn connection_mut(&mut self, direction: ConnectionDirection) -> Option<&mut PeerConnection> {
        match direction {
            ConnectionDirection::Outgoing => Some(&mut self.outgoing),
            ConnectionDirection::Incoming => self.incoming.as_mut(),
        }
    }

    /// Returns the connection that carries the session, if it is established.
    pub fn established(&self) -> Option<(ConnectionDirection, &PeerConnection)> {
        [ConnectionDirection::Outgoing, ConnectionDirection::Incoming].into_iter().find_map(|direction| {
            self.connection(direction).filter(|l| l.is_established()).map(|l| (direction, l))
        })
    }

    pub fn negotiated(&self) -> Option<&Arc<NegotiatedSession>> {
        self.established().and_then(|(_, connection)| connection.negotiated.as_ref())
    }

    /// Returns whether the session is established and both sides support graceful restart.
    pub fn restarts_gracefully(&self) -> bool {
        self.config.restart_time.is_some()
            && self.negotiated().is_some_and(|negotiated| negotiated.peer_gr_capable)
    }

    /// Returns the negotiated families.
    pub fn families(&self) -> Vec<BgpFamily> {
        let Some(negotiated) = self.negotiated() else { return Vec::new() };
        BgpFamily::ALL
            .into_iter()
            .filter(|family| negotiated.negotiated_families.contains(&family.wire()))
            .collect()
    }

    /// Returns our address on the session.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.established().and_then(|(_, connection)| connection.local).map(|local| local.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::PeerSession;

    /// Memory per node of a mesh, excluding attributes and buffers on the heap.
    #[test]
    fn peers_stay_small() {
        assert!(size_of::<PeerSession>() <= 2048, "{} bytes", size_of::<PeerSession>());
    }
}
