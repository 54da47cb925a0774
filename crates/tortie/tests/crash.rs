//! kill -9 at random moments under load: no acknowledged write is lost, no write appears that was not attempted, and
//! a watch that resumes from the last revision it saw receives every change exactly once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;
use tortie_etcd_proto::mvccpb::{Event, KeyValue};
use tortie_testkit::DatastoreProcess;

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

/// Starts the embedded datastore on a free port.
fn start(dir: &Path, more: &[&str]) -> DatastoreProcess {
    DatastoreProcess::start(TORTIE, dir, &["http://127.0.0.1:0"], more)
}

const WRITER_COUNT: usize = 8;

/// Progress of one writer, which writes 1, 2, 3, ... to its two keys, each pair in one transaction.
#[derive(Clone, Copy, Debug, Default)]
struct WriterProgress {
    acknowledged: i64,
    attempted: i64,
}

/// State of the watcher across all rounds.
#[derive(Default)]
struct WatcherState {
    revision: AtomicI64,
    counters: Mutex<HashMap<Bytes, i64>>,
}

impl WatcherState {
    fn take(&self, event: &Event) {
        let kv = event.kv.as_ref().unwrap();
        let mut counters = self.counters.lock().unwrap();
        let before = counters.insert(kv.key.clone(), counter(kv)).unwrap_or(0);
        assert_eq!(counter(kv), before + 1, "a change of {:?} was missed or seen twice", kv.key);
        self.revision.store(kv.mod_revision, Ordering::Relaxed);
    }
}

fn counter(kv: &KeyValue) -> i64 {
    std::str::from_utf8(&kv.value).unwrap().trim_start_matches('.').parse().unwrap()
}

fn keys(writer: usize) -> [Bytes; 2] {
    ["a", "b"].map(|half| Bytes::from(format!("/writer/{writer}/{half}")))
}

async fn connect(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap()
}

/// Writes until the server is gone.
async fn write(channel: Channel, writer: usize, progress: Arc<Mutex<Vec<WriterProgress>>>) {
    let mut kv = KvClient::new(channel);
    loop {
        let counter = progress.lock().unwrap()[writer].acknowledged + 1;
        progress.lock().unwrap()[writer].attempted = counter;
        // Values of many sizes, so that pages split and merge.
        let value = Bytes::from(format!("{:.>width$}", counter, width = 20 + (counter as usize * 37) % 3000));
        let put = |key| {
            let put = PutRequest { key, value: value.clone(), ..Default::default() };
            RequestOp { request: Some(Request::RequestPut(put)) }
        };
        let txn = TxnRequest { success: keys(writer).map(put).to_vec(), ..Default::default() };
        if kv.txn(txn).await.is_err() {
            return;
        }
        progress.lock().unwrap()[writer].acknowledged = counter;
    }
}

/// Watches from the revision after the last one seen until the server is gone.
async fn watch(channel: Channel, seen: Arc<WatcherState>) {
    let create = WatchCreateRequest {
        key: "/writer/".into(),
        range_end: "/writer0".into(),
        start_revision: seen.revision.load(Ordering::Relaxed) + 1,
        ..Default::default()
    };
    let requests = tokio_stream::StreamExt::chain(
        tokio_stream::once(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }),
        tokio_stream::pending(),
    );
    let Ok(responses) = WatchClient::new(channel).watch(requests).await else { return };
    let mut responses = responses.into_inner();
    while let Ok(Some(response)) = responses.message().await {
        assert!(!response.canceled, "{response:?}");
        for event in &response.events {
            seen.take(event);
        }
    }
}

/// Periodically compacts the revisions that the watcher has seen.
async fn compact(channel: Channel, seen: Arc<WatcherState>) {
    let mut kv = KvClient::new(channel);
    loop {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let revision = seen.revision.load(Ordering::Relaxed);
        match kv.compact(CompactionRequest { revision, physical: false }).await {
            Err(status) if status.code() != tonic::Code::OutOfRange => return,
            _ => {}
        }
    }
}

async fn verify(channel: Channel, progress: &mut [WriterProgress], seen: &WatcherState) -> i64 {
    let request = RangeRequest { key: "/writer/".into(), range_end: "/writer0".into(), ..Default::default() };
    let response = KvClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .range(request)
        .await
        .unwrap()
        .into_inner();
    let revision = response.header.unwrap().revision;
    assert!(revision >= seen.revision.load(Ordering::Relaxed), "a watcher saw what is not there any more");
    let found: HashMap<_, _> = response.kvs.into_iter().map(|kv| (kv.key.clone(), kv)).collect();
    let mut total = 0;
    for (writer, progress) in progress.iter_mut().enumerate() {
        let [a, b] = keys(writer).map(|key| found.get(&key).map_or((0, 0), |kv| (counter(kv), kv.version)));
        assert_eq!(a, b, "half a transaction of writer {writer}");
        let (counter, version) = a;
        assert_eq!(counter, version, "writer {writer} wrote once for each version");
        assert!(counter >= progress.acknowledged, "writer {writer}: {counter}, lost some of {progress:?}");
        assert!(counter <= progress.attempted, "writer {writer}: {counter}, invented beyond {progress:?}");
        progress.acknowledged = counter;
        total += counter;
    }
    // One revision per transaction; an empty datastore is at revision 1.
    assert_eq!(revision, total + 1);
    revision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_kill_9() {
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let rounds = std::env::var("TORTIE_CRASH_ROUNDS").map_or(50, |text| text.parse().unwrap());
    println!("TORTIE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = TempDir::new().unwrap();
    let progress = Arc::new(Mutex::new(vec![WriterProgress::default(); WRITER_COUNT]));
    let seen = Arc::new(WatcherState::default());
    seen.revision.store(1, Ordering::Relaxed);
    for _ in 0..rounds {
        let server = start(dir.path(), &["--keep-history", "0"]);
        let channel = connect(server.url()).await;
        let mut state = progress.lock().unwrap().clone();
        verify(channel.clone(), &mut state, &seen).await;
        *progress.lock().unwrap() = state;

        let mut clients = JoinSet::new();
        for writer in 0..WRITER_COUNT {
            clients.spawn(write(connect(server.url()).await, writer, progress.clone()));
        }
        clients.spawn(watch(connect(server.url()).await, seen.clone()));
        clients.spawn(compact(channel, seen.clone()));
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..600_000))).await;
        drop(server);
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
    }

    // Without further writes the watcher reaches the revision of the datastore.
    let server = start(dir.path(), &["--keep-history", "0"]);
    let mut state = progress.lock().unwrap().clone();
    let revision = verify(connect(server.url()).await, &mut state, &seen).await;
    let watcher = tokio::spawn(watch(connect(server.url()).await, seen.clone()));
    let caught_up = async {
        while seen.revision.load(Ordering::Relaxed) < revision {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), caught_up).await.expect("the watcher stays behind");
    drop(server);
    watcher.await.unwrap();
    println!("{rounds} rounds, {} transactions", revision - 1);
    for (writer, progress) in state.iter().enumerate() {
        for key in keys(writer) {
            assert_eq!(seen.counters.lock().unwrap().get(&key).copied().unwrap_or(0), progress.acknowledged);
        }
    }
}
