//! Behaviour over time: watchers that fall behind, large responses, leases across a restart, and compaction by age.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use std::time::Duration;
use support::{EmbeddedDatastore, connect};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tortie_datastore::AutoCompaction;
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::lease_client::LeaseClient;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;
use tortie_testkit::Etcd;

fn put(key: &str, size: usize) -> PutRequest {
    PutRequest { key: Bytes::from(key.to_owned()), value: vec![b'x'; size].into(), ..Default::default() }
}

/// Returns a watch of all keys below `/`.
fn everything(start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest { key: "/".into(), range_end: "0".into(), start_revision, ..Default::default() }
}

struct TestWatch {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl TestWatch {
    async fn open(channel: Channel, create: WatchCreateRequest) -> TestWatch {
        let (requests, receiver) = mpsc::channel(8);
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let watch = client.watch(ReceiverStream::new(receiver));
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        requests.send(create).await.unwrap();
        let mut watch = TestWatch { requests, responses: watch.await.unwrap().into_inner() };
        assert!(watch.next().await.created);
        watch
    }

    async fn next(&mut self) -> WatchResponse {
        self.responses.message().await.unwrap().expect("the stream goes on")
    }

    async fn ask_for_progress(&self) {
        let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
        self.requests.send(WatchRequest { request_union: Some(progress) }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_watcher_delays_no_other_client() {
    const WRITE_COUNT: i64 = 700;
    let embedded = EmbeddedDatastore::start();
    let mut watch = TestWatch::open(connect(&embedded.url).await, everything(0)).await;
    let mut kv = KvClient::new(connect(&embedded.url).await);
    // More than its stream and its connection can buffer, all acknowledged before it reads anything.
    for number in 0..WRITE_COUNT {
        kv.put(put(&format!("/slow/{}", number % 7), 20_000)).await.unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < WRITE_COUNT as usize {
        seen.extend(watch.next().await.events.into_iter().map(|event| event.kv.unwrap().mod_revision));
    }
    assert_eq!(seen, (2..WRITE_COUNT + 2).collect::<Vec<_>>());
    // The watch is live again.
    let revision = kv.put(put("/slow/now", 1)).await.unwrap().into_inner().header.unwrap().revision;
    assert_eq!(watch.next().await.events[0].kv.as_ref().unwrap().mod_revision, revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_responses_are_fragmented_on_request() {
    let embedded = EmbeddedDatastore::start();
    let channel = connect(&embedded.url).await;
    let mut kv = KvClient::new(channel.clone());
    kv.put(put("/a", 900_000)).await.unwrap();
    let both = ["/b", "/c"].map(|key| RequestOp { request: Some(Request::RequestPut(put(key, 700_000))) });
    kv.txn(TxnRequest { success: both.into(), ..Default::default() }).await.unwrap();

    // One revision whose events, with their previous values, are larger than a response should be.
    let all = DeleteRangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() };
    kv.delete_range(all).await.unwrap();

    let create = WatchCreateRequest { prev_kv: true, ..everything(1) };
    let mut watch =
        TestWatch::open(channel.clone(), WatchCreateRequest { fragment: true, ..create.clone() }).await;
    let (mut keys, mut fragments) = (Vec::new(), Vec::new());
    while keys.len() < 6 {
        let response = watch.next().await;
        fragments.push(response.fragment);
        keys.extend(response.events.into_iter().map(|event| event.kv.unwrap().key));
    }
    assert_eq!(keys, ["/a", "/b", "/c", "/a", "/b", "/c"]);
    assert_eq!(fragments.iter().filter(|fragment| **fragment).count(), 1);
    assert_eq!(fragments.last(), Some(&false));

    let mut whole = TestWatch::open(channel, create).await;
    let mut last = whole.next().await;
    while last.events[0].kv.as_ref().unwrap().mod_revision < 4 {
        last = whole.next().await;
    }
    assert_eq!((last.fragment, last.events.len()), (false, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_sent_after_every_event_before_it() {
    let embedded = EmbeddedDatastore::start();
    let channel = connect(&embedded.url).await;
    let mut kv = KvClient::new(channel.clone());
    for _ in 0..5 {
        kv.put(put("/k", 10)).await.unwrap();
    }
    kv.put(put("elsewhere", 10)).await.unwrap();
    // The watch is behind at first, so the response must wait until it has caught up.
    let mut watch = TestWatch::open(channel, everything(2)).await;
    watch.ask_for_progress().await;
    let mut events = 0;
    let progress = loop {
        let response = watch.next().await;
        if response.events.is_empty() {
            break response;
        }
        events += response.events.len();
    };
    assert_eq!(events, 5);
    assert_eq!((progress.watch_id, progress.header.unwrap().revision), (-1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_their_keys_survive_a_restart() {
    let embedded = EmbeddedDatastore::start();
    let channel = connect(&embedded.url).await;
    let grant = LeaseGrantRequest { id: 77, ttl: 1000 };
    LeaseClient::new(channel.clone()).lease_grant(grant).await.unwrap();
    KvClient::new(channel).put(PutRequest { lease: 77, ..put("/leased", 3) }).await.unwrap();
    let dir = embedded.stop().await;

    let embedded = EmbeddedDatastore::with(|options| options.data_dir = dir.path().to_owned());
    let channel = connect(&embedded.url).await;
    let mut leases = LeaseClient::new(channel.clone());
    let ask = LeaseTimeToLiveRequest { id: 77, keys: true };
    let lease = leases.lease_time_to_live(ask).await.unwrap().into_inner();
    assert_eq!((lease.granted_ttl, lease.keys), (1000, vec![Bytes::from("/leased")]));
    assert!(lease.ttl > 0);
    let (requests, receiver) = mpsc::channel(1);
    requests.send(LeaseKeepAliveRequest { id: 77 }).await.unwrap();
    let mut kept = leases.lease_keep_alive(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    assert_eq!(kept.message().await.unwrap().unwrap().ttl, 1000);

    leases.lease_revoke(LeaseRevokeRequest { id: 77 }).await.unwrap();
    let get = RangeRequest { key: "/leased".into(), ..Default::default() };
    assert_eq!(KvClient::new(channel).range(get).await.unwrap().into_inner().count, 0);
    embedded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_goes_when_it_is_old_enough() {
    let embedded = EmbeddedDatastore::with(|options| {
        options.auto_compaction = AutoCompaction::Age(Duration::from_secs(1))
    });
    let mut kv = KvClient::new(connect(&embedded.url).await);
    for size in 1..=3 {
        kv.put(put("/k", size)).await.unwrap();
    }
    let get = |revision| RangeRequest { key: "/k".into(), revision, ..Default::default() };
    let refused = loop {
        match kv.range(get(2)).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::OutOfRange);
    assert_eq!(refused.message(), "etcdserver: mvcc: required revision has been compacted");
    assert_eq!(kv.range(get(0)).await.unwrap().into_inner().kvs[0].value.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_messages_are_rejected_as_by_etcd() {
    let (etcd, embedded) = (Etcd::start().unwrap(), EmbeddedDatastore::start());
    let mut answers = Vec::new();
    for url in [&etcd.endpoint(), &embedded.url] {
        let mut kv = KvClient::new(connect(url).await);
        for size in [1_500_000, 1_600_000, 2_500_000] {
            let answer = kv.put(put("/large", size)).await;
            answers.push(answer.map(drop).map_err(|status| (status.code(), status.message().to_owned())));
        }
    }
    let (etcd, embedded) = answers.split_at(3);
    assert_eq!(etcd, embedded);
    assert!(etcd[0].is_ok() && etcd[1].is_err());
}
