//! Property tests of a follower and its position with generated histories: whatever happens to the connection and to
//! the history, the consumer ends up with the state of the store and receives each change once.

use super::*;
use crate::watch::follower::{FollowerChange, FollowerStep, WatchFollower};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use tortie_etcd_proto::mvccpb::KeyValue;
use tortie_model::StoreKey;

const CLUSTER_ID: u64 = 7;

/// A fake store with its history.
#[derive(Default)]
struct FakeEtcdHistory {
    revision: i64,
    compacted: i64,
    /// Key, revision, and whether the change was a put.
    history: Vec<(u8, i64, bool)>,
}

fn path(key: u8) -> Vec<u8> {
    format!("/calico/ipam/v2/handle/{key}").into_bytes()
}

fn kv(key: u8, revision: i64) -> KeyValue {
    KeyValue { key: path(key).into(), mod_revision: revision, ..Default::default() }
}

fn handle(id: &str) -> StoreKey {
    StoreKey::Handle { id: id.into() }
}

fn item(key: u8, revision: i64) -> WatchItem<Bytes> {
    WatchItem { key: handle(&key.to_string()), revision: opaque(revision), value: Bytes::new() }
}

/// A follower with its position in the history of etcd.
struct PositionedFollower {
    follower: WatchFollower,
    position: WatchPosition,
    range: KeyRange,
}

impl PositionedFollower {
    fn new(after: Option<i64>) -> PositionedFollower {
        PositionedFollower {
            follower: WatchFollower::new(after.map(opaque)),
            position: WatchPosition::new(),
            range: KeyRange::Handles,
        }
    }

    fn listed(
        &mut self,
        items: Vec<WatchItem<Bytes>>,
        revision: i64,
        cluster_id: u64,
    ) -> Vec<FollowerChange<Bytes>> {
        self.position.listed(cluster_id);
        self.follower.listed(items, opaque(revision)).collect()
    }

    /// Returns the changes for the consumer; `None` if the watch has to start over with a list.
    fn heard(&mut self, response: WatchResponse) -> Option<Vec<FollowerChange<Bytes>>> {
        match self.position.heard(&self.range, response) {
            InterpretedResponse::Heard(WatchReport::Updates { updates, revision }) => {
                Some(self.follower.updated(updates, revision))
            }
            InterpretedResponse::Heard(WatchReport::Stale(_) | WatchReport::Relist) => {
                self.follower.stale();
                None
            }
            InterpretedResponse::Closed(reason) => panic!("{reason}"),
        }
    }

    fn open(&mut self) {
        if let FollowerStep::Watch { after } = self.follower.step() {
            self.position.open(&after);
        }
    }
}

impl FakeEtcdHistory {
    fn change(&mut self, key: u8, put: bool) {
        if put || self.state(self.revision).contains_key(&key) {
            self.revision += 1;
            self.history.push((key, self.revision, put));
        }
    }

    fn state(&self, at: i64) -> BTreeMap<u8, i64> {
        let mut state = BTreeMap::new();
        for (key, revision, put) in self.history.iter().filter(|(_, revision, _)| *revision <= at) {
            if *put {
                state.insert(*key, *revision)
            } else {
                state.remove(key)
            };
        }
        state
    }

    fn list(&self, at: i64) -> Vec<WatchItem<Bytes>> {
        self.state(at).into_iter().map(|(key, revision)| item(key, revision)).collect()
    }

    /// Drops all changes after a revision, as restoring a backup does.
    fn restore(&mut self, to: i64) {
        self.history.retain(|(_, revision, _)| *revision <= to);
        self.revision = to;
        self.compacted = self.compacted.min(to);
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision, cluster_id: CLUSTER_ID, ..Default::default() })
    }

    fn events(&self, from: i64) -> Vec<Event> {
        let later = self.history.iter().filter(|(_, revision, _)| *revision >= from);
        later
            .map(|(key, revision, put)| {
                let r#type = if *put { EventType::Put } else { EventType::Delete };
                Event { r#type: r#type.into(), kv: Some(kv(*key, *revision)), prev_kv: None }
            })
            .collect()
    }
}

/// State of a consumer built from the changes. Panics if a change is delivered twice.
#[derive(Default)]
struct RecordingConsumer {
    state: HashMap<StoreKey, i64>,
    delivered: Vec<(StoreKey, i64, bool)>,
    in_sync: usize,
}

impl RecordingConsumer {
    fn take(&mut self, changes: Vec<FollowerChange<Bytes>>) {
        for change in changes {
            match change {
                FollowerChange::Update(WatchUpdate::Put(WatchItem { key, revision, .. })) => {
                    let revision = number(&revision);
                    let before = self.state.insert(key.clone(), revision);
                    assert_ne!(before, Some(revision), "{key} delivered twice");
                    self.delivered.push((key, revision, true));
                }
                FollowerChange::Update(WatchUpdate::Delete { key, revision }) => {
                    assert!(self.state.remove(&key).is_some(), "{key} deleted twice");
                    self.delivered.push((key, number(&revision), false));
                }
                FollowerChange::InSync(_) => self.in_sync += 1,
                FollowerChange::Reset => self.state.clear(),
            }
        }
    }

    fn as_store(&self) -> BTreeMap<u8, i64> {
        let id = |key: &StoreKey| match key {
            StoreKey::Handle { id } => id.parse().unwrap(),
            other => panic!("{other}"),
        };
        self.state.iter().map(|(key, revision)| (id(key), *revision)).collect()
    }
}

#[derive(Clone, Debug)]
enum HistoryAction {
    Put(u8),
    Delete(u8),
    /// Executes the next step of the follower. A watch receives at most this many events before the connection breaks.
    Step(usize),
    Compact(u8),
    Progress,
    Restore(u8),
}

fn acts() -> impl Strategy<Value = Vec<HistoryAction>> {
    let act = prop_oneof![
        8 => (0..6u8).prop_map(HistoryAction::Put),
        4 => (0..6u8).prop_map(HistoryAction::Delete),
        6 => (0..5usize).prop_map(HistoryAction::Step),
        2 => (0..5u8).prop_map(HistoryAction::Compact),
        1 => Just(HistoryAction::Progress),
        1 => (0..6u8).prop_map(HistoryAction::Restore),
    ];
    prop::collection::vec(act, 0..120)
}

/// Executes one step of the watcher with the store.
fn step(
    store: &FakeEtcdHistory,
    watcher: &mut PositionedFollower,
    consumer: &mut RecordingConsumer,
    limit: usize,
) {
    match watcher.follower.step() {
        FollowerStep::List => {
            consumer.take(watcher.listed(store.list(store.revision), store.revision, CLUSTER_ID))
        }
        FollowerStep::ListKeys { revision } => {
            let at = number(&revision);
            if at < store.compacted || at > store.revision {
                return consumer.take(watcher.follower.revision_gone());
            }
            let keys = store.list(at).into_iter().map(|item| (item.key, item.revision)).collect();
            watcher.position.listed(CLUSTER_ID);
            consumer.take(watcher.follower.keys_listed(keys, revision));
        }
        FollowerStep::Watch { after } => {
            let from = watcher.position.open(&after);
            let created = WatchResponse { header: store.header(), created: true, ..Default::default() };
            if watcher.heard(created) != Some(Vec::new()) {
                return;
            }
            if from <= store.compacted {
                let compact_revision = store.compacted;
                let gone = WatchResponse {
                    header: store.header(),
                    canceled: true,
                    compact_revision,
                    ..Default::default()
                };
                assert_eq!(watcher.heard(gone), None);
                return;
            }
            // Servers may send events again that the client has received.
            for event in store.events(from.saturating_sub(1).max(1)).into_iter().take(limit) {
                let response =
                    WatchResponse { header: store.header(), events: vec![event], ..Default::default() };
                consumer.take(watcher.heard(response).expect("history is whole"));
            }
        }
    }
}

fn run(
    acts: Vec<HistoryAction>,
    after: Option<i64>,
    mut store: FakeEtcdHistory,
    mut consumer: RecordingConsumer,
) -> (FakeEtcdHistory, RecordingConsumer, bool) {
    let mut watcher = PositionedFollower::new(after);
    let mut rewritten = false;
    for act in acts {
        match act {
            HistoryAction::Put(key) => store.change(key, true),
            HistoryAction::Delete(key) => store.change(key, false),
            HistoryAction::Step(limit) => step(&store, &mut watcher, &mut consumer, limit),
            HistoryAction::Compact(back) => {
                store.compacted = store.compacted.max(store.revision - i64::from(back))
            }
            HistoryAction::Progress => {
                let progress = WatchResponse {
                    header: store.header(),
                    watch_id: PROGRESS_WATCH_ID,
                    ..Default::default()
                };
                let before = watcher.follower.step();
                if let FollowerStep::Watch { after } = &before
                    && store.revision >= watcher.position.open(after) - 1
                {
                    assert_eq!(watcher.heard(progress), Some(Vec::new()));
                    assert_eq!(
                        watcher.follower.step(),
                        before,
                        "an answer to a progress request moved our place"
                    );
                }
            }
            HistoryAction::Restore(back) => {
                // A follower that is not connected during a restore cannot distinguish the new history from the old
                // one.
                let to = (store.revision - i64::from(back)).max(store.compacted);
                store.restore(to);
                rewritten = true;
                for _ in 0..4 {
                    step(&store, &mut watcher, &mut consumer, usize::MAX);
                }
            }
        }
    }
    for _ in 0..4 {
        step(&store, &mut watcher, &mut consumer, usize::MAX);
    }
    (store, consumer, rewritten)
}

proptest! {
    #[test]
    fn the_consumer_ends_with_the_stores_state(acts in acts()) {
        let (store, consumer, rewritten) = run(acts, None, FakeEtcdHistory::default(), RecordingConsumer::default());
        prop_assert_eq!(consumer.as_store(), store.state(store.revision));
        prop_assert_eq!(consumer.in_sync, 1);
        if !rewritten {
            let mut puts: Vec<_> = consumer.delivered.iter().filter(|change| change.2).map(|change| change.1).collect();
            let count = puts.len();
            puts.sort_unstable();
            puts.dedup();
            prop_assert_eq!(puts.len(), count, "a put was delivered twice");
        }
    }

    #[test]
    fn a_consumer_that_was_there_before_goes_on(before in acts(), acts in acts()) {
        let (store, consumer, _) = run(before, None, FakeEtcdHistory::default(), RecordingConsumer::default());
        let after = store.revision;
        let (store, consumer, _) = run(acts, Some(after), store, RecordingConsumer { in_sync: 0, ..consumer });
        prop_assert_eq!(consumer.as_store(), store.state(store.revision));
    }

    /// Without compaction, every single change is delivered, in order.
    #[test]
    fn nothing_is_skipped(acts in acts()) {
        let acts: Vec<HistoryAction> = acts.into_iter().filter(|act| !matches!(act, HistoryAction::Compact(_) | HistoryAction::Restore(_))).collect();
        let mut acts_with_start = vec![HistoryAction::Step(0)];
        acts_with_start.extend(acts);
        let (store, consumer, _) = run(acts_with_start, None, FakeEtcdHistory::default(), RecordingConsumer::default());
        let delivered: Vec<i64> = consumer.delivered.iter().map(|change| change.1).collect();
        let happened: Vec<i64> = store.history.iter().map(|change| change.1).collect();
        prop_assert_eq!(delivered, happened);
    }
}

#[test]
fn a_replaced_store_is_noticed() {
    let mut watcher = PositionedFollower::new(None);
    watcher.listed(vec![item(1, 5)], 5, CLUSTER_ID);
    watcher.open();
    let other = Some(ResponseHeader { revision: 9, cluster_id: CLUSTER_ID + 1, ..Default::default() });
    let response = WatchResponse { header: other, created: true, ..Default::default() };
    assert_eq!(watcher.heard(response), None);
    assert_eq!(watcher.follower.step(), FollowerStep::List);
    assert_eq!(
        watcher.listed(vec![item(2, 3)], 9, CLUSTER_ID + 1),
        [
            FollowerChange::Update(WatchUpdate::Delete { key: handle("1"), revision: opaque(9) }),
            FollowerChange::Update(WatchUpdate::Put(item(2, 3))),
        ]
    );
}

#[test]
fn a_restored_store_is_recognised_by_its_term() {
    let header = |revision, raft_term| {
        let header = ResponseHeader { revision, raft_term, cluster_id: CLUSTER_ID, ..Default::default() };
        WatchResponse { header: Some(header), created: true, ..Default::default() }
    };
    let mut watcher = PositionedFollower::new(None);
    watcher.listed(vec![item(1, 5)], 5, CLUSTER_ID);
    watcher.open();
    assert_eq!(watcher.heard(header(5, 9)), Some(Vec::new()));
    assert_eq!(watcher.heard(header(7, 9)), Some(Vec::new()));
    assert_eq!(watcher.heard(header(7, 2)), None);
    watcher.listed(vec![item(1, 5)], 7, CLUSTER_ID);
    watcher.open();
    assert_eq!(watcher.heard(header(7, 2)), Some(Vec::new()));
}

#[test]
fn keys_of_others_are_not_reported() {
    let mut position = WatchPosition::new();
    position.listed(CLUSTER_ID);
    let put = |key: &[u8]| {
        let kv = KeyValue { key: key.to_vec().into(), mod_revision: 3, ..Default::default() };
        Event { r#type: EventType::Put.into(), kv: Some(kv), prev_kv: None }
    };
    let header = Some(ResponseHeader { revision: 3, cluster_id: CLUSTER_ID, ..Default::default() });
    let events = vec![put(b"/calico/ipam/v2/configuration"), put(&[0xff])];
    let response = WatchResponse { header, events, ..Default::default() };
    let nothing = WatchReport::Updates { updates: Vec::new(), revision: opaque(3) };
    assert_eq!(position.heard(&KeyRange::IpamConfig, response), InterpretedResponse::Heard(nothing));
}

#[test]
fn all_changes_of_one_revision_are_reported() {
    let mut watcher = PositionedFollower::new(None);
    watcher.listed(Vec::new(), 4, CLUSTER_ID);
    watcher.open();
    let put = |key| Event { r#type: EventType::Put.into(), kv: Some(kv(key, 5)), prev_kv: None };
    let header = Some(ResponseHeader { revision: 5, cluster_id: CLUSTER_ID, ..Default::default() });
    let response = WatchResponse { header, events: vec![put(1), put(2)], ..Default::default() };
    assert_eq!(watcher.heard(response).map(|changes| changes.len()), Some(2));
    assert_eq!(watcher.follower.step(), FollowerStep::Watch { after: opaque(5) });
}
