//! Whatever happens to the connection and to history, the consumer ends up with the store's state and hears each
//! change once.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const CLUSTER: u64 = 7;

/// A store with its history.
#[derive(Default)]
struct Store {
    revision: i64,
    compacted: i64,
    /// Key, revision, and whether it was a put.
    history: Vec<(u8, i64, bool)>,
}

fn path(key: u8) -> Vec<u8> {
    format!("/calico/ipam/v2/handle/{key}").into_bytes()
}

fn kv(key: u8, revision: i64) -> KeyValue {
    KeyValue { key: path(key).into(), mod_revision: revision, ..Default::default() }
}

impl Store {
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

    fn list(&self, at: i64) -> Vec<KeyValue> {
        self.state(at).into_iter().map(|(key, revision)| kv(key, revision)).collect()
    }

    /// Forgets everything after a revision, as a restored backup does.
    fn restore(&mut self, to: i64) {
        self.history.retain(|(_, revision, _)| *revision <= to);
        self.revision = to;
        self.compacted = self.compacted.min(to);
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision, cluster_id: CLUSTER, ..Default::default() })
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

/// What a consumer makes of the changes; refuses anything told twice.
#[derive(Default)]
struct Consumer {
    state: HashMap<Key, i64>,
    told: Vec<(Key, i64, bool)>,
    in_sync: usize,
}

impl Consumer {
    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Put { key, kv } => {
                    let before = self.state.insert(key.clone(), kv.mod_revision);
                    assert_ne!(before, Some(kv.mod_revision), "{key} told twice");
                    self.told.push((key, kv.mod_revision, true));
                }
                Change::Delete { key, revision } => {
                    assert!(self.state.remove(&key).is_some(), "{key} deleted twice");
                    self.told.push((key, revision, false));
                }
                Change::InSync(_) => self.in_sync += 1,
                Change::Reset => self.state.clear(),
            }
        }
    }

    fn as_store(&self) -> BTreeMap<u8, i64> {
        let id = |key: &Key| match key {
            Key::Handle { id } => id.parse().unwrap(),
            other => panic!("{other}"),
        };
        self.state.iter().map(|(key, revision)| (id(key), *revision)).collect()
    }
}

#[derive(Clone, Debug)]
enum Act {
    Put(u8),
    Delete(u8),
    /// Let the follower do its next step; a watch gets at most this many events, then the connection breaks.
    Step(usize),
    Compact(u8),
    Progress,
    Restore(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => (0..6u8).prop_map(Act::Put),
        4 => (0..6u8).prop_map(Act::Delete),
        6 => (0..5usize).prop_map(Act::Step),
        2 => (0..5u8).prop_map(Act::Compact),
        1 => Just(Act::Progress),
        1 => (0..6u8).prop_map(Act::Restore),
    ];
    prop::collection::vec(act, 0..120)
}

/// One step of the follower against the store.
fn step(store: &Store, follower: &mut Follower, consumer: &mut Consumer, limit: usize) {
    match follower.step() {
        Step::List => consumer.take(follower.listed(store.list(store.revision), store.revision, CLUSTER)),
        Step::ListKeys { revision } if revision < store.compacted || revision > store.revision => {
            consumer.take(follower.revision_gone());
        }
        Step::ListKeys { revision } => consumer.take(follower.keys_listed(store.list(revision), CLUSTER)),
        Step::Watch { from } => {
            let created = WatchResponse { header: store.header(), created: true, ..Default::default() };
            if follower.heard(created) != Heard::Changes(Vec::new()) {
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
                assert!(matches!(follower.heard(gone), Heard::Stale(_)));
                return;
            }
            // Servers may send again what a client has seen.
            for event in store.events(from.saturating_sub(1).max(1)).into_iter().take(limit) {
                let response =
                    WatchResponse { header: store.header(), events: vec![event], ..Default::default() };
                match follower.heard(response) {
                    Heard::Changes(changes) => consumer.take(changes),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

fn run(
    acts: Vec<Act>,
    after: Option<i64>,
    mut store: Store,
    mut consumer: Consumer,
) -> (Store, Consumer, bool) {
    let mut follower = Follower::new(KeyRange::Handles, after);
    let mut rewritten = false;
    for act in acts {
        match act {
            Act::Put(key) => store.change(key, true),
            Act::Delete(key) => store.change(key, false),
            Act::Step(limit) => step(&store, &mut follower, &mut consumer, limit),
            Act::Compact(back) => store.compacted = store.compacted.max(store.revision - i64::from(back)),
            Act::Progress => {
                let (delivered, current) = (follower.revision, store.revision);
                let progress =
                    WatchResponse { header: store.header(), watch_id: NO_WATCH, ..Default::default() };
                if follower.phase == Phase::Following && current >= delivered {
                    assert_eq!(follower.heard(progress), Heard::Changes(Vec::new()));
                    assert_eq!(
                        follower.revision, delivered,
                        "an answer to a progress request moved our place"
                    );
                }
            }
            Act::Restore(back) => {
                // A follower that is not looking meanwhile cannot tell a new history from the old one.
                let to = (store.revision - i64::from(back)).max(store.compacted);
                store.restore(to);
                rewritten = true;
                for _ in 0..4 {
                    step(&store, &mut follower, &mut consumer, usize::MAX);
                }
            }
        }
    }
    for _ in 0..4 {
        step(&store, &mut follower, &mut consumer, usize::MAX);
    }
    (store, consumer, rewritten)
}

proptest! {
    #[test]
    fn the_consumer_ends_with_the_stores_state(acts in acts()) {
        let (store, consumer, rewritten) = run(acts, None, Store::default(), Consumer::default());
        prop_assert_eq!(consumer.as_store(), store.state(store.revision));
        prop_assert_eq!(consumer.in_sync, 1);
        if !rewritten {
            let mut puts: Vec<_> = consumer.told.iter().filter(|told| told.2).map(|told| told.1).collect();
            let count = puts.len();
            puts.sort_unstable();
            puts.dedup();
            prop_assert_eq!(puts.len(), count, "a put was told twice");
        }
    }

    #[test]
    fn a_consumer_that_was_there_before_goes_on(before in acts(), acts in acts()) {
        let (store, consumer, _) = run(before, None, Store::default(), Consumer::default());
        let after = store.revision;
        let (store, consumer, _) = run(acts, Some(after), store, Consumer { in_sync: 0, ..consumer });
        prop_assert_eq!(consumer.as_store(), store.state(store.revision));
    }

    /// Without compaction every single change arrives, in order.
    #[test]
    fn nothing_is_skipped(acts in acts()) {
        let acts: Vec<Act> = acts.into_iter().filter(|act| !matches!(act, Act::Compact(_) | Act::Restore(_))).collect();
        let mut acts_with_start = vec![Act::Step(0)];
        acts_with_start.extend(acts);
        let (store, consumer, _) = run(acts_with_start, None, Store::default(), Consumer::default());
        let told: Vec<i64> = consumer.told.iter().map(|told| told.1).collect();
        let happened: Vec<i64> = store.history.iter().map(|change| change.1).collect();
        prop_assert_eq!(told, happened);
    }
}

#[test]
fn a_replaced_store_is_noticed() {
    let mut follower = Follower::new(KeyRange::Handles, None);
    follower.listed(vec![kv(1, 5)], 5, CLUSTER);
    let other = Some(ResponseHeader { revision: 9, cluster_id: CLUSTER + 1, ..Default::default() });
    let response = WatchResponse { header: other, created: true, ..Default::default() };
    assert!(matches!(follower.heard(response), Heard::Stale(_)));
    assert_eq!(follower.step(), Step::List);
    let handle = |id: &str| Key::Handle { id: id.into() };
    assert_eq!(
        follower.listed(vec![kv(2, 3)], 9, CLUSTER + 1),
        [Change::Delete { key: handle("1"), revision: 9 }, Change::Put { key: handle("2"), kv: kv(2, 3) }]
    );
}

#[test]
fn a_store_put_back_is_noticed_by_its_term() {
    let header = |revision, raft_term| {
        let header = ResponseHeader { revision, raft_term, cluster_id: CLUSTER, ..Default::default() };
        WatchResponse { header: Some(header), created: true, ..Default::default() }
    };
    let mut follower = Follower::new(KeyRange::Handles, None);
    follower.listed(vec![kv(1, 5)], 5, CLUSTER);
    assert_eq!(follower.heard(header(5, 9)), Heard::Changes(Vec::new()));
    assert_eq!(follower.heard(header(7, 9)), Heard::Changes(Vec::new()));
    assert!(matches!(follower.heard(header(7, 2)), Heard::Stale(_)));
    follower.listed(vec![kv(1, 5)], 7, CLUSTER);
    assert_eq!(follower.heard(header(7, 2)), Heard::Changes(Vec::new()));
}

#[test]
fn keys_of_others_are_not_told() {
    let mut follower = Follower::new(KeyRange::IpamConfig, None);
    let foreign =
        KeyValue { key: "/calico/ipam/v2/configuration".into(), mod_revision: 3, ..Default::default() };
    let unnamed = KeyValue { key: vec![0xff].into(), mod_revision: 3, ..Default::default() };
    assert_eq!(follower.listed(vec![foreign, unnamed], 4, CLUSTER), [Change::InSync(4)]);
    assert!(follower.known.is_empty());
}

#[test]
fn all_changes_of_one_revision_are_told() {
    let mut follower = Follower::new(KeyRange::Handles, None);
    follower.listed(Vec::new(), 4, CLUSTER);
    let put = |key| Event { r#type: EventType::Put.into(), kv: Some(kv(key, 5)), prev_kv: None };
    let header = Some(ResponseHeader { revision: 5, cluster_id: CLUSTER, ..Default::default() });
    let response = WatchResponse { header, events: vec![put(1), put(2)], ..Default::default() };
    assert!(matches!(follower.heard(response), Heard::Changes(changes) if changes.len() == 2));
    assert_eq!(follower.step(), Step::Watch { from: 6 });
}
