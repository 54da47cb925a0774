//! Requests that an aggregated API server sends to Kubernetes: authentication of tokens, authorisation, and the
//! ConfigMap with the CAs to trust.

use super::{OrchestratorClient, read, text_at, watch_failed};
use crate::StoreResult;
use crate::backend::kubernetes::api::ObjectDetail;
use crate::backend::kubernetes::failure::KubernetesFailure;
use futures::StreamExt as _;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A user as authenticated by Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(default)]
pub struct KubernetesUser {
    #[serde(rename = "username")]
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// An action that needs authorisation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessRequest {
    Resource {
        verb: String,
        group: String,
        resource: String,
        subresource: String,
        namespace: String,
        name: String,
    },
    Path {
        verb: String,
        path: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessDecision {
    pub allowed: bool,
    pub reason: String,
}

/// Timeout of a watch: the server sends bookmarks about once a minute, so a watch that is silent for this long is dead.
const CONFIG_MAP_WATCH_TIMEOUT: Duration = Duration::from_secs(200);

impl OrchestratorClient {
    /// Returns the user of a token; `None` if the token is invalid.
    pub async fn review_token(&self, token: &str) -> StoreResult<Option<KubernetesUser>> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let answer = self.api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await;
        let answer: Json = read("TokenReview", answer)?;
        if answer.pointer("/status/authenticated").and_then(Json::as_bool) != Some(true) {
            return Ok(None);
        }
        let user = answer.pointer("/status/user").cloned().unwrap_or_default();
        read("TokenReview", Ok(user)).map(Some)
    }

    /// Checks whether a user is authorised for an action.
    pub async fn review_access(
        &self,
        user: &KubernetesUser,
        wish: &AccessRequest,
    ) -> StoreResult<AccessDecision> {
        let mut spec = json!({"user": user.name, "groups": user.groups});
        if !user.uid.is_empty() {
            spec["uid"] = user.uid.as_str().into();
        }
        if !user.extra.is_empty() {
            spec["extra"] = json!(user.extra);
        }
        match wish {
            AccessRequest::Resource { verb, group, resource, subresource, namespace, name } => {
                spec["resourceAttributes"] = json!({"verb": verb, "group": group, "version": "v3", "resource": resource,
                    "subresource": subresource, "namespace": namespace, "name": name});
            }
            AccessRequest::Path { verb, path } => {
                spec["nonResourceAttributes"] = json!({"verb": verb, "path": path})
            }
        }
        let review =
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let answer = self.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await;
        let answer: Json = read("SubjectAccessReview", answer)?;
        let status = &answer["status"];
        Ok(AccessDecision {
            allowed: status["allowed"] == true && status["denied"] != true,
            reason: text_at(&answer, "/status/reason").to_owned(),
        })
    }

    /// Returns whether a namespace is being deleted. Fails if it does not exist.
    pub async fn namespace_terminates(&self, name: &str) -> StoreResult<bool> {
        let path = format!("/api/v1/namespaces/{name}");
        let object: Json = read(&format!("Namespace({name})"), self.api.get("Namespace", &path).await)?;
        Ok(object.pointer("/metadata/deletionTimestamp").is_some())
    }

    pub async fn config_map(&self, namespace: &str, name: &str) -> StoreResult<BTreeMap<String, String>> {
        let id = format!("ConfigMap({namespace}/{name})");
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
        let object: Json = read(&id, self.api.get("ConfigMap", &path).await)?;
        read(&id, Ok(object.get("data").cloned().unwrap_or_else(|| json!({}))))
    }

    /// Returns when a ConfigMap may have changed. Fails when the watch ends; the caller may then call it again.
    pub async fn config_map_changed(
        &self,
        namespace: &str,
        name: &str,
        data: &BTreeMap<String, String>,
    ) -> StoreResult<()> {
        let id = format!("ConfigMap({namespace}/{name})");
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let opened = self.api.watch_named(&path, name, ObjectDetail::Whole, "").await;
        let mut events = opened.map_err(|failure| failure.about(id.clone()))?;
        // It may have changed before the watch started.
        if self.config_map(namespace, name).await? != *data {
            return Ok(());
        }
        loop {
            match tokio::time::timeout(CONFIG_MAP_WATCH_TIMEOUT, events.next()).await {
                Ok(Some(Ok(WatchEvent::Bookmark(_)))) => {}
                Ok(Some(Ok(WatchEvent::Error(status)))) => {
                    return Err(KubernetesFailure::of_status(&status).about(id));
                }
                Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                    if object.get("data") != Some(&json!(data)) {
                        return Ok(());
                    }
                }
                Ok(Some(Ok(WatchEvent::Deleted(_)))) => return Ok(()),
                Ok(Some(Err(failure))) => return Err(failure.about(id)),
                Ok(None) => return Err(watch_failed(&id, "has ended")),
                Err(_) => return Err(watch_failed(&id, "is silent")),
            }
        }
    }
}
