//! Copies all objects from one API group to the other and compares them.

use futures::TryStreamExt as _;
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use tortie_model::key::AffinityType;
use tortie_model::{API_VERSION, KeyRange, Kind, ObjectMeta, Resource, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreEntry, StoreError, StoreResult};

/// Number of concurrent writes.
const COPY_CONCURRENCY: usize = 10;
const TIER_LABEL: &str = "projectcalico.org/tier";

pub struct ObjectCopy<'a> {
    pub from: &'a StoreClient,
    pub to: &'a StoreClient,
}

/// Kinds in the order in which they are copied: objects that others refer to come first.
const COPIED_KINDS: [Kind; 18] = [
    Kind::Tier,
    Kind::BGPConfiguration,
    Kind::FelixConfiguration,
    Kind::KubeControllersConfiguration,
    Kind::IPPool,
    Kind::IPReservation,
    Kind::BGPFilter,
    Kind::BGPPeer,
    Kind::NetworkPolicy,
    Kind::GlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
    Kind::StagedKubernetesNetworkPolicy,
    Kind::HostEndpoint,
    Kind::NetworkSet,
    Kind::GlobalNetworkSet,
    // IPAM records are copied before this one.
    Kind::CalicoNodeStatus,
    Kind::ClusterInformation,
];

/// Returns the kinds that must be defined in the target group.
pub fn list_required_kinds() -> impl Iterator<Item = Kind> {
    let records = [Kind::IPAMBlock, Kind::BlockAffinity, Kind::IPAMHandle, Kind::IPAMConfiguration];
    COPIED_KINDS.into_iter().chain(records)
}

/// Returns whether a CRD of crd.projectcalico.org is of a kind whose objects are copied.
pub fn is_moved(definition: &str) -> bool {
    let Some(plural) = definition.strip_suffix(".crd.projectcalico.org") else { return false };
    list_required_kinds().any(|kind| match kind {
        // The only kind with a different name in that group.
        Kind::IPAMConfiguration => plural == "ipamconfigs",
        other => plural == other.plural(),
    })
}

/// Returns the ranges to copy, without ClusterInformation, which holds the lock of the datastore.
fn list_copied_ranges() -> Vec<KeyRange> {
    let mut all = Vec::new();
    for kind in COPIED_KINDS {
        if kind == Kind::CalicoNodeStatus {
            all.extend([KeyRange::IpamConfig, KeyRange::Blocks { ip_version: None }]);
            all.extend(
                [AffinityType::Host, AffinityType::Virtual].map(|affinity| KeyRange::BlockAffinities {
                    affinity,
                    owner: None,
                    ip_version: None,
                }),
            );
            all.push(KeyRange::Handles);
        }
        if kind != Kind::ClusterInformation {
            all.push(KeyRange::Written { kind, namespace: None });
        }
    }
    all
}

impl ObjectCopy<'_> {
    /// Returns the objects that exist in both groups with different content.
    pub async fn find_conflicts(&self) -> StoreResult<Vec<String>> {
        let mut found = Vec::new();
        for range in list_copied_ranges() {
            let there = index_by_key(list(self.to, &range).await?);
            for entry in list(self.from, &range).await? {
                let other = there.get(&entry.key);
                if other.is_some_and(|other| {
                    extract_comparable_content(&other.value) != extract_comparable_content(&entry.value)
                }) {
                    found.push(entry.key.to_string());
                }
            }
        }
        Ok(found)
    }

    /// Copies ClusterInformation with `datastoreReady: false`, so that no component uses the target yet.
    pub async fn lock_target(&self) -> StoreResult<()> {
        let key = StoreKey::resource(Kind::ClusterInformation, "", "default");
        let StoreValue::Resource(Resource::ClusterInformation(mut information)) =
            self.from.get(&key).await?.value
        else {
            return Ok(());
        };
        information.spec.datastore_ready = Some(false);
        information.metadata = strip_metadata(&information.metadata);
        let value = StoreValue::Resource(Resource::ClusterInformation(information));
        self.to.apply(&key, &value, None).await.map(drop)
    }

    /// Copies missing objects and returns the number of objects in the source.
    pub async fn copy_objects(&self) -> StoreResult<usize> {
        let mut count = 0;
        for range in list_copied_ranges() {
            let entries = list(self.from, &range).await?;
            count += entries.len();
            // Range by range, so that referenced objects exist before those that refer to them.
            futures::stream::iter(entries.into_iter().map(Ok))
                .try_for_each_concurrent(COPY_CONCURRENCY, |entry: StoreEntry| self.copy_entry(entry))
                .await?;
        }
        Ok(count)
    }

    async fn copy_entry(&self, entry: StoreEntry) -> StoreResult<()> {
        let value = match entry.value {
            StoreValue::Resource(mut resource) => {
                let metadata = strip_metadata(resource.metadata());
                *resource.metadata_mut() = metadata;
                StoreValue::Resource(resource)
            }
            record => record,
        };
        match self.to.create(&entry.key, &value).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Updates owner references: copied objects have new UIDs.
    pub async fn update_owners(&self) -> StoreResult<()> {
        let mut identities = HashMap::new();
        let mut owned = Vec::new();
        for kind in COPIED_KINDS {
            let range = KeyRange::Written { kind, namespace: None };
            let mut there = index_by_key(list(self.to, &range).await?);
            for entry in list(self.from, &range).await? {
                let (StoreValue::Resource(before), Some(copied)) = (entry.value, there.remove(&entry.key))
                else {
                    continue;
                };
                if let StoreValue::Resource(after) = &copied.value {
                    identities.insert(before.metadata().uid.clone(), after.metadata().uid.clone());
                }
                if before.metadata().owner_references.iter().any(|owner| owner.api_version == API_VERSION) {
                    owned.push((before.metadata().owner_references.clone(), copied));
                }
            }
        }
        for (mut owners, copied) in owned {
            for owner in &mut owners {
                if let Some(new) = identities.get(&owner.uid) {
                    owner.uid.clone_from(new);
                }
            }
            let StoreValue::Resource(mut resource) = copied.value else { continue };
            if resource.metadata().owner_references != owners {
                resource.metadata_mut().owner_references = owners;
                self.to.update(&copied.key, &StoreValue::Resource(resource), &copied.revision).await?;
            }
        }
        Ok(())
    }
}

/// Lists a range. Fails on unreadable entries, which would otherwise be lost.
async fn list(client: &StoreClient, range: &KeyRange) -> StoreResult<Vec<StoreEntry>> {
    let mut listing = client.list(range).await?;
    match listing.unreadable.pop() {
        Some(error) => Err(error),
        None => Ok(listing.entries),
    }
}

fn index_by_key(entries: Vec<StoreEntry>) -> HashMap<StoreKey, StoreEntry> {
    entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect()
}

/// Keeps the metadata set by users; the server sets the rest. Owner references of our group are added later, with the
/// new UIDs: Kubernetes would garbage-collect an object whose owner does not exist.
fn strip_metadata(metadata: &ObjectMeta) -> ObjectMeta {
    let foreign = metadata.owner_references.iter().filter(|owner| owner.api_version != API_VERSION);
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        labels: metadata.labels.clone(),
        annotations: metadata.annotations.clone(),
        finalizers: metadata.finalizers.clone(),
        owner_references: foreign.cloned().collect(),
        ..ObjectMeta::default()
    }
}

/// Returns the content that must be equal for two objects to be the same.
fn extract_comparable_content(value: &StoreValue) -> Json {
    match value {
        StoreValue::Resource(resource) => {
            let mut resource = resource.clone();
            // In one group Kubernetes has set the defaults, in the other the writing component.
            resource.set_defaults();
            let mut labels = resource.metadata().labels.clone();
            labels.remove(TIER_LABEL);
            let object = resource.to_value();
            json!({"labels": labels, "annotations": resource.metadata().annotations, "spec": object["spec"]})
        }
        record => json!(String::from_utf8_lossy(&record.encode())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(object: Json) -> StoreValue {
        let mut whole = json!({"apiVersion": API_VERSION, "kind": "GlobalNetworkPolicy", "metadata": {"name": "p"}, "spec": {}});
        json_patch(&mut whole, object);
        StoreValue::Resource(Resource::from_store(Kind::GlobalNetworkPolicy, whole).unwrap())
    }

    fn json_patch(whole: &mut Json, part: Json) {
        for (key, value) in part.as_object().unwrap() {
            whole[key] = value.clone();
        }
    }

    #[test]
    fn server_defaults_are_no_difference() {
        let plain = policy(json!({"spec": {"selector": "all()"}}));
        let filled = policy(json!({"metadata": {"name": "p", "uid": "u", "labels": {TIER_LABEL: "default"}},
            "spec": {"selector": "all()", "tier": "default", "types": ["Ingress"]}}));
        assert_eq!(extract_comparable_content(&plain), extract_comparable_content(&filled));
        let other = policy(json!({"spec": {"selector": "has(a)"}}));
        assert_ne!(extract_comparable_content(&plain), extract_comparable_content(&other));
    }

    #[test]
    fn owners_of_our_group_come_later() {
        let owner = |version: &str| json!({"apiVersion": version, "kind": "K", "name": "n", "uid": "v"});
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "5", "ownerReferences": [owner(API_VERSION), owner("v1")]});
        let bare = strip_metadata(&serde_json::from_value(metadata).unwrap());
        assert_eq!(json!(bare), json!({"name": "a", "ownerReferences": [owner("v1")]}));
    }

    #[test]
    fn everything_is_copied_once() {
        let ranges = list_copied_ranges();
        assert_eq!(ranges.len(), COPIED_KINDS.len() - 1 + 5);
        assert_eq!(ranges.last(), Some(&KeyRange::Written { kind: Kind::CalicoNodeStatus, namespace: None }));
    }
}
