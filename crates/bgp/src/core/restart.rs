//! Graceful restart (RFC 4724): patience with peers that went away, and with our own beginning.

use super::{Core, Direction};
use crate::config::Config;
use crate::family::Family;
use crate::id::PeerId;
use crate::timers::{Time, Timer};
use rustbgpd_fsm::NegotiatedSession;
use std::time::Duration;

/// How long after our restart peers that do not answer are waited for. Those that do are given longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Our own beginning.
#[derive(Debug)]
pub(super) struct Restart {
    /// We came back with our forwarding intact, and the kernel keeps its routes until we have heard what our peers know.
    pending: Option<Pending>,
    /// All our own routes have been announced once.
    pub local_complete: bool,
    started: Time,
    restarted: bool,
}

#[derive(Debug)]
struct Pending {
    patience: Time,
    deadline: Time,
    /// Every peer that does not itself wait for us has sent its routes.
    advertises: bool,
}

impl Restart {
    pub fn new(restarting: bool, now: Time, wait: Duration) -> Restart {
        let pending = restarting.then(|| Pending {
            patience: now + PATIENCE.min(wait),
            deadline: now + wait,
            advertises: false,
        });
        Restart { pending, local_complete: false, started: now, restarted: restarting }
    }

    /// Whether nothing is advertised yet.
    pub fn defers_advertising(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| !pending.advertises)
    }

    /// Whether nothing is installed yet.
    pub fn defers_installing(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether an OPEN sent now says that we restarted: for as long as a peer may have waited for us.
    pub fn announces(&self, now: Time) -> bool {
        self.restarted
            && now < self.started + Duration::from_secs(4095)
            && (self.defers_advertising() || !self.local_complete)
    }

    pub fn deadline(&self) -> Option<Time> {
        self.pending.as_ref().map(|pending| pending.deadline)
    }
}

impl Core {
    /// Ends the deferral: first of what we advertise, then of what the kernel gets.
    ///
    /// A peer that restarted too waits for our routes, so they go out without its own (RFC 4724 section 4.1). The kernel still
    /// forwards to that peer by the routes of before: they stay until the peer has sent its own.
    pub(super) fn check_restart(&mut self, now: Time) {
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
        let (advertises, installs) = (complete && heard(false), complete && heard(true));
        pending.advertises |= advertises;
        if installs || now >= pending.deadline {
            self.restart.pending = None;
        }
    }

    /// A session ended. `keep`: what was agreed with a peer that may come back, if its routes are kept until then.
    /// `again`: it was not the peer that restarted, so what is stale already is kept too.
    pub(super) fn session_lost(
        &mut self,
        now: Time,
        peer_id: PeerId,
        keep: Option<&NegotiatedSession>,
        again: bool,
    ) {
        let kept = |family: Family| {
            keep.is_some_and(|negotiated| {
                negotiated.peer_gr_families.iter().any(|known| (known.afi, known.safi) == family.wire())
            })
        };
        for family in Family::ALL {
            self.timers.stop(peer_id, Timer::Stale(family));
            match kept(family) {
                true if again => self.new_epoch(peer_id, family),
                true => self.mark_stale(peer_id, family),
                false => self.drop_paths(peer_id, family, false),
            }
        }
        if let Some(negotiated) = keep {
            let wait = Duration::from_secs(negotiated.peer_restart_time.into());
            self.timers.set(peer_id, Timer::Restart, now + wait);
        }
    }

    /// A session came up. Routes of before are kept only if the peer says that it still forwards by them.
    pub(super) fn session_returned(&mut self, now: Time, peer_id: PeerId, negotiated: &NegotiatedSession) {
        for family in Family::ALL {
            let preserved = negotiated
                .peer_gr_families
                .iter()
                .any(|known| (known.afi, known.safi) == family.wire() && known.forwarding_preserved);
            let any = self.peer(peer_id).is_some_and(|peer| *peer.received.get(family) > 0);
            match any && preserved {
                true => self.timers.set(peer_id, Timer::Stale(family), now + stale_time(&self.config)),
                false => self.drop_paths(peer_id, family, false),
            }
        }
    }

    /// All of the peer's routes of a family are stale until it advertises them again.
    pub(super) fn mark_stale(&mut self, peer_id: PeerId, family: Family) {
        // What was stale before and never repeated goes (RFC 4724 section 4.2).
        self.drop_paths(peer_id, family, true);
        self.new_epoch(peer_id, family);
    }

    fn new_epoch(&mut self, peer_id: PeerId, family: Family) {
        if let Some(peer) = self.peer_mut(peer_id) {
            let epoch = peer.epoch.get_mut(family);
            *epoch = epoch.wrapping_add(1);
        }
    }

    /// The peer sent End-of-RIB for a family.
    pub(super) fn end_of_rib(&mut self, now: Time, peer_id: PeerId, family: Family) {
        if let Some(peer) = self.peer_mut(peer_id) {
            *peer.end_of_rib_received.get_mut(family) = true;
        }
        self.remove_stale(peer_id, family);
        self.check_restart(now);
    }

    /// Removes the routes that are still stale.
    pub(super) fn remove_stale(&mut self, peer_id: PeerId, family: Family) {
        if self.timers.is_set(peer_id, Timer::Stale(family)) {
            self.timers.stop(peer_id, Timer::Stale(family));
            self.drop_paths(peer_id, family, true);
        }
    }

    /// The direction of a peer's session.
    pub(super) fn session_direction(&self, peer_id: PeerId) -> Option<Direction> {
        self.peer(peer_id).and_then(|peer| peer.established()).map(|(direction, _)| direction)
    }
}

/// How long a peer may take to repeat its routes.
fn stale_time(config: &Config) -> Duration {
    config.restart_wait
}
