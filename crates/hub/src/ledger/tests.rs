use super::*;
use serde_json::json;
use tortie_model::{API_VERSION, Kind, Resource, StoreKey, StoreValue};

fn ledger(limits: ChangeLogLimits) -> HubLedger {
    let mut ledger = HubLedger::new(1, &[KeyRange::all(Kind::Tier)], limits);
    ledger.apply_feed([FeedMessage::Event(FeedEvent::InSync)]);
    ledger
}

fn put(name: &str, revision: u64, bytes: usize) -> FeedMessage {
    let metadata = json!({"name": name, "annotations": {"room": "x".repeat(bytes)}});
    let object = json!({"apiVersion": API_VERSION, "kind": "Tier", "metadata": metadata, "spec": {}});
    let value = StoreValue::Resource(Resource::from_user(object).unwrap());
    let key = StoreKey::resource(Kind::Tier, "", name);
    FeedMessage::Event(FeedEvent::Put { key, value, revision: revision.into() })
}

fn delete(name: &str, revision: u64) -> FeedMessage {
    let key = StoreKey::resource(Kind::Tier, "", name);
    FeedMessage::Event(FeedEvent::Delete { key, revision: revision.into() })
}

#[test]
fn unchanged_entries_are_not_forwarded() {
    let mut ledger = ledger(ChangeLogLimits::default());
    ledger.apply_feed([put("a", 1, 0)]);
    assert_eq!(ledger.sequence(), 1);
    ledger.apply_feed([put("a", 1, 0), delete("b", 2)]);
    assert_eq!(ledger.sequence(), 1);
    ledger.apply_feed([delete("a", 3)]);
    assert_eq!((ledger.sequence(), ledger.counts().entries), (2, 0));
    assert_eq!(ledger.counts(), LedgerCounts { updates: 4, skipped: 2, ..LedgerCounts::default() });
}

#[test]
fn the_log_is_bounded_by_number_and_size() {
    let limits = ChangeLogLimits { frames: 10, bytes: 100_000 };
    let mut ledger = ledger(limits);
    for revision in 1..=50 {
        ledger.apply_feed([put("a", revision, 0)]);
    }
    assert_eq!(ledger.frames_after(40, usize::MAX).unwrap().len(), 10);
    assert_eq!(ledger.frames_after(39, usize::MAX), None);
    assert_eq!(ledger.frames_after(50, usize::MAX).unwrap().len(), 0);
    assert_eq!(ledger.frames_after(51, usize::MAX), None, "a position of another life");
    assert_eq!(ledger.frames_after(40, 1).unwrap().len(), 1, "one at least");
    // Random text, which does not compress.
    let noise: String = (0..60_000).map(|_| char::from(rand::random_range(b'a'..=b'z'))).collect();
    for revision in 51..=60 {
        let FeedMessage::Event(FeedEvent::Put { key, mut value, .. }) = put("a", revision, 0) else {
            panic!()
        };
        if let StoreValue::Resource(resource) = &mut value {
            resource.metadata_mut().annotations.insert("noise".to_owned(), noise.clone());
        }
        ledger.apply_feed([FeedMessage::Event(FeedEvent::Put { key, value, revision: revision.into() })]);
        assert!(ledger.log_bytes() <= limits.bytes);
    }
    assert!(ledger.frames_after(59, usize::MAX).is_some() && ledger.frames_after(50, usize::MAX).is_none());
}

#[test]
fn frames_are_bounded_and_oversized_entries_are_unreadable() {
    let mut ledger = ledger(ChangeLogLimits::default());
    ledger
        .apply_feed((0..10).map(|number| put(&format!("t{number}"), number + 1, MAX_FRAME_RECORD_BYTES / 3)));
    assert!(ledger.sequence() >= 4, "{} frames", ledger.sequence());
    ledger.apply_feed([put("huge", 99, MAX_RECORD_BYTES)]);
    assert_eq!(ledger.counts().oversized, 1);
    let bucket = ledger.bucket(choose_bucket(r#"{"kind":"Tier","name":"huge"}"#)).unwrap();
    assert!(bucket.frames().0.iter().all(|frame| frame.len() < 10_000));
}

#[test]
fn a_bucket_is_encoded_once_until_it_changes() {
    let mut ledger = ledger(ChangeLogLimits::default());
    ledger.apply_feed([put("a", 1, 0)]);
    let index = choose_bucket(r#"{"kind":"Tier","name":"a"}"#);
    let held = ledger.bucket(index).unwrap().clone();
    let (frames, encoded) = held.frames();
    assert!(encoded);
    assert!(!ledger.bucket(index).unwrap().frames().1, "shared");
    ledger.apply_feed([put("a", 2, 0)]);
    assert_eq!(held.frames().0, frames, "what is being sent does not change");
    assert!(ledger.bucket(index).unwrap().frames().1);
}

#[test]
fn a_hub_is_behind_only_with_ordered_revisions() {
    let mut ledger = ledger(ChangeLogLimits::default());
    let marks = |mark| BTreeMap::from([("Tier".to_owned(), mark)]);
    assert!(!ledger.is_behind(&marks(5)), "nothing is known of the order");
    ledger.apply_feed([FeedMessage::Reached { range: KeyRange::all(Kind::Tier), revision: 4.into() }]);
    assert!(ledger.is_behind(&marks(5)));
    ledger.apply_feed([FeedMessage::Reached { range: KeyRange::all(Kind::Tier), revision: 5.into() }]);
    assert!(!ledger.is_behind(&marks(5)));
}

/// Otherwise a client that has received the content without the entry could receive the entry again from a hub that lags
/// behind.
#[test]
fn deletions_count_as_seen_before_their_mark() {
    let mut ledger = ledger(ChangeLogLimits::default());
    let reached =
        |revision: u64| FeedMessage::Reached { range: KeyRange::all(Kind::Tier), revision: revision.into() };
    let mut late = self::ledger(ChangeLogLimits::default());
    for hub in [&mut ledger, &mut late] {
        hub.apply_feed([put("a", 1, 0), reached(1)]);
    }
    ledger.apply_feed([delete("a", 2)]);
    assert_eq!(ledger.content_marks()["Tier"], 2);
    assert!(late.is_behind(ledger.content_marks()));
    late.apply_feed([delete("a", 2), reached(2)]);
    assert!(!late.is_behind(ledger.content_marks()));
    // After the datastore was restored from a backup, revisions are lower.
    ledger.apply_feed([reached(1)]);
    assert_eq!(ledger.content_marks()["Tier"], 1);
}
