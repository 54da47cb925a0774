//! Endpoints that the datastore has for this node and that the journal does not know: another program attached them,
//! for example the CNI plugin of Calico before this node took over. The CNI service adopts them.

use crate::journal::{AttachmentJournal, AttachmentRecord};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tortie_model::kinds::WorkloadEndpoint;
use tortie_model::{FeedEvent, Resource, StoreKey, StoreValue};
use tortie_sync::Feed;

/// Capacity of the channel to the engine, in addition to that of the feed.
const OBSERVED_FEED_CAPACITY: usize = 64;
/// Maximum number of endpoints that wait for adoption. A host has some hundred containers; more endpoints than this
/// are a mistake of their author.
const MAX_PENDING_ENDPOINTS: usize = 4096;
/// Orchestrators whose endpoints are attached by CNI.
const CNI_ORCHESTRATORS: [&str; 2] = ["k8s", "cni"];

/// The endpoints that wait for adoption. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct PendingEndpoints(Arc<Mutex<PendingEndpointSet>>);

#[derive(Debug, Default)]
struct PendingEndpointSet {
    endpoints: BTreeMap<StoreKey, WorkloadEndpoint>,
    /// Whether endpoints were left out because of the limit.
    overflowed: bool,
}

impl PendingEndpoints {
    /// Returns the same feed. Endpoints of `node` are compared with the journal before the consumer receives them.
    pub fn observe(&self, mut feed: Feed, journal: Arc<AttachmentJournal>, node: String) -> Feed {
        let (sender, observed) = mpsc::channel(OBSERVED_FEED_CAPACITY);
        let pending = self.clone();
        tokio::spawn(async move {
            while let Some(event) = feed.recv().await {
                pending.note(&event, &node, |record| journal.find(record).is_some());
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        observed
    }

    /// Returns the matching endpoints, in the order of their keys.
    pub fn select(&self, wanted: impl Fn(&WorkloadEndpoint) -> bool) -> Vec<(StoreKey, WorkloadEndpoint)> {
        let all = self.lock();
        let selected = all.endpoints.iter().filter(|(_, endpoint)| wanted(endpoint));
        selected.map(|(key, endpoint)| (key.clone(), endpoint.clone())).collect()
    }

    pub fn remove(&self, key: &StoreKey) {
        self.lock().endpoints.remove(key);
    }

    /// Returns whether there were more endpoints than can be adopted.
    pub fn has_overflowed(&self) -> bool {
        self.lock().overflowed
    }

    fn note(
        &self,
        event: &FeedEvent,
        node: &str,
        is_known: impl Fn(&dyn Fn(&AttachmentRecord) -> bool) -> bool,
    ) {
        match event {
            FeedEvent::Put {
                key, value: StoreValue::Resource(Resource::WorkloadEndpoint(endpoint)), ..
            } => {
                let is_candidate = endpoint.spec.node == node
                    && CNI_ORCHESTRATORS.contains(&endpoint.spec.orchestrator.as_str())
                    // The container id is empty for a pod whose network another plugin created.
                    && !endpoint.spec.container_id.is_empty()
                    // A completed pod, or one without a network so far, has no addresses.
                    && !endpoint.spec.ip_networks.is_empty()
                    && !is_known(&|record: &AttachmentRecord| record.endpoint_key().as_ref() == Some(key));
                let mut pending = self.lock();
                if !is_candidate {
                    pending.endpoints.remove(key);
                } else if pending.endpoints.len() < MAX_PENDING_ENDPOINTS
                    || pending.endpoints.contains_key(key)
                {
                    pending.endpoints.insert(key.clone(), (**endpoint).clone());
                } else {
                    pending.overflowed = true;
                }
            }
            FeedEvent::Delete { key, .. } => self.remove(key),
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, PendingEndpointSet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tortie_model::Kind;

    fn put(number: usize, node: &str, orchestrator: &str, networks: &[&str]) -> FeedEvent {
        let name = format!("{node}-{orchestrator}-c{number}-eth0");
        let key = StoreKey::resource(Kind::WorkloadEndpoint, "default", &name);
        let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"node": node,
            "orchestrator": orchestrator, "containerID": format!("c{number}"), "pod": format!("c{number}"),
            "endpoint": "eth0", "ipNetworks": networks}});
        let value = StoreValue::decode(&key, object.to_string().as_bytes()).unwrap();
        FeedEvent::Put { key, value, revision: 7.into() }
    }

    fn names(pending: &PendingEndpoints) -> Vec<String> {
        pending.select(|_| true).into_iter().map(|(_, endpoint)| endpoint.metadata.name).collect()
    }

    #[test]
    fn only_unknown_local_containers_are_pending() {
        let pending = PendingEndpoints::default();
        let address = ["10.0.0.1/32"];
        for event in [
            put(1, "n1", "cni", &address),
            put(2, "n2", "cni", &address),
            put(3, "n1", "openstack", &address),
            put(4, "n1", "k8s", &[]),
        ] {
            pending.note(&event, "n1", |_| false);
        }
        pending.note(&put(5, "n1", "cni", &address), "n1", |_| true);
        assert_eq!(names(&pending), ["n1-cni-c1-eth0"]);
        // The container now has a record in the journal.
        pending.note(&put(1, "n1", "cni", &address), "n1", |_| true);
        assert!(names(&pending).is_empty());
        pending.note(&put(1, "n1", "cni", &address), "n1", |_| false);
        let key = StoreKey::resource(Kind::WorkloadEndpoint, "default", "n1-cni-c1-eth0");
        pending.note(&FeedEvent::Delete { key, revision: 8.into() }, "n1", |_| false);
        assert!(names(&pending).is_empty());
    }

    #[test]
    fn the_number_of_pending_endpoints_is_bounded() {
        let pending = PendingEndpoints::default();
        for number in 0..=MAX_PENDING_ENDPOINTS {
            assert!(!pending.has_overflowed());
            pending.note(&put(number, "n1", "cni", &["10.0.0.1/32"]), "n1", |_| false);
        }
        assert!(pending.has_overflowed());
        assert_eq!(names(&pending).len(), MAX_PENDING_ENDPOINTS);
    }
}
