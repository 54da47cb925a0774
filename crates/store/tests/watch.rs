//! A watch reports every change once, whatever happens to the store in the meantime.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{FreezableProxy, TestStore, next, within};
use std::collections::BTreeMap;
use std::time::Duration;
use tortie_model::ipam::AddressHandle;
use tortie_model::{KeyRange, Kind, StoreKey, StoreValue};
use tortie_store::{Revision, StoreClient, StoreConfig, StoreError, StoreEvent, StoreLimits, StoreWatch};

on_each_store! {
    a_snapshot_then_every_change
    the_store_dies_and_comes_back
    history_is_compacted_while_nobody_listens
    thousands_of_changes_none_lost_none_doubled
    an_unreadable_entry_does_not_stop_the_watch
    a_watch_goes_on_from_a_revision
    a_revision_that_is_gone_means_a_reset
    a_slow_consumer_loses_nothing
    a_store_put_back_to_an_older_state
    a_frozen_connection_is_noticed
    live_migrations_cannot_be_watched
}

fn handle(id: &str) -> StoreKey {
    StoreKey::Handle { id: id.into() }
}

fn counting(count: i64) -> StoreValue {
    StoreValue::Handle(AddressHandle {
        block: [("10.0.0.0/26".to_owned(), count)].into(),
        ..Default::default()
    })
}

async fn put(client: &StoreClient, id: &str, count: i64) {
    client.apply(&handle(id), &counting(count), None).await.unwrap();
}

/// A copy of the store, built from events.
#[derive(Default)]
struct StoreMirror {
    entries: BTreeMap<StoreKey, Revision>,
    puts: usize,
}

impl StoreMirror {
    fn take(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Put(entry) => {
                let before = self.entries.insert(entry.key.clone(), entry.revision.clone());
                let newer = |before: &Revision| entry.revision.is_at_or_before(before) == Some(false);
                assert!(before.as_ref().is_none_or(newer), "{} reported twice", entry.key);
                self.puts += 1;
            }
            StoreEvent::Delete { key, .. } => {
                assert!(self.entries.remove(&key).is_some(), "{key} deleted twice");
            }
            StoreEvent::InSync(_) => {}
            other => panic!("{other:?}"),
        }
    }

    async fn until(&mut self, watch: &mut StoreWatch, last: &StoreKey) {
        loop {
            let event = next(watch).await;
            let done = matches!(&event, StoreEvent::Put(entry) if entry.key == *last);
            self.take(event);
            if done {
                return;
            }
        }
    }

    async fn until_in_sync(&mut self, watch: &mut StoreWatch) {
        loop {
            match next(watch).await {
                StoreEvent::InSync(_) => return,
                event => self.take(event),
            }
        }
    }
}

async fn truth(client: &StoreClient) -> BTreeMap<StoreKey, Revision> {
    let listing = client.list(&KeyRange::Handles).await.unwrap();
    listing.entries.into_iter().map(|entry| (entry.key, entry.revision)).collect()
}

/// Writes an entry, retrying until the store is reachable.
async fn eventually_put(client: &StoreClient, id: &str) {
    within("the store", async {
        while client.apply(&handle(id), &counting(1), None).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

async fn a_snapshot_then_every_change(store: TestStore) {
    let client = store.client().await;
    put(&client, "a", 1).await;
    put(&client, "b", 1).await;
    let mut watch = client.watch(KeyRange::Handles, None);
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("a")));
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("b")));
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    put(&client, "a", 2).await;
    client.delete(&handle("b"), None).await.unwrap();
    client.apply(&StoreKey::IpamConfig, &StoreValue::IpamConfig(Default::default()), None).await.unwrap();
    put(&client, "c", 1).await;
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.value == counting(2)));
    assert!(matches!(next(&mut watch).await, StoreEvent::Delete { key, .. } if key == handle("b")));
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("c")));
    assert_eq!(watch.trouble(), None);
}

async fn the_store_dies_and_comes_back(mut store: TestStore) {
    let client = store.client().await;
    let (mut watch, mut mirror) = (client.watch(KeyRange::Handles, None), StoreMirror::default());
    mirror.until_in_sync(&mut watch).await;
    for round in 0..3 {
        put(&client, "same", round).await;
        store.kill().await;
        within("trouble", async {
            while watch.trouble().is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        store.restart().await;
        let last = format!("round-{round}");
        eventually_put(&client, &last).await;
        mirror.until(&mut watch, &handle(&last)).await;
        assert_eq!(mirror.entries, truth(&client).await);
    }
    assert_eq!(mirror.puts, 6);
}

async fn history_is_compacted_while_nobody_listens(mut store: TestStore) {
    let client = store.client().await;
    for id in ["kept", "changed", "deleted", "replaced"] {
        put(&client, id, 1).await;
    }
    let (mut watch, mut mirror) = (client.watch(KeyRange::Handles, None), StoreMirror::default());
    mirror.until_in_sync(&mut watch).await;

    // The watch cannot reach the store during these changes: its endpoint is closed, and the history is compacted
    // afterwards.
    store.kill().await;
    within("trouble", async {
        while watch.trouble().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    store.restart_elsewhere().await;
    let other = store.client().await;
    put(&other, "changed", 2).await;
    other.delete(&handle("deleted"), None).await.unwrap();
    other.delete(&handle("replaced"), None).await.unwrap();
    put(&other, "replaced", 2).await;
    put(&other, "new", 1).await;
    store.compact().await;
    store.kill().await;
    store.restart_at_home().await;

    let mut delivered = Vec::new();
    while delivered.len() < 4 {
        let event = next(&mut watch).await;
        delivered.push(match &event {
            StoreEvent::Put(entry) => entry.key.clone(),
            StoreEvent::Delete { key, .. } => key.clone(),
            other => panic!("{other:?}"),
        });
        mirror.take(event);
    }
    delivered.sort();
    assert_eq!(delivered, ["changed", "deleted", "new", "replaced"].map(handle));
    assert_eq!(mirror.entries, truth(&client).await);
    put(&client, "later", 1).await;
    mirror.until(&mut watch, &handle("later")).await;
    assert_eq!(mirror.entries, truth(&client).await);
}

async fn thousands_of_changes_none_lost_none_doubled(mut store: TestStore) {
    let client = store.client().await;
    let (mut watch, mut mirror) = (client.watch(KeyRange::Handles, None), StoreMirror::default());
    mirror.until_in_sync(&mut watch).await;
    let writer = {
        let client = client.clone();
        tokio::spawn(async move {
            let mut written = 0;
            for n in 0..3_000_i64 {
                // Unacknowledged writes may be applied; the mirror checks revisions only, so that is harmless.
                if client.apply(&handle(&format!("{}", n % 50)), &counting(n), None).await.is_ok() {
                    written += 1;
                }
                if n % 7 == 0 {
                    let _ = client.delete(&handle(&format!("{}", (n + 3) % 50)), None).await;
                }
            }
            eventually_put(&client, "last").await;
            written
        })
    };
    // Interrupt the store once while changes arrive.
    tokio::time::sleep(Duration::from_millis(300)).await;
    store.kill().await;
    store.restart().await;
    let drain = async {
        let last = handle("last");
        mirror.until(&mut watch, &last).await;
    };
    within("all changes", drain).await;
    let written = writer.await.unwrap();
    assert_eq!(mirror.entries, truth(&client).await);
    assert!(mirror.puts > written, "{} of at least {written} puts and the last one delivered", mirror.puts);
}

async fn an_unreadable_entry_does_not_stop_the_watch(store: TestStore) {
    let client = store.client().await;
    put(&client, "a", 1).await;
    let mut watch = client.watch(KeyRange::Handles, None);
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(_)));
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    store.put_raw("/calico/ipam/v2/handle/a", "nonsense").await;
    match next(&mut watch).await {
        StoreEvent::Unreadable { key, error: StoreError::Parse { .. }, .. } => assert_eq!(key, handle("a")),
        other => panic!("{other:?}"),
    }
    put(&client, "b", 1).await;
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("b")));
    store.delete_raw("/calico/ipam/v2/handle/a").await;
    assert!(matches!(next(&mut watch).await, StoreEvent::Delete { key, .. } if key == handle("a")));
}

async fn a_watch_goes_on_from_a_revision(store: TestStore) {
    let client = store.client().await;
    put(&client, "a", 1).await;
    let seen = client.list(&KeyRange::Handles).await.unwrap().revision;
    put(&client, "b", 1).await;
    client.delete(&handle("a"), None).await.unwrap();
    let mut watch = client.watch(KeyRange::Handles, Some(seen.clone()));
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(revision) if revision == seen));
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("b")));
    assert!(matches!(next(&mut watch).await, StoreEvent::Delete { key, .. } if key == handle("a")));
}

async fn a_revision_that_is_gone_means_a_reset(store: TestStore) {
    let client = store.client().await;
    put(&client, "a", 1).await;
    let seen = client.list(&KeyRange::Handles).await.unwrap().revision;
    put(&client, "b", 1).await;
    put(&client, "b", 2).await;
    store.compact().await;
    let future = seen.number().unwrap() + 1_000_000;
    for revision in [seen, future.into()] {
        let mut watch = client.watch(KeyRange::Handles, Some(revision));
        assert!(matches!(next(&mut watch).await, StoreEvent::Reset));
        assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("a")));
        assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("b")));
        assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    }
}

async fn a_slow_consumer_loses_nothing(store: TestStore) {
    let client = store.client().await;
    let (mut watch, mut mirror) = (client.watch(KeyRange::Handles, None), StoreMirror::default());
    mirror.until_in_sync(&mut watch).await;
    // More than all buffers on the way can hold.
    for n in 0..2_000 {
        put(&client, &format!("{}", n % 10), n).await;
    }
    put(&client, "last", 1).await;
    mirror.until(&mut watch, &handle("last")).await;
    assert_eq!(mirror.puts, 2_001);
}

async fn a_store_put_back_to_an_older_state(mut store: TestStore) {
    let client = store.client().await;
    for id in ["kept", "changed", "deleted"] {
        put(&client, id, 1).await;
    }
    store.backup().await;
    let old = {
        eventually_put(&client, "kept").await;
        truth(&client).await
    };
    put(&client, "changed", 2).await;
    put(&client, "new", 1).await;
    client.delete(&handle("deleted"), None).await.unwrap();
    let mut watch = client.watch(KeyRange::Handles, None);
    let mut seen = BTreeMap::new();
    loop {
        match next(&mut watch).await {
            StoreEvent::Put(entry) => seen.insert(entry.key, entry.revision),
            StoreEvent::InSync(_) => break,
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(seen, truth(&client).await);

    store.restore().await;
    let mut delivered = 0;
    // "kept" was written after the backup: all four entries differ.
    while delivered < 4 {
        match next(&mut watch).await {
            StoreEvent::Put(entry) => {
                let before = seen.insert(entry.key, entry.revision.clone());
                assert_ne!(before, Some(entry.revision));
            }
            StoreEvent::Delete { key, .. } => assert!(seen.remove(&key).is_some()),
            other => panic!("{other:?}"),
        };
        delivered += 1;
    }
    assert_eq!(seen.keys().collect::<Vec<_>>(), old.keys().collect::<Vec<_>>());
    assert_eq!(seen, truth(&client).await);
    put(&client, "later", 1).await;
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("later")));
}

async fn a_frozen_connection_is_noticed(store: TestStore) {
    let proxy = FreezableProxy::start(&store.endpoint()).await;
    let limits = StoreLimits { watch_silence: Duration::from_millis(500), ..StoreLimits::default() };
    let through = StoreClient::connect_with(&StoreConfig::at(&proxy.endpoint), limits).await.unwrap();
    let mut watch = through.watch(KeyRange::Handles, None);
    assert!(matches!(next(&mut watch).await, StoreEvent::InSync(_)));
    let direct = store.client().await;
    put(&direct, "before", 1).await;
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("before")));
    // No connection is closed or refused: data just stops.
    proxy.freeze();
    put(&direct, "after", 1).await;
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("after")));
    put(&direct, "later", 1).await;
    assert!(matches!(next(&mut watch).await, StoreEvent::Put(entry) if entry.key == handle("later")));
}

async fn live_migrations_cannot_be_watched(store: TestStore) {
    let error = store.resources().await.watch(Kind::LiveMigration, None).unwrap_err();
    assert_eq!(error.to_string(), "operation Watch is not supported on LiveMigration");
}
