//! Requests that are started on every stream a client can have, and never completed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use std::time::Duration;
use support::{EmbeddedDatastore, connect};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::{PutRequest, RangeRequest};
use tortie_testkit::{StalledRequestBody, resident};

const MIB: u64 = 1 << 20;
const CONNECTION_COUNT: usize = 8;
const STREAMS_PER_CONNECTION: usize = 40;
const LEGITIMATE_PUT_BYTES: usize = 64 << 10;

/// Announces a put of 1.5 MB, sends 1 MB of it, and waits for the response.
async fn half_sent(mut channel: Channel, megabyte: Bytes) -> Result<String, tonic::transport::Error> {
    let request = http::Request::builder()
        .method("POST")
        .uri("/etcdserverpb.KV/Put")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(StalledRequestBody::new(3 << 19, megabyte)))
        .unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await?;
    let response = channel.call(request).await?;
    let status = Status::from_header_map(response.headers());
    Ok(status.map_or_else(String::new, |status| status.message().to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_make_room_for_others() {
    let embedded = EmbeddedDatastore::start();
    let mut honest = KvClient::new(connect(&embedded.url).await);
    let put = |value: Vec<u8>| PutRequest { key: "/a".into(), value: value.into(), ..Default::default() };
    honest.put(put(vec![1; 1000])).await.unwrap();
    let before = resident(std::process::id());
    let megabyte = Bytes::from(vec![0; MIB as usize]);
    let mut attackers = JoinSet::new();
    for _ in 0..CONNECTION_COUNT {
        let channel = connect(&embedded.url).await;
        for _ in 0..STREAMS_PER_CONNECTION {
            attackers.spawn(half_sent(channel.clone(), megabyte.clone()));
        }
    }
    // All except those that fit are rejected, and no other request is. Some may time out before others need their
    // room.
    let (mut highest, mut made_room) = (0, 0);
    let fit = 32 / 2 + 8;
    for _ in 0..CONNECTION_COUNT * STREAMS_PER_CONNECTION - fit {
        let said = loop {
            tokio::select! {
                ended = attackers.join_next() => break ended.unwrap().unwrap().unwrap(),
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
            highest = highest.max(resident(std::process::id()).saturating_sub(before));
            honest.put(put(vec![2; LEGITIMATE_PUT_BYTES])).await.unwrap();
        };
        match &*said {
            "etcdserver: too many requests are unfinished, this one was given up to make room" => {
                made_room += 1
            }
            other => assert_eq!(other, "etcdserver: request timed out"),
        }
    }
    assert!(made_room > 0, "every request waited until it was overdue");
    let get = RangeRequest { key: "/a".into(), ..Default::default() };
    assert_eq!(honest.range(get).await.unwrap().into_inner().kvs[0].value.len(), LEGITIMATE_PUT_BYTES);
    println!("{} half-sent requests: {} MiB", CONNECTION_COUNT * STREAMS_PER_CONNECTION, highest / MIB);
    assert!(highest < 160 * MIB, "half-sent requests take {} MiB", highest / MIB);
}
