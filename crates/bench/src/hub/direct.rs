//! Clients that watch etcd directly, each with one connection and one watch over all keys, which is less than a node
//! without a hub needs.

use crate::namespace::BenchResult;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::transport::Endpoint;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};

const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(300);
/// Connections opened concurrently.
const CONCURRENT_CONNECTS: usize = 100;

pub struct EtcdWatchers {
    count: usize,
    /// By revision: how many watchers received it, and when the last one did.
    arrivals: Arc<Mutex<HashMap<i64, (usize, Instant)>>>,
    _tasks: JoinSet<()>,
}

impl EtcdWatchers {
    /// Opens the watches and returns when all are established.
    pub async fn start(endpoint: &str, count: usize) -> BenchResult<EtcdWatchers> {
        let arrivals: Arc<Mutex<HashMap<i64, (usize, Instant)>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let mut opening = JoinSet::new();
        for number in 0..count {
            if number >= CONCURRENT_CONNECTS
                && let Some(opened) = opening.join_next().await
            {
                watch(opened??, &arrivals, &mut tasks);
            }
            opening.spawn(open(endpoint.to_owned()));
        }
        while let Some(opened) = opening.join_next().await {
            watch(opened??, &arrivals, &mut tasks);
        }
        Ok(EtcdWatchers { count, arrivals, _tasks: tasks })
    }

    pub async fn last_arrival(&self, revision: u64) -> BenchResult<Instant> {
        let revision = i64::try_from(revision)?;
        let deadline = Instant::now() + ARRIVAL_TIMEOUT;
        loop {
            let found = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).get(&revision).copied();
            match found {
                Some((count, last)) if count >= self.count => return Ok(last),
                _ if Instant::now() > deadline => return Err("not all watchers have a change".into()),
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }
}

type EtcdWatchStream = tonic::Streaming<tortie_etcd_proto::etcdserverpb::WatchResponse>;
/// The request stream must stay open as long as the responses are read.
type OpenEtcdWatch = (EtcdWatchStream, tokio::sync::mpsc::Sender<WatchRequest>);

async fn open(endpoint: String) -> BenchResult<OpenEtcdWatch> {
    let channel = Endpoint::from_shared(endpoint)?.connect().await?;
    let create =
        WatchCreateRequest { key: "/calico/".into(), range_end: "/calico0".into(), ..Default::default() };
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    sender.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let mut stream = WatchClient::new(channel).watch(requests).await?.into_inner();
    stream.next().await.ok_or("no answer")??;
    Ok((stream, sender))
}

fn watch(
    (mut stream, sender): OpenEtcdWatch,
    arrivals: &Arc<Mutex<HashMap<i64, (usize, Instant)>>>,
    tasks: &mut JoinSet<()>,
) {
    let arrivals = arrivals.clone();
    tasks.spawn(async move {
        while let Some(Ok(response)) = stream.next().await {
            let now = Instant::now();
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
                let arrival = arrivals.entry(kv.mod_revision).or_insert((0, now));
                *arrival = (arrival.0 + 1, arrival.1.max(now));
            }
        }
        drop(sender);
    });
}
