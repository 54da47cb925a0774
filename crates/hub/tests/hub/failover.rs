//! Failover: nodes switch between hubs and receive each change once.

use crate::on_each_store;
use crate::world::{HubTestStore, RunningHub, TestNode};
use std::time::Duration;
use tortie_testkit::eventually_async;

on_each_store! {
    a_node_hears_from_a_hub_what_the_store_says
    a_node_whose_hub_ends_hears_exactly_what_it_missed
    all_hubs_gone_and_back_is_one_outage_and_exactly_what_was_missed
    a_hub_that_drains_hands_its_nodes_over
}

async fn a_node_hears_from_a_hub_what_the_store_says(store: HubTestStore) {
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

async fn a_node_whose_hub_ends_hears_exactly_what_it_missed(store: HubTestStore) {
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

async fn all_hubs_gone_and_back_is_one_outage_and_exactly_what_was_missed(store: HubTestStore) {
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
