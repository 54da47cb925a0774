//! Property test: hubs and clients over a changing store in random interleavings. The generator decides which events
//! each of them has received and when connections end. Only the network is left out.

mod client;
mod hub;
mod store;

use client::SimulatedClient;
use hub::SimulatedHub;
use proptest::prelude::*;
use store::{CLASS_COUNT, KEY_COUNT, SimulatedHubStore};

#[derive(Clone, Debug)]
enum SimulationStep {
    /// Write to the store.
    Write {
        class: usize,
        key: usize,
    },
    Delete {
        class: usize,
        key: usize,
    },
    Spoil {
        class: usize,
        key: usize,
    },
    /// A hub's watch receives the latest changes, or lists again because the history was compacted.
    Fetch {
        hub: usize,
        class: usize,
    },
    List {
        hub: usize,
        class: usize,
    },
    /// The hub applies some of the events that its watch has received.
    Apply {
        hub: usize,
        class: usize,
        events: usize,
    },
    Restart {
        hub: usize,
    },
    Outage {
        hub: usize,
        lost: bool,
    },
    Connect {
        client: usize,
        hub: usize,
    },
    Drop {
        client: usize,
    },
    /// Exchange of frames between a client and its hub.
    Run {
        client: usize,
        frames: usize,
    },
}

const HUB_COUNT: usize = 2;
const CLIENT_COUNT: usize = 3;

fn step() -> impl Strategy<Value = SimulationStep> {
    let class = 0..CLASS_COUNT;
    let key = 0..KEY_COUNT;
    let hub = 0..HUB_COUNT;
    let client = 0..CLIENT_COUNT;
    prop_oneof![
        6 => (class.clone(), key.clone()).prop_map(|(class, key)| SimulationStep::Write { class, key }),
        4 => (class.clone(), key.clone()).prop_map(|(class, key)| SimulationStep::Delete { class, key }),
        1 => (class.clone(), key).prop_map(|(class, key)| SimulationStep::Spoil { class, key }),
        6 => (hub.clone(), class.clone()).prop_map(|(hub, class)| SimulationStep::Fetch { hub, class }),
        2 => (hub.clone(), class.clone()).prop_map(|(hub, class)| SimulationStep::List { hub, class }),
        8 => (hub.clone(), class, 1..6_usize).prop_map(|(hub, class, events)| SimulationStep::Apply { hub, class, events }),
        1 => hub.clone().prop_map(|hub| SimulationStep::Restart { hub }),
        1 => (hub.clone(), any::<bool>()).prop_map(|(hub, lost)| SimulationStep::Outage { hub, lost }),
        3 => (client.clone(), hub).prop_map(|(client, hub)| SimulationStep::Connect { client, hub }),
        1 => client.clone().prop_map(|client| SimulationStep::Drop { client }),
        9 => (client, 1..40_usize).prop_map(|(client, frames)| SimulationStep::Run { client, frames }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn every_client_ends_with_the_content_of_the_store(
        steps in prop::collection::vec(step(), 1..200),
        log in 1..12_usize,
    ) {
        let mut store = SimulatedHubStore::default();
        let mut epochs = 1..;
        let mut hubs: Vec<SimulatedHub> = epochs.by_ref().take(HUB_COUNT).map(|epoch| SimulatedHub::start(epoch, log, &store)).collect();
        let mut clients: Vec<SimulatedClient> = (0..CLIENT_COUNT).map(|_| SimulatedClient::new()).collect();
        for step in steps {
            match step {
                SimulationStep::Write { class, key } => store.write(class, key),
                SimulationStep::Delete { class, key } => store.delete(class, key),
                SimulationStep::Spoil { class, key } => store.write_unreadable(class, key),
                SimulationStep::Fetch { hub, class } => hubs[hub].fetch(class, &store),
                SimulationStep::List { hub, class } => hubs[hub].list(class, &store),
                SimulationStep::Apply { hub, class, events } => hubs[hub].apply(class, events),
                SimulationStep::Restart { hub } => hubs[hub] = SimulatedHub::start(epochs.next().unwrap(), log, &store),
                SimulationStep::Outage { hub, lost } => hubs[hub].outage(lost),
                SimulationStep::Connect { client, hub } => clients[client].connect(hub, &hubs),
                SimulationStep::Drop { client } => clients[client].disconnect(),
                SimulationStep::Run { client, frames } => {
                    for _ in 0..frames {
                        clients[client].run(&hubs, &store)?;
                    }
                }
            }
        }
        for hub in &mut hubs {
            hub.catch_up(&store);
        }
        for client in &mut clients {
            client.settle(&hubs, &store)?;
            prop_assert_eq!(&client.content, &store.versions());
            prop_assert!(client.in_sync);
        }
    }
}
