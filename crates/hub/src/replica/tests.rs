use super::*;
use crate::ledger::{ChangeLogLimits, HubLedger};
use crate::protocol::{BeginMessage, HubStoreStatus, RecordPayload, RefusedMessage};
use crate::session::{ClientSession, SessionOpening, SessionStep};
use tortie_model::{KeyRange, Kind, StoreKey, StoreValue};
use tortie_sync::FeedMessage;

fn ledger(epoch: u64, names: &[(&str, u64)], reached: u64) -> HubLedger {
    ledger_of(Kind::Tier, epoch, names, reached)
}

fn ledger_of(kind: Kind, epoch: u64, names: &[(&str, u64)], reached: u64) -> HubLedger {
    let range = KeyRange::all(kind);
    let mut ledger = HubLedger::new(epoch, std::slice::from_ref(&range), ChangeLogLimits::default());
    ledger.apply_feed(names.iter().map(|(name, revision)| put(kind, name, *revision)));
    ledger.apply_feed([
        FeedMessage::Reached { range, revision: reached.into() },
        FeedMessage::Event(FeedEvent::InSync),
    ]);
    ledger
}

fn put(kind: Kind, name: &str, revision: u64) -> FeedMessage {
    let key = StoreKey::resource(kind, "", name);
    let text = format!(
        r#"{{"kind":"{kind}","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{{}}}}"#
    );
    let value = StoreValue::decode(&key, text.as_bytes()).unwrap();
    FeedMessage::Event(FeedEvent::Put { key, value, revision: revision.into() })
}

/// Runs a new connection until the hub has nothing more to send and returns the emitted events; `None` if the hub
/// makes the client wait.
fn meet(replica: &mut HubReplica, ledger: &HubLedger, allow_older: bool) -> Option<Vec<String>> {
    let ClientMessage::Hello(hello) = replica.hello() else { panic!() };
    let (mut session, mut frames) = match ClientSession::open(&hello, ledger, allow_older) {
        SessionOpening::Served { session, first } => (session, first),
        SessionOpening::Behind => return None,
        SessionOpening::Refused(reason) => panic!("{reason}"),
    };
    let mut received = Vec::new();
    loop {
        for frame in std::mem::take(&mut frames) {
            let reaction = replica.receive(HubMessage::decode(frame.slice(4..)).unwrap()).unwrap();
            if let Some(ClientMessage::Digests(digests)) = reaction.reply {
                frames.push(session.compare(&digests.sums().unwrap(), ledger).unwrap());
            }
            received.extend(reaction.events.iter().map(word));
        }
        match session.next(ledger) {
            SessionStep::Wait => return Some(received),
            SessionStep::AwaitDigests => {}
            SessionStep::Send(more) => frames.extend(more),
            SessionStep::SendBucket(bucket) => frames.extend(bucket.frames().0.iter().cloned()),
        }
    }
}

fn word(event: &FeedEvent) -> String {
    match event {
        FeedEvent::Put { key: StoreKey::Resource { name, .. }, revision, .. } => format!("{name}@{revision}"),
        FeedEvent::Delete { key: StoreKey::Resource { name, .. }, .. } => format!("-{name}"),
        FeedEvent::InSync => "in sync".to_owned(),
        other => format!("{other:?}"),
    }
}

fn replica() -> HubReplica {
    HubReplica::new("n", vec!["Tier".to_owned()])
}

#[test]
fn another_hub_sends_missed_changes_deletions_first() {
    let mut replica = replica();
    let one = ledger(1, &[("a", 1), ("b", 2)], 2);
    let mut received = meet(&mut replica, &one, false).unwrap();
    assert_eq!(received.pop().as_deref(), Some("in sync"));
    received.sort();
    assert_eq!(received, ["a@1", "b@2"]);
    assert_eq!(meet(&mut replica, &one, false).unwrap(), [""; 0], "the same hub");
    let two = ledger(2, &[("a", 1), ("c", 4), ("d", 5)], 6);
    let received = meet(&mut replica, &two, false).unwrap();
    assert_eq!((received.len(), received[0].as_str()), (3, "-b"), "{received:?}");
    assert!(received.contains(&"c@4".to_owned()) && received.contains(&"d@5".to_owned()));
    assert_eq!(meet(&mut replica, &ledger(3, &[("a", 1), ("c", 4), ("d", 5)], 9), false).unwrap(), [""; 0]);
}

#[test]
fn a_hub_that_stays_behind_is_trusted() {
    let mut replica = replica();
    meet(&mut replica, &ledger(1, &[("a", 1), ("b", 20)], 20), false).unwrap();
    // The hub has not received b yet; applying its state would be a deletion that did not happen.
    let behind = ledger(2, &[("a", 1)], 10);
    assert_eq!(meet(&mut replica, &behind, false), None);
    // The store was restored to a state without b, so no hub will ever receive b.
    assert_eq!(meet(&mut replica, &behind, true).unwrap(), ["-b"]);
    assert_eq!(
        meet(&mut replica, &ledger(3, &[("a", 1)], 11), false).unwrap(),
        [""; 0],
        "and not waited for again"
    );
}

#[test]
fn an_empty_hub_is_trusted_after_several_snapshots() {
    let mut replica = replica();
    replica.set_snapshot_check(vec!["Tier".to_owned()], 2);
    meet(&mut replica, &ledger(1, &[("a", 1), ("b", 2)], 2), false).unwrap();
    let empty = ledger(2, &[], 5);
    for _ in 0..2 {
        assert_eq!(meet(&mut replica, &empty, false).unwrap(), [""; 0], "nothing is deleted");
    }
    let mut deleted = meet(&mut replica, &empty, false).unwrap();
    deleted.sort();
    assert_eq!(deleted, ["-a", "-b"]);
}

#[test]
fn a_lost_collection_is_doubted_beside_another() {
    let kind = Kind::GlobalNetworkPolicy;
    let mut replica = HubReplica::new("n", vec![kind.name().to_owned()]);
    replica.set_snapshot_check(vec![kind.name().to_owned()], 1);
    let derived = [("kcnp.a", 1), ("kcnp.b", 2)];
    let both = ledger_of(kind, 1, &[derived[0], derived[1], ("deny", 3)], 3);
    meet(&mut replica, &both, false).unwrap();
    let partial = ledger_of(kind, 2, &derived, 5);
    assert_eq!(meet(&mut replica, &partial, false).unwrap(), [""; 0], "nothing is deleted");
    assert_eq!(meet(&mut replica, &partial, false).unwrap(), ["-deny"]);
}

#[test]
fn messages_out_of_order_are_errors() {
    let mut replica = replica();
    let changes = |sequence| {
        HubMessage::Changes(ChangesMessage { sequence, records: RecordPayload::new([]), status: None })
    };
    let bucket = || {
        let records = RecordPayload::new([]);
        HubMessage::Bucket(BucketMessage { index: 0, changed: 0, more: false, records })
    };
    assert!(replica.receive(changes(1)).is_err(), "before a snapshot");
    assert!(replica.receive(bucket()).is_err(), "without a Begin");
    assert!(replica.receive(HubMessage::End(EndMessage::default())).is_err());
    assert!(replica.receive(HubMessage::Resume(HubStoreStatus::default())).is_err());
    meet(&mut replica, &ledger(1, &[("a", 1)], 1), false).unwrap();
    assert!(replica.receive(changes(2)).is_err(), "a gap");
    assert!(replica.receive(changes(1)).is_ok());
    replica.receive(HubMessage::Begin(BeginMessage { sequence: 5, status: None })).unwrap();
    let misplaced = FeedRecord { key: "elsewhere".to_owned(), ..FeedRecord::default() };
    let index = (choose_bucket("elsewhere") + 1) % BUCKET_COUNT;
    let records = RecordPayload::new([&misplaced]);
    let bucket = BucketMessage { index: index as u32, changed: 0, more: false, records };
    assert!(replica.receive(HubMessage::Bucket(bucket)).is_err());
    let reaction =
        replica.receive(HubMessage::Refused(RefusedMessage { reason: "full".to_owned() })).unwrap();
    assert_eq!(reaction.disconnect.as_deref(), Some("full"));
}

/// Returns a non-final part of the key's bucket with one entry of `bytes` bytes.
fn part(key: &str, bytes: usize) -> HubMessage {
    let value = vec![0; bytes].into();
    let record = FeedRecord { key: key.to_owned(), revision: "9".to_owned(), value, ..FeedRecord::default() };
    let records = RecordPayload::new([&record]);
    HubMessage::Bucket(BucketMessage { index: choose_bucket(key) as u32, changed: 0, more: true, records })
}

#[test]
fn an_unfinished_bucket_is_bounded() {
    const PART: usize = 8 << 20;
    let mut replica = replica();
    replica.receive(HubMessage::Begin(BeginMessage { sequence: 5, status: None })).unwrap();
    for _ in 0..transfer::MAX_BUCKET_BYTES / PART - 1 {
        replica.receive(part("a", PART)).unwrap();
    }
    let error = replica.receive(part("a", PART)).unwrap_err();
    assert!(matches!(error, ProtocolError::Oversized { what: "bucket", .. }), "{error}");
    // The next connection starts without the unfinished transfer.
    replica.hello();
    assert!(replica.transfer.is_none());
}

#[test]
fn an_unfinished_transfer_is_bounded() {
    let received = |bytes| ReceivedBucket {
        index: 0,
        changed: 0,
        deleted: Vec::new(),
        changed_records: Vec::new(),
        bytes,
    };
    let mut transfer = BucketTransfer::new(1, HubStoreStatus::default());
    transfer.store_bucket(received(transfer::MAX_TRANSFER_BYTES)).unwrap();
    let error = transfer.store_bucket(received(1)).unwrap_err();
    assert!(matches!(error, ProtocolError::Oversized { what: "transfer", .. }), "{error}");

    let mut transfer = BucketTransfer::new(1, HubStoreStatus::default());
    let own_buckets: Vec<ReplicaBucket> = (0..BUCKET_COUNT).map(|_| ReplicaBucket::default()).collect();
    let empty = || BucketMessage { index: 7, changed: 0, more: false, records: RecordPayload::new([]) };
    for _ in 0..BUCKET_COUNT {
        let received = transfer.receive(&empty(), &own_buckets).unwrap().unwrap();
        transfer.store_bucket(received).unwrap();
    }
    assert!(transfer.receive(&empty(), &own_buckets).is_err(), "the same bucket again and again");
}
