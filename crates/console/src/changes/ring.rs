//! A bounded ring of the recent changes of the cluster. A client with a position in the ring receives the changes after it;
//! a position that the ring does not reach is reported, and the client reads everything again.

use serde::Serialize;
use std::collections::VecDeque;

/// Number of changes that are kept.
pub const MAX_KEPT_CHANGES: usize = 4096;

/// The part of the pages that a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeTopic {
    Policy,
    Endpoints,
    Nodes,
    Addresses,
    Routing,
    Settings,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterChange {
    pub topic: ChangeTopic,
    /// The object as `calicoctl` prints it.
    pub object: String,
    pub deleted: bool,
}

/// Position of a client: the process of the server, and the number of changes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPosition {
    pub epoch: u64,
    pub next: u64,
}

/// The changes after the position of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissedChanges {
    Known(Vec<ClusterChange>),
    /// The ring does not reach back to the position.
    Unknown,
}

#[derive(Debug)]
pub struct ChangeRing {
    epoch: u64,
    /// Number of changes that have been dropped.
    dropped: u64,
    changes: VecDeque<ClusterChange>,
}

impl ChangeRing {
    /// Returns an empty ring. Positions of another epoch are unknown to it.
    pub fn new(epoch: u64) -> ChangeRing {
        ChangeRing { epoch, dropped: 0, changes: VecDeque::new() }
    }

    pub fn push(&mut self, change: ClusterChange) {
        if self.changes.len() >= MAX_KEPT_CHANGES {
            self.changes.pop_front();
            self.dropped += 1;
        }
        self.changes.push_back(change);
    }

    /// Forgets all changes, so that every client reads everything again.
    pub fn reset(&mut self) {
        // The number of changes grows by one more than is kept, so no position remains valid.
        self.dropped += self.changes.len() as u64 + 1;
        self.changes.clear();
    }

    pub fn end(&self) -> RingPosition {
        RingPosition { epoch: self.epoch, next: self.dropped + self.changes.len() as u64 }
    }

    /// Returns the changes after a position.
    pub fn since(&self, position: RingPosition) -> MissedChanges {
        let end = self.end();
        if position.epoch != self.epoch || !(self.dropped..=end.next).contains(&position.next) {
            return MissedChanges::Unknown;
        }
        let skipped = usize::try_from(position.next - self.dropped).unwrap_or(usize::MAX);
        MissedChanges::Known(self.changes.iter().skip(skipped).cloned().collect())
    }
}

impl RingPosition {
    /// Formats the position as the id of an event.
    pub fn to_id(self) -> String {
        format!("{:x}-{}", self.epoch, self.next)
    }

    pub fn parse(id: &str) -> Option<RingPosition> {
        let (epoch, next) = id.split_once('-')?;
        Some(RingPosition { epoch: u64::from_str_radix(epoch, 16).ok()?, next: next.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change(number: usize) -> ClusterChange {
        ClusterChange { topic: ChangeTopic::Policy, object: number.to_string(), deleted: false }
    }

    #[test]
    fn clients_far_behind_are_told_so() {
        let mut ring = ChangeRing::new(1);
        let start = ring.end();
        (0..MAX_KEPT_CHANGES).for_each(|number| ring.push(change(number)));
        assert!(matches!(ring.since(start), MissedChanges::Known(all) if all.len() == MAX_KEPT_CHANGES));
        ring.push(change(0));
        assert_eq!(ring.changes.len(), MAX_KEPT_CHANGES);
        assert_eq!(ring.since(start), MissedChanges::Unknown);
        assert_eq!(ring.since(RingPosition { epoch: 2, ..ring.end() }), MissedChanges::Unknown, "a restart");
        assert_eq!(ring.since(RingPosition { next: ring.end().next + 1, ..start }), MissedChanges::Unknown);
        let before = ring.end();
        ring.reset();
        assert_eq!(ring.since(before), MissedChanges::Unknown);
        assert_eq!(ring.since(ring.end()), MissedChanges::Known(Vec::new()));
    }

    proptest! {
        #[test]
        fn resumed_clients_receive_each_change_once(steps in proptest::collection::vec(0usize..3, 0..300)) {
            let mut ring = ChangeRing::new(7);
            let (mut position, mut received, mut pushed) = (ring.end(), Vec::new(), Vec::new());
            for step in steps {
                if step > 0 {
                    let new = change(pushed.len());
                    pushed.push(new.clone());
                    ring.push(new);
                    continue;
                }
                let MissedChanges::Known(missed) = ring.since(position) else { panic!("nothing was dropped") };
                received.extend(missed);
                position = RingPosition::parse(&ring.end().to_id()).unwrap();
            }
            prop_assert_eq!(&received[..], &pushed[..received.len()]);
        }
    }
}
