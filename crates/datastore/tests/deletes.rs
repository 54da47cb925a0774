//! Large deletions. This is a single test because it measures the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{EmbeddedDatastore, connect};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::lease_client::LeaseClient;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;
use tortie_testkit::resident;

const MIB: usize = 1 << 20;
/// More than the changes hold for watchers, and not more than one response can contain.
const WATCHED_KEY_COUNT: usize = 12;
const DELETED_KEY_COUNT: usize = 40;

/// Returns the maximum memory of the process during the work, beyond the memory before it.
async fn highest<T>(work: impl Future<Output = T>) -> (T, u64) {
    let (before, done) = (resident(std::process::id()), Arc::new(AtomicBool::new(false)));
    let highest = Arc::new(AtomicU64::new(0));
    let sampling = {
        let (done, highest) = (done.clone(), highest.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                highest.fetch_max(resident(std::process::id()).saturating_sub(before), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let outcome = work.await;
    done.store(true, Ordering::Relaxed);
    sampling.join().unwrap();
    (outcome, highest.load(Ordering::Relaxed))
}

fn put(key: String, lease: i64) -> PutRequest {
    PutRequest { key: key.into(), value: vec![7; MIB].into(), lease, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_miss_nothing_of_a_large_delete() {
    let embedded = EmbeddedDatastore::start();
    let channel = connect(&embedded.url).await;
    let mut kv = KvClient::new(channel.clone());
    for number in 0..WATCHED_KEY_COUNT {
        kv.put(put(format!("w/{number:03}"), 0)).await.unwrap();
    }
    let create =
        WatchCreateRequest { key: "w/".into(), range_end: "w0".into(), prev_kv: true, ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
    let mut watch = WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
    let mut responses = watch.watch(requests).await.unwrap().into_inner();
    assert!(responses.message().await.unwrap().unwrap().created);
    let delete = DeleteRangeRequest { key: "w/".into(), range_end: "w0".into(), prev_kv: false };
    let deleted = kv.delete_range(delete).await.unwrap().into_inner();
    assert_eq!(deleted.deleted, WATCHED_KEY_COUNT as i64);
    let mut seen = Vec::new();
    while seen.len() < WATCHED_KEY_COUNT {
        let response = responses.message().await.unwrap().unwrap();
        assert!(!response.canceled, "{}", response.cancel_reason);
        seen.extend(response.events);
    }
    for (number, event) in seen.into_iter().enumerate() {
        let (kv, previous) = (event.kv.unwrap(), event.prev_kv.unwrap());
        assert_eq!(kv.key, format!("w/{number:03}"));
        assert_eq!((previous.key, previous.value.len()), (kv.key, MIB));
    }
    drop(responses);

    // By range, and by lease.
    let mut leases = LeaseClient::new(channel);
    let lease = leases.lease_grant(LeaseGrantRequest { ttl: 3600, id: 0 }).await.unwrap().into_inner().id;
    for number in 0..DELETED_KEY_COUNT {
        kv.put(put(format!("a/{number:03}"), 0)).await.unwrap();
        kv.put(put(format!("b/{number:03}"), lease)).await.unwrap();
    }
    let delete = DeleteRangeRequest { key: "a/".into(), range_end: "a0".into(), prev_kv: false };
    let (deleted, by_range) = highest(kv.delete_range(delete)).await;
    assert_eq!(deleted.unwrap().into_inner().deleted, DELETED_KEY_COUNT as i64);
    let (revoked, by_lease) = highest(leases.lease_revoke(LeaseRevokeRequest { id: lease })).await;
    revoked.unwrap();
    let everything =
        RangeRequest { key: "a".into(), range_end: "c".into(), count_only: true, ..Default::default() };
    assert_eq!(kv.range(everything).await.unwrap().into_inner().count, 0);
    let (by_range, by_lease) = (by_range / MIB as u64, by_lease / MIB as u64);
    println!("{DELETED_KEY_COUNT} MiB deleted: {by_range} MiB by range, {by_lease} MiB with a lease");
    assert!(by_range < 25 && by_lease < 25, "{by_range} and {by_lease} MiB");
}
