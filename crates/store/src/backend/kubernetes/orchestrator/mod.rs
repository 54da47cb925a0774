//! Requests that the daemons send to Kubernetes itself, independent of the datastore: descriptions of pods and
//! namespaces, and conditions and taints of nodes.

mod access;
mod control;
mod migration;
mod registration;
mod serving;

pub use access::{AccessDecision, AccessRequest, KubernetesUser};
pub use control::{DaemonSetRollout, LeaderLease, PodAddressUse, is_too_late};
pub use migration::{DatastoreMigrationObject, DatastoreWorkload, ResourceDefinition};
pub use registration::ApiRegistration;
pub use serving::{KubernetesSecret, WebhookConfiguration};

use super::api::{
    KubernetesApi, MERGE_PATCH_MEDIA_TYPE, ObjectDetail, STRATEGIC_MERGE_PATCH_MEDIA_TYPE, WatchEventStream,
};
use super::core::{CoreMetadata, CoreMetadataObject, CoreNode, CorePod};
use super::failure::KubernetesFailure;
pub use super::service::ServiceEndpoint;
use super::{connection, number_at, pod, profile, service, text_at};
use crate::config::KubernetesTarget;
use crate::{StoreError, StoreLimits, StoreResult};
use futures::StreamExt as _;
use kube::core::WatchEvent;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tortie_model::kinds::{Profile, WorkloadEndpoint};

/// Timeout of a watch: longer than the server keeps one open, so a watch that is silent for this long is dead.
const SINGLE_WATCH_TIMEOUT: Duration = Duration::from_secs(660);
/// Resource version that selects the newest state in the cache of kube-apiserver.
const ANY_RESOURCE_VERSION: &str = "0";

#[derive(Clone, Debug)]
pub struct OrchestratorClient {
    api: KubernetesApi,
    server: ApiServerAddress,
}

/// Address and CA of kube-apiserver, for a kubeconfig that another program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServerAddress {
    pub url: String,
    /// CA certificates in PEM; `None` means the system's trust store.
    pub authority: Option<String>,
    /// The settings disable verification of the server certificate.
    pub is_unchecked: bool,
}

/// A pod as described in Kubernetes.
#[derive(Clone, Debug, PartialEq)]
pub struct PodDescription {
    pub annotations: BTreeMap<String, String>,
    /// Labels, profiles, ports and similar fields, without those that only the CNI plugin knows.
    pub endpoint: WorkloadEndpoint,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceDescription {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub profile: Profile,
}

/// A condition of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCondition<'a> {
    pub kind: &'a str,
    pub status: bool,
    pub reason: &'a str,
    pub message: &'a str,
}

#[derive(Clone, PartialEq, Eq)]
pub struct ServiceAccountToken {
    pub text: String,
    /// Expiry in RFC 3339 format.
    pub expires: String,
}

impl OrchestratorClient {
    pub async fn connect(target: &KubernetesTarget, limits: StoreLimits) -> StoreResult<OrchestratorClient> {
        // If the server has several addresses, report the first.
        let first = target.endpoint.split(',').next().unwrap_or_default().trim().to_owned();
        let config = connection::config(&KubernetesTarget { endpoint: first, ..target.clone() }).await?;
        let server = ApiServerAddress {
            url: config.cluster_url.to_string().trim_end_matches('/').to_owned(),
            authority: authority(&config)?,
            is_unchecked: config.accept_invalid_certs,
        };
        Ok(OrchestratorClient { api: KubernetesApi::connect(target, limits).await?, server })
    }

    pub fn server(&self) -> &ApiServerAddress {
        &self.server
    }

    /// Returns the description of a pod. `interface_prefix` is the prefix of the names of host interfaces.
    pub async fn pod(
        &self,
        namespace: &str,
        name: &str,
        interface_prefix: &str,
    ) -> StoreResult<PodDescription> {
        let id = format!("Pod({namespace}/{name})");
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod: CorePod = read(&id, self.api.get("Pod", &path).await)?;
        let (_, endpoint) = pod::endpoint(&pod, interface_prefix).ok_or_else(|| {
            StoreError::Config(format!("{id} has no endpoint: it uses the host's network or has no node"))
        })?;
        let endpoint = endpoint.map_err(|reason| StoreError::Config(format!("{id}: {reason}")))?;
        Ok(PodDescription { annotations: pod.metadata.annotations, endpoint })
    }

    pub async fn namespace(&self, name: &str) -> StoreResult<NamespaceDescription> {
        let id = format!("Namespace({name})");
        let namespace: CoreMetadataObject =
            read(&id, self.api.get("Namespace", &format!("/api/v1/namespaces/{name}")).await)?;
        let (_, profile) = profile::from_namespace(&namespace);
        let CoreMetadata { labels, annotations, .. } = namespace.metadata;
        Ok(NamespaceDescription { labels, annotations, profile })
    }

    pub async fn service_account(&self, namespace: &str, name: &str) -> StoreResult<Profile> {
        let id = format!("ServiceAccount({namespace}/{name})");
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}");
        let account: CoreMetadataObject = read(&id, self.api.get("ServiceAccount", &path).await)?;
        Ok(profile::from_service_account(&account).1)
    }

    /// Returns the pod CIDRs of a node, one per family.
    pub async fn pod_cidrs(&self, node: &str) -> StoreResult<Vec<String>> {
        let node: CoreNode =
            read(&format!("Node({node})"), self.api.get("Node", &format!("/api/v1/nodes/{node}")).await)?;
        if node.spec.pod_cidrs.is_empty() && !node.spec.pod_cidr.is_empty() {
            return Ok(vec![node.spec.pod_cidr]);
        }
        Ok(node.spec.pod_cidrs)
    }

    /// Returns the ready endpoints of a service that have a port of this name.
    pub async fn service_endpoints(
        &self,
        namespace: &str,
        service: &str,
        port: &str,
    ) -> StoreResult<Vec<ServiceEndpoint>> {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{service}"
        );
        let slices = self.api.get_all("EndpointSlice", &path).await;
        let slices = slices.map_err(|failure| failure.about(format!("Service({namespace}/{service})")))?;
        Ok(service::find_endpoints(&slices, port))
    }

    pub async fn set_condition(
        &self,
        node: &str,
        condition: NodeCondition<'_>,
        now: &str,
    ) -> StoreResult<()> {
        let status = if condition.status { "True" } else { "False" };
        let patch = json!({"status": {"conditions": [{
            "type": condition.kind,
            "status": status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }]}});
        let path = format!("/api/v1/nodes/{node}/status");
        let patched = self.api.patch(&path, STRATEGIC_MERGE_PATCH_MEDIA_TYPE, &patch).await;
        patched.map(drop).map_err(|failure| failure.about(format!("Node({node})")))
    }

    /// Removes a taint from a node, if present. Fails if the node changes concurrently.
    pub async fn remove_taint(&self, node: &str, key: &str) -> StoreResult<()> {
        let id = format!("Node({node})");
        let path = format!("/api/v1/nodes/{node}");
        let object: Json = read(&id, self.api.get("Node", &path).await)?;
        let taints = object.pointer("/spec/taints").and_then(Json::as_array);
        let taints = taints.map(Vec::as_slice).unwrap_or_default();
        let others: Vec<&Json> = taints.iter().filter(|taint| taint["key"] != key).collect();
        if others.len() == taints.len() {
            return Ok(());
        }
        let patch = json!({"metadata": {"resourceVersion": object.pointer("/metadata/resourceVersion")},
            "spec": {"taints": others}});
        let patched = self.api.patch(&path, MERGE_PATCH_MEDIA_TYPE, &patch).await;
        patched.map(drop).map_err(|failure| failure.about(id))
    }

    /// Returns whether a DaemonSet exists and is not being deleted.
    pub async fn daemon_set_stays(&self, namespace: &str, name: &str) -> StoreResult<bool> {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        match self.api.get("DaemonSet", &path).await {
            Ok(object) => Ok(object.pointer("/metadata/deletionTimestamp").is_none()),
            Err(KubernetesFailure::Missing(_)) => Ok(false),
            Err(failure) => Err(failure.about(format!("DaemonSet({namespace}/{name})"))),
        }
    }

    /// Returns when a service account no longer exists. Fails when the watch ends; the caller may then call it again.
    pub async fn service_account_gone(&self, namespace: &str, name: &str) -> StoreResult<()> {
        let id = format!("ServiceAccount({namespace}/{name})");
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let opened = self.api.watch(&path, None, ObjectDetail::Metadata, ANY_RESOURCE_VERSION).await;
        let mut events = opened.map_err(|failure| failure.about(id.clone()))?;
        // It may have been deleted before the watch started.
        match self.api.get("ServiceAccount", &format!("{path}/{name}")).await {
            Ok(_) => {}
            Err(KubernetesFailure::Missing(_)) => return Ok(()),
            Err(failure) => return Err(failure.about(id)),
        }
        loop {
            if let WatchEvent::Deleted(account) = next_event(&mut events, &id).await?
                && account["metadata"]["name"] == name
            {
                return Ok(());
            }
        }
    }

    /// Requests a token of a service account that expires after `seconds`.
    pub async fn token(
        &self,
        namespace: &str,
        account: &str,
        seconds: u64,
    ) -> StoreResult<ServiceAccountToken> {
        let id = format!("ServiceAccount({namespace}/{account})");
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds}});
        let answer = self.api.post(&path, &wanted).await.map_err(|failure| failure.about(id.clone()))?;
        let text = text_at(&answer, "/status/token");
        let expires = text_at(&answer, "/status/expirationTimestamp");
        if text.is_empty() || expires.is_empty() {
            return Err(StoreError::Datastore(format!("the Kubernetes API gave no token for {id}")));
        }
        Ok(ServiceAccountToken { text: text.to_owned(), expires: expires.to_owned() })
    }
}

/// Returns the next event of a watch of `id`. Fails if the watch has ended, reports an error or is silent for too long.
async fn next_event(events: &mut WatchEventStream, id: &str) -> StoreResult<WatchEvent<Json>> {
    match tokio::time::timeout(SINGLE_WATCH_TIMEOUT, events.next()).await {
        Ok(Some(Ok(WatchEvent::Error(status)))) => {
            Err(KubernetesFailure::of_status(&status).about(id.to_owned()))
        }
        Ok(Some(Ok(event))) => Ok(event),
        Ok(Some(Err(failure))) => Err(failure.about(id.to_owned())),
        Ok(None) => Err(watch_failed(id, "has ended")),
        Err(_) => Err(watch_failed(id, "is silent")),
    }
}

fn watch_failed(id: &str, reason: &str) -> StoreError {
    StoreError::Datastore(format!("the watch of {id} {reason}"))
}

fn read<T: DeserializeOwned>(
    id: &str,
    answer: std::result::Result<Json, KubernetesFailure>,
) -> StoreResult<T> {
    let object = answer.map_err(|failure| failure.about(id.to_owned()))?;
    serde_json::from_value(object)
        .map_err(|error| StoreError::Datastore(format!("{id} cannot be read as such an object: {error}")))
}

/// Returns the CA certificates in PEM, whether configured as a file or inline.
fn authority(config: &kube::Config) -> StoreResult<Option<String>> {
    if config.accept_invalid_certs {
        return Ok(None);
    }
    if let Some(file) = &config.root_cert_file {
        let text = std::fs::read_to_string(file).map_err(|error| {
            StoreError::Config(format!(
                "cannot read the authority of the Kubernetes API, {}: {error}",
                file.display()
            ))
        })?;
        return Ok(Some(text));
    }
    let certificates = config.root_cert.as_ref();
    Ok(certificates.map(|certificates| certificates.iter().map(|certificate| pem(certificate)).collect()))
}

fn pem(certificate: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

/// Omits the token.
impl std::fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("expires", &self.expires).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_written_as_others_read_them() {
        let text = pem(&[0xab; 60]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.first(), Some(&"-----BEGIN CERTIFICATE-----"));
        assert_eq!(lines.last(), Some(&"-----END CERTIFICATE-----"));
        assert_eq!((lines.len(), lines[1].len(), lines[2].len()), (4, 64, 16));
    }
}
