//! Real etcd and the embedded store must give the same responses to the same requests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod generate;
mod support;

use generate::RequestGenerator;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt::Debug;
use std::time::Duration;
use support::{EmbeddedDatastore, connect, seed};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::lease_client::LeaseClient;
use tortie_etcd_proto::etcdserverpb::range_request::SortTarget;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::response_op::Response as OpResponse;
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::*;
use tortie_etcd_proto::mvccpb::{Event, KeyValue};
use tortie_testkit::Etcd;

/// A response in a comparable form.
type ComparableResponse = Result<String, String>;

fn outcome<T: Debug>(
    result: Result<Response<T>, Status>,
    normalize: impl FnOnce(&mut T),
) -> ComparableResponse {
    match result {
        Ok(response) => {
            let mut response = response.into_inner();
            normalize(&mut response);
            Ok(format!("{response:#?}"))
        }
        Err(status) => Err(format!("{:?}: {}", status.code(), status.message())),
    }
}

fn anonymous(header: &mut Option<ResponseHeader>) {
    if let Some(header) = header {
        (header.cluster_id, header.member_id, header.raft_term) = (0, 0, 0);
    }
}

/// Normalizes the order of equal elements in a sorted response, which is undefined.
fn settle(request: &RangeRequest, kvs: &mut [KeyValue]) {
    match request.sort_target() {
        SortTarget::Key => {}
        // The response may omit the values, so any order is accepted.
        SortTarget::Value if request.keys_only => kvs.sort_by(|a, b| a.key.cmp(&b.key)),
        target => {
            let rank = |kv: &KeyValue| match target {
                SortTarget::Version => (kv.version, Default::default()),
                SortTarget::Create => (kv.create_revision, Default::default()),
                SortTarget::Mod => (kv.mod_revision, Default::default()),
                _ => (0, kv.value.clone()),
            };
            for group in kvs.chunk_by_mut(|a, b| rank(a) == rank(b)) {
                group.sort_by(|a, b| a.key.cmp(&b.key));
            }
        }
    }
}

fn settle_txn(request: &TxnRequest, response: &mut TxnResponse) {
    anonymous(&mut response.header);
    let ops = if response.succeeded { &request.success } else { &request.failure };
    for (op, answer) in ops.iter().zip(&mut response.responses) {
        match (&op.request, &mut answer.response) {
            (Some(Request::RequestRange(range)), Some(OpResponse::ResponseRange(answer))) => {
                settle(range, &mut answer.kvs);
            }
            (Some(Request::RequestTxn(inner)), Some(OpResponse::ResponseTxn(answer))) => {
                settle_txn(inner, answer)
            }
            _ => {}
        }
    }
}

/// One store and its open watches.
struct ComparedStore {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    watch: WatchClient<Channel>,
    watches: Vec<OpenWatch>,
}

struct OpenWatch {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    events: Vec<Event>,
    notes: Vec<String>,
}

impl OpenWatch {
    /// Collects responses until none has arrived for a while.
    async fn drain(&mut self) {
        while let Ok(response) =
            tokio::time::timeout(Duration::from_millis(250), self.responses.message()).await
        {
            let Some(response) = response.unwrap() else { break };
            self.take(response);
        }
    }

    fn take(&mut self, response: WatchResponse) {
        let WatchResponse { watch_id, created, canceled, compact_revision, cancel_reason, events, .. } =
            response;
        if created || canceled {
            self.notes.push(format!("{watch_id} {created} {canceled} {compact_revision} {cancel_reason:?}"));
        }
        self.events.extend(events);
    }
}

impl ComparedStore {
    async fn new(url: &str) -> ComparedStore {
        let channel = connect(url).await;
        ComparedStore {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            watch: WatchClient::new(channel).max_decoding_message_size(usize::MAX),
            watches: Vec::new(),
        }
    }

    async fn open_watch(&mut self, request: &WatchCreateRequest) {
        let (requests, receiver) = mpsc::channel(16);
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(request.clone())) };
        requests.send(create).await.unwrap();
        let responses = self.watch.watch(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let mut watch = OpenWatch { requests, responses, events: Vec::new(), notes: Vec::new() };
        // Wait for the first response, so that a later compaction finds both stores in the same state.
        let first = watch.responses.message().await.unwrap().unwrap();
        watch.take(first);
        watch.drain().await;
        self.watches.push(watch);
    }
}

#[derive(Debug)]
enum DifferentialStep {
    Range(RangeRequest),
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    Grant(LeaseGrantRequest),
    Revoke(LeaseRevokeRequest),
    TimeToLive(LeaseTimeToLiveRequest),
    Leases,
    KeepAlive(LeaseKeepAliveRequest),
    Watch(WatchCreateRequest),
    CancelWatch(usize),
}

impl DifferentialStep {
    fn choose(generator: &mut RequestGenerator) -> DifferentialStep {
        match generator.rng.random_range(0..1000) {
            0..250 => DifferentialStep::Range(generator.range()),
            250..550 => DifferentialStep::Put(generator.put()),
            550..640 => DifferentialStep::Delete(generator.delete()),
            640..880 => DifferentialStep::Txn(generator.txn(2)),
            880..900 => {
                let revision = generator.some_revision();
                DifferentialStep::Compact(CompactionRequest {
                    revision,
                    physical: generator.rng.random_bool(0.5),
                })
            }
            900..930 => {
                let ttl =
                    [-5, 0, 1, 100, 3000, 9_000_000_000, 9_000_000_001][generator.rng.random_range(0..7)];
                // Leases that expire during the test would make it depend on time.
                let ttl = if ttl < 100 && generator.rng.random_bool(0.8) { 1000 } else { ttl };
                match ttl < 100 {
                    true => DifferentialStep::Range(generator.range()),
                    false => DifferentialStep::Grant(LeaseGrantRequest { ttl, id: generator.lease() }),
                }
            }
            930..945 => DifferentialStep::Revoke(LeaseRevokeRequest { id: generator.lease() }),
            945..970 => DifferentialStep::TimeToLive(LeaseTimeToLiveRequest {
                id: generator.lease(),
                keys: generator.rng.random(),
            }),
            970..975 => DifferentialStep::Leases,
            975..985 => DifferentialStep::KeepAlive(LeaseKeepAliveRequest { id: generator.lease() }),
            985..995 => {
                let (key, range_end) = generator.span();
                let past = generator.rng.random_bool(0.6);
                DifferentialStep::Watch(WatchCreateRequest {
                    key,
                    range_end,
                    start_revision: if past { generator.some_revision().max(0) } else { 0 },
                    prev_kv: generator.rng.random(),
                    filters: if generator.rng.random_bool(0.3) {
                        vec![generator.rng.random_range(0..2)]
                    } else {
                        vec![]
                    },
                    watch_id: if generator.rng.random_bool(0.2) { 7 } else { 0 },
                    fragment: generator.rng.random_bool(0.2),
                    progress_notify: generator.rng.random_bool(0.2),
                })
            }
            _ => DifferentialStep::CancelWatch(generator.rng.random_range(0..20)),
        }
    }

    async fn run(&self, side: &mut ComparedStore) -> ComparableResponse {
        match self {
            DifferentialStep::Range(request) => outcome(side.kv.range(request.clone()).await, |r| {
                anonymous(&mut r.header);
                settle(request, &mut r.kvs);
            }),
            DifferentialStep::Put(request) => {
                outcome(side.kv.put(request.clone()).await, |r| anonymous(&mut r.header))
            }
            DifferentialStep::Delete(request) => {
                outcome(side.kv.delete_range(request.clone()).await, |r| anonymous(&mut r.header))
            }
            DifferentialStep::Txn(request) => {
                outcome(side.kv.txn(request.clone()).await, |r| settle_txn(request, r))
            }
            DifferentialStep::Compact(request) => {
                outcome(side.kv.compact(*request).await, |r| anonymous(&mut r.header))
            }
            DifferentialStep::Grant(request) => {
                outcome(side.lease.lease_grant(*request).await, |r| anonymous(&mut r.header))
            }
            DifferentialStep::Revoke(request) => {
                outcome(side.lease.lease_revoke(*request).await, |r| anonymous(&mut r.header))
            }
            DifferentialStep::TimeToLive(request) => {
                outcome(side.lease.lease_time_to_live(*request).await, |r| {
                    anonymous(&mut r.header);
                    r.ttl = r.ttl.min(0);
                    r.keys.sort();
                })
            }
            DifferentialStep::Leases => outcome(side.lease.lease_leases(LeaseLeasesRequest {}).await, |r| {
                anonymous(&mut r.header);
                r.leases.sort_by_key(|lease| lease.id);
            }),
            DifferentialStep::KeepAlive(request) => {
                let mut answers =
                    side.lease.lease_keep_alive(tokio_stream::once(*request)).await.unwrap().into_inner();
                let answer = answers.message().await.map(|answer| Response::new(answer.unwrap()));
                outcome(answer, |r| anonymous(&mut r.header))
            }
            DifferentialStep::Watch(request) => {
                side.open_watch(request).await;
                Ok(String::new())
            }
            DifferentialStep::CancelWatch(number) => {
                if let Some(watch) = side.watches.get_mut(*number) {
                    watch.drain().await;
                    let id = WatchCancelRequest { watch_id: 0 };
                    let cancel = WatchRequest { request_union: Some(RequestUnion::CancelRequest(id)) };
                    watch.requests.send(cancel).await.unwrap();
                    watch.drain().await;
                }
                Ok(String::new())
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_history_gives_the_same_answers() {
    let seed = seed();
    let mut generator = RequestGenerator { rng: StdRng::seed_from_u64(seed), revision: 1 };
    let (etcd, embedded) = (Etcd::start().unwrap(), EmbeddedDatastore::start());
    let (mut real, mut ours) =
        (ComparedStore::new(&etcd.endpoint()).await, ComparedStore::new(&embedded.url).await);
    let steps = std::env::var("TORTIE_STEPS").map_or(3000, |text| text.parse().unwrap());
    for number in 0..steps {
        let step = DifferentialStep::choose(&mut generator);
        let (expected, got) = tokio::join!(step.run(&mut real), step.run(&mut ours));
        assert_eq!(got, expected, "seed {seed}, step {number}: {step:#?}\n(left: ours, right: etcd)");
        let probe = RangeRequest { key: "x".into(), ..Default::default() };
        let header = real.kv.range(probe).await.unwrap().into_inner().header.unwrap();
        generator.revision = header.revision;
    }
    let mut events = 0;
    for (number, (expected, got)) in real.watches.iter_mut().zip(&mut ours.watches).enumerate() {
        // On a busy machine there may be a pause before further events arrive.
        for _ in 0..100 {
            tokio::join!(expected.drain(), got.drain());
            if got.events.len() == expected.events.len() && got.notes == expected.notes {
                break;
            }
        }
        assert_eq!(got.notes, expected.notes, "seed {seed}, watch {number}");
        for (place, (got, expected)) in got.events.iter().zip(&expected.events).enumerate() {
            assert_eq!(got, expected, "seed {seed}, watch {number}, event {place}");
        }
        assert_eq!(got.events.len(), expected.events.len(), "seed {seed}, watch {number}");
        events += got.events.len();
    }
    println!("{steps} steps, {} watches, {events} events", ours.watches.len());
    assert!(events > 0);
}
