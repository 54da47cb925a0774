//! A simulated hub whose watches each lag behind the store independently.

use super::store::{CLASSES, Store, range};
use crate::ledger::{Ledger, Limits};
use std::collections::{BTreeMap, VecDeque};
use tortie_model::{FeedEvent, Key, Revision};
use tortie_sync::Heard;

pub struct Hub {
    pub ledger: Ledger,
    watches: [Watch; CLASSES],
    /// Number of watches whose first list has not been applied.
    missing: usize,
}

#[derive(Default)]
struct Watch {
    /// Position in the store's history.
    position: usize,
    known: BTreeMap<Key, u64>,
    queue: VecDeque<Queued>,
}

enum Queued {
    Heard(Box<Heard>),
    Listed,
}

impl Hub {
    pub fn start(epoch: u64, log: usize, store: &Store) -> Hub {
        let ranges: Vec<_> = (0..CLASSES).map(range).collect();
        let limits = Limits { frames: log, ..Limits::default() };
        let mut hub = Hub {
            ledger: Ledger::new(epoch, &ranges, limits),
            watches: Default::default(),
            missing: CLASSES,
        };
        for class in 0..CLASSES {
            hub.list(class, store);
            hub.watches[class].queue.push_back(Queued::Listed);
        }
        hub
    }

    /// Lists a class as the watch of a store does: deletions first, then changed entries.
    pub fn list(&mut self, class: usize, store: &Store) {
        let watch = &mut self.watches[class];
        let now: BTreeMap<Key, &(u64, Heard)> =
            store.listed(class).map(|(key, entry)| (key.clone(), entry)).collect();
        let revision = Revision::from(store.revision);
        let gone: Vec<Key> = watch.known.keys().filter(|key| !now.contains_key(key)).cloned().collect();
        for key in gone {
            watch.known.remove(&key);
            let event = FeedEvent::Delete { key, revision: revision.clone() };
            watch.queue.push_back(Queued::Heard(Box::new(Heard::Event(event))));
        }
        for (key, (written, event)) in now {
            if watch.known.insert(key, *written) != Some(*written) {
                watch.queue.push_back(Queued::Heard(Box::new(event.clone())));
            }
        }
        watch.position = store.history.len();
        let range = range(class);
        watch.queue.push_back(Queued::Heard(Box::new(Heard::Reached { range, revision })));
    }

    pub fn fetch(&mut self, class: usize, store: &Store) {
        let (watch, range) = (&mut self.watches[class], range(class));
        for (revision, key, event) in &store.history[watch.position..] {
            if !range.contains(key) {
                continue;
            }
            match event {
                Heard::Event(FeedEvent::Delete { .. }) => watch.known.remove(key),
                _ => watch.known.insert(key.clone(), *revision),
            };
            watch.queue.push_back(Queued::Heard(Box::new(event.clone())));
        }
        watch.position = store.history.len();
        let revision = Revision::from(store.revision);
        watch.queue.push_back(Queued::Heard(Box::new(Heard::Reached { range, revision })));
    }

    pub fn hear(&mut self, class: usize, words: usize) {
        let queue = &mut self.watches[class].queue;
        let mut heard = Vec::new();
        for word in queue.drain(..words.min(queue.len())) {
            match word {
                Queued::Heard(word) => heard.push(*word),
                Queued::Listed => {
                    self.missing -= 1;
                    if self.missing == 0 {
                        heard.push(Heard::Event(FeedEvent::InSync));
                    }
                }
            }
        }
        self.ledger.hear(heard);
    }

    pub fn outage(&mut self, lost: bool) {
        let event = match lost {
            true => FeedEvent::ConnectionLost { reason: "gone".to_owned() },
            false => FeedEvent::ConnectionBack { failed_attempts: 1 },
        };
        self.ledger.hear([Heard::Event(event)]);
    }

    pub fn catch_up(&mut self, store: &Store) {
        for class in 0..CLASSES {
            self.fetch(class, store);
            self.hear(class, usize::MAX);
        }
        self.outage(false);
    }
}
