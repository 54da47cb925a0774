//! Requests that the controllers send to Kubernetes: leader election, the addresses of pods, the rollout of DaemonSets
//! and the ingress addresses of services.

use super::{OrchestratorClient, number_at, read, text_at};
use crate::backend::kubernetes::api::MERGE_PATCH_MEDIA_TYPE;
use crate::backend::kubernetes::core::CorePod;
use crate::backend::kubernetes::failure::KubernetesFailure;
use crate::{StoreError, StoreResult};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::net::IpAddr;

/// A Lease of coordination.k8s.io/v1: the leader, and how long it leads unless it renews the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderLease {
    pub holder: String,
    pub seconds: u32,
    /// RFC 3339 with microseconds, like `renewed`.
    pub acquired: String,
    pub renewed: String,
    pub transitions: u32,
    /// Resource version at which the lease was read; empty if it does not exist yet.
    pub version: String,
}

/// Node and addresses of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAddressUse {
    pub node: String,
    /// Empty if the pod has no address yet.
    pub addresses: Vec<IpAddr>,
    /// The pod was evicted, and its node has removed its network.
    pub evicted: bool,
}

/// Rollout status of a DaemonSet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaemonSetRollout {
    /// Number of nodes on which it should run.
    pub wanted: u64,
    /// The current version runs on all of these nodes.
    pub is_complete: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawLease {
    metadata: RawLeaseMetadata,
    spec: RawLeaseSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawLeaseMetadata {
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawLeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u32>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<u32>,
}

impl OrchestratorClient {
    /// Fails if kube-apiserver does not respond.
    pub async fn check(&self) -> StoreResult<()> {
        self.api.check().await.map_err(|failure| failure.about("the API server".to_owned()))
    }

    /// Returns the UID of the namespace kube-system, which identifies a cluster.
    pub async fn cluster_uid(&self) -> StoreResult<String> {
        let id = "Namespace(kube-system)";
        let object: Json = read(id, self.api.get("Namespace", "/api/v1/namespaces/kube-system").await)?;
        match text_at(&object, "/metadata/uid") {
            "" => Err(StoreError::Datastore(format!("kube-apiserver reported {id} without a UID"))),
            uid => Ok(uid.to_owned()),
        }
    }

    pub async fn lease(&self, namespace: &str, name: &str) -> StoreResult<Option<LeaderLease>> {
        let id = lease_id(namespace, name);
        match self.api.get("Lease", &format!("{}/{name}", leases(namespace))).await {
            Err(KubernetesFailure::Missing(_)) => Ok(None),
            answer => read(&id, answer).map(LeaderLease::of).map(Some),
        }
    }

    /// Creates the lease, or replaces the version that was read. Fails with a conflict if another client was faster.
    pub async fn write_lease(
        &self,
        namespace: &str,
        name: &str,
        lease: &LeaderLease,
    ) -> StoreResult<LeaderLease> {
        let id = lease_id(namespace, name);
        let mut body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"holderIdentity": lease.holder, "leaseDurationSeconds": lease.seconds, "acquireTime": lease.acquired,
                "renewTime": lease.renewed, "leaseTransitions": lease.transitions}});
        let answer = if lease.version.is_empty() {
            self.api.post(&leases(namespace), &body).await
        } else {
            body["metadata"]["resourceVersion"] = lease.version.as_str().into();
            self.api.put(&format!("{}/{name}", leases(namespace)), &body).await
        };
        read(&id, answer).map(LeaderLease::of)
    }

    /// Returns the current node and addresses of a pod; `None` if the pod does not exist.
    pub async fn pod_hold(&self, namespace: &str, name: &str) -> StoreResult<Option<PodAddressUse>> {
        let id = format!("Pod({namespace}/{name})");
        match self.api.get("Pod", &format!("/api/v1/namespaces/{namespace}/pods/{name}")).await {
            Err(KubernetesFailure::Missing(_)) => Ok(None),
            answer => {
                let pod: CorePod = read(&id, answer)?;
                // Every field has a default, so any object deserialises to a pod without addresses: check the name.
                if pod.metadata.name != name || pod.metadata.namespace != namespace {
                    return Err(StoreError::Datastore(format!("the answer about {id} is not this pod")));
                }
                Ok(Some(PodAddressUse::of(&pod)))
            }
        }
    }

    /// Returns the rollout status of a DaemonSet; `None` if it does not exist.
    pub async fn rollout(&self, namespace: &str, name: &str) -> StoreResult<Option<DaemonSetRollout>> {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        match self.api.get("DaemonSet", &path).await {
            Err(KubernetesFailure::Missing(_)) => Ok(None),
            Ok(object) => Ok(Some(DaemonSetRollout::of(&object))),
            Err(failure) => Err(failure.about(format!("DaemonSet({namespace}/{name})"))),
        }
    }

    /// Sets the load balancer addresses of a service. `uid` makes the patch fail for a later service of the same name.
    pub async fn set_ingress(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        addresses: &[IpAddr],
    ) -> StoreResult<()> {
        let ingress: Vec<Json> =
            addresses.iter().map(|address| json!({ "ip": address.to_string() })).collect();
        let patch = json!({"metadata": {"uid": uid}, "status": {"loadBalancer": {"ingress": ingress}}});
        let service = format!("/api/v1/namespaces/{namespace}/services/{name}");
        let patched = match self.api.patch(&format!("{service}/status"), MERGE_PATCH_MEDIA_TYPE, &patch).await
        {
            Err(KubernetesFailure::Conflict) => Err(self.api.explain_uid_conflict(&service, uid).await),
            patched => patched.map(drop),
        };
        patched.map_err(|failure| failure.about(format!("Service({namespace}/{name})")))
    }
}

impl LeaderLease {
    fn of(raw: RawLease) -> LeaderLease {
        LeaderLease {
            holder: raw.spec.holder_identity.unwrap_or_default(),
            seconds: raw.spec.lease_duration_seconds.unwrap_or_default(),
            acquired: raw.spec.acquire_time.unwrap_or_default(),
            renewed: raw.spec.renew_time.unwrap_or_default(),
            transitions: raw.spec.lease_transitions.unwrap_or_default(),
            version: raw.metadata.resource_version,
        }
    }
}

impl DaemonSetRollout {
    fn of(daemon_set: &Json) -> DaemonSetRollout {
        let wanted = number_at(daemon_set, "/status/desiredNumberScheduled");
        // A status from before the last change of the spec does not describe the current version.
        let seen = number_at(daemon_set, "/status/observedGeneration")
            >= number_at(daemon_set, "/metadata/generation");
        let running = number_at(daemon_set, "/status/updatedNumberScheduled")
            .min(number_at(daemon_set, "/status/numberAvailable"));
        DaemonSetRollout {
            wanted: u64::try_from(wanted).unwrap_or_default(),
            is_complete: seen && running >= wanted,
        }
    }
}

impl PodAddressUse {
    fn of(pod: &CorePod) -> PodAddressUse {
        let several = pod.status.pod_ips.iter().map(|address| &address.ip);
        let texts = several.chain([&pod.status.pod_ip]);
        let mut addresses: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let evicted = pod.status.phase == "Failed" && pod.status.reason == "Evicted";
        PodAddressUse { node: pod.spec.node_name.clone(), addresses, evicted }
    }
}

fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

fn lease_id(namespace: &str, name: &str) -> String {
    format!("Lease({namespace}/{name})")
}

/// Returns whether a write failed because another client has changed or created the object.
pub fn is_too_late(error: &StoreError) -> bool {
    matches!(error, StoreError::Conflict { .. } | StoreError::AlreadyExists { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_daemon_set_has_come() {
        let rollout = |generation: u64, [observed, wanted, updated, available]: [u64; 4]| {
            DaemonSetRollout::of(
                &json!({"metadata": {"generation": generation}, "status": {"observedGeneration": observed,
                "desiredNumberScheduled": wanted, "updatedNumberScheduled": updated, "numberAvailable": available}}),
            )
        };
        assert!(rollout(2, [2, 3, 3, 3]).is_complete);
        assert!(!rollout(3, [2, 3, 3, 3]).is_complete, "it was changed since");
        assert!(!rollout(2, [2, 3, 2, 3]).is_complete && !rollout(2, [2, 3, 3, 2]).is_complete);
        let new = DaemonSetRollout::of(&json!({"metadata": {"generation": 1}}));
        assert_eq!(new, DaemonSetRollout { wanted: 0, is_complete: false });
    }

    #[test]
    fn what_a_pod_holds() {
        let hold = |status: Json| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": status});
            PodAddressUse::of(&serde_json::from_value(pod).unwrap())
        };
        let running = hold(json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}));
        assert_eq!(running.addresses, ["10.0.0.1", "fd00::1"].map(|text| text.parse::<IpAddr>().unwrap()));
        assert_eq!((running.node.as_str(), running.evicted), ("n1", false));
        assert!(hold(json!({"phase": "Failed", "reason": "Evicted"})).evicted);
        assert!(!hold(json!({"phase": "Succeeded"})).evicted);
    }
}
