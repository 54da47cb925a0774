//! Initial objects of a cluster: ClusterInformation and the built-in tiers.

use super::{ResourceClient, metadata, prepared};
use crate::{StoreError, StoreResult};
use std::time::Duration;
use tortie_model::kinds::{
    BUILT_IN_TIERS, BuiltInTier, ClusterInformation, ClusterInformationSpec, Tier, TierSpec,
};
use tortie_model::scalar::CalicoFloat;
use tortie_model::{ObjectMeta, Resource};
use uuid::Uuid;

const CLUSTER_INFORMATION_NAME: &str = "default";
/// Cluster type of clusters with the Kubernetes API as datastore.
const KUBERNETES_CLUSTER_TYPE: &str = "kdd";
const INITIALIZE_RETRY_DELAY: Duration = Duration::from_secs(1);

impl ResourceClient {
    /// Creates ClusterInformation and the built-in tiers if they are missing. Attempts all of them and returns the
    /// first error.
    pub async fn ensure_initialized(&self, version: &str, cluster_type: &str) -> StoreResult<()> {
        let mut cluster_type = cluster_type.to_owned();
        if self.client.capabilities().includes_kubernetes {
            cluster_type = with_missing(&cluster_type, KUBERNETES_CLUSTER_TYPE);
        }
        let mut outcome = self.ensure_cluster_information(version, &cluster_type).await;
        for tier in BUILT_IN_TIERS {
            outcome = outcome.and(self.ensure_tier(tier).await);
        }
        outcome
    }

    async fn ensure_cluster_information(&self, version: &str, cluster_type: &str) -> StoreResult<()> {
        loop {
            let written = match self.get_as::<ClusterInformationSpec>("", CLUSTER_INFORMATION_NAME).await {
                Ok(mut information) => {
                    let before = information.spec.clone();
                    complete(&mut information.spec, version, cluster_type);
                    if information.spec == before {
                        return Ok(());
                    }
                    self.replace(information.into()).await
                }
                Err(StoreError::DoesNotExist { .. }) => {
                    self.insert_new(initial(version, cluster_type).into()).await
                }
                Err(error) => return Err(error),
            };
            match written {
                // Another node was faster: read the object again.
                Err(error) if error.is_lost_race() => tokio::time::sleep(INITIALIZE_RETRY_DELAY).await,
                other => return other.map(|_| ()),
            }
        }
    }

    async fn ensure_tier(&self, tier: BuiltInTier) -> StoreResult<()> {
        let spec = TierSpec { order: Some(CalicoFloat(tier.order)), default_action: tier.default_action };
        let object = Tier::new(build_named(tier.name), spec);
        match self.insert_new(object.into()).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. } | StoreError::Unauthorized(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates an object without the checks against other objects, since these objects come first.
    async fn insert_new(&self, resource: Resource) -> StoreResult<Resource> {
        self.insert(prepared(resource, metadata::check_create)?).await
    }
}

fn build_named(name: &str) -> ObjectMeta {
    ObjectMeta { name: name.to_owned(), ..Default::default() }
}

/// Returns a random ID of 32 hexadecimal digits.
fn new_guid() -> String {
    Uuid::new_v4().simple().to_string()
}

fn initial(version: &str, cluster_type: &str) -> ClusterInformation {
    let spec = ClusterInformationSpec {
        cluster_guid: new_guid(),
        cluster_type: cluster_type.to_owned(),
        calico_version: version.to_owned(),
        datastore_ready: Some(true),
        ..Default::default()
    };
    ClusterInformation::new(build_named(CLUSTER_INFORMATION_NAME), spec)
}

/// Sets only the missing fields.
fn complete(spec: &mut ClusterInformationSpec, version: &str, cluster_type: &str) {
    // Keep the version of another release: its tools compare their own version with it.
    if spec.calico_version.is_empty() {
        spec.calico_version = version.to_owned();
    }
    if spec.cluster_guid.is_empty() {
        spec.cluster_guid = new_guid();
    }
    // An explicit false is a lock that an operator holds.
    spec.datastore_ready.get_or_insert(true);
    spec.cluster_type = with_missing(&spec.cluster_type, cluster_type);
}

/// Appends those items of `wanted` that are missing to a comma-separated list.
fn with_missing(items: &str, wanted: &str) -> String {
    let mut all: Vec<&str> = items.split(',').filter(|item| !item.is_empty()).collect();
    for item in wanted.split(',').filter(|item| !item.is_empty()) {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_appended_once_in_order() {
        assert_eq!(with_missing("k8s,bgp", "bgp,kubeadm,k8s,rancher"), "k8s,bgp,kubeadm,rancher");
        assert_eq!(with_missing("", "k8s"), "k8s");
        assert_eq!(with_missing("k8s", ""), "k8s");
    }

    #[test]
    fn only_what_is_needed_is_changed() {
        let locked = ClusterInformationSpec {
            cluster_guid: "g".into(),
            cluster_type: "k8s".into(),
            calico_version: "v3.32.0".into(),
            datastore_ready: Some(false),
            ..Default::default()
        };
        let completed = |spec: &ClusterInformationSpec, version: &str, cluster_type: &str| {
            let mut spec = spec.clone();
            complete(&mut spec, version, cluster_type);
            spec
        };
        assert_eq!(completed(&locked, "", ""), locked);
        assert_eq!(completed(&locked, "v3.32.0", "k8s"), locked);
        let more = ClusterInformationSpec { cluster_type: "k8s,bgp".into(), ..locked.clone() };
        assert_eq!(completed(&locked, "v3.33.0", "k8s,bgp"), more, "the version stays");
        let unknown = ClusterInformationSpec { calico_version: String::new(), ..locked.clone() };
        assert_eq!(completed(&unknown, "v3.32.0", "k8s"), locked);
        let bare = completed(&ClusterInformationSpec::default(), "", "");
        assert_eq!((bare.datastore_ready, bare.cluster_guid.len()), (Some(true), 32));
    }
}
