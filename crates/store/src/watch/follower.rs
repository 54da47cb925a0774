//! The state of a watch, without I/O and independent of the backend: receives the backend's reports and returns the
//! changes to deliver.
//!
//! It stores the revision up to which everything has been delivered, and the delivered revision of each key. If history
//! is lost through compaction or a restored backup, this is sufficient to derive all changes from a new list, including
//! deletions, without delivering anything twice.

use super::absence::{ListAbsence, collection_prefix};
use std::collections::{BTreeMap, BTreeSet};
use tortie_model::{Revision, StoreKey};

/// An entry as reported by a backend; the value may not be decoded yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WatchItem<V> {
    pub key: StoreKey,
    pub revision: Revision,
    pub value: V,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchUpdate<V> {
    Put(WatchItem<V>),
    Delete { key: StoreKey, revision: Revision },
}

/// Next request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FollowerStep {
    List,
    /// List the keys at a revision that the consumer has seen.
    ListKeys {
        revision: Revision,
    },
    Watch {
        after: Revision,
    },
}

/// Change to deliver to the consumer.
#[derive(Debug, PartialEq)]
pub(crate) enum FollowerChange<V> {
    Update(WatchUpdate<V>),
    InSync(Revision),
    /// Discard the state: a snapshot follows.
    Reset,
}

#[derive(Debug, PartialEq)]
enum FollowerPhase {
    Listing,
    /// The consumer resumes from this revision.
    Resuming(Revision),
    /// All changes up to this revision have been delivered.
    Following(Revision),
}

#[derive(Debug)]
pub(crate) struct WatchFollower {
    phase: FollowerPhase,
    known: BTreeMap<StoreKey, Revision>,
    /// Keys that only doubted lists contain. They do not count as known when absence is measured: otherwise a wrong
    /// datastore with many objects would make the missing ones a small share.
    doubtful: BTreeSet<StoreKey>,
    in_sync: bool,
}

impl WatchFollower {
    /// Creates a follower. With `after`, the consumer knows the state at that revision and needs only later changes.
    pub fn new(after: Option<Revision>) -> WatchFollower {
        WatchFollower {
            phase: after.map_or(FollowerPhase::Listing, FollowerPhase::Resuming),
            known: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            in_sync: false,
        }
    }

    pub fn step(&self) -> FollowerStep {
        match &self.phase {
            FollowerPhase::Listing => FollowerStep::List,
            FollowerPhase::Resuming(revision) => FollowerStep::ListKeys { revision: revision.clone() },
            FollowerPhase::Following(revision) => FollowerStep::Watch { after: revision.clone() },
        }
    }

    /// Returns the known objects that a list lacks, for the collection with the largest absence.
    pub fn measure_absence<V>(&self, items: &[WatchItem<V>]) -> ListAbsence {
        let mut absences: BTreeMap<&str, ListAbsence> = BTreeMap::new();
        for key in self.known.keys().filter(|key| !self.doubtful.contains(key)) {
            let absence = absences.entry(collection_prefix(key)).or_default();
            absence.known += 1;
            absence.missing += 1;
        }
        for item in items {
            if self.known.contains_key(&item.key)
                && !self.doubtful.contains(&item.key)
                && let Some(absence) = absences.get_mut(collection_prefix(&item.key))
            {
                absence.missing = absence.missing.saturating_sub(1);
            }
        }
        absences.into_values().max_by_key(|absence| (absence.is_large(), absence.missing)).unwrap_or_default()
    }

    /// Processes a list of the whole range. Returns the differences from the known state. The items are moved, not
    /// copied, since a range can be large.
    pub fn listed<V>(
        &mut self,
        mut items: Vec<WatchItem<V>>,
        revision: Revision,
    ) -> impl Iterator<Item = FollowerChange<V>> + use<V> {
        self.doubtful.clear();
        let mut before = std::mem::take(&mut self.known);
        items.retain(|item| {
            let delivered = before.remove(&item.key);
            self.known.insert(item.key.clone(), item.revision.clone());
            delivered.as_ref() != Some(&item.revision)
        });
        let in_sync = self.follow(revision.clone());
        // Deletions first: a consumer never holds both an object and its replacement.
        let gone = before.into_keys().map(move |key| WatchUpdate::Delete { key, revision: revision.clone() });
        let puts = items.into_iter().map(WatchUpdate::Put);
        gone.chain(puts).map(FollowerChange::Update).chain(in_sync.map(FollowerChange::InSync))
    }

    /// Processes a list that is not trusted. Returns only additions and changes; missing objects stay known, and the
    /// next step is another list.
    pub fn listed_in_doubt<V>(
        &mut self,
        mut items: Vec<WatchItem<V>>,
    ) -> impl Iterator<Item = FollowerChange<V>> + use<V> {
        items.retain(|item| {
            let delivered = self.known.insert(item.key.clone(), item.revision.clone());
            if delivered.is_none() {
                self.doubtful.insert(item.key.clone());
            }
            delivered.as_ref() != Some(&item.revision)
        });
        items.into_iter().map(WatchUpdate::Put).map(FollowerChange::Update)
    }

    /// Processes the keys at the revision that the consumer has seen. No changes are delivered yet.
    pub fn keys_listed<V>(
        &mut self,
        keys: Vec<(StoreKey, Revision)>,
        revision: Revision,
    ) -> Vec<FollowerChange<V>> {
        self.known = keys.into_iter().collect();
        self.follow(revision).map(FollowerChange::InSync).into_iter().collect()
    }

    /// Starts over because the consumer's revision is no longer, or not yet, in the history of the store.
    pub fn revision_gone<V>(&mut self) -> Vec<FollowerChange<V>> {
        self.phase = FollowerPhase::Listing;
        self.known.clear();
        self.doubtful.clear();
        vec![FollowerChange::Reset]
    }

    /// Makes the next step a list, because the position in history is lost.
    pub fn stale(&mut self) {
        self.phase = FollowerPhase::Listing;
    }

    /// Processes the updates up to a revision. A backend may repeat updates; the consumer receives each once.
    pub fn updated<V>(&mut self, updates: Vec<WatchUpdate<V>>, revision: Revision) -> Vec<FollowerChange<V>> {
        self.phase = FollowerPhase::Following(revision);
        updates.into_iter().filter(|update| self.is_news(update)).map(FollowerChange::Update).collect()
    }

    fn is_news<V>(&mut self, update: &WatchUpdate<V>) -> bool {
        match update {
            WatchUpdate::Put(WatchItem { key, revision, .. }) => {
                self.known.insert(key.clone(), revision.clone()).as_ref() != Some(revision)
            }
            WatchUpdate::Delete { key, .. } => self.known.remove(key).is_some(),
        }
    }

    /// Sets the position. Returns the revision if it is the first at which the consumer is in sync.
    fn follow(&mut self, revision: Revision) -> Option<Revision> {
        let first = !std::mem::replace(&mut self.in_sync, true);
        let reported = first.then(|| revision.clone());
        self.phase = FollowerPhase::Following(revision);
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::Kind;

    fn list_of(kind: Kind, names: impl Iterator<Item = String>) -> Vec<WatchItem<()>> {
        let item = |name: String| WatchItem {
            key: StoreKey::resource(kind, "", &name),
            revision: 1.into(),
            value: (),
        };
        names.map(item).collect()
    }

    #[test]
    fn absence_is_measured_for_each_collection() {
        for (kind, many, few) in [
            (Kind::NetworkPolicy, "knp.default.", "web-"),
            (Kind::GlobalNetworkPolicy, "kcnp.", "web-"),
            (Kind::GlobalNetworkPolicy, "kanp.", "kbanp."),
            (Kind::Profile, "ksa.default.", "kns."),
        ] {
            let named =
                |prefix: &'static str, count: usize| (0..count).map(move |id| format!("{prefix}{id}"));
            let mut follower = WatchFollower::new(None);
            let all = list_of(kind, named(many, 300).chain(named(few, 200)));
            drop(follower.listed(all, 1.into()));
            let absence = follower.measure_absence(&list_of(kind, named(many, 300)));
            assert_eq!(
                (absence, absence.is_large()),
                (ListAbsence { known: 200, missing: 200 }, true),
                "{kind}"
            );
            let absence = follower.measure_absence(&list_of(kind, named(many, 295).chain(named(few, 198))));
            assert_eq!(
                (absence, absence.is_large()),
                (ListAbsence { known: 300, missing: 5 }, false),
                "{kind}"
            );
        }
    }

    #[test]
    fn a_doubted_list_deletes_nothing() {
        let list = |names: std::ops::Range<usize>| list_of(Kind::Tier, names.map(|id| id.to_string()));
        let mut follower = WatchFollower::new(None);
        drop(follower.listed(list(0..20), 1.into()));
        follower.stale();
        // Additional objects of another datastore do not make the missing ones a small share.
        for delivered in [100, 0] {
            let absence = follower.measure_absence(&list(20..120));
            assert_eq!((absence.known, absence.missing), (20, 20));
            let changes: Vec<FollowerChange<()>> = follower.listed_in_doubt(list(20..120)).collect();
            assert!(
                changes.iter().all(|change| matches!(change, FollowerChange::Update(WatchUpdate::Put(_))))
            );
            assert_eq!((changes.len(), follower.step()), (delivered, FollowerStep::List));
        }
        let deleted = follower.listed(list(20..119), 2.into());
        assert_eq!(
            deleted
                .filter(|change| matches!(change, FollowerChange::Update(WatchUpdate::Delete { .. })))
                .count(),
            21
        );
    }
}
