//! What a watcher knows and what it makes of what it hears, without I/O and for any backend.
//!
//! It remembers the revision up to which everything has been delivered, and for every key the revision it was
//! delivered with. When history is lost (compaction, a store put back to an older state) that is enough to find out
//! from a new list what has changed, deletions included, without delivering anything twice.

use std::collections::BTreeMap;
use tortie_model::{Key, Revision};

/// An entry as a backend reports it; the value need not have been read yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item<V> {
    pub key: Key,
    pub revision: Revision,
    pub value: V,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Update<V> {
    Put(Item<V>),
    Delete { key: Key, revision: Revision },
}

/// What to ask the store next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    List,
    /// The keys as they were at a revision the consumer has seen.
    ListKeys {
        revision: Revision,
    },
    Watch {
        after: Revision,
    },
}

/// What to deliver to the consumer.
#[derive(Debug, PartialEq)]
pub(crate) enum Change<V> {
    Update(Update<V>),
    InSync(Revision),
    /// Forget everything: a snapshot follows.
    Reset,
}

#[derive(Debug, PartialEq)]
enum Phase {
    Listing,
    /// The consumer has seen this revision elsewhere.
    Resuming(Revision),
    /// Everything up to here has been delivered.
    Following(Revision),
}

#[derive(Debug)]
pub(crate) struct Follower {
    phase: Phase,
    known: BTreeMap<Key, Revision>,
    in_sync: bool,
}

impl Follower {
    /// With `after`, the consumer knows the state at that revision and wants what came later.
    pub fn new(after: Option<Revision>) -> Follower {
        Follower {
            phase: after.map_or(Phase::Listing, Phase::Resuming),
            known: BTreeMap::new(),
            in_sync: false,
        }
    }

    pub fn step(&self) -> Step {
        match &self.phase {
            Phase::Listing => Step::List,
            Phase::Resuming(revision) => Step::ListKeys { revision: revision.clone() },
            Phase::Following(revision) => Step::Watch { after: revision.clone() },
        }
    }

    /// The whole range as it stands: delivers what differs from what is known. A range can be large: what is delivered is
    /// handed on from the list itself, without a copy.
    pub fn listed<V>(
        &mut self,
        mut items: Vec<Item<V>>,
        revision: Revision,
    ) -> impl Iterator<Item = Change<V>> + use<V> {
        let mut before = std::mem::take(&mut self.known);
        items.retain(|item| {
            let delivered = before.remove(&item.key);
            self.known.insert(item.key.clone(), item.revision.clone());
            delivered.as_ref() != Some(&item.revision)
        });
        let in_sync = self.follow(revision.clone());
        // Deletions first: a consumer never holds both an object and its replacement.
        let gone = before.into_keys().map(move |key| Update::Delete { key, revision: revision.clone() });
        let puts = items.into_iter().map(Update::Put);
        gone.chain(puts).map(Change::Update).chain(in_sync.map(Change::InSync))
    }

    /// The keys at the revision the consumer has seen: nothing to deliver yet.
    pub fn keys_listed<V>(&mut self, keys: Vec<(Key, Revision)>, revision: Revision) -> Vec<Change<V>> {
        self.known = keys.into_iter().collect();
        self.follow(revision).map(Change::InSync).into_iter().collect()
    }

    /// The revision the consumer has seen is no longer (or not yet) in the store's history.
    pub fn revision_gone<V>(&mut self) -> Vec<Change<V>> {
        self.phase = Phase::Listing;
        self.known.clear();
        vec![Change::Reset]
    }

    /// The place in history is lost: the next step is a list.
    pub fn stale(&mut self) {
        self.phase = Phase::Listing;
    }

    /// What happened up to a revision. A backend may repeat what it has reported; the consumer hears it once.
    pub fn updated<V>(&mut self, updates: Vec<Update<V>>, revision: Revision) -> Vec<Change<V>> {
        self.phase = Phase::Following(revision);
        updates.into_iter().filter(|update| self.is_news(update)).map(Change::Update).collect()
    }

    fn is_news<V>(&mut self, update: &Update<V>) -> bool {
        match update {
            Update::Put(Item { key, revision, .. }) => {
                self.known.insert(key.clone(), revision.clone()).as_ref() != Some(revision)
            }
            Update::Delete { key, .. } => self.known.remove(key).is_some(),
        }
    }

    /// The revision to report if it is the first that the consumer is in sync with.
    fn follow(&mut self, revision: Revision) -> Option<Revision> {
        let first = !std::mem::replace(&mut self.in_sync, true);
        let reported = first.then(|| revision.clone());
        self.phase = Phase::Following(revision);
        reported
    }
}
