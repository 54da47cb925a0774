//! Keeps the allocator's inputs up to date by watches, so that an allocation needs no read for them.

use crate::facts::{self, AllocatorInputs};
use crate::owner::BlockOwner;
use crate::{IpamError, IpamResult};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tortie_model::key::AffinityType;
use tortie_model::{KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreEvent, StoreWatch};

/// Time that a request waits for the first complete snapshot.
const FIRST_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(15);

/// Watches the store until dropped.
#[derive(Debug)]
pub struct InputWatcher {
    facts: watch::Receiver<Option<Arc<AllocatorInputs>>>,
    task: AbortHandle,
}

impl InputWatcher {
    pub fn start(client: &StoreClient, owner: &BlockOwner) -> InputWatcher {
        let (sender, facts) = watch::channel(None);
        let picture = WatchedInputs::new(client, owner);
        InputWatcher { facts, task: tokio::spawn(picture.run(sender)).abort_handle() }
    }

    pub async fn facts(&self) -> IpamResult<Arc<AllocatorInputs>> {
        let mut facts = self.facts.clone();
        let known = tokio::time::timeout(FIRST_SNAPSHOT_TIMEOUT, facts.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(|known| known.ok()?.clone());
        known.ok_or_else(|| {
            let text =
                format!("the pools could not be read from the datastore within {FIRST_SNAPSHOT_TIMEOUT:?}");
            IpamError::Store(tortie_store::StoreError::Datastore(text))
        })
    }
}

impl Drop for InputWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State built from the watch events.
struct WatchedInputs {
    owner: BlockOwner,
    watches: [StoreWatch; 4],
    in_sync: [bool; 4],
    pools: BTreeMap<String, Resource>,
    reservations: BTreeMap<String, Resource>,
    node: Option<Resource>,
    config: Option<tortie_model::ipam::IpamConfig>,
}

impl WatchedInputs {
    fn new(client: &StoreClient, owner: &BlockOwner) -> WatchedInputs {
        let node = KeyRange::Resources { kind: Kind::Node, namespace: None, name_prefix: owner.name.clone() };
        let ranges =
            [KeyRange::all(Kind::IPPool), KeyRange::all(Kind::IPReservation), node, KeyRange::IpamConfig];
        WatchedInputs {
            owner: owner.clone(),
            watches: ranges.map(|range| client.watch(range, None)),
            in_sync: [false; 4],
            pools: BTreeMap::new(),
            reservations: BTreeMap::new(),
            node: None,
            config: None,
        }
    }

    async fn run(mut self, sender: watch::Sender<Option<Arc<AllocatorInputs>>>) {
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
    fn hear(&mut self, source: usize, event: StoreEvent) -> bool {
        match event {
            StoreEvent::InSync(_) => {
                if let Some(synced) = self.in_sync.get_mut(source) {
                    *synced = true;
                }
                true
            }
            StoreEvent::Put(entry) => self.put(entry.key, Some(entry.value)),
            StoreEvent::Delete { key, .. } => self.put(key, None),
            StoreEvent::Unreadable { key, error, .. } => {
                tracing::warn!(%key, %error, "cannot parse an entry; keeping its previous value");
                false
            }
            StoreEvent::Reached(_) | StoreEvent::Reset => false,
        }
    }

    fn put(&mut self, key: StoreKey, value: Option<StoreValue>) -> bool {
        let map = match &key {
            StoreKey::IpamConfig => {
                self.config = value.and_then(|value| match value {
                    StoreValue::IpamConfig(config) => Some(config),
                    _ => None,
                });
                return true;
            }
            StoreKey::Resource { kind: Kind::IPPool, .. } => &mut self.pools,
            StoreKey::Resource { kind: Kind::IPReservation, .. } => &mut self.reservations,
            StoreKey::Resource { kind: Kind::Node, name, .. } if *name == self.owner.name => {
                self.node = value.and_then(resource);
                return true;
            }
            _ => return false,
        };
        let StoreKey::Resource { name, .. } = key else { return false };
        match value.and_then(resource) {
            Some(resource) => map.insert(name, resource),
            None => map.remove(&name),
        };
        true
    }

    fn facts(&self) -> AllocatorInputs {
        let node = self.node.as_ref().filter(|_| self.owner.affinity == AffinityType::Host);
        AllocatorInputs {
            pools: self.pools.values().filter_map(facts::pool).collect(),
            reservations: facts::reservations(self.reservations.values()),
            config: self.config.clone().unwrap_or_default(),
            node_labels: facts::node_labels(&self.owner, node),
        }
    }
}

fn resource(value: StoreValue) -> Option<Resource> {
    match value {
        StoreValue::Resource(resource) => Some(resource),
        _ => None,
    }
}
