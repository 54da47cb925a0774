//! Clients can make the store use only a bounded amount of memory, and nothing is lost at the limits. This is a
//! single test because it measures the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use futures::future::join_all;
use std::time::Duration;
use support::{EmbeddedDatastore, connect};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;
use tortie_testkit::resident;

const VALUE_COUNT: usize = 240;
const VALUE_BYTES: usize = 100_000;
const STREAM_COUNT: usize = 30;
const MIB: u64 = 1 << 20;

async fn watch(channel: Channel) -> (mpsc::Sender<WatchRequest>, Streaming<WatchResponse>) {
    let (requests, receiver) = mpsc::channel(1);
    let create = WatchCreateRequest {
        key: "/".into(),
        range_end: "0".into(),
        start_revision: 2,
        prev_kv: true,
        ..Default::default()
    };
    requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await.unwrap();
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    (requests, client.watch(ReceiverStream::new(receiver)).await.unwrap().into_inner())
}

fn everything() -> RangeRequest {
    RangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_at_the_memory_bounds() {
    let embedded = EmbeddedDatastore::start();
    let channel = connect(&embedded.url).await;
    let mut kv = KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
    for number in 0..VALUE_COUNT {
        // 24 MB of history, of which 20 MB are live.
        let key = Bytes::from(format!("/{:03}", number % 200));
        let put = PutRequest { key, value: vec![number as u8; VALUE_BYTES].into(), ..Default::default() };
        kv.put(put).await.unwrap();
    }
    let begin = resident(std::process::id());

    // Watches with much history to catch up, whose clients do not read.
    let mut watches = Vec::new();
    for _ in 0..STREAM_COUNT {
        watches.push(watch(connect(&embedded.url).await).await);
    }
    let mut highest = 0;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        highest = highest.max(resident(std::process::id()).saturating_sub(begin));
    }
    println!("{STREAM_COUNT} unread watches: {} MiB", highest / MIB);
    assert!(highest < 150 * MIB, "{STREAM_COUNT} unread watches take {} MiB", highest / MIB);
    // Each of them misses nothing once it is read.
    for (_requests, responses) in &mut watches[..3] {
        let mut seen = Vec::new();
        while seen.len() < VALUE_COUNT {
            let response = responses.message().await.unwrap().unwrap();
            assert!(!response.canceled, "{}", response.cancel_reason);
            seen.extend(response.events.into_iter().map(|event| event.kv.unwrap().mod_revision));
        }
        assert_eq!(seen, (2..2 + VALUE_COUNT as i64).collect::<Vec<_>>());
    }
    drop(watches);

    // A request whose response would be gigabytes.
    let list = RequestOp { request: Some(Request::RequestRange(everything())) };
    let lists = TxnRequest { success: vec![list.clone(); 100], ..Default::default() };
    let refused = kv.txn(lists.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("read it in pages, with a limit"), "{refused}");
    let put = PutRequest { key: "/put".into(), ..Default::default() };
    let mut writes = lists;
    writes.success.push(RequestOp { request: Some(Request::RequestPut(put.clone())) });
    let refused = kv.txn(writes).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let get = RangeRequest { key: "/put".into(), ..Default::default() };
    assert_eq!(kv.range(get).await.unwrap().into_inner().count, 0, "a refused transaction wrote");
    let delete = DeleteRangeRequest { key: "/".into(), range_end: "0".into(), prev_kv: true };
    assert_eq!(kv.delete_range(delete).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(kv.range(everything()).await.unwrap().into_inner().count, 200);
    // A request that examines a few keys many thousand times.
    let count = RangeRequest { count_only: true, ..everything() };
    let mut counts = vec![RequestOp { request: Some(Request::RequestRange(count)) }; 120];
    counts.push(RequestOp { request: Some(Request::RequestPut(put)) });
    for _ in 0..2 {
        let inner = TxnRequest { success: counts.clone(), ..Default::default() };
        counts = vec![RequestOp { request: Some(Request::RequestTxn(inner)) }; 7];
    }
    let success = vec![counts[0].clone()];
    let refused = kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap_err();
    assert!([Code::ResourceExhausted, Code::InvalidArgument].contains(&refused.code()), "{refused}");

    // Several legitimate large lists wait for each other, and all arrive.
    let lists = (0..6).map(|_| {
        let mut kv = kv.clone();
        async move { kv.range(everything()).await.unwrap().into_inner().kvs.len() }
    });
    assert_eq!(join_all(lists).await, vec![200; 6]);

    // Requested lists that are not read do not delay small requests and do not accumulate.
    let mut unread = Vec::new();
    for _ in 0..8 {
        let mut kv = KvClient::new(connect(&embedded.url).await).max_decoding_message_size(usize::MAX);
        unread.push(tokio::spawn(async move { kv.range(everything()).await.map(drop) }));
    }
    for number in 0..50 {
        let get = RangeRequest { key: format!("/{number:03}").into(), keys_only: true, ..Default::default() };
        assert_eq!(kv.range(get).await.unwrap().into_inner().count, 1);
    }
    unread.iter().for_each(|request| request.abort());
}
