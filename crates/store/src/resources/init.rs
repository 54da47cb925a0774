//! What every cluster has: its ClusterInformation and the built-in tiers.

use super::Resources;
use crate::{Error, Result};
use serde_json::{Map, Value as Json, json};
use std::time::Duration;
use tortie_model::{API_VERSION, Kind, Resource};
use uuid::Uuid;

const NAME: &str = "default";
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Name, order, default action.
pub(super) const BUILT_IN_TIERS: [(&str, f64, &str); 3] = [
    ("kube-admin", 1_000.0, "Pass"),
    ("default", 1_000_000.0, "Deny"),
    ("kube-baseline", 10_000_000.0, "Pass"),
];

impl Resources {
    /// Creates ClusterInformation and the built-in tiers where they are missing. All of it is attempted; the first
    /// error is returned.
    pub async fn ensure_initialized(&self, version: &str, cluster_type: &str) -> Result<()> {
        let mut outcome = self.ensure_cluster_information(version, cluster_type).await;
        for (name, order, action) in BUILT_IN_TIERS {
            let created = self.ensure_tier(name, order, action).await;
            outcome = outcome.and(created);
        }
        outcome
    }

    async fn ensure_cluster_information(&self, version: &str, cluster_type: &str) -> Result<()> {
        loop {
            let written = match self.get(Kind::ClusterInformation, "", NAME).await {
                Ok(current) => match updated(&current, version, cluster_type)? {
                    Some(update) => self.update(update).await,
                    None => return Ok(()),
                },
                Err(Error::DoesNotExist { .. }) => self.create(initial(version, cluster_type)?).await,
                Err(error) => return Err(error),
            };
            match written {
                // Another node was faster: look again at what it wrote.
                Err(Error::AlreadyExists { .. } | Error::Conflict { .. } | Error::DoesNotExist { .. }) => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                other => return other.map(|_| ()),
            }
        }
    }

    async fn ensure_tier(&self, name: &str, order: f64, action: &str) -> Result<()> {
        let tier = object(Kind::Tier, name, json!({"order": order, "defaultAction": action}))?;
        match self.create(tier).await {
            Ok(_) | Err(Error::AlreadyExists { .. } | Error::Unauthorized(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn object(kind: Kind, name: &str, spec: Json) -> Result<Resource> {
    let object =
        json!({"apiVersion": API_VERSION, "kind": kind.name(), "metadata": {"name": name}, "spec": spec});
    Resource::from_store(kind, object).map_err(|error| Error::Datastore(error.to_string()))
}

fn initial(version: &str, cluster_type: &str) -> Result<Resource> {
    let mut spec = json!({"clusterGUID": new_guid(), "datastoreReady": true});
    if let Some(fields) = spec.as_object_mut() {
        set_unless_empty(fields, "calicoVersion", version);
        set_unless_empty(fields, "clusterType", cluster_type);
    }
    object(Kind::ClusterInformation, NAME, spec)
}

fn set_unless_empty(fields: &mut Map<String, Json>, name: &str, value: &str) {
    if !value.is_empty() {
        fields.insert(name.to_owned(), value.into());
    }
}

fn new_guid() -> String {
    Uuid::new_v4().simple().to_string()
}

/// The object with what is missing; `None` when nothing is.
fn updated(current: &Resource, version: &str, cluster_type: &str) -> Result<Option<Resource>> {
    let mut object = current.to_value();
    let Some(spec) = object.get_mut("spec").and_then(Json::as_object_mut) else { return Ok(None) };
    let before = spec.clone();
    let text = |name: &str| before.get(name).and_then(Json::as_str).unwrap_or_default();
    set_unless_empty(spec, "calicoVersion", version);
    if text("clusterGUID").is_empty() {
        spec.insert("clusterGUID".into(), new_guid().into());
    }
    // An explicit false is a lock somebody holds.
    if before.get("datastoreReady").is_none_or(Json::is_null) {
        spec.insert("datastoreReady".into(), true.into());
    }
    set_unless_empty(spec, "clusterType", &with_missing(text("clusterType"), cluster_type));
    if *spec == before {
        return Ok(None);
    }
    let resource = Resource::from_store(Kind::ClusterInformation, object);
    resource.map(Some).map_err(|error| Error::Datastore(error.to_string()))
}

/// The comma separated items with those of `wanted` that are not there yet appended.
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
        let locked = object(
            Kind::ClusterInformation,
            NAME,
            json!({"clusterGUID": "g", "clusterType": "k8s", "calicoVersion": "v3.32.0", "datastoreReady": false}),
        )
        .unwrap();
        assert_eq!(updated(&locked, "", "").unwrap(), None);
        assert_eq!(updated(&locked, "v3.32.0", "k8s").unwrap(), None);
        let changed = updated(&locked, "v3.33.0", "k8s,bgp").unwrap().unwrap().to_value();
        assert_eq!(changed["spec"]["calicoVersion"], "v3.33.0");
        assert_eq!(changed["spec"]["clusterType"], "k8s,bgp");
        assert_eq!(changed["spec"]["datastoreReady"], false);
        let bare = object(Kind::ClusterInformation, NAME, json!({})).unwrap();
        let changed = updated(&bare, "", "").unwrap().unwrap().to_value();
        assert_eq!(changed["spec"]["datastoreReady"], true);
        assert_eq!(changed["spec"]["clusterGUID"].as_str().unwrap().len(), 32);
    }
}
