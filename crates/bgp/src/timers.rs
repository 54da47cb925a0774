//! The deadlines of all sessions. The caller supplies the time, as the duration since the start of the speaker.

use crate::family::BgpFamily;
use crate::id::PeerId;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

pub type SpeakerTime = Duration;

/// Selects one of a peer's two possible connections: the one we initiate or the one we accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionDirection {
    Outgoing,
    Incoming,
}

impl ConnectionDirection {
    pub fn other(self) -> ConnectionDirection {
        match self {
            ConnectionDirection::Outgoing => ConnectionDirection::Incoming,
            ConnectionDirection::Incoming => ConnectionDirection::Outgoing,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionTimer {
    /// The connection is retried.
    Connect,
    /// The peer leaves Idle.
    Idle,
    Hold(ConnectionDirection),
    Keepalive(ConnectionDirection),
    /// The peer has not read our data for too long; the session is dropped (RFC 9687).
    SendHold(ConnectionDirection),
    /// A connection collision is still unresolved.
    Collision,
    /// A restarting peer has not reconnected.
    Restart,
    /// A peer that reconnected or began a refresh has not readvertised all its routes.
    Stale(BgpFamily),
}

/// A timer queue. Postponing a timer is cheap: its queue entry is corrected only when the earlier deadline is
/// reached.
#[derive(Debug, Default)]
pub struct TimerQueue {
    deadlines: HashMap<(PeerId, SessionTimer), TimerSlot>,
    queue: BinaryHeap<Reverse<(SpeakerTime, PeerId, SessionTimer)>>,
}

#[derive(Debug)]
struct TimerSlot {
    deadline: Option<SpeakerTime>,
    /// Time of the earliest entry in the queue.
    queued: Option<SpeakerTime>,
}

impl TimerQueue {
    pub fn set(&mut self, peer: PeerId, timer: SessionTimer, deadline: SpeakerTime) {
        let slot = self.deadlines.entry((peer, timer)).or_insert(TimerSlot { deadline: None, queued: None });
        slot.deadline = Some(deadline);
        if slot.queued.is_none_or(|queued| queued > deadline) {
            slot.queued = Some(deadline);
            self.queue.push(Reverse((deadline, peer, timer)));
        }
    }

    pub fn stop(&mut self, peer: PeerId, timer: SessionTimer) {
        if let Some(slot) = self.deadlines.get_mut(&(peer, timer)) {
            slot.deadline = None;
        }
    }

    pub fn is_set(&self, peer: PeerId, timer: SessionTimer) -> bool {
        self.deadlines.get(&(peer, timer)).is_some_and(|slot| slot.deadline.is_some())
    }

    pub fn stop_all(&mut self, peer: PeerId) {
        for ((of, _), slot) in &mut self.deadlines {
            if *of == peer {
                slot.deadline = None;
            }
        }
    }

    /// Returns the time before which no timer is due. It may turn out that none is due at that time either.
    pub fn next(&self) -> Option<SpeakerTime> {
        self.queue.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Removes and returns a timer that is due.
    pub fn due(&mut self, now: SpeakerTime) -> Option<(PeerId, SessionTimer)> {
        while let Some(Reverse((at, peer, timer))) = self.queue.peek().copied() {
            if at > now {
                return None;
            }
            self.queue.pop();
            let Some(slot) = self.deadlines.get_mut(&(peer, timer)) else { continue };
            if slot.queued != Some(at) {
                continue;
            }
            slot.queued = None;
            match slot.deadline {
                None => {
                    self.deadlines.remove(&(peer, timer));
                }
                Some(deadline) if deadline <= now => {
                    self.deadlines.remove(&(peer, timer));
                    return Some((peer, timer));
                }
                Some(deadline) => {
                    slot.queued = Some(deadline);
                    self.queue.push(Reverse((deadline, peer, timer)));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum TimerStep {
        Set(PeerId, u64),
        Stop(PeerId),
        Wait(u64),
    }

    fn peer() -> impl Strategy<Value = PeerId> {
        (0usize..4).prop_map(|index| PeerId::from_index(index).unwrap())
    }

    proptest! {
        #[test]
        fn fires_what_is_due_and_nothing_else(steps in proptest::collection::vec(prop_oneof![
            (peer(), 0u64..30).prop_map(|(peer, after)| TimerStep::Set(peer, after)),
            peer().prop_map(TimerStep::Stop),
            (0u64..10).prop_map(TimerStep::Wait),
        ], 0..80)) {
            let (mut timers, mut model) = (TimerQueue::default(), HashMap::<PeerId, SpeakerTime>::new());
            let mut now = SpeakerTime::ZERO;
            for step in steps {
                match step {
                    TimerStep::Set(peer, after) => {
                        timers.set(peer, SessionTimer::Idle, now + SpeakerTime::from_secs(after));
                        model.insert(peer, now + SpeakerTime::from_secs(after));
                    }
                    TimerStep::Stop(peer) => {
                        timers.stop(peer, SessionTimer::Idle);
                        model.remove(&peer);
                    }
                    TimerStep::Wait(seconds) => {
                        now += SpeakerTime::from_secs(seconds);
                        while let Some((peer, _)) = timers.due(now) {
                            let deadline = model.remove(&peer);
                            prop_assert!(deadline.is_some_and(|deadline| deadline <= now));
                        }
                        prop_assert!(model.values().all(|deadline| *deadline > now));
                    }
                }
                let earliest = model.values().min();
                prop_assert!(earliest.is_none_or(|earliest| timers.next().is_some_and(|next| next <= *earliest)));
            }
        }
    }
}
