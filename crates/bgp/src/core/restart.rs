//! Graceful restart (RFC 4724), both of peers and of this speaker.

use super::{ConnectionDirection, SpeakerCore};
use crate::config::SpeakerConfig;
use crate::family::BgpFamily;
use crate::id::PeerId;
use crate::timers::{SessionTimer, SpeakerTime};
use rustbgpd_fsm::NegotiatedSession;
use std::time::Duration;

/// How long after our restart we wait for peers without a session. Peers with a session have until the deadline.
const ABSENT_PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of our own start.
#[derive(Debug)]
pub(super) struct RestartState {
    /// Set while we have restarted with our forwarding state intact; the kernel keeps its routes until our peers have
    /// sent theirs.
    pending: Option<RestartDeferral>,
    /// Whether all our own routes have been announced once.
    pub local_complete: bool,
    started: SpeakerTime,
    restarted: bool,
}

#[derive(Debug)]
struct RestartDeferral {
    patience: SpeakerTime,
    deadline: SpeakerTime,
    /// Whether every peer that has not itself restarted has sent its routes.
    advertises: bool,
}

impl RestartState {
    pub fn new(restarting: bool, now: SpeakerTime, wait: Duration) -> RestartState {
        let pending = restarting.then(|| RestartDeferral {
            patience: now + ABSENT_PEER_TIMEOUT.min(wait),
            deadline: now + wait,
            advertises: false,
        });
        RestartState { pending, local_complete: false, started: now, restarted: restarting }
    }

    /// Returns whether advertising is still deferred.
    pub fn defers_advertising(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| !pending.advertises)
    }

    /// Returns whether installing is still deferred.
    pub fn defers_installing(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns whether an OPEN sent now sets the restart flag: as long as a peer may have been waiting for us.
    pub fn announces(&self, now: SpeakerTime) -> bool {
        self.restarted
            && now < self.started + Duration::from_secs(4095)
            && (self.defers_advertising() || !self.local_complete)
    }

    pub fn deadline(&self) -> Option<SpeakerTime> {
        self.pending.as_ref().map(|pending| pending.deadline)
    }
}

impl SpeakerCore {
    /// Ends the deferral: first of advertising, then of installing into the kernel.
    ///
    /// A peer that restarted too waits for our routes, so we advertise without its routes (RFC 4724 section 4.1). The
    /// kernel still forwards to that peer by the old routes, which stay until the peer has sent its own.
    pub(super) fn check_restart(&mut self, now: SpeakerTime) {
        let Some(pending) = &mut self.restart.pending else { return };
        let heard = |restarting_too: bool| {
            self.peers.iter().flatten().all(|peer| match peer.negotiated() {
                None => now >= pending.patience,
                Some(negotiated) if !negotiated.peer_gr_capable => true,
                Some(negotiated) if negotiated.peer_restart_state && !restarting_too => true,
                Some(_) => peer.families().into_iter().all(|family| *peer.end_of_rib_received.get(family)),
            })
        };
        let complete = self.restart.local_complete;
        let advertises = complete && heard(false);
        let installs = complete && heard(true);
        pending.advertises |= advertises;
        if installs || now >= pending.deadline {
            self.restart.pending = None;
        }
    }

    /// Handles the end of a session. `keep` is the negotiated session of a peer whose routes are kept because it may
    /// come back. `again` means that the peer did not restart, so routes that are already stale are kept too.
    pub(super) fn session_lost(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        keep: Option<&NegotiatedSession>,
        again: bool,
    ) {
        for family in BgpFamily::ALL {
            self.timers.stop(peer_id, SessionTimer::Stale(family));
            let is_kept = keep.is_some_and(|negotiated| {
                negotiated.peer_gr_families.iter().any(|known| (known.afi, known.safi) == family.wire())
            });
            if !is_kept {
                self.drop_paths(peer_id, family, false);
            } else if again {
                self.new_epoch(peer_id, family);
            } else {
                self.mark_stale(peer_id, family);
            }
        }
        if let Some(negotiated) = keep {
            let wait = Duration::from_secs(negotiated.peer_restart_time.into());
            self.timers.set(peer_id, SessionTimer::Restart, now + wait);
        }
    }

    /// Handles a new session. The old routes are kept only if the peer has set the forwarding state bit.
    pub(super) fn session_returned(
        &mut self,
        now: SpeakerTime,
        peer_id: PeerId,
        negotiated: &NegotiatedSession,
    ) {
        for family in BgpFamily::ALL {
            let preserved = negotiated
                .peer_gr_families
                .iter()
                .any(|known| (known.afi, known.safi) == family.wire() && known.forwarding_preserved);
            let any = self.peer(peer_id).is_some_and(|peer| *peer.received.get(family) > 0);
            if any && preserved {
                self.timers.set(peer_id, SessionTimer::Stale(family), now + choose_stale_time(&self.config));
            } else {
                self.drop_paths(peer_id, family, false);
            }
        }
    }

    /// Marks all of the peer's routes of a family as stale until it advertises them again.
    pub(super) fn mark_stale(&mut self, peer_id: PeerId, family: BgpFamily) {
        // Routes that were already stale and never readvertised are removed (RFC 4724 section 4.2).
        self.drop_paths(peer_id, family, true);
        self.new_epoch(peer_id, family);
    }

    fn new_epoch(&mut self, peer_id: PeerId, family: BgpFamily) {
        if let Some(peer) = self.peer_mut(peer_id) {
            let epoch = peer.epoch.get_mut(family);
            *epoch = epoch.wrapping_add(1);
        }
    }

    /// Handles End-of-RIB from the peer for a family.
    pub(super) fn end_of_rib(&mut self, now: SpeakerTime, peer_id: PeerId, family: BgpFamily) {
        if let Some(peer) = self.peer_mut(peer_id) {
            *peer.end_of_rib_received.get_mut(family) = true;
        }
        self.remove_stale(peer_id, family);
        self.check_restart(now);
    }

    /// Removes the routes that are still stale.
    pub(super) fn remove_stale(&mut self, peer_id: PeerId, family: BgpFamily) {
        if self.timers.is_set(peer_id, SessionTimer::Stale(family)) {
            self.timers.stop(peer_id, SessionTimer::Stale(family));
            self.drop_paths(peer_id, family, true);
        }
    }

    /// Returns the direction of the connection that carries the peer's session.
    pub(super) fn session_direction(&self, peer_id: PeerId) -> Option<ConnectionDirection> {
        self.peer(peer_id).and_then(|peer| peer.established()).map(|(direction, _)| direction)
    }
}

/// Returns how long a peer may take to readvertise its routes.
fn choose_stale_time(config: &SpeakerConfig) -> Duration {
    config.restart_wait
}
