//! Keeps the allocator's inputs up to date by watches, so that an allocation needs no read for them.

use crate::facts::{self, Facts};
use crate::owner::Owner;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tortie_model::key::AffinityType;
use tortie_model::{Key, KeyRange, Kind, Resource, Value};
use tortie_store::{Client, Event, Watch};

/// Time that a request waits for the first complete snapshot.
const FIRST_PICTURE: Duration = Duration::from_secs(15);

/// Watches the store until dropped.
#[derive(Debug)]
pub struct Follower {
    facts: watch::Receiver<Option<Arc<Facts>>>,
    task: AbortHandle,
}

impl Follower {
    pub fn start(client: &Client, owner: &Owner) -> Follower {
        let (sender, facts) = watch::channel(None);
        let picture = Picture::new(client, owner);
        Follower { facts, task: tokio::spawn(picture.run(sender)).abort_handle() }
    }

    pub async fn facts(&self) -> Result<Arc<Facts>> {
        let mut facts = self.facts.clone();
        let known = tokio::time::timeout(FIRST_PICTURE, facts.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(|known| known.ok()?.clone());
        known.ok_or_else(|| {
            let text = format!("the pools could not be read from the datastore within {FIRST_PICTURE:?}");
            Error::Store(tortie_store::Error::Datastore(text))
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State built from the watch events.
struct Picture {
    owner: Owner,
    watches: [Watch; 4],
    in_sync: [bool; 4],
    pools: BTreeMap<String, Resource>,
    reservations: BTreeMap<String, Resource>,
    node: Option<Resource>,
    config: Option<tortie_model::ipam::IpamConfig>,
}

impl Picture {
    fn new(client: &Client, owner: &Owner) -> Picture {
        let node = KeyRange::Resources { kind: Kind::Node, namespace: None, name_prefix: owner.name.clone() };
        let ranges =
            [KeyRange::all(Kind::IPPool), KeyRange::all(Kind::IPReservation), node, KeyRange::IpamConfig];
        Picture {
            owner: owner.clone(),
            watches: ranges.map(|range| client.watch(range, None)),
            in_sync: [false; 4],
            pools: BTreeMap::new(),
            reservations: BTreeMap::new(),
            node: None,
            config: None,
        }
    }

    async fn run(mut self, sender: watch::Sender<Option<Arc<Facts>>>) {
        loop {
            let [pools, reservations, nodes, config] = &mut self.watches;
            let (source, event) = tokio::select! {
                event = pools.next() => (0, event),
                event = reservations.next() => (1, event),
                event = nodes.next() => (2, event),
                event = config.next() => (3, event),
            };
            let Some(event) = event else { return };
            if self.hear(source, event) && self.in_sync.iter().all(|synced| *synced) {
                sender.send_replace(Some(Arc::new(self.facts())));
            }
        }
    }

    /// Applies an event. Returns whether the facts may have changed.
    fn hear(&mut self, source: usize, event: Event) -> bool {
        match event {
            Event::InSync(_) => {
                if let Some(synced) = self.in_sync.get_mut(source) {
                    *synced = true;
                }
                true
            }
            Event::Put(entry) => self.put(entry.key, Some(entry.value)),
            Event::Delete { key, .. } => self.put(key, None),
            Event::Unreadable { key, error, .. } => {
                tracing::warn!(%key, %error, "cannot parse an entry; keeping its previous value");
                false
            }
            Event::Reached(_) | Event::Reset => false,
        }
    }

    fn put(&mut self, key: Key, value: Option<Value>) -> bool {
        let map = match &key {
            Key::IpamConfig => {
                self.config = value.and_then(|value| match value {
                    Value::IpamConfig(config) => Some(config),
                    _ => None,
                });
                return true;
            }
            Key::Resource { kind: Kind::IPPool, .. } => &mut self.pools,
            Key::Resource { kind: Kind::IPReservation, .. } => &mut self.reservations,
            Key::Resource { kind: Kind::Node, name, .. } if *name == self.owner.name => {
                self.node = value.and_then(resource);
                return true;
            }
            _ => return false,
        };
        let Key::Resource { name, .. } = key else { return false };
        match value.and_then(resource) {
            Some(resource) => map.insert(name, resource),
            None => map.remove(&name),
        };
        true
    }

    fn facts(&self) -> Facts {
        let node = self.node.as_ref().filter(|_| self.owner.affinity == AffinityType::Host);
        Facts {
            pools: self.pools.values().filter_map(facts::pool).collect(),
            reservations: facts::reservations(self.reservations.values()),
            config: self.config.clone().unwrap_or_default(),
            node_labels: facts::node_labels(&self.owner, node),
        }
    }
}

fn resource(value: Value) -> Option<Resource> {
    match value {
        Value::Resource(resource) => Some(resource),
        _ => None,
    }
}
