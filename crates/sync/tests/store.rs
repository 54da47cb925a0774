//! The feed from a real etcd: one snapshot over all ranges, and one event each for the start and the end of an
//! outage.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;
use tortie_model::ipam::{AddressHandle, IpamConfig};
use tortie_model::{FeedEvent, KeyRange, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreConfig};
use tortie_sync::Feed;
use tortie_testkit::Etcd;

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(180), future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

async fn next(feed: &mut Feed) -> FeedEvent {
    within("the feed", feed.recv()).await.expect("an event")
}

fn handle(id: &str) -> StoreKey {
    StoreKey::Handle { id: id.to_owned() }
}

async fn put(client: &StoreClient, key: &StoreKey) {
    let value = match key {
        StoreKey::IpamConfig => StoreValue::IpamConfig(IpamConfig::default()),
        _ => StoreValue::Handle(AddressHandle::default()),
    };
    within("the store", async {
        while client.apply(key, &value, None).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

fn key_of(event: &FeedEvent) -> Option<&StoreKey> {
    match event {
        FeedEvent::Put { key, .. } | FeedEvent::Delete { key, .. } | FeedEvent::Unreadable { key, .. } => {
            Some(key)
        }
        _ => None,
    }
}

#[tokio::test]
async fn all_ranges_are_one_snapshot_then_changes() {
    let etcd = Etcd::start().expect("etcd");
    let client = StoreClient::connect(&StoreConfig::at(etcd.endpoint())).await.unwrap();
    put(&client, &handle("a")).await;
    put(&client, &StoreKey::IpamConfig).await;
    let ranges = vec![KeyRange::Handles, KeyRange::IpamConfig, KeyRange::Blocks { ip_version: None }];
    let mut feed = tortie_sync::follow(&client, ranges, || {});
    let mut snapshot = [next(&mut feed).await, next(&mut feed).await];
    snapshot.sort_by_key(|event| key_of(event).cloned());
    assert_eq!(snapshot.each_ref().map(key_of), [Some(&handle("a")), Some(&StoreKey::IpamConfig)]);
    assert_eq!(next(&mut feed).await, FeedEvent::InSync);
    client.delete(&handle("a"), None).await.unwrap();
    assert!(matches!(next(&mut feed).await, FeedEvent::Delete { key, .. } if key == handle("a")));
    etcd.ctl(&["put", "/calico/ipam/v2/handle/b", "{"]).unwrap();
    let unreadable = next(&mut feed).await;
    let FeedEvent::Unreadable { key, text, .. } = unreadable else { panic!("{unreadable:?}") };
    assert_eq!((key, text.as_str()), (handle("b"), "{"));
}

#[tokio::test]
async fn an_outage_is_reported_at_start_and_end() {
    let mut etcd = Etcd::start().expect("etcd");
    let client = StoreClient::connect(&StoreConfig::at(etcd.endpoint())).await.unwrap();
    let ranges = vec![KeyRange::Handles, KeyRange::IpamConfig, KeyRange::Blocks { ip_version: None }];
    let mut feed = tortie_sync::follow(&client, ranges, || {});
    assert_eq!(next(&mut feed).await, FeedEvent::InSync);
    etcd.kill();
    let lost = next(&mut feed).await;
    assert!(matches!(lost, FeedEvent::ConnectionLost { .. }), "{lost:?}");
    // Long enough for every watch to fail more than once.
    let more = tokio::time::timeout(Duration::from_secs(3), feed.recv()).await;
    assert!(more.is_err(), "said during the outage: {more:?}");
    etcd.restart().unwrap();
    put(&client, &handle("last")).await;
    let (mut back, mut put_seen) = (0, false);
    while back == 0 || !put_seen {
        match next(&mut feed).await {
            FeedEvent::ConnectionBack { failed_attempts } => {
                assert!(failed_attempts >= 3, "{failed_attempts} failed attempts of three watches");
                back += 1;
            }
            FeedEvent::Put { key, .. } => put_seen = key == handle("last"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(back, 1);
}
