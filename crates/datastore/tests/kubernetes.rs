//! The store as kube-apiserver uses it: optimistic writes, paged lists at one revision, watches with progress
//! requests, and its own compaction. Behaviour that etcd 3.4 shares is compared with it. Progress requests that wait
//! for watches that are behind came with 3.4.31 and 3.5.13; the etcd used here is 3.4.23.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use support::{EmbeddedDatastore, connect};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tortie_etcd_proto::etcdserverpb::compare::{CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::response_op::Response as OpResponse;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;

const PREFIX: &str = "/registry/pods/";
const PREFIX_END: &str = "/registry/pods0";

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Builds a transaction that writes if the key is unchanged since `revision` (0: absent), and otherwise returns the
/// current value.
fn if_unchanged(key: &str, revision: i64, then: Request) -> TxnRequest {
    let compare = Compare {
        target: CompareTarget::Mod.into(),
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Default::default()
    };
    let failure = vec![op(Request::RequestRange(get(key)))];
    TxnRequest { compare: vec![compare], success: vec![op(then)], failure }
}

fn revision(header: &Option<ResponseHeader>) -> i64 {
    header.as_ref().unwrap().revision
}

/// Runs a scenario and returns all observations in a comparable form.
async fn story(channel: Channel) -> Vec<String> {
    let mut kv = KvClient::new(channel.clone());
    let mut seen = Vec::new();
    for number in 0..55 {
        let key = format!("{PREFIX}{number:03}");
        let create = if_unchanged(&key, 0, Request::RequestPut(put(&key, "new")));
        let created = kv.txn(create.clone()).await.unwrap().into_inner();
        let again = kv.txn(create).await.unwrap().into_inner();
        let Some(OpResponse::ResponseRange(found)) = &again.responses[0].response else {
            panic!("{again:?}")
        };
        let found = found.kvs[0].mod_revision;
        seen.push(format!("{} {} {found}", created.succeeded, again.succeeded));
        let update = if_unchanged(&key, found, Request::RequestPut(put(&key, "updated")));
        seen.push(format!("{}", kv.txn(update).await.unwrap().into_inner().succeeded));
    }

    // A paged list: all pages are as of the first one, regardless of concurrent writes.
    let mut page =
        RangeRequest { key: PREFIX.into(), range_end: PREFIX_END.into(), limit: 20, ..Default::default() };
    loop {
        let answer = kv.range(page.clone()).await.unwrap().into_inner();
        let last = answer.kvs.last().unwrap();
        let values: std::collections::BTreeSet<_> = answer.kvs.iter().map(|kv| kv.value.clone()).collect();
        seen.push(format!("{} {} {} {values:?} {:?}", answer.kvs.len(), answer.more, answer.count, last.key));
        if page.revision == 0 {
            page.revision = revision(&answer.header);
        }
        page.key = [last.key.as_ref(), &[0]].concat().into();
        if !answer.more {
            break;
        }
        let changed = format!("{PREFIX}{:03}", 54);
        kv.put(put(&changed, "changed during the list")).await.unwrap();
        kv.delete_range(DeleteRangeRequest { key: format!("{PREFIX}030").into(), ..Default::default() })
            .await
            .unwrap();
    }

    // Compaction: the client that writes the next version of the key compacts to the revision in the previous
    // version.
    let compact = |version: i64, at: i64| {
        let compare = Compare {
            target: CompareTarget::Version.into(),
            key: "compact_rev_key".into(),
            target_union: Some(TargetUnion::Version(version)),
            ..Default::default()
        };
        TxnRequest {
            compare: vec![compare],
            success: vec![op(Request::RequestPut(put("compact_rev_key", &at.to_string())))],
            failure: vec![op(Request::RequestRange(get("compact_rev_key")))],
        }
    };
    let at = page.revision;
    seen.push(format!("{}", kv.txn(compact(0, at)).await.unwrap().into_inner().succeeded));
    let late = kv.txn(compact(0, at)).await.unwrap().into_inner();
    seen.push(format!("{} {}", late.succeeded, late.responses.len()));
    kv.compact(CompactionRequest { revision: at + 1, physical: false }).await.unwrap();
    // A list that was started before can no longer be continued, and the error reports that.
    let gone = kv.range(page.clone()).await.unwrap_err();
    seen.push(format!("{:?} {}", gone.code(), gone.message()));
    let twice = kv.compact(CompactionRequest { revision: at + 1, physical: false }).await.unwrap_err();
    seen.push(format!("{:?} {}", twice.code(), twice.message()));
    let (_requests, mut responses) = watch(channel, at).await;
    let created = responses.message().await.unwrap().unwrap();
    let cancelled = responses.message().await.unwrap().unwrap();
    seen.push(format!("{} {} {}", created.created, cancelled.canceled, cancelled.compact_revision - at));
    seen
}

async fn watch(
    channel: Channel,
    start_revision: i64,
) -> (mpsc::Sender<WatchRequest>, Streaming<WatchResponse>) {
    let (requests, receiver) = mpsc::channel(64);
    requests.send(create(start_revision)).await.unwrap();
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    (requests, client.watch(ReceiverStream::new(receiver)).await.unwrap().into_inner())
}

fn create(start_revision: i64) -> WatchRequest {
    let create = WatchCreateRequest {
        key: PREFIX.into(),
        range_end: PREFIX_END.into(),
        start_revision,
        prev_kv: true,
        progress_notify: true,
        ..Default::default()
    };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn progress() -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_pages_and_compaction_are_as_in_etcd() {
    let (etcd, embedded) = (tortie_testkit::Etcd::start().unwrap(), EmbeddedDatastore::start());
    let expected = story(connect(&etcd.endpoint()).await).await;
    let got = story(connect(&embedded.url).await).await;
    assert_eq!(got, expected);
    assert!(expected.iter().any(|line| line.contains("OutOfRange")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reported_version_supports_progress_requests() {
    let embedded = EmbeddedDatastore::start();
    let mut maintenance = MaintenanceClient::new(connect(&embedded.url).await);
    let version = maintenance.status(StatusRequest {}).await.unwrap().into_inner().version;
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers >= vec![3, 5, 13], "{version}");
    assert!(numbers < vec![3, 6, 0], "{version}: 3.6 has features that are not here");
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_never_runs_ahead_of_events() {
    const WRITE_COUNT: usize = 1500;
    let embedded = EmbeddedDatastore::start();
    let mut kv = KvClient::new(connect(&embedded.url).await);
    for number in 0..200 {
        kv.put(put(&format!("{PREFIX}{number}"), "old")).await.unwrap();
    }
    // Several watches on one stream, some of which must catch up first.
    let (requests, mut responses) = watch(connect(&embedded.url).await, 2).await;
    for start in [0, 100, 1] {
        requests.send(create(start)).await.unwrap();
    }
    let newest = Arc::new(AtomicI64::new(0));
    let (url, acknowledged) = (embedded.url.clone(), newest.clone());
    let writing = tokio::spawn(async move {
        let mut kv = KvClient::new(connect(&url).await);
        for number in 0..WRITE_COUNT {
            // Writes outside the watched prefix also advance the revision; large values fill the stream.
            let key =
                if number % 3 == 0 { "/elsewhere".to_owned() } else { format!("{PREFIX}{}", number % 50) };
            let size = if number % 100 == 1 { 60_000 } else { 10 };
            let answer = kv.put(put(&key, &"x".repeat(size))).await.unwrap().into_inner();
            acknowledged.store(revision(&answer.header), Ordering::SeqCst);
        }
    });
    let asking = tokio::spawn(async move {
        while requests.send(progress()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let (mut promised, mut answers, mut events) = (0, 0, 0);
    let mut last_of_watch = std::collections::HashMap::new();
    let last = 1 + 200 + WRITE_COUNT as i64;
    while promised < last {
        let response = responses.message().await.unwrap().unwrap();
        assert!(!response.canceled, "{response:?}");
        let header = revision(&response.header);
        if response.watch_id == -1 {
            answers += 1;
            assert!(header >= promised, "progress goes back from {promised} to {header}");
            promised = header;
            continue;
        }
        for event in &response.events {
            let at = event.kv.as_ref().unwrap().mod_revision;
            assert!(at > promised, "an event of revision {at} comes after progress {promised}");
            let before = last_of_watch.insert(response.watch_id, at).unwrap_or(0);
            assert!(at > before, "revision {at} after {before}");
            events += 1;
        }
    }
    writing.await.unwrap();
    assert_eq!(newest.load(Ordering::SeqCst), last);
    println!("{answers} answers to progress requests among {events} events");
    assert_eq!(last_of_watch.len(), 4);
    asking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_sees_every_write_that_was_acknowledged() {
    let embedded = EmbeddedDatastore::start();
    let channel = connect(&embedded.url).await;
    let other = connect(&embedded.url).await;
    let (mut writer, mut reader) = (KvClient::new(channel), KvClient::new(other));
    for number in 0..300 {
        let value = number.to_string();
        let written = writer.put(put("/k", &value)).await.unwrap().into_inner();
        let list = RangeRequest { key: "/".into(), range_end: "0".into(), limit: 10, ..Default::default() };
        for request in [get("/k"), list] {
            let read = reader.range(request).await.unwrap().into_inner();
            assert_eq!(read.kvs[0].value, Bytes::from(value.clone()));
            assert!(revision(&read.header) >= revision(&written.header));
        }
    }
    let future = RangeRequest { revision: 1_000_000, ..get("/k") };
    assert_eq!(reader.range(future).await.unwrap_err().code(), Code::OutOfRange);
}
