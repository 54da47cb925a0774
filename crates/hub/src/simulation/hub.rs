//! A simulated hub whose watches each lag behind the store independently.

use super::store::{CLASS_COUNT, SimulatedHubStore, range};
use crate::ledger::{ChangeLogLimits, HubLedger};
use std::collections::{BTreeMap, VecDeque};
use tortie_model::{FeedEvent, Revision, StoreKey};
use tortie_sync::FeedMessage;

pub struct SimulatedHub {
    pub ledger: HubLedger,
    watches: [SimulatedWatch; CLASS_COUNT],
    /// Number of watches whose first list has not been applied.
    missing: usize,
}

#[derive(Default)]
struct SimulatedWatch {
    /// Position in the store's history.
    position: usize,
    known: BTreeMap<StoreKey, u64>,
    queue: VecDeque<QueuedWatchEvent>,
}

enum QueuedWatchEvent {
    Message(Box<FeedMessage>),
    Listed,
}

impl SimulatedHub {
    pub fn start(epoch: u64, log: usize, store: &SimulatedHubStore) -> SimulatedHub {
        let ranges: Vec<_> = (0..CLASS_COUNT).map(range).collect();
        let limits = ChangeLogLimits { frames: log, ..ChangeLogLimits::default() };
        let mut hub = SimulatedHub {
            ledger: HubLedger::new(epoch, &ranges, limits),
            watches: Default::default(),
            missing: CLASS_COUNT,
        };
        for class in 0..CLASS_COUNT {
            hub.list(class, store);
            hub.watches[class].queue.push_back(QueuedWatchEvent::Listed);
        }
        hub
    }

    /// Lists a class as the watch of a store does: deletions first, then changed entries.
    pub fn list(&mut self, class: usize, store: &SimulatedHubStore) {
        let watch = &mut self.watches[class];
        let now: BTreeMap<StoreKey, &(u64, FeedMessage)> =
            store.list_class(class).map(|(key, entry)| (key.clone(), entry)).collect();
        let revision = Revision::from(store.revision);
        let gone: Vec<StoreKey> = watch.known.keys().filter(|key| !now.contains_key(key)).cloned().collect();
        for key in gone {
            watch.known.remove(&key);
            let event = FeedEvent::Delete { key, revision: revision.clone() };
            watch.queue.push_back(QueuedWatchEvent::Message(Box::new(FeedMessage::Event(event))));
        }
        for (key, (written, event)) in now {
            if watch.known.insert(key, *written) != Some(*written) {
                watch.queue.push_back(QueuedWatchEvent::Message(Box::new(event.clone())));
            }
        }
        watch.position = store.history.len();
        let range = range(class);
        watch.queue.push_back(QueuedWatchEvent::Message(Box::new(FeedMessage::Reached { range, revision })));
    }

    pub fn fetch(&mut self, class: usize, store: &SimulatedHubStore) {
        let watch = &mut self.watches[class];
        let range = range(class);
        for (revision, key, event) in &store.history[watch.position..] {
            if !range.contains(key) {
                continue;
            }
            match event {
                FeedMessage::Event(FeedEvent::Delete { .. }) => watch.known.remove(key),
                _ => watch.known.insert(key.clone(), *revision),
            };
            watch.queue.push_back(QueuedWatchEvent::Message(Box::new(event.clone())));
        }
        watch.position = store.history.len();
        let revision = Revision::from(store.revision);
        watch.queue.push_back(QueuedWatchEvent::Message(Box::new(FeedMessage::Reached { range, revision })));
    }

    pub fn apply(&mut self, class: usize, events: usize) {
        let queue = &mut self.watches[class].queue;
        let mut messages = Vec::new();
        for event in queue.drain(..events.min(queue.len())) {
            match event {
                QueuedWatchEvent::Message(message) => messages.push(*message),
                QueuedWatchEvent::Listed => {
                    self.missing -= 1;
                    if self.missing == 0 {
                        messages.push(FeedMessage::Event(FeedEvent::InSync));
                    }
                }
            }
        }
        self.ledger.apply_feed(messages);
    }

    pub fn outage(&mut self, lost: bool) {
        let event = if lost {
            FeedEvent::ConnectionLost { reason: "gone".to_owned() }
        } else {
            FeedEvent::ConnectionBack { failed_attempts: 1 }
        };
        self.ledger.apply_feed([FeedMessage::Event(event)]);
    }

    pub fn catch_up(&mut self, store: &SimulatedHubStore) {
        for class in 0..CLASS_COUNT {
            self.fetch(class, store);
            self.apply(class, usize::MAX);
        }
        self.outage(false);
    }
}
