//! Generates load: the same requests to either server.

use crate::measure::Latencies;
use bytes::Bytes;
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
};

type StoreClientResult<T> = std::result::Result<T, Box<dyn Error>>;

const VALUE_SIZE: usize = 512;
const KEY_COUNT: usize = 10_000;
const EVENT_COUNT: usize = 200;
/// Watch streams share connections, like the watches of one node.
const STREAMS_PER_CONNECTION: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteLoad {
    Put,
    /// A transaction with one comparison of the key's revision, like the update of a versioned object. The comparison
    /// always succeeds.
    CompareAndPut,
}

impl fmt::Display for WriteLoad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            WriteLoad::Put => "put",
            WriteLoad::CompareAndPut => "transaction",
        })
    }
}

async fn connect(url: &str) -> StoreClientResult<Channel> {
    Ok(Endpoint::from_shared(url.to_owned())?.connect().await?)
}

fn key(prefix: &str, number: usize) -> Bytes {
    Bytes::from(format!("/calico/resources/v3/projectcalico.org/{prefix}/{number:08}"))
}

fn put(key: Bytes) -> PutRequest {
    PutRequest { key, value: Bytes::from_static(&[b'x'; VALUE_SIZE]), ..Default::default() }
}

fn put_op(key: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(put(key))) }
}

/// Number of completed requests, and the elapsed time.
pub struct CompletedRequests {
    pub requests: usize,
    pub time: Duration,
}

/// Runs concurrent clients that each wait for a response before sending the next request.
pub async fn drive(
    url: &str,
    load: WriteLoad,
    clients: usize,
    time: Duration,
) -> StoreClientResult<CompletedRequests> {
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(KvClient::new(connect(url).await?));
    }
    let done = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut running = JoinSet::new();
    for (number, mut kv) in connections.into_iter().enumerate() {
        let done = done.clone();
        running.spawn(async move {
            let mut place = number * 7919;
            while start.elapsed() < time {
                place = (place + 104_729) % KEY_COUNT;
                let key = key("profiles", place);
                match load {
                    WriteLoad::Put => drop(kv.put(put(key)).await?),
                    WriteLoad::CompareAndPut => drop(kv.txn(compare_and_put(key)).await?),
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), Status>(())
        });
    }
    while let Some(client) = running.join_next().await {
        client??;
    }
    Ok(CompletedRequests { requests: done.load(Ordering::Relaxed), time: start.elapsed() })
}

fn compare_and_put(key: Bytes) -> TxnRequest {
    let compare = Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(-1)),
        ..Default::default()
    };
    TxnRequest { compare: vec![compare], success: vec![put_op(key)], failure: Vec::new() }
}

/// Writes the keys that `list` reads.
pub async fn fill(url: &str, keys: Range<usize>) -> StoreClientResult<()> {
    let channel = connect(url).await?;
    let mut running = JoinSet::new();
    for chunk in keys.clone().step_by(100) {
        let mut kv = KvClient::new(channel.clone());
        let success = (chunk..keys.end.min(chunk + 100)).map(|number| put_op(key("list", number))).collect();
        running.spawn(async move { kv.txn(TxnRequest { success, ..Default::default() }).await.map(drop) });
        if running.len() >= 8
            && let Some(result) = running.join_next().await
        {
            result??;
        }
    }
    while let Some(result) = running.join_next().await {
        result??;
    }
    Ok(())
}

/// Reads all keys in one request and returns the time it took.
pub async fn list(url: &str, expected: usize) -> StoreClientResult<Duration> {
    let mut kv = KvClient::new(connect(url).await?).max_decoding_message_size(usize::MAX);
    let range = RangeRequest {
        key: Bytes::from_static(b"/calico/resources/v3/projectcalico.org/list/"),
        range_end: Bytes::from_static(b"/calico/resources/v3/projectcalico.org/list0"),
        ..Default::default()
    };
    let start = Instant::now();
    let found = kv.range(range).await?.into_inner().kvs.len();
    let took = start.elapsed();
    if found == expected { Ok(took) } else { Err(format!("{found} keys instead of {expected}").into()) }
}

/// Measures the time from sending a put until each watcher of its prefix has the event, one put after the other.
pub async fn watch_latency(url: &str, watchers: usize) -> StoreClientResult<Latencies> {
    let epoch = Instant::now();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let mut running = JoinSet::new();
    let mut channel = connect(url).await?;
    for number in 0..watchers {
        if number % STREAMS_PER_CONNECTION == 0 {
            channel = connect(url).await?;
        }
        let create = WatchCreateRequest {
            key: Bytes::from_static(b"/calico/resources/v3/projectcalico.org/watch/"),
            range_end: Bytes::from_static(b"/calico/resources/v3/projectcalico.org/watch0"),
            ..Default::default()
        };
        let requests = tokio_stream::StreamExt::chain(
            tokio_stream::once(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }),
            tokio_stream::pending(),
        );
        let mut responses = WatchClient::new(channel.clone()).watch(requests).await?.into_inner();
        // The first response confirms that the watch has been created.
        responses.message().await?;
        let sender = sender.clone();
        running.spawn(async move {
            while let Ok(Some(response)) = responses.message().await {
                let now = epoch.elapsed();
                for event in response.events {
                    let sent = event.kv.and_then(|kv| Some(u64::from_be_bytes(*kv.value.first_chunk()?)));
                    let _ = sender.send(now.saturating_sub(Duration::from_nanos(sent.unwrap_or(0))));
                }
            }
        });
    }
    let mut kv = KvClient::new(connect(url).await?);
    let mut latencies = Vec::with_capacity(EVENT_COUNT * watchers);
    for number in 0..EVENT_COUNT {
        let mut value = vec![b'x'; VALUE_SIZE];
        value[..8].copy_from_slice(&(epoch.elapsed().as_nanos() as u64).to_be_bytes());
        let request = PutRequest { key: key("watch", number), value: value.into(), ..Default::default() };
        kv.put(request).await?;
        for _ in 0..watchers {
            latencies.push(seen.recv().await.ok_or("the watchers are gone")?);
        }
    }
    running.shutdown().await;
    Ok(Latencies(latencies))
}
