//! Clients that do not read: they delay no other client and are disconnected.

use crate::on_each_store;
use crate::world::{HubTestStore, RunningHub, TestNode};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tortie_hub::replica::HubReplica;
use tortie_hub::server::HubServerOptions;
use tortie_testkit::eventually_async;

on_each_store! {
    stalled_clients_delay_nobody_and_are_disconnected
}

/// Connects a client that sends its hello and reads nothing.
async fn connect(hub: &RunningHub) -> TcpStream {
    let mut stream = TcpStream::connect(hub.address).await.unwrap();
    let hello = HubReplica::new("slow", vec!["Tier".to_owned()]).hello().frame();
    stream.write_all(&hello).await.unwrap();
    stream
}

/// Returns text that does not compress.
fn noise(length: usize) -> String {
    (0..length)
        .map(|_| char::from(rand::random_range(b' '..=b'~')))
        .filter(|c| !"\"\\<>&".contains(*c))
        .collect()
}

async fn stalled_clients_delay_nobody_and_are_disconnected(store: HubTestStore) {
    store.put("first").await;
    let options = HubServerOptions { write: Duration::from_secs(5), ..HubServerOptions::default() };
    let hub = RunningHub::at(&store, "127.0.0.1:0", options).await;
    let nodes: Vec<TestNode> = (0..10).map(|_| TestNode::follow(&[&hub])).collect();
    let mut stalled = Vec::new();
    for _ in 0..3 {
        stalled.push(connect(&hub).await);
    }
    let mut crawling = connect(&hub).await;
    let crawl = tokio::spawn(async move {
        while crawling.read_u8().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    eventually_async("all are served", async || hub.hub.clients() == 14).await;
    // More data than the socket buffers hold.
    for round in 0..200 {
        store.put_with(&format!("t{}", round % 20), &noise(100_000)).await;
    }
    for node in &nodes {
        node.knows(&store).await;
    }
    eventually_async("the stalled ones are disconnected", async || hub.hub.clients() == 10).await;
    store.put("after").await;
    for node in &nodes {
        node.knows(&store).await;
        assert!(!node.news().contains(&"lost".to_owned()));
    }
    assert!(
        hub.hub.metrics().text().contains("typha_connections_dropped 4\n"),
        "{}",
        hub.hub.metrics().text()
    );
    crawl.abort();
    drop(stalled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_clients_share_one_budget() {
    const BUDGET: usize = 1 << 20;
    let store = HubTestStore::embedded().await;
    for number in 0..40 {
        store.put_with(&format!("t{number}"), &noise(100_000)).await;
    }
    let options =
        HubServerOptions { buffers: BUDGET, write: Duration::from_secs(600), ..HubServerOptions::default() };
    let hub = RunningHub::at(&store, "127.0.0.1:0", options).await;
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(connect(&hub).await);
    }
    let number = |name: &str| -> usize {
        let text = hub.hub.metrics().text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        line.and_then(|line| line.trim().parse().ok()).unwrap_or_default()
    };
    eventually_async("the slowest make room for the others", async || {
        assert!(number("tortie_hub_buffered_bytes ") <= BUDGET);
        number("tortie_hub_evicted_clients_total ") >= 5
    })
    .await;
    let node = TestNode::follow(&[&hub]);
    node.knows(&store).await;
    drop(stalled);
    eventually_async("what they held is free", async || number("tortie_hub_buffered_bytes ") == 0).await;
    store.put("after").await;
    node.knows(&store).await;
}
