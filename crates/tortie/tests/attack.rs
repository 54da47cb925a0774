//! Abusive clients of several kinds, in random order, while an honest client continues. Prints the honest client's
//! latency and the memory of the store, and fails above 300 MB; in `make soak`, on a dedicated machine and for
//! TORTIE_ATTACK_SECONDS, also above a p99 of 50 ms.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{Channel, Endpoint};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::lease_client::LeaseClient;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;
use tortie_testkit::{DatastoreProcess, StalledRequestBody, resident};

const MAX_RESIDENT_BYTES: u64 = 300 << 20;
const MAX_P99_LATENCY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
enum AttackKind {
    UnreadWatches,
    UnreadLists,
    HugeTransactions,
    ManyWrites,
    IdleConnections,
    HalfSentRequests,
    ManyLeases,
    LargeDeletes,
}

const ATTACKS: [AttackKind; 8] = [
    AttackKind::UnreadWatches,
    AttackKind::UnreadLists,
    AttackKind::HugeTransactions,
    AttackKind::ManyWrites,
    AttackKind::IdleConnections,
    AttackKind::HalfSentRequests,
    AttackKind::ManyLeases,
    AttackKind::LargeDeletes,
];

async fn connect(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap()
}

fn everything() -> RangeRequest {
    RangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Returns as many puts and deletes as fit in a request.
fn many_writes() -> TxnRequest {
    let ops = |kind: char| {
        let groups = (0..60).map(|group| {
            let inner = (0..60).map(|number| {
                let key = Bytes::from(format!("{kind}{group:02}{number:03}"));
                let range_end = Bytes::from(format!("{kind}{group:02}{number:03}~"));
                match kind {
                    'p' => op(Request::RequestPut(PutRequest { key, ..Default::default() })),
                    _ => {
                        op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false }))
                    }
                }
            });
            op(Request::RequestTxn(TxnRequest { success: inner.collect(), ..Default::default() }))
        });
        op(Request::RequestTxn(TxnRequest { success: groups.collect(), ..Default::default() }))
    };
    // Never executed, only checked.
    let never = Compare {
        key: "never".into(),
        target_union: Some(compare::TargetUnion::Version(7)),
        ..Default::default()
    };
    TxnRequest { compare: vec![never], success: vec![ops('d'), ops('p')], failure: vec![] }
}

async fn run(attack: AttackKind, url: String) {
    match attack {
        AttackKind::UnreadWatches => {
            let create = WatchCreateRequest {
                key: "/".into(),
                range_end: "0".into(),
                start_revision: 2,
                prev_kv: true,
                ..Default::default()
            };
            let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            let requests =
                tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
            let responses = WatchClient::new(connect(&url).await).watch(requests).await.unwrap();
            std::future::pending::<()>().await;
            drop(responses);
        }
        AttackKind::UnreadLists => loop {
            // Requested, but read only as far as the connection buffers by itself.
            let mut kv = KvClient::new(connect(&url).await).max_decoding_message_size(usize::MAX);
            let _ = tokio::time::timeout(Duration::from_millis(300), kv.range(everything())).await;
        },
        AttackKind::HugeTransactions => {
            let mut kv = KvClient::new(connect(&url).await).max_decoding_message_size(usize::MAX);
            let lists = vec![op(Request::RequestRange(everything())); 100];
            loop {
                let refused = kv.txn(TxnRequest { success: lists.clone(), ..Default::default() }).await;
                assert!(refused.is_err());
            }
        }
        AttackKind::ManyWrites => {
            let mut kv = KvClient::new(connect(&url).await);
            loop {
                kv.txn(many_writes()).await.unwrap();
            }
        }
        AttackKind::IdleConnections => {
            let address = url.strip_prefix("http://").unwrap();
            let mut idle = Vec::new();
            for _ in 0..60 {
                idle.extend(tokio::net::TcpStream::connect(address).await);
            }
            std::future::pending::<()>().await;
            drop(idle);
        }
        AttackKind::HalfSentRequests => {
            let channel = connect(&url).await;
            let part = Bytes::from(vec![0; 1 << 20]);
            let mut begun = JoinSet::new();
            for _ in 0..20 {
                begun.spawn(half_sent(channel.clone(), part.clone()));
            }
            begun.join_next().await;
        }
        AttackKind::ManyLeases => {
            let mut leases = LeaseClient::new(connect(&url).await);
            loop {
                let granted = leases.lease_grant(LeaseGrantRequest { ttl: 3600, id: 0 }).await;
                assert!(
                    granted.map_or_else(|refused| refused.message().contains("too many leases"), |_| true)
                );
            }
        }
        AttackKind::LargeDeletes => {
            let mut kv = KvClient::new(connect(&url).await);
            let delete = DeleteRangeRequest { key: "/".into(), range_end: "0".into(), prev_kv: true };
            loop {
                assert!(kv.delete_range(delete.clone()).await.is_err());
            }
        }
    }
}

/// Announces a put, sends a part of it and waits; repeats this when the server closes the request.
async fn half_sent(mut channel: Channel, part: Bytes) {
    loop {
        let request = http::Request::builder()
            .method("POST")
            .uri("/etcdserverpb.KV/Put")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(StalledRequestBody::new(3 << 19, part.clone())))
            .unwrap();
        std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        channel.call(request).await.unwrap();
    }
}

/// Returns the runtime of the attackers: separate from the honest client, which would otherwise wait for them in its
/// own process, and with the lowest priority, because real attackers would use other machines.
fn attackers_place() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(|| {
            rustix::process::nice(19).unwrap();
        })
        .build()
        .unwrap()
}

#[test]
fn an_honest_client_is_served_under_every_attack() {
    let attackers_place = attackers_place();
    let honest = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    honest.block_on(serve_under_every_attack(attackers_place.handle()));
}

async fn serve_under_every_attack(attackers_place: &Handle) {
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let soak = std::env::var("TORTIE_ATTACK_SECONDS").ok().map(|text| text.parse().unwrap());
    let seconds = soak.unwrap_or(10);
    println!("TORTIE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = TempDir::new().unwrap();
    let server = DatastoreProcess::start(
        env!("CARGO_BIN_EXE_tortie"),
        dir.path(),
        &["http://127.0.0.1:0"],
        &["--keep-history", "0"],
    );
    let (url, pid) = (server.url().to_owned(), server.id());
    let mut honest = KvClient::new(connect(&url).await);
    for number in 0..400 {
        let value = vec![number as u8; 100_000].into();
        let put =
            PutRequest { key: format!("/large/{:03}", number % 300).into(), value, ..Default::default() };
        honest.put(put).await.unwrap();
    }
    let mut order = ATTACKS;
    order.shuffle(&mut rng);
    let mut failures = Vec::new();
    for attack in order {
        let mut attackers = JoinSet::new();
        for _ in 0..30 {
            attackers.spawn_on(run(attack, url.clone()), attackers_place);
        }
        let (mut latencies, mut highest) = (Vec::new(), 0);
        let end = Instant::now() + Duration::from_secs(seconds) / ATTACKS.len() as u32;
        while Instant::now() < end {
            let begin = Instant::now();
            let put = PutRequest { key: "/honest".into(), value: "x".into(), ..Default::default() };
            let revision = honest.put(put).await.unwrap().into_inner().header.unwrap().revision;
            let get = RangeRequest { key: "/honest".into(), ..Default::default() };
            assert_eq!(honest.range(get).await.unwrap().into_inner().kvs[0].mod_revision, revision);
            latencies.push(begin.elapsed() / 2);
            highest = highest.max(resident(pid));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        attackers.abort_all();
        while let Some(ended) = attackers.join_next().await {
            assert!(
                !ended.is_err_and(|error| error.is_panic()),
                "{attack:?}: an attacker was not served as it should be"
            );
        }
        latencies.sort();
        let p99 = latencies[latencies.len() * 99 / 100];
        println!("{attack:?}: {} requests, p99 {p99:?}, resident {} MiB", latencies.len(), highest >> 20);
        if highest > MAX_RESIDENT_BYTES || (soak.is_some() && p99 > MAX_P99_LATENCY) {
            failures.push(attack);
        }
    }
    assert!(failures.is_empty(), "beyond the bounds under {failures:?}");
}
