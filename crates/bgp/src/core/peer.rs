//! What is remembered of one peer.

use super::advertise::Outlet;
use super::{Conn, Direction};
use crate::config::{Config, PeerConfig};
use crate::family::{Family, PerFamily};
use crate::frame::Framer;
use crate::timers::Time;
use bytes::BytesMut;
use rustbgpd_fsm::{NegotiatedSession, Session, SessionState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Peer {
    pub name: Arc<str>,
    pub number: u16,
    pub config: PeerConfig,
    pub local_as: u32,
    /// The connection we make. It exists also while there is none, in Connect or Active.
    pub out: Link,
    /// The connection we accepted.
    pub incoming: Option<Link>,
    /// How long the next rest after an error is.
    pub rest: Duration,
    /// Grows with every reason to doubt what the peer said; paths of older epochs are stale.
    pub epoch: PerFamily<u8>,
    /// Paths of the peer in our table.
    pub received: PerFamily<u32>,
    /// What is being told to the peer; there while the session is up and carries the family.
    pub outlets: PerFamily<Option<Outlet>>,
    /// The peer has told all it knows since the session came up.
    pub told_all: PerFamily<bool>,
    pub history: History,
}

#[derive(Debug, Default)]
pub(super) struct History {
    pub since: Time,
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
pub(super) struct Link {
    pub fsm: Session,
    pub conn: Option<Conn>,
    pub framer: Framer,
    /// Messages to send before any UPDATE.
    pub control: BytesMut,
    /// Our end of the connection.
    pub local: Option<SocketAddr>,
    pub negotiated: Option<Arc<NegotiatedSession>>,
}

impl Link {
    pub fn new(fsm: Session) -> Link {
        Link {
            fsm,
            conn: None,
            framer: Framer::default(),
            control: BytesMut::new(),
            local: None,
            negotiated: None,
        }
    }

    pub fn state(&self) -> SessionState {
        self.fsm.state()
    }

    pub fn is_established(&self) -> bool {
        self.state() == SessionState::Established
    }

    /// The longest message that may come.
    pub fn limit(&self) -> u16 {
        match &self.negotiated {
            Some(negotiated) if negotiated.peer_extended_message => rustbgpd_wire::EXTENDED_MAX_MESSAGE_LEN,
            _ => rustbgpd_wire::MAX_MESSAGE_LEN,
        }
    }
}

impl Peer {
    pub fn new(number: u16, name: String, config: PeerConfig, all: &Config, now: Time) -> Peer {
        Peer {
            name: name.into(),
            number,
            local_as: all.local_as(&config),
            out: Link::new(Session::new(super::open::fsm_config(all, &config))),
            incoming: None,
            rest: config.idle_hold.0,
            epoch: PerFamily::default(),
            received: PerFamily::default(),
            outlets: PerFamily::default(),
            told_all: PerFamily::default(),
            history: History { since: now, ..History::default() },
            config,
        }
    }

    pub fn external(&self) -> bool {
        self.config.remote_as != self.local_as
    }

    pub fn link(&self, direction: Direction) -> Option<&Link> {
        match direction {
            Direction::Out => Some(&self.out),
            Direction::In => self.incoming.as_ref(),
        }
    }

    pub fn link_mut(&mut self, direction: Direction) -> Option<&mut Link> {
        match direction {
            Direction::Out => Some(&mut self.out),
            Direction::In => self.incoming.as_mut(),
        }
    }

    /// The connection that carries the session, once it is up.
    pub fn established(&self) -> Option<(Direction, &Link)> {
        [Direction::Out, Direction::In]
            .into_iter()
            .find_map(|direction| self.link(direction).filter(|l| l.is_established()).map(|l| (direction, l)))
    }

    pub fn negotiated(&self) -> Option<&Arc<NegotiatedSession>> {
        self.established().and_then(|(_, link)| link.negotiated.as_ref())
    }

    /// The session is up and the peer would wait for us, and we for it, after a restart.
    pub fn restarts_gracefully(&self) -> bool {
        self.config.restart_time.is_some()
            && self.negotiated().is_some_and(|negotiated| negotiated.peer_gr_capable)
    }

    /// Families that both sides speak.
    pub fn families(&self) -> Vec<Family> {
        let Some(negotiated) = self.negotiated() else { return Vec::new() };
        Family::ALL
            .into_iter()
            .filter(|family| negotiated.negotiated_families.contains(&family.wire()))
            .collect()
    }

    /// Our address on the session.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.established().and_then(|(_, link)| link.local).map(|local| local.ip())
    }
}
