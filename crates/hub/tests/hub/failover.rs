//! Failover: nodes switch between hubs and receive each change once.

use crate::on_each_store;
use crate::world::{HubTestStore, RunningHub, TestNode, ranges, tier};
use std::time::Duration;
use tortie_hub::client::{HubClientOptions, HubLocations, follow};
use tortie_model::{FeedEvent, StoreValue};
use tortie_testkit::eventually_async;

on_each_store! {
    a_node_receives_the_store_from_a_hub
    a_node_receives_missed_changes_after_failover
    an_outage_of_all_hubs_is_reported_once
    a_hub_that_drains_hands_its_nodes_over
    events_equal_those_of_the_store
}

/// A hub forwards the stored bytes: readable and unreadable entries reach the node as if it read the store itself.
async fn events_equal_those_of_the_store(store: HubTestStore) {
    store.put("a").await;
    // Written by another program: fields in another order, whitespace, a field given twice.
    let foreign = br#"{ "spec": {"order": 1, "order": 7}, "metadata": {"name": "b"}, "kind": "Tier" }"#;
    for (name, bytes) in [("b", &foreign[..]), ("c", b"[]"), ("d", b"\xff{"), ("e", b"")] {
        store.client.apply(&tier(name), &StoreValue::Raw(bytes.to_vec()), None).await.unwrap();
    }
    let hub = RunningHub::start(&store).await;
    let options = HubClientOptions::new("n", HubLocations::parse(&hub.address.to_string()).unwrap());
    let mut feeds = [follow(options, ranges()), tortie_sync::follow(&store.client, ranges(), || ())];
    let mut received = [Vec::new(), Vec::new()];
    for (feed, events) in feeds.iter_mut().zip(&mut received) {
        loop {
            match feed.recv().await.unwrap() {
                FeedEvent::InSync => break,
                event => events.push(format!("{event:?}")),
            }
        }
        events.sort();
    }
    let [through_hub, direct] = received;
    assert_eq!(through_hub, direct, "on {}", store.name());
    assert_eq!(direct.iter().filter(|event| event.starts_with("Unreadable")).count(), 3, "{direct:?}");
}

async fn a_node_receives_the_store_from_a_hub(store: HubTestStore) {
    store.put("a").await;
    store.put("b").await;
    let hub = RunningHub::start(&store).await;
    let node = TestNode::follow(&[&hub]);
    node.knows(&store).await;
    assert_eq!(node.news(), ["+a", "+b", "in sync"], "on {}", store.name());
    store.put("a").await;
    store.delete("b").await;
    store.put("c").await;
    node.knows(&store).await;
    assert_eq!(node.news(), ["+a", "+c", "-b"]);
    // Nodes that connect later receive everything, encoded once for all.
    let encoded = hub.hub.metrics().encoded();
    let late: Vec<TestNode> = (0..5).map(|_| TestNode::follow(&[&hub])).collect();
    for node in &late {
        node.knows(&store).await;
    }
    assert!(hub.hub.metrics().encoded() <= encoded + 3, "three buckets at most have anything new");
}

async fn a_node_receives_missed_changes_after_failover(store: HubTestStore) {
    for name in ["a", "b", "c"] {
        store.put(name).await;
    }
    let (one, two) = (RunningHub::start(&store).await, RunningHub::start(&store).await);
    let node = TestNode::follow(&[&one, &two]);
    node.knows(&store).await;
    node.news();
    let (served, other) = if one.hub.clients() == 1 { (one, two) } else { (two, one) };
    assert_eq!(other.hub.clients(), 0);
    drop(served);
    store.put("a").await;
    store.delete("b").await;
    store.put("d").await;
    node.knows(&store).await;
    assert_eq!(node.news(), ["+a", "+d", "-b"]);
    assert_eq!(other.hub.clients(), 1);
}

async fn an_outage_of_all_hubs_is_reported_once(store: HubTestStore) {
    store.put("a").await;
    store.put("b").await;
    let hub = RunningHub::start(&store).await;
    let address = hub.address.to_string();
    let node = TestNode::follow(&[&hub]);
    node.knows(&store).await;
    node.news();
    drop(hub);
    eventually_async("the node says that there is no hub", async || {
        node.received().words.iter().any(|word| word == "lost")
    })
    .await;
    let before = node.received().content.clone();
    for round in 0..3 {
        store.put("a").await;
        store.put(&format!("c{round}")).await;
    }
    store.delete("b").await;
    assert_eq!(node.received().content, before, "what it has heard stands");
    let hub = RunningHub::at(&store, &address, Default::default()).await;
    node.knows(&store).await;
    assert_eq!(node.news(), ["+a", "+c0", "+c1", "+c2", "-b", "back", "lost"]);
    assert_eq!(hub.hub.clients(), 1);
}

async fn a_hub_that_drains_hands_its_nodes_over(store: HubTestStore) {
    store.put("a").await;
    let (one, two) = (RunningHub::start(&store).await, RunningHub::start(&store).await);
    let nodes: Vec<TestNode> = (0..8).map(|_| TestNode::follow(&[&one, &two])).collect();
    for node in &nodes {
        node.knows(&store).await;
        node.news();
    }
    assert_eq!(one.hub.clients() + two.hub.clients(), nodes.len());
    one.hub.drain(Duration::from_millis(200), Duration::from_millis(10)).await;
    eventually_async("all nodes are at the other hub", async || two.hub.clients() == nodes.len()).await;
    store.put("b").await;
    for node in &nodes {
        node.knows(&store).await;
        assert_eq!(node.news(), ["+b"], "nothing is told again, and nothing of an outage");
    }
}
