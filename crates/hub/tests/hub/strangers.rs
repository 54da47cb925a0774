//! Connections that are not from nodes: other protocols, silent and excess connections cost little and leak nothing.

use crate::world::{HubTestStore, RunningHub, TestNode};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tortie_hub::replica::HubReplica;
use tortie_hub::server::HubServerOptions;
use tortie_testkit::eventually_async;

/// First message of a Calico node to Typha, made with Go's gob encoder from types of the same shape: an Envelope with
/// a MsgClientHello that names v3.31.
const TYPHA_HELLO: &str = include_str!("typha_hello.hex");

fn typha_hello() -> Vec<u8> {
    let digits: Vec<u8> = TYPHA_HELLO.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits for the peer to close the connection and returns whether it did.
async fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(tortie_testkit::CONDITION_TIMEOUT, stream.read_to_end(&mut rest)).await.is_ok()
}

fn active(hub: &RunningHub) -> bool {
    hub.hub.metrics().text().contains("typha_connections_active 0\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_protocols_and_half_handshakes_are_closed() {
    let store = HubTestStore::embedded().await;
    let options = HubServerOptions { handshake: Duration::from_secs(3), ..HubServerOptions::default() };
    let hub = RunningHub::at(&store, "127.0.0.1:0", options).await;
    let typha = typha_hello();
    assert!(typha.windows(14).any(|name| name == b"MsgClientHello"), "it is what it says");
    for first in [
        &typha[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x03abc",
        b"\0\0\0\0",
    ] {
        let mut stream = TcpStream::connect(hub.address).await.unwrap();
        stream.write_all(first).await.unwrap();
        assert!(is_closed(stream).await, "{first:?}");
    }
    let refused = hub.hub.metrics().text();
    assert!(refused.contains("tortie_hub_refused_total{reason=\"protocol\"} 5\n"), "{refused}");
    for half in [&b""[..], b"\0", b"\0\0\0\x20ab"] {
        let mut stream = TcpStream::connect(hub.address).await.unwrap();
        stream.write_all(half).await.unwrap();
        assert!(is_closed(stream).await, "{half:?}");
    }
    let refused = hub.hub.metrics().text();
    assert!(refused.contains("tortie_hub_refused_total{reason=\"handshake\"} 3\n"), "{refused}");
    assert!(active(&hub));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_of_one_source_are_few() {
    let store = HubTestStore::embedded().await;
    let options = HubServerOptions {
        handshakes_per_source: 3,
        handshake: Duration::from_secs(2),
        ..HubServerOptions::default()
    };
    let hub = RunningHub::at(&store, "127.0.0.1:0", options).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(TcpStream::connect(hub.address).await.unwrap());
    }
    eventually_async("the three are there", async || !active(&hub)).await;
    for _ in 0..20 {
        assert!(is_closed(TcpStream::connect(hub.address).await.unwrap()).await);
    }
    let node = TestNode::follow(&[&hub]);
    node.knows(&store).await;
    for stream in held {
        assert!(is_closed(stream).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_come_and_go() {
    let store = HubTestStore::embedded().await;
    store.put("a").await;
    let hub = RunningHub::start(&store).await;
    let node = TestNode::follow(&[&hub]);
    node.knows(&store).await;
    let before = descriptors();
    let typha = typha_hello();
    for _ in 0..100 {
        let mut some = Vec::new();
        for number in 0..100 {
            let Ok(mut stream) = TcpStream::connect(hub.address).await else { continue };
            if number % 2 == 0 {
                let _ = stream.write_all(&typha[..number.min(typha.len())]).await;
            }
            some.push(stream);
        }
    }
    eventually_async("all but the node are gone", async || {
        hub.hub.metrics().text().contains("typha_connections_active 1\n") && descriptors() <= before + 5
    })
    .await;
    store.put("b").await;
    node.knows(&store).await;
    assert!(!node.news().contains(&"lost".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_hub_closes_and_takes_again() {
    let store = HubTestStore::embedded().await;
    let options = HubServerOptions { connections: 2, ..HubServerOptions::default() };
    let hub = RunningHub::at(&store, "127.0.0.1:0", options).await;
    let (one, two) = (TestNode::follow(&[&hub]), TestNode::follow(&[&hub]));
    one.knows(&store).await;
    two.knows(&store).await;
    assert!(is_closed(TcpStream::connect(hub.address).await.unwrap()).await);
    drop(one);
    let three = TestNode::follow(&[&hub]);
    three.knows(&store).await;
    assert_eq!(hub.hub.clients(), 2);
}

/// Connects a client from a loopback address; it sends its hello and reads nothing.
async fn client_at(hub: &RunningHub, source: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(hub.address).await.unwrap();
    stream.write_all(&HubReplica::new("n", vec!["Tier".to_owned()]).hello().frame()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_one_source_leave_room_for_others() {
    let store = HubTestStore::embedded().await;
    let options = HubServerOptions { connections_per_source: 3, ..HubServerOptions::default() };
    let hub = RunningHub::at(&store, "127.0.0.1:0", options).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(client_at(&hub, "127.0.0.2").await);
    }
    eventually_async("the three are served", async || hub.hub.clients() == 3).await;
    for _ in 0..20 {
        assert!(is_closed(client_at(&hub, "127.0.0.2").await).await);
    }
    let refused = hub.hub.metrics().text();
    assert!(refused.contains("tortie_hub_refused_total{reason=\"source\"} 20\n"), "{refused}");
    let node = TestNode::follow(&[&hub]);
    node.knows(&store).await;
    drop(held);
    eventually_async("the three have gone", async || hub.hub.clients() == 1).await;
    let _again = client_at(&hub, "127.0.0.2").await;
    eventually_async("the source is served again", async || hub.hub.clients() == 2).await;
}
