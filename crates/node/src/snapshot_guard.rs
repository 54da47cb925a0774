//! Withholds "in sync" after a restart if the first snapshot lacks most of the objects that the node knew before.
//!
//! A running node compares every list with the objects that it holds. A node that has just started holds none, so the number
//! of objects in each collection is kept in a file. The node changes nothing in the kernel before its feed is in sync:
//! withholding that event keeps policy and routes as they are. After the grace period the snapshot is accepted.

use crate::files;
use crate::state::NodeState;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tortie_model::{FeedEvent, StoreKey};
use tortie_store::{ListAbsence, StoreLimits, guarded_collection};
use tortie_sync::Feed;

/// Events that wait for the engine beside those in the feed.
const QUEUE_LENGTH: usize = 64;
/// Interval between writes of the file. Counts that are a little out of date do no harm.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);
/// Name of this part in the health report.
const HEALTH_PART: &str = "datastore-snapshot";
/// Collections that may be empty all of a sudden: a user may have deleted the only object of one.
const MAX_EMPTIED_COLLECTIONS: usize = 1;

/// Numbers of objects by collection.
type ObjectCounts = BTreeMap<String, usize>;

/// Returns the same feed, in which "in sync" comes late if the snapshot is doubtful.
pub fn guard_snapshot(feed: Feed, file: PathBuf, state: Arc<NodeState>) -> Feed {
    let (sender, guarded) = mpsc::channel(QUEUE_LENGTH);
    let grace = StoreLimits::from_environment().absence_grace;
    let expected = if grace.is_zero() { None } else { read_counts(&file) };
    let guard = SnapshotGuard { objects: KnownObjects::default(), expected, grace, file, state };
    tokio::spawn(guard.run(feed, sender));
    guarded
}

struct SnapshotGuard {
    objects: KnownObjects,
    /// Counts of the previous process; `None` once the snapshot is accepted.
    expected: Option<ObjectCounts>,
    grace: Duration,
    file: PathBuf,
    state: Arc<NodeState>,
}

impl SnapshotGuard {
    async fn run(mut self, mut feed: Feed, sender: mpsc::Sender<FeedEvent>) {
        let mut in_sync = false;
        let mut doubted_until: Option<Instant> = None;
        let mut save = tokio::time::interval(SAVE_INTERVAL);
        save.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let deadline = doubted_until.unwrap_or_else(Instant::now);
            let event = tokio::select! {
                event = feed.recv() => match event {
                    Some(event) => event,
                    None => return,
                },
                () = tokio::time::sleep_until(deadline), if doubted_until.is_some() => {
                    tracing::warn!(grace = ?self.grace, "accepting a snapshot that lacks objects which this node knew before");
                    self.expected = None;
                    FeedEvent::InSync
                }
                _ = save.tick(), if in_sync => {
                    self.save();
                    continue;
                }
            };
            self.objects.observe(&event);
            let completes = matches!(event, FeedEvent::InSync);
            if !completes && sender.send(event).await.is_err() {
                return;
            }
            if in_sync || !(completes || doubted_until.is_some()) {
                continue;
            }
            if let Some(reason) = self.doubt_reason() {
                if doubted_until.is_none() {
                    tracing::error!(reason, grace = ?self.grace, "the datastore lacks most of the objects that this node knew before its restart; policy and routes stay as they are");
                    self.state.set_warning(HEALTH_PART, Some(reason));
                    doubted_until = Some(Instant::now() + self.grace);
                }
                continue;
            }
            (in_sync, doubted_until, self.expected) = (true, None, None);
            self.state.set_warning(HEALTH_PART, None);
            if sender.send(FeedEvent::InSync).await.is_err() {
                return;
            }
        }
    }

    fn doubt_reason(&self) -> Option<String> {
        find_loss(self.expected.as_ref()?, &self.objects.counts())
    }

    fn save(&self) {
        let counts = serde_json::json!({ "objects": self.objects.counts() });
        if let Err(error) = files::replace(&self.file, &counts.to_string()) {
            tracing::warn!(%error, path = %self.file.display(), "cannot write the numbers of known objects");
        }
    }
}

/// Reads the file of the previous process. Without a readable one, every snapshot is accepted.
fn read_counts(file: &std::path::Path) -> Option<ObjectCounts> {
    let text = std::fs::read_to_string(file).ok()?;
    let parsed: Result<BTreeMap<String, ObjectCounts>, _> = serde_json::from_str(&text);
    match parsed {
        Ok(mut parts) => parts.remove("objects"),
        Err(error) => {
            tracing::warn!(%error, path = %file.display(), "cannot read the numbers of objects that were known before");
            None
        }
    }
}

/// The objects of guarded collections, as hashes of their keys: only their number matters.
#[derive(Debug, Default)]
struct KnownObjects(BTreeMap<(&'static str, &'static str), HashSet<u64>>);

impl KnownObjects {
    fn observe(&mut self, event: &FeedEvent) {
        let (FeedEvent::Put { key, .. } | FeedEvent::Delete { key, .. } | FeedEvent::Unreadable { key, .. }) =
            event
        else {
            return;
        };
        let Some(collection) = guarded_collection(key) else { return };
        let hashes = self.0.entry(collection).or_default();
        if matches!(event, FeedEvent::Delete { .. }) {
            hashes.remove(&hash_key(key));
        } else {
            hashes.insert(hash_key(key));
        }
    }

    fn counts(&self) -> ObjectCounts {
        let name =
            |(kind, prefix): &(&str, &str)| format!("{kind}/{prefix}").trim_end_matches('/').to_owned();
        self.0.iter().map(|(collection, hashes)| (name(collection), hashes.len())).collect()
    }
}

fn hash_key(key: &StoreKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Describes the missing objects of a snapshot if they are too many to be accepted at once: most of a collection with many
/// objects, or every object of several collections.
fn find_loss(expected: &ObjectCounts, found: &ObjectCounts) -> Option<String> {
    let mut emptied = Vec::new();
    for (collection, &known) in expected {
        let present = found.get(collection).copied().unwrap_or_default();
        let missing = known.saturating_sub(present);
        if !(ListAbsence { known, missing }).is_large() {
            continue;
        }
        let loss = format!("{missing} of {known} {collection}");
        if present > 0 || missing >= ListAbsence::MIN_LARGE_ABSENCE {
            return Some(format!("lacks {loss}"));
        }
        emptied.push(loss);
    }
    (emptied.len() > MAX_EMPTIED_COLLECTIONS).then(|| format!("lacks {}", emptied.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::{Kind, StoreValue};

    fn counts(list: &[(&str, usize)]) -> ObjectCounts {
        list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn put(kind: Kind, name: &str) -> FeedEvent {
        let key = StoreKey::resource(kind, "", name);
        let text = format!(r#"{{"metadata": {{"name": "{name}"}}, "spec": {{}}}}"#);
        let value = StoreValue::decode(&key, text.as_bytes()).unwrap();
        FeedEvent::Put { key, value, revision: 1.into() }
    }

    fn write_expected(dir: &tempfile::TempDir, list: &[(&str, usize)]) -> PathBuf {
        let file = dir.path().join("known-objects.json");
        std::fs::write(&file, serde_json::json!({ "objects": counts(list) }).to_string()).unwrap();
        file
    }

    #[test]
    fn large_losses_are_found() {
        let before = counts(&[("Tier", 2), ("IPPool", 1), ("NetworkPolicy", 40)]);
        assert_eq!(find_loss(&before, &before), None);
        let fewer = counts(&[("Tier", 2), ("NetworkPolicy", 25)]);
        assert_eq!(find_loss(&before, &fewer), None, "the only pool may have been deleted");
        let most = counts(&[("Tier", 2), ("IPPool", 1), ("NetworkPolicy", 19)]);
        assert_eq!(find_loss(&before, &most).as_deref(), Some("lacks 21 of 40 NetworkPolicy"));
        let empty = counts(&[("NetworkPolicy", 40)]);
        assert_eq!(find_loss(&before, &empty).as_deref(), Some("lacks 1 of 1 IPPool, 2 of 2 Tier"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubtful_snapshot_is_accepted_after_the_grace() {
        let dir = tempfile::tempdir().unwrap();
        let file = write_expected(&dir, &[("Tier", 1), ("IPPool", 1)]);
        let state = Arc::new(NodeState::new("n1"));
        let (source, feed) = mpsc::channel(4);
        let mut guarded = guard_snapshot(feed, file.clone(), state.clone());
        let started = Instant::now();
        source.send(FeedEvent::InSync).await.unwrap();
        source.send(put(Kind::BGPFilter, "f")).await.unwrap();
        assert!(matches!(guarded.recv().await, Some(FeedEvent::Put { .. })), "other events pass");
        assert!(state.warnings().contains_key(HEALTH_PART));
        assert_eq!(guarded.recv().await, Some(FeedEvent::InSync));
        assert!(started.elapsed() >= StoreLimits::default().absence_grace);
        assert!(state.warnings().is_empty());
        tokio::time::sleep(SAVE_INTERVAL * 2).await;
        assert_eq!(read_counts(&file), Some(counts(&[("BGPFilter", 1)])));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_return_end_the_doubt() {
        let dir = tempfile::tempdir().unwrap();
        let file = write_expected(&dir, &[("Tier", 1), ("IPPool", 1)]);
        let (source, feed) = mpsc::channel(4);
        let mut guarded = guard_snapshot(feed, file, Arc::new(NodeState::new("n1")));
        let started = Instant::now();
        source.send(FeedEvent::InSync).await.unwrap();
        source.send(put(Kind::Tier, "default")).await.unwrap();
        assert!(matches!(guarded.recv().await, Some(FeedEvent::Put { .. })));
        assert_eq!(guarded.recv().await, Some(FeedEvent::InSync));
        assert!(started.elapsed() < StoreLimits::default().absence_grace);
    }

    #[test]
    fn objects_are_counted_once() {
        let mut objects = KnownObjects::default();
        for event in [put(Kind::Tier, "a"), put(Kind::Tier, "a"), put(Kind::Tier, "b")] {
            objects.observe(&event);
        }
        let key = StoreKey::resource(Kind::Tier, "", "a");
        objects.observe(&FeedEvent::Delete { key, revision: 2.into() });
        assert_eq!(objects.counts(), counts(&[("Tier", 1)]));
    }
}
